//! The origin's responses, by the path of the request.

use std::convert::Infallible;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::cgi;
use super::github;
use super::origin::{Seen, Shared};

pub type Body = UnsyncBoxBody<Bytes, Infallible>;

const CHUNK: usize = 64 * 1024;

/// Delay before each event of a script's list.
pub const PACE: Duration = Duration::from_millis(100);

/// Bytes of a request body that routes and scripts get; further bytes are only counted. Git and Git
/// LFS get the whole body.
const KEPT: usize = 1 << 20;

/// The `Sec-WebSocket-Accept` for the `Sec-WebSocket-Key` of the example in RFC 6455, section 1.3.
const WEBSOCKET_ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

pub async fn respond(
    origin: Arc<Shared>,
    connection: usize,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let seen = record(&origin, connection, &request);
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    if segments[0] == "early" {
        return Ok(text(StatusCode::OK, "early"));
    }
    if segments[0] == "websocket" {
        return Ok(websocket(Request::from_parts(parts, body)));
    }
    if path.contains("/info/lfs/") || segments[0] == "lfs-store" {
        let body = collect(body, &seen, usize::MAX).await.unwrap_or_default();
        // Without `block_in_place`, a long batch would delay the responses to other connections.
        let respond = || origin.large_files.respond(&parts, &body);
        return Ok(tokio::task::block_in_place(respond));
    }
    if is_git(&path) {
        return Ok(match collect(body, &seen, usize::MAX).await {
            Some(body) => cgi::git(origin.repositories.path(), &parts, body).await,
            None => text(StatusCode::BAD_REQUEST, "the body broke off"),
        });
    }
    let body = collect(body, &seen, KEPT).await;
    let body = body.unwrap_or_default();
    if let Some(script) = &origin.script
        && let Some((status, json)) = script(&seen, &lossy(&body))
    {
        let status = status.try_into().unwrap();
        if let Value::String(events) = json {
            return Ok(with_header(
                text(status, &events),
                "content-type",
                "text/event-stream",
            ));
        }
        if let Value::Array(events) = json {
            return Ok(one_by_one(events));
        }
        let response = text(status, &json.to_string());
        return Ok(with_header(response, "content-type", "application/json"));
    }
    Ok(match segments.as_slice() {
        ["echo", ..] => echo(&seen, &body),
        ["bytes", count] => sized(count.parse().unwrap(), &seen),
        ["chunked", count] => Response::new(zeros(count.parse().unwrap(), &seen)),
        ["events", count, every] => events(count.parse().unwrap(), every.parse().unwrap()),
        ["graphql"] => github::graphql(&body),
        ["grpc", ..] => grpc(body),
        ["slow", millis] => {
            tokio::time::sleep(Duration::from_millis(millis.parse().unwrap())).await;
            text(StatusCode::OK, "slow")
        }
        ["status", code] => text(code.parse().unwrap(), "as asked"),
        ["alt-svc"] => with_header(
            text(StatusCode::OK, "here"),
            "alt-svc",
            "h3=\":443\"; ma=86400",
        ),
        ["zen"] => text(
            StatusCode::OK,
            "Half measures are as bad as nothing at all.",
        ),
        ["v1", "models"] => text(StatusCode::OK, "{\"data\":[]}"),
        ["reflect", how] => reflect(how, &parts.headers),
        _ => match file(&origin.files.path().join(path.trim_start_matches('/'))) {
            // Over HTTP/2, hyper would send the body of a response to HEAD, so HEAD gets a 405.
            Some(_) if parts.method == Method::HEAD => text(StatusCode::METHOD_NOT_ALLOWED, ""),
            Some(response) => response,
            None => text(StatusCode::NOT_FOUND, "no such route"),
        },
    })
}

fn file(path: &Path) -> Option<Response<Body>> {
    if path.is_dir() {
        let page = std::fs::read(path.join("index.html")).ok()?;
        return Some(with_header(
            Response::new(full(page)),
            "content-type",
            "text/html",
        ));
    }
    Some(Response::new(full(std::fs::read(path).ok()?)))
}

fn one_by_one(events: Vec<Value>) -> Response<Body> {
    let events = stream::unfold(events.into_iter(), |mut left| async move {
        let event = left.next()?;
        tokio::time::sleep(PACE).await;
        let event = Bytes::from(event.as_str().unwrap().to_owned());
        Some((Ok(Frame::data(event)), left))
    });
    with_header(
        Response::new(StreamBody::new(events).boxed_unsync()),
        "content-type",
        "text/event-stream",
    )
}

