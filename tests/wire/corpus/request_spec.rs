//! Requests of the corpus, and the ingresses on which they are denied.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

/// Source address of a request, unless [`RequestSpec::from`] sets another.
pub const SOURCE: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// The kind of exchange in which a client gets a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ingress {
    /// HTTP/1.1 in absolute form.
    Plain,
    Connect,
    /// HTTP/1.1 inside a tunnel.
    Http1,
    /// HTTP/2 inside a tunnel.
    Http2,
    /// The opening of a WebSocket, over HTTP/1.1.
    WebSocket,
    /// A push while `push_denials` is `report`.
    PushReport,
    /// A push while `push_denials` is `status`.
    PushStatus,
    /// git's first request to a repository, `GET …/info/refs`.
    InfoRefs,
    /// The TLS handshake inside a tunnel, or other bytes in its place.
    Tls,
    DnsUdp,
    DnsTcp,
    /// DNS over HTTP (RFC 8484), on a container's Unix socket.
    DnsHttp,
}

impl Ingress {
    pub const ALL: [Self; 12] = [
        Self::Plain,
        Self::Connect,
        Self::Http1,
        Self::Http2,
        Self::WebSocket,
        Self::PushReport,
        Self::PushStatus,
        Self::InfoRefs,
        Self::Tls,
        Self::DnsUdp,
        Self::DnsTcp,
        Self::DnsHttp,
    ];

    /// The ingress of a recorded file, by the prefix of the file's name; `None` if no ingress has
    /// this prefix.
    pub fn of_file(file: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|ingress| {
            let rest = file.strip_prefix(ingress.name());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        })
    }

    /// The prefix of the names of this ingress's recorded files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Connect => "connect",
            Self::Http1 => "http1",
            Self::Http2 => "http2",
            Self::WebSocket => "websocket",
            Self::PushReport => "push-report",
            Self::PushStatus => "push-status",
            Self::InfoRefs => "info-refs",
            Self::Tls => "tls",
            Self::DnsUdp => "dns-udp",
            Self::DnsTcp => "dns-tcp",
            Self::DnsHttp => "dns-http",
        }
    }
}

/// The protocol over which a request reaches the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Plain,
    Connect,
    Http1,
    Http2,
}

#[derive(Clone, Debug)]
pub struct RequestSpec {
    pub from: Ipv4Addr,
    pub protocol: Protocol,
    pub host: String,
    /// `None` for the default port of the scheme.
    pub port: Option<u16>,
    pub method: &'static str,
    pub path: String,
    /// Value of `Host` or `:authority`; `None` for the authority of the URL.
    pub authority: Option<&'static str>,
    pub fields: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// `Content-Length` of a body that is sent only in part; `None` for a complete body.
    pub announced: Option<usize>,
}

impl RequestSpec {
    fn new(protocol: Protocol, host: &str) -> Self {
        Self {
            from: SOURCE,
            protocol,
            host: host.to_owned(),
            port: None,
            method: "GET",
            path: "/echo".to_owned(),
            authority: None,
            fields: Vec::new(),
            body: Vec::new(),
            announced: None,
        }
    }

    /// A GET to `NAME-plain.example.com`, in clear text and absolute form.
    pub fn plain(name: &str) -> Self {
        Self::new(Protocol::Plain, &format!("{name}-plain.example.com"))
    }

    /// A CONNECT to port 443 of `NAME.example.com`.
    pub fn connect(name: &str) -> Self {
        Self::new(Protocol::Connect, &format!("{name}.example.com"))
    }

    /// A GET to `NAME.example.com` over HTTP/1.1 in a tunnel.
    pub fn http1(name: &str) -> Self {
        Self::new(Protocol::Http1, &format!("{name}.example.com"))
    }

    /// A GET to `NAME.example.com` over HTTP/2 in a tunnel.
    pub fn http2(name: &str) -> Self {
        Self::new(Protocol::Http2, &format!("{name}.example.com"))
    }

    pub fn from(mut self, from: Ipv4Addr) -> Self {
        self.from = from;
        self
    }

    pub fn host(mut self, host: &str) -> Self {
        self.host = host.to_owned();
        self
    }

    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    pub fn method(mut self, method: &'static str) -> Self {
        self.method = method;
        self
    }

    pub fn path(mut self, path: &str) -> Self {
        self.path = path.to_owned();
        self
    }

    pub fn authority(mut self, authority: &'static str) -> Self {
        self.authority = Some(authority);
        self
    }

    pub fn field(mut self, name: &'static str, value: &str) -> Self {
        self.fields.push((name, value.to_owned()));
        self
    }

    /// Turns the request into a POST of `body` to `path`.
    pub fn post(mut self, path: &str, body: impl Into<Vec<u8>>) -> Self {
        self.method = "POST";
        self.body = body.into();
        self.path(path)
    }

    /// Sets a `Content-Length` that exceeds the bytes sent.
    pub fn announcing(mut self, bytes: usize) -> Self {
        self.announced = Some(bytes);
        self
    }

