//! A coding sidecar with scripted answers, on a Unix socket or on TCP.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::support::read_request;

/// A request that the sidecar received.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Method and path.
    pub line: String,
    pub token: Option<String>,
    /// The body; null if it is not JSON.
    pub body: Value,
}

/// Both directions of a connection.
pub trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

type Raw = dyn FnOnce(&mut dyn Stream) -> io::Result<()> + Send;

/// An answer of the sidecar.
pub enum Answer {
    Json(u16, Value),
    /// Lines of a command's stream.
    Lines(Vec<Value>),
    /// Arbitrary bytes that the test writes before the connection is closed.
    Raw(Box<Raw>),
}

impl Answer {
    pub fn result(result: Value) -> Self {
        Self::Json(200, json!({ "ok": true, "result": result }))
    }

    pub fn error(status: u16, sentence: &str) -> Self {
        Self::Json(status, json!({ "ok": false, "error": sentence }))
    }

    pub fn raw(write: impl FnOnce(&mut dyn Stream) -> io::Result<()> + Send + 'static) -> Self {
        Self::Raw(Box::new(write))
    }

    /// A command's stream that the test writes.
    pub fn stream(write: impl FnOnce(&mut dyn Stream) -> io::Result<()> + Send + 'static) -> Self {
        Self::raw(move |stream| {
            stream.write_all(STREAM.as_bytes())?;
            write(stream)
        })
    }
}

/// The head of a command's stream that ends with the connection.
const STREAM: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\nconnection: close\r\n\r\n";

type Script = dyn Fn(&Seen) -> Option<Answer> + Send + Sync;

/// The requests that the sidecar received, its open connections and its script.
struct ServerState {
    seen: Mutex<Vec<Seen>>,
    /// Number of open connections.
    open: AtomicUsize,
    script: Box<Script>,
}

/// The address on which the sidecar listens.
enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// A scripted sidecar. If the script returns `None` for a request, the sidecar sends its default
/// answer.
pub struct FakeSidecar {
    at: Address,
    state: Arc<ServerState>,
}

impl FakeSidecar {
    /// Starts a sidecar on a socket at this path, which must not exist.
    pub fn unix(
        path: &Path,
        script: impl Fn(&Seen) -> Option<Answer> + Send + Sync + 'static,
    ) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let state = state(script);
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                let reader = stream.try_clone().unwrap();
                std::thread::spawn(move || serve(reader, stream, &state));
            }
        });
        Self {
            at: Address::Unix(path.to_owned()),
            state,
        }
    }

    /// Starts a sidecar on a port of loopback.
    pub fn tcp(script: impl Fn(&Seen) -> Option<Answer> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = state(script);
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                let reader = stream.try_clone().unwrap();
                std::thread::spawn(move || serve(reader, stream, &state));
            }
        });
        Self {
            at: Address::Tcp(address),
            state,
        }
    }

    /// The sidecar's address, in the form of its settings in `mcp.yaml`.
    pub fn endpoint(&self) -> Value {
        match &self.at {
            Address::Unix(path) => json!({ "socketPath": path }),
            Address::Tcp(address) => {
                json!({ "tcp": { "host": address.ip().to_string(), "port": address.port() } })
            }
        }
    }

    /// Number of open connections.
    pub fn open(&self) -> usize {
        self.state.open.load(Ordering::Relaxed)
    }

    /// All requests so far, oldest first.
    pub fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().clone()
    }

    /// The calls of one operation, without the readiness checks, which have no arguments.
    pub fn of(&self, operation: &str) -> Vec<Seen> {
        let line = format!("POST /{operation}");
        let seen = self.seen().into_iter();
        seen.filter(|one| one.line == line && one.body != json!({}))
            .collect()
    }
}

fn state(script: impl Fn(&Seen) -> Option<Answer> + Send + Sync + 'static) -> Arc<ServerState> {
    Arc::new(ServerState {
        seen: Mutex::default(),
        open: AtomicUsize::new(0),
        script: Box::new(script),
    })
}

/// Serves a connection until it ends.
fn serve<S: Stream + Shutdown>(reader: S, writer: S, state: &ServerState) {
    state.open.fetch_add(1, Ordering::Relaxed);
    answer_all(reader, writer, state);
    state.open.fetch_sub(1, Ordering::Relaxed);
}

fn answer_all<S: Stream + Shutdown>(reader: S, mut writer: S, state: &ServerState) {
    let mut reader = BufReader::new(reader);
    while let Ok(Some(seen)) = read(&mut reader) {
        state.seen.lock().push(seen.clone());
        let answer = (state.script)(&seen).unwrap_or_else(|| default_answer(&seen));
        let written = match answer {
            Answer::Json(status, body) => respond(&mut writer, status, JSON, &body.to_string()),
            Answer::Lines(lines) => {
                let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
                respond(&mut writer, 200, "application/x-ndjson", &body)
            }
            Answer::Raw(write) => {
                let _ = write(&mut writer);
                return writer.shut_down();
            }
        };
        if written.is_err() {
            return;
        }
    }
}

/// Closes a connection for all its handles, the reader's included.
pub trait Shutdown {
    fn shut_down(&self);
}

impl Shutdown for TcpStream {
    fn shut_down(&self) {
        let _ = self.shutdown(std::net::Shutdown::Both);
    }
}

impl Shutdown for UnixStream {
    fn shut_down(&self) {
        let _ = self.shutdown(std::net::Shutdown::Both);
    }
}

const JSON: &str = "application/json";

fn respond(writer: &mut impl Write, status: u16, kind: &str, body: &str) -> io::Result<()> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} Scripted\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
    );
    writer.write_all(&[head.as_bytes(), body.as_bytes()].concat())
}

/// Reads a request; `None` at the end of the connection.
fn read(reader: &mut impl BufRead) -> io::Result<Option<Seen>> {
    let Some(request) = read_request(reader)? else {
        return Ok(None);
    };
    let token = request.field("authorization");
    let token = token.and_then(|token| token.strip_prefix("Bearer "));
    Ok(Some(Seen {
        line: request.line.strip_suffix(" HTTP/1.1").unwrap().to_owned(),
        token: token.map(str::to_owned),
        body: serde_json::from_slice(&request.body).unwrap_or(Value::Null),
    }))
}

/// The default answer to a request, that of a sidecar without a token.
fn default_answer(seen: &Seen) -> Answer {
    match (&*seen.line, &seen.body) {
        ("GET /health", _) => Answer::Json(200, json!({ "ok": true, "version": "0.0.0" })),
        (_, body) if *body == json!({}) => Answer::error(400, "path is missing"),
        ("POST /read", _) => Answer::result(json!({
            "type": "text", "content": "hello\n", "totalLines": 1, "hasMore": false,
        })),
        ("POST /bash", body) => Answer::Lines(vec![
            json!({ "type": "delta", "stream": "stdout", "data": body["command"] }),
            json!({ "type": "done", "exitCode": 0 }),
        ]),
        _ => Answer::error(404, "no such operation"),
    }
}
