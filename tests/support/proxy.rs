//! Runs the real binary with a configuration and state in a temporary directory.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::exchange::{Reply, read_reply};
use super::ports::free_address;
use super::{Origin, SOON, eventually, expires_in};

/// The container that is registered at 127.0.0.1 unless a test changes [`Setup::containers`].
pub const SANDBOX: &str = "sandbox";

const STARTUP: Duration = Duration::from_secs(20);

/// The configuration, as values (JSON is YAML) that a test changes before the start.
pub struct Setup {
    /// Address of the proxy listener.
    pub address: SocketAddr,
    /// Address of the DNS listener.
    pub dns: SocketAddr,
    pub proxy: Value,
    pub allowlist: Value,
    pub policy: Option<Value>,
    pub credentials: Value,
    /// Address and id of each container that is registered at the start.
    pub containers: Vec<(String, String)>,
    pub env: Vec<(String, String)>,
    /// Limit on the proxy's open file descriptors; `None` keeps the test's limit.
    pub open_files: Option<u32>,
    dir: TempDir,
}

impl Setup {
    /// A configuration for most tests: some names of example.com have the origin as static address
    /// and are allowed, the origin's CA is trusted, 127.0.0.0/8 may be dialled, and no nameserver
    /// answers.
    pub fn new(origin: &Origin) -> Self {
        let dir = TempDir::new().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        std::fs::create_dir(path("config")).unwrap();
        std::fs::write(path("upstream-ca.pem"), &origin.ca_pem).unwrap();
        let https = origin.https.to_string();
        let (address, dns) = (free_address(), free_address());
        let proxy = json!({
            "version": 1,
            "listen": {
                "proxy": [address.to_string()],
                "dns": [dns.to_string()],
                "mcp": [],
                "admin": path("api.sock"),
            },
            "data_dir": path("data"),
            "certs_dir": path("certs"),
            "shutdown_timeout": "2s",
            "tls": { "upstream_ca": path("upstream-ca.pem") },
            "upstream": {
                "nameservers": ["127.0.0.1:9"],
                "allow_private": ["127.0.0.0/8"],
                "hosts": {
                    "api.example.com": https,
                    "git.example.com": https,
                    "other.example.com": https,
                    "wrong-name.example.com": https,
                    "expired.example.com": https,
                    "self-signed.example.com": https,
                    "plain.example.com": origin.http.to_string(),
                },
            },
            "logging": { "level": "info", "format": "text" },
        });
        let names = proxy["upstream"]["hosts"].as_object().unwrap().keys();
        let domains: Vec<&String> = names.collect();
        Self {
            address,
            dns,
            allowlist: json!({ "version": 1, "domains": domains }),
            proxy,
            policy: None,
            credentials: json!({ "version": 1, "credentials": [] }),
            containers: vec![("127.0.0.1".into(), SANDBOX.into())],
            env: Vec::new(),
            open_files: None,
            dir,
        }
    }

    /// Adds an allowlist entry: a name, or an entry with its options.
    pub fn allow(&mut self, entry: impl Into<Value>) {
        let domains = self.allowlist["domains"].as_array_mut().unwrap();
        domains.push(entry.into());
    }

    /// Adds a static address for a name, and allows the name.
    pub fn host(&mut self, name: &str, address: impl ToString) {
        self.proxy["upstream"]["hosts"][name] = address.to_string().into();
        self.allow(name);
    }

    /// Adds an entry of `credentials.yaml`.
    pub fn credential(&mut self, entry: Value) {
        let credentials = self.credentials["credentials"].as_array_mut().unwrap();
        credentials.push(entry);
    }

    /// Directory of the configuration, state, certificates and log.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Writes the configuration files.
    pub fn write(&self) {
        let config = self.dir.path().join("config");
        let mut files = vec![
            ("proxy.yaml", &self.proxy),
            ("allowlist.yaml", &self.allowlist),
            ("credentials.yaml", &self.credentials),
        ];
        files.extend(self.policy.as_ref().map(|policy| ("policy.yaml", policy)));
        for (name, value) in files {
            let text = serde_json::to_string_pretty(value).unwrap();
            std::fs::write(config.join(name), text).unwrap();
        }
    }

    /// Runs `unified-proxy COMMAND --config DIR` until it ends, for `check` and for starts that
    /// must fail. Returns the exit code and the output.
    pub fn run(&self, command: &str) -> (i32, String) {
        let output = binary(&self.env)
            .arg(command)
            .arg("--config")
            .arg(self.dir.path().join("config"))
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        (output.status.code().unwrap(), format!("{stdout}{stderr}"))
    }

    /// Starts the proxy, waits until it is healthy, and registers the containers.
    pub fn start(self) -> Proxy {
        self.write();
        let mut proxy = Proxy {
            address: self.address,
            dns: self.dns,
            child: serve(self.dir.path(), &self.env, self.open_files),
            env: self.env,
            open_files: self.open_files,
            dir: self.dir,
        };
        proxy.wait_until_healthy();
        for (address, id) in &self.containers {
            proxy.register(address, id);
        }
        proxy
    }
}

/// A running proxy. It is killed on drop, which also prints its log if the test has panicked.
pub struct Proxy {
    pub address: SocketAddr,
    pub dns: SocketAddr,
    child: Child,
    env: Vec<(String, String)>,
    open_files: Option<u32>,
    dir: TempDir,
}

