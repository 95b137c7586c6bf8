//! Reads HTTP/1.1 requests and responses from a raw stream, without an HTTP library.

use std::io::{self, BufRead, Read};

use serde_json::Value;

/// An HTTP response. Field names are in lower case, `body` has no transfer coding, and trailers
/// are fields named `trailer:NAME`.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub reason: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    /// The first value of a field, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut named = self.headers.iter().filter(|(n, _)| n == name);
        named.next().map(|(_, value)| value.as_str())
    }

    /// Like [`Self::header`], but panics if the field was sent more than once.
    #[track_caller]
    pub fn only(&self, name: &str) -> Option<&str> {
        let count = self.headers.iter().filter(|(n, _)| n == name).count();
        assert!(count < 2, "{name} was sent {count} times");
        self.header(name)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {}: {}", self.status, self.text()))
    }

    /// Asserts that this is a denial: its status, the code in `X-Proxy-Denied` and in the JSON
    /// body, and an error in the body that starts with `sentence`.
    #[track_caller]
    pub fn assert_denied(&self, status: u16, code: &str, sentence: &str) {
        let json = self.json();
        assert_eq!(
            (self.status, self.header("x-proxy-denied"), &json["code"]),
            (status, Some(code), &Value::from(code)),
            "{self:?}"
        );
        assert_eq!(self.header("content-type"), Some("application/json"));
        let error = json["error"].as_str().unwrap();
        assert!(
            !error.is_empty() && error.starts_with(sentence),
            "{error:?}"
        );
    }

    /// Like [`Self::assert_denied`], for a CONNECT: the reason phrase must also equal the error in
    /// the body, since many clients show only the reason phrase.
    #[track_caller]
    pub fn assert_connect_denied(&self, status: u16, code: &str, sentence: &str) {
        self.assert_denied(status, code, sentence);
        assert_eq!(Some(self.reason.as_str()), self.json()["error"].as_str());
    }
}

/// An HTTP/1.1 request. Field names are in lower case.
pub struct RawRequest {
    /// The request line.
    pub line: String,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl RawRequest {
    pub fn method(&self) -> &str {
        self.line.split(' ').next().unwrap_or_default()
    }

    /// The first value of a field, by its name in lower case.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        let (_, value) = fields.find(|(field, _)| field == name)?;
        Some(value)
    }
}

/// Reads one request, and its body if it has a `Content-Length`; `None` if the connection ends
/// before the end of the head.
pub fn read_request(reader: &mut impl BufRead) -> io::Result<Option<RawRequest>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let fields = lines.iter().skip(1).filter_map(|line| line.split_once(':'));
    let mut request = RawRequest {
        line: lines.first().cloned().unwrap_or_default(),
        fields: fields
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect(),
        body: Vec::new(),
    };
    let length = request.field("content-length");
    request.body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    reader.read_exact(&mut request.body)?;
    Ok(Some(request))
}

/// Reads one response and leaves the bytes after it in the stream. The request must not be a HEAD,
/// whose response has no body despite its `Content-Length`.
pub fn read_reply(stream: &mut impl Read) -> io::Result<Reply> {
    let mut reply = read_reply_head(stream)?;
    if reply.status >= 200 && reply.status != 204 && reply.status != 304 {
        reply.body = read_body(&mut reply, stream)?;
    }
    Ok(reply)
}

/// Reads the response to a CONNECT. A 200 has no body: the bytes after its head are the tunnel's.
pub fn read_connect_reply(stream: &mut impl Read) -> io::Result<Reply> {
    let mut reply = read_reply_head(stream)?;
    if reply.status != 200 {
        reply.body = read_body(&mut reply, stream)?;
    }
    Ok(reply)
}

fn read_reply_head(stream: &mut impl Read) -> io::Result<Reply> {
    let head = read_head(stream)?;
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("{what}: {head:?}"));
    let mut lines = head.split("\r\n");
    let mut status_line = lines.next().unwrap_or_default().splitn(3, ' ');
    let status = status_line.nth(1).and_then(|text| text.parse().ok());
    let status = status.ok_or_else(|| bad("no status"))?;
    let reason = status_line.next().unwrap_or_default().to_owned();
    let mut headers = Vec::new();
    for line in lines.filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').ok_or_else(|| bad("no colon"))?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    Ok(Reply {
        status,
        reason,
        headers,
        body: Vec::new(),
    })
}

fn read_head(stream: &mut impl Read) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn read_body(reply: &mut Reply, stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    if let Some(length) = reply.header("content-length") {
        let length = length.parse().map_err(io::Error::other)?;
        stream.take(length).read_to_end(&mut body)?;
    } else if reply.header("transfer-encoding") == Some("chunked") {
        while let size @ 1.. = read_chunk_size(stream)? {
            stream.take(size).read_to_end(&mut body)?;
            read_line(stream)?;
        }
        read_trailers(reply, stream)?;
    } else {
        stream.read_to_end(&mut body)?;
    }
    Ok(body)
}

fn read_chunk_size(stream: &mut impl Read) -> io::Result<u64> {
    u64::from_str_radix(&read_line(stream)?, 16).map_err(io::Error::other)
}

/// Reads the trailers and adds each to the fields, as `trailer:NAME`.
fn read_trailers(reply: &mut Reply, stream: &mut impl Read) -> io::Result<()> {
    loop {
        let line = read_line(stream)?;
        let Some((name, value)) = line.split_once(':') else {
            return Ok(());
        };
        let name = format!("trailer:{}", name.to_ascii_lowercase());
        reply.headers.push((name, value.trim().to_owned()));
    }
}

fn read_line(stream: &mut impl Read) -> io::Result<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    line.truncate(line.len() - 2);
    Ok(String::from_utf8_lossy(&line).into_owned())
}
