//! The real binary in a temporary folder, and a client that sends raw HTTP.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Longer than any step of a test takes on a busy machine.
pub const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// The program, without the settings that the environment of the tests may have.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coding-sidecar"));
    for name in [
        "SOCKET_PATH",
        "SOCKET_MODE",
        "WORKSPACE_ROOT",
        "TCP_HOST",
        "TCP_PORT",
        "SIDECAR_AUTH_TOKEN",
        "SIDECAR_REQUIRE_AUTH",
        "SIDECAR_ALLOW_OUTSIDE_WORKSPACE_ROOT",
    ] {
        command.env_remove(name);
    }
    command
}

/// A running sidecar, which is killed on drop.
pub struct Sidecar {
    pub folder: TempDir,
    pub child: Child,
    pub tcp: Option<SocketAddr>,
    log: mpsc::Receiver<String>,
}

impl Sidecar {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a sidecar with these variables, and with a socket and a root in a fresh folder. Waits
    /// until the sidecar listens.
    pub fn with(variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("root")).unwrap();
        Self::in_folder(folder, variables)
    }

    pub fn in_folder(folder: TempDir, variables: &[(&str, &str)]) -> Self {
        let child = program()
            .env("SOCKET_PATH", folder.path().join("s.sock"))
            .env("WORKSPACE_ROOT", folder.path().join("root"))
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self::adopt(folder, child, variables)
    }

    /// Takes over a process that was started with the socket `s.sock` in `folder` and with standard
    /// error piped, and waits until it listens.
    pub fn adopt(folder: TempDir, mut child: Child, variables: &[(&str, &str)]) -> Self {
        let (lines, log) = mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = lines.send(line);
            }
        });
        let mut sidecar = Self {
            folder,
            child,
            tcp: None,
            log,
        };
        let socket = sidecar.socket().display().to_string();
        sidecar.expect_line(&format!("listening at {socket}"));
        if variables.iter().any(|(name, _)| *name == "TCP_PORT") {
            let line = sidecar.expect_line("listening at ");
            let (_, address) = line.rsplit_once(' ').unwrap();
            sidecar.tcp = Some(address.parse().unwrap());
        }
        sidecar
    }

    /// Waits for the next line of the log that contains `part`; skips other lines.
    #[track_caller]
    pub fn expect_line(&self, part: &str) -> String {
        let deadline = Instant::now() + STEP_TIMEOUT;
        let mut seen = Vec::new();
        while let Ok(line) = self.log.recv_timeout(deadline - Instant::now()) {
            if line.contains(part) {
                return line;
            }
            seen.push(line);
        }
        panic!("no line with {part:?} in {seen:?}");
    }

    /// The lines that were logged since the last call, until none arrives for 200 ms.
    pub fn log(&self) -> Vec<String> {
        let mut lines = Vec::new();
        while let Ok(line) = self.log.recv_timeout(Duration::from_millis(200)) {
            lines.push(line);
        }
        lines
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("s.sock")
    }

    pub fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    pub fn connect(&self) -> Client {
        Client::new(UnixStream::connect(self.socket()).unwrap())
    }

    pub fn connect_tcp(&self) -> Client {
        Client::new(TcpStream::connect(self.tcp.unwrap()).unwrap())
    }

    /// Sends one request on a new connection.
    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.connect().post(path, body)
    }

    /// Runs a command to its end.
    pub fn bash(&self, command: &str) -> Run {
        self.bash_request(&serde_json::json!({ "command": command }))
    }

    pub fn bash_request(&self, request: &Value) -> Run {
        let response = self.post("/bash", request);
        assert_eq!(response.status, 200, "{response:?}");
        Run::new(&response.body)
    }

    /// Asserts that a request on a new connection is served.
    #[track_caller]
    pub fn assert_serves(&self) {
        let mut client = self.connect();
        client.send("GET /health HTTP/1.1\r\nhost: s\r\n\r\n");
        assert_eq!(client.response().status, 200);
    }

    /// A field of `/proc/PID/status` in KiB.
    pub fn memory(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_ascii_whitespace()
            .nth(1)
            .unwrap()
            .parse()
            .unwrap()
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        signal(&self.child.id().to_string(), name);
    }

    /// Waits for the end of the process.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        let mut status = None;
        until("the sidecar ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn signal(pid: &str, name: &str) {
    let sent = Command::new("kill").args(["-s", name, pid]).status();
    assert!(sent.unwrap().success());
}

/// Runs the program with settings that it refuses, and returns its output.
pub fn refused(variables: &[(&str, &str)]) -> Output {
    program().envs(variables.iter().copied()).output().unwrap()
}

/// Waits until `done` is true.
#[track_caller]
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + STEP_TIMEOUT;
    while !done() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The processes whose command line contains `mark`, including shells and supervisors.