fn record(origin: &Shared, connection: usize, request: &Request<Incoming>) -> Seen {
    let headers = request.headers();
    let host = headers.get("host").map(|value| lossy(value.as_bytes()));
    let authority = request.uri().authority().map(ToString::to_string);
    let seen = Seen {
        method: request.method().to_string(),
        target: request.uri().path_and_query().unwrap().to_string(),
        authority: authority.or(host).unwrap_or_default(),
        version: format!("{:?}", request.version()),
        headers: headers
            .iter()
            .map(|(name, value)| (name.to_string(), lossy(value.as_bytes())))
            .collect(),
        connection,
        received: Arc::default(),
        sent: Arc::default(),
        trailers: Arc::default(),
    };
    origin.seen.lock().push(seen.clone());
    seen
}

/// Whether a path belongs to a git repository: below `NAME.git`, or a service of smart HTTP.
fn is_git(path: &str) -> bool {
    let services = ["/info/refs", "/git-upload-pack", "/git-receive-pack"];
    path.contains(".git/") || services.iter().any(|service| path.ends_with(service))
}

/// Reads a body to its end and returns its first `most` bytes; `None` if reading failed.
async fn collect(mut body: Incoming, seen: &Seen, most: usize) -> Option<Bytes> {
    let mut kept = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.ok()?;
        if let Some(data) = frame.data_ref() {
            seen.received.fetch_add(data.len() as u64, Ordering::AcqRel);
            let room = most.saturating_sub(kept.len()).min(data.len());
            kept.extend_from_slice(&data[..room]);
        }
        if let Some(trailers) = frame.trailers_ref() {
            let names = trailers.keys().map(ToString::to_string);
            seen.trailers.lock().extend(names);
        }
    }
    Some(kept.freeze())
}

fn echo(seen: &Seen, body: &[u8]) -> Response<Body> {
    let said = json!({
        "method": seen.method, "target": seen.target, "authority": seen.authority,
        "version": seen.version, "headers": seen.headers, "connection": seen.connection,
        "received": seen.received(), "body": lossy(body),
    });
    let response = text(StatusCode::OK, &said.to_string());
    with_header(response, "content-type", "application/json")
}

fn sized(count: usize, seen: &Seen) -> Response<Body> {
    with_header(
        Response::new(zeros(count, seen)),
        "content-length",
        &count.to_string(),
    )
}

fn zeros(count: usize, seen: &Seen) -> Body {
    static BLOCK: [u8; CHUNK] = [0; CHUNK];
    let sent = Arc::clone(&seen.sent);
    let blocks = stream::unfold((count, sent), |(left, sent)| async move {
        let size = left.min(CHUNK);
        let block = Bytes::from_static(&BLOCK).slice(..size);
        sent.fetch_add(size as u64, Ordering::AcqRel);
        (size > 0).then(|| (Ok(Frame::data(block)), (left - size, sent)))
    });
    StreamBody::new(blocks).boxed_unsync()
}

/// Sends `count` events, with `every` milliseconds before each. An event's data is the time at
/// which it was sent, in microseconds since the Unix epoch.
fn events(count: usize, every: u64) -> Response<Body> {
    let events = stream::unfold(0, move |sent| async move {
        if sent == count {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(every)).await;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let event = format!("data: {}\n\n", now.as_micros());
        Some((Ok(Frame::data(Bytes::from(event))), sent + 1))
    });
    with_header(
        Response::new(StreamBody::new(events).boxed_unsync()),
        "content-type",
        "text/event-stream",
    )
}

fn grpc(body: Bytes) -> Response<Body> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    trailers.insert("grpc-message", HeaderValue::from_static("fine"));
    let frames = [Ok(Frame::data(body)), Ok(Frame::trailers(trailers))];
    let body = StreamBody::new(stream::iter(frames)).boxed_unsync();
    with_header(Response::new(body), "content-type", "application/grpc")
}

/// Responds with 101 and then echoes every byte, without interpreting WebSocket frames.
fn websocket(request: Request<Incoming>) -> Response<Body> {
    tokio::spawn(async move {
        let Ok(upgraded) = hyper::upgrade::on(request).await else {
            return;
        };
        let mut stream = TokioIo::new(upgraded);
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            if stream.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
    });
    let mut response = text(StatusCode::SWITCHING_PROTOCOLS, "");
    for (name, value) in [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-accept", WEBSOCKET_ACCEPT),
    ] {
        response = with_header(response, name, value);
    }
    response
}