    /// Turns the request into the opening of a WebSocket.
    pub fn websocket(self) -> Self {
        self.path("/websocket")
            .field("connection", "upgrade")
            .field("upgrade", "websocket")
            .field("sec-websocket-version", "13")
            .field("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
    }

    /// Turns the request into git's first request of a fetch from `acme/web`.
    pub fn info_refs(self) -> Self {
        self.path("/acme/web.git/info/refs?service=git-upload-pack")
            .field("user-agent", "git/2.47.3")
    }

    /// Turns the request into a push of `main` to `acme/web`.
    pub fn push(self) -> Self {
        self.push_of(&creation("refs/heads/main"))
    }

    /// Turns the request into a push of these commands to `acme/web`.
    pub fn push_of(self, commands: &str) -> Self {
        self.post("/acme/web.git/git-receive-pack", commands)
            .field("content-type", "application/x-git-receive-pack-request")
    }

    /// `HOST` or `HOST:PORT`, as in the URL.
    pub fn destination(&self) -> String {
        match self.port {
            Some(port) => format!("{}:{port}", self.host),
            None => self.host.clone(),
        }
    }

    /// `HOST:PORT` of the tunnel.
    pub fn tunnel(&self) -> String {
        format!("{}:{}", self.host, self.port.unwrap_or(443))
    }

    /// Head and body of the request in HTTP/1.1. For a request in a tunnel, this is the inner
    /// request.
    pub fn bytes(&self) -> Vec<u8> {
        let (target, named) = match self.protocol {
            Protocol::Connect => (self.tunnel(), self.tunnel()),
            Protocol::Plain => {
                let url = format!("http://{}{}", self.destination(), self.path);
                (url, self.destination())
            }
            Protocol::Http1 | Protocol::Http2 => (self.path.clone(), self.destination()),
        };
        let method = match self.protocol {
            Protocol::Connect => "CONNECT",
            _ => self.method,
        };
        let named = self.authority.unwrap_or(&named);
        let mut head = format!("{method} {target} HTTP/1.1\r\nhost: {named}\r\n");
        for (name, value) in &self.fields {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        if let Some(length) = self.length() {
            let _ = write!(head, "content-length: {length}\r\n");
        }
        [head.as_bytes(), b"\r\n", &self.body].concat()
    }

    /// The `Content-Length`, if there is a body.
    pub fn length(&self) -> Option<usize> {
        let has_body = !self.body.is_empty() || self.announced.is_some();
        has_body.then(|| self.announced.unwrap_or(self.body.len()))
    }

    /// The transcript of the request.
    pub fn shown(&self) -> String {
        let mut shown = String::new();
        if matches!(self.protocol, Protocol::Http1 | Protocol::Http2) {
            let _ = writeln!(shown, "in a tunnel to {}", self.tunnel());
        }
        let _ = writeln!(shown, "from {}", self.from);
        let bytes = match self.protocol {
            Protocol::Http2 => {
                let text = String::from_utf8_lossy(&self.bytes()).into_owned();
                text.replacen("HTTP/1.1", "HTTP/2", 1).into_bytes()
            }
            _ => self.bytes(),
        };
        for line in readable(&bytes).lines() {
            let _ = writeln!(shown, "> {line}");
        }
        shown
    }
}

/// Capabilities of git that decide the form of the response to a denied push.
const CAPABILITIES: &str = "report-status side-band-64k";

/// A command that creates a ref, and the flush packet that ends the list.
pub fn creation(name: &str) -> String {
    let zero = "0".repeat(40);
    command(&format!("{zero} {} {name}", "1".repeat(40)), CAPABILITIES)
}

/// A command that deletes a ref, and the flush packet that ends the list.
pub fn deletion(name: &str) -> String {
    deletion_by(name, CAPABILITIES)
}

/// Like [`deletion`], by a client with these capabilities.
pub fn deletion_by(name: &str, capabilities: &str) -> String {
    let zero = "0".repeat(40);
    command(&format!("{} {zero} {name}", "1".repeat(40)), capabilities)
}

fn command(line: &str, capabilities: &str) -> String {
    let line = format!("{line}\0 {capabilities}");
    format!("{:04x}{line}0000", line.len() + 4)
}

/// The first 1,500 bytes as text, with control characters and invalid UTF-8 escaped, and without
/// carriage returns. The total number of bytes follows if there are more.
pub fn readable(bytes: &[u8]) -> String {
    const MOST: usize = 1500;
    let shown = bytes.get(..MOST).unwrap_or(bytes);
    let mut text = String::new();
    for chunk in shown.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => text.push('\n'),
                '\r' => {}
                c if c.is_control() => text.extend(c.escape_default()),
                c => text.push(c),
            }
        }
        let _ = write!(text, "{}", chunk.invalid().escape_ascii());
    }
    if bytes.len() > MOST {
        let _ = write!(text, "\n[{} bytes in all]", bytes.len());
    }
    text
}