impl Proxy {
    /// Starts a proxy with the configuration of [`Setup::new`].
    pub fn start(origin: &Origin) -> Self {
        Setup::new(origin).start()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Path of the CA certificate that sandboxes trust.
    pub fn ca(&self) -> PathBuf {
        self.path("certs/ca.pem")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Calls the admin API; panics if it cannot be reached.
    pub fn admin(&self, method: &str, path: &str, body: Option<Value>) -> Reply {
        self.try_admin(method, path, body).unwrap()
    }

    /// Like [`Self::admin`], but returns an error if the API cannot be reached.
    pub fn try_admin(
        &self,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> std::io::Result<Reply> {
        let mut stream = UnixStream::connect(self.path("api.sock"))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        read_reply(&mut stream)
    }

    /// Registers a container without repositories and with the default lifetime.
    pub fn register(&self, address: &str, id: &str) {
        self.register_as(json!({ "container_ip": address, "container_id": id, "repos": [] }));
    }

    /// Registers a container with this request body; repeats the call while the response is 429.
    pub fn register_as(&self, body: Value) {
        let mut reply = self.admin("POST", "/internal/containers", Some(body.clone()));
        while reply.status == 429 {
            std::thread::sleep(Duration::from_millis(200));
            reply = self.admin("POST", "/internal/containers", Some(body.clone()));
        }
        assert_eq!(reply.status, 201, "{}", reply.text());
    }

    /// Replaces the registry's file with one that is no database, and waits until health is
    /// degraded. Returns the content of the new file.
    pub fn damage_registry(&self) -> Vec<u8> {
        let garbage = b"this is no database".repeat(500);
        let registry = self.path("data/registry.db");
        std::fs::rename(&registry, self.path("data/undamaged.db")).unwrap();
        std::fs::write(registry, &garbage).unwrap();
        eventually("health is degraded", SOON, || self.health().status == 503);
        garbage
    }

    /// Moves the registry's file back after [`Self::damage_registry`], and waits until the proxy is
    /// healthy.
    pub fn repair_registry(&self) {
        let undamaged = self.path("data/undamaged.db");
        std::fs::rename(undamaged, self.path("data/registry.db")).unwrap();
        eventually("health is restored", SOON, || self.health().status == 200);
    }

    /// Registers a container without repositories whose lease expires after this time.
    pub fn register_for(&self, lifetime: Duration, address: impl ToString, id: &str) {
        self.register_as(json!({
            "container_ip": address.to_string(), "container_id": id, "repos": [],
            "expires_at": expires_in(lifetime),
        }));
    }

    pub fn health(&self) -> Reply {
        self.admin("GET", "/internal/health", None)
    }

    /// The sum of a metric's series whose labels contain all the given texts; 0 if there is none.
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text = self.admin("GET", "/internal/metrics", None).text();
        let of_this = |line: &&str| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
                && labels.iter().all(|label| line.contains(label))
        };
        let values = text.lines().filter(of_this);
        let values = values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum()
    }

    /// The complete lines of the current audit file.
    pub fn audit(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path("data/audit.jsonl")).unwrap_or_default();
        let whole = text.lines().map(serde_json::from_str);
        whole.filter_map(Result::ok).collect()
    }

    /// Waits up to 20 s for an audit line with all these members, and returns the first.
    pub fn audited(&self, members: Value) -> Value {
        let wanted = members.as_object().unwrap();
        let mut found = None;
        eventually(&format!("an audit line with {members}"), STARTUP, || {
            let fits = |line: &Value| wanted.iter().all(|(key, value)| &line[key] == value);
            found = self.audit().into_iter().find(fits);
            found.is_some()
        });
        found.unwrap()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// A value in KiB from `/proc/PID/status`, such as `VmRSS` or `VmHWM`.
    pub fn memory(&self, key: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits until the process has ended; panics after `within`.
    pub fn wait(&mut self, within: Duration) -> ExitStatus {
        let mut status = None;
        let child = &mut self.child;
        eventually("the proxy ends", within, || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Kills the process with SIGKILL, and starts it again with the same state.
    pub fn crash_and_restart(&mut self) {
        self.signal(Signal::KILL);
        self.wait(STARTUP);
        self.restart();
    }

    /// Starts the process again after it has ended, and waits until it is healthy.
    pub fn restart(&mut self) {
        self.start_again();
        self.wait_until_healthy();
    }

    /// Starts the process again after it has ended, without waiting until it is healthy.
    pub fn start_again(&mut self) {
        self.child = serve(self.dir.path(), &self.env, self.open_files);
    }

    fn wait_until_healthy(&mut self) {
        let until = Instant::now() + STARTUP;
        loop {
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none(),
                "the proxy ended with {ended:?}:\n{}",
                self.log()
            );
            let reply = self.try_admin("GET", "/internal/health", None);
            if reply.is_ok_and(|reply| reply.status == 200) {
                return;
            }
            assert!(
                Instant::now() < until,
                "the proxy is not healthy:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of the proxy ---\n{}", self.log());
        }
    }
}

/// The binary with only `PATH` and these variables in its environment.
pub fn binary(env: &[(String, String)]) -> Command {
    in_environment(Command::new(env!("CARGO_BIN_EXE_unified-proxy")), env)
}

fn in_environment(mut command: Command, env: &[(String, String)]) -> Command {
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .envs(env.iter().cloned())
        .stdin(Stdio::null());
    command
}

fn serve(dir: &Path, env: &[(String, String)], open_files: Option<u32>) -> Child {
    let log = File::options()
        .create(true)
        .append(true)
        .open(dir.join("log"))
        .unwrap();
    let mut command = match open_files {
        Some(most) => {
            let mut command = Command::new("prlimit");
            command.arg(format!("--nofile={most}:{most}"));
            command.arg(env!("CARGO_BIN_EXE_unified-proxy"));
            in_environment(command, env)
        }
        None => binary(env),
    };
    command
        .args(["serve", "--config"])
        .arg(dir.join("config"))
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}