/// Echoes the credential that arrived in `X-Api-Key` or `Authorization`. `how` names the encoding
/// of the echo or the part of the response that has the echo, or is `split` for a body in pieces of
/// 3 bytes. For any other value, the echo is in the plain body.
fn reflect(how: &str, headers: &HeaderMap) -> Response<Body> {
    let secret = ["x-api-key", "authorization"]
        .iter()
        .find_map(|name| headers.get(*name))
        .map(|value| lossy(value.as_bytes()))
        .unwrap_or_default();
    let body = format!("before {secret} after");
    match how {
        "header" => with_header(text(StatusCode::OK, "see above"), "x-echo", &secret),
        "base64" => text(StatusCode::OK, &STANDARD.encode(&body)),
        "shifted-base64" => text(StatusCode::OK, &STANDARD.encode(format!("x{body}"))),
        "url" => text(StatusCode::OK, &percent_encode(&body)),
        "gzip" => {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(body.as_bytes()).unwrap();
            encoded("gzip", gzip.finish().unwrap())
        }
        "deflate" => {
            let fast = flate2::Compression::fast();
            let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), fast);
            zlib.write_all(body.as_bytes()).unwrap();
            encoded("deflate", zlib.finish().unwrap())
        }
        "br" => encoded("br", stored_brotli(body.as_bytes())),
        "zstd" => encoded("zstd", stored_zstd(body.as_bytes())),
        "split" => {
            let pieces: Vec<Bytes> = body
                .as_bytes()
                .chunks(3)
                .map(Bytes::copy_from_slice)
                .collect();
            let pieces = stream::unfold(pieces.into_iter(), |mut left| async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                let piece = left.next()?;
                Some((Ok(Frame::data(piece)), left))
            });
            Response::new(StreamBody::new(pieces).boxed_unsync())
        }
        "trailer" => with_trailers(&secret, Some("see below")),
        "short-trailer" => with_header(with_trailers(&secret, Some("ok")), "content-length", "2"),
        "lone-trailer" => with_trailers(&secret, None),
        "204-trailer" | "304-trailer" => {
            let mut response = with_trailers(&secret, None);
            *response.status_mut() = how[..3].parse().unwrap();
            response
        }
        _ => text(StatusCode::OK, &body),
    }
}

fn with_trailers(secret: &str, data: Option<&'static str>) -> Response<Body> {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-echo", HeaderValue::from_str(secret).unwrap());
    let data = data.map(|data| Frame::data(Bytes::from_static(data.as_bytes())));
    let frames: Vec<_> = data
        .into_iter()
        .chain([Frame::trailers(trailers)])
        .collect();
    let body = StreamBody::new(stream::iter(frames.into_iter().map(Ok))).boxed_unsync();
    with_header(Response::new(body), "trailer", "x-echo")
}

fn encoded(how: &str, body: Vec<u8>) -> Response<Body> {
    with_header(Response::new(full(body)), "content-encoding", how)
}

/// A brotli stream of one stored meta-block and an empty last one (RFC 7932, section 9.2).
fn stored_brotli(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len() - 1).unwrap();
    let mut stream = (length << 4 | 1 << 20).to_le_bytes()[..3].to_vec();
    stream.extend(bytes);
    stream.push(3);
    stream
}

/// A zstd frame of one raw block (RFC 8878, section 3.1.1), with its content size in one byte.
fn stored_zstd(bytes: &[u8]) -> Vec<u8> {
    let size = u8::try_from(bytes.len()).unwrap();
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x20, size];
    frame.extend_from_slice(&(u32::from(size) << 3 | 1).to_le_bytes()[..3]);
    frame.extend(bytes);
    frame
}

fn percent_encode(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

pub(super) fn text(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(full(text.as_bytes().to_vec()));
    *response.status_mut() = status;
    response
}

pub(super) fn full(bytes: Vec<u8>) -> Body {
    Full::new(Bytes::from(bytes)).boxed_unsync()
}

pub(super) fn with_header(
    mut response: Response<Body>,
    name: &'static str,
    value: &str,
) -> Response<Body> {
    let value = HeaderValue::from_str(value).unwrap();
    let name = HeaderName::from_static(name);
    response.headers_mut().insert(name, value);
    response
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