pub fn processes(mark: &str) -> Vec<u32> {
    let ids = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let id = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let line = fs::read(format!("/proc/{id}/cmdline")).ok()?;
        String::from_utf8_lossy(&line).contains(mark).then_some(id)
    });
    ids.collect()
}

/// A number of seconds for `sleep` that no other test uses, so that `processes` finds only the
/// processes of this test.
pub fn unique_sleep() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{}.{next:03}", 10_000_000 + std::process::id())
}

pub trait Socket: Read + Write + Send {
    fn set_timeouts(&self, timeout: Duration) -> io::Result<()>;
    fn end_sending(&self) -> io::Result<()>;
}

impl Socket for UnixStream {
    fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }

    fn end_sending(&self) -> io::Result<()> {
        self.shutdown(std::net::Shutdown::Write)
    }
}

impl Socket for TcpStream {
    fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }

    fn end_sending(&self) -> io::Result<()> {
        self.shutdown(std::net::Shutdown::Write)
    }
}

/// One connection.
pub struct Client {
    pub socket: BufReader<Box<dyn Socket>>,
}

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Response {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

impl Client {
    fn new(socket: impl Socket + 'static) -> Self {
        socket.set_timeouts(STEP_TIMEOUT).unwrap();
        Self {
            socket: BufReader::new(Box::new(socket)),
        }
    }

    pub fn send(&mut self, text: &str) {
        self.socket.get_mut().write_all(text.as_bytes()).unwrap();
    }

    pub fn request(&mut self, path: &str, headers: &str, body: &str) {
        self.send(&format!(
            "POST {path} HTTP/1.1\r\nhost: s\r\n{headers}content-length: {}\r\n\r\n{body}",
            body.len()
        ));
    }

    pub fn post(&mut self, path: &str, body: &Value) -> Response {
        self.request(path, "", &body.to_string());
        self.response()
    }

    /// Begins a command and reads the head of its response.
    pub fn begin(&mut self, command: &str) {
        let body = serde_json::json!({ "command": command }).to_string();
        self.request("/bash", "", &body);
        let head = self.head();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }

    pub fn head(&mut self) -> String {
        self.try_head().unwrap()
    }

    pub fn try_head(&mut self) -> io::Result<String> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.socket.read_line(&mut head)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(head)
    }

    /// The next chunk of a body; empty at its end.
    pub fn chunk(&mut self) -> io::Result<Vec<u8>> {
        let mut size = String::new();
        self.socket.read_line(&mut size)?;
        let size = usize::from_str_radix(size.trim(), 16)
            .map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        let mut chunk = vec![0; size + 2];
        self.socket.read_exact(&mut chunk)?;
        chunk.truncate(size);
        Ok(chunk)
    }

    pub fn response(&mut self) -> Response {
        let head = self.head();
        let mut response = Response {
            status: head[9..12].parse().unwrap(),
            body: Vec::new(),
            head,
        };
        if let Some(length) = response.header("content-length") {
            response.body = vec![0; length.parse().unwrap()];
            self.socket.read_exact(&mut response.body).unwrap();
        } else {
            while let chunk = self.chunk().unwrap()
                && !chunk.is_empty()
            {
                response.body.extend(chunk);
            }
        }
        response
    }
}

/// The response to `/bash`: the output of the command, and the last line.
#[derive(Debug)]
pub struct Run {
    pub stdout: String,
    pub stderr: String,
    pub last: Value,
}

impl Run {
    #[track_caller]
    fn new(body: &[u8]) -> Self {
        let mut run = Self {
            stdout: String::new(),
            stderr: String::new(),
            last: Value::Null,
        };
        for line in body
            .strip_suffix(b"\n")
            .unwrap()
            .split(|byte| *byte == b'\n')
        {
            assert_eq!(run.last, Value::Null, "another line follows");
            let line: Value = serde_json::from_slice(line).unwrap();
            let data = line["data"].as_str().unwrap_or_default();
            match (line["type"].as_str(), line["stream"].as_str()) {
                (Some("delta"), Some("stdout")) => run.stdout.push_str(data),
                (Some("delta"), Some("stderr")) => run.stderr.push_str(data),
                (Some("done" | "error"), None) => run.last = line,
                _ => panic!("{line}"),
            }
        }
        run
    }
}

/// Runs a command on the sidecar that listens at `socket`.
pub fn bash_at(socket: &std::path::Path, command: &str) -> Run {
    let mut client = Client::new(UnixStream::connect(socket).unwrap());
    let response = client.post("/bash", &serde_json::json!({ "command": command }));
    assert_eq!(response.status, 200, "{response:?}");
    Run::new(&response.body)
}
