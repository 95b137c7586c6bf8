//! Runs the clients that sandboxes use (curl, git, gh, Node.js, dig) and `unified-proxy` itself
//! against the proxy under test.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::proxy::Proxy;

/// Source of an `https.Agent` that tunnels through the proxy: without `NODE_USE_ENV_PROXY`, Node's
/// `https` module ignores the proxy variables.
pub const NODE_AGENT: &str = "
    const http = require('node:http'), https = require('node:https'), tls = require('node:tls');
    const { hostname, port } = new URL(process.env.HTTPS_PROXY);
    class Tunnels extends https.Agent {
        createConnection(options, done) {
            const path = `${options.host}:${options.port}`;
            http.request({ hostname, port, method: 'CONNECT', path })
                .on('connect', (_, socket) => done(null, tls.connect({ ...options, socket })))
                .end();
        }
    }";

/// The exit code of a program that has ended (`None` if a signal killed it), and its output.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn of(command: &mut Command) -> Self {
        let output = command.output();
        let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Asserts exit code 0 and returns standard output.
    #[track_caller]
    pub fn ok(self) -> String {
        self.exits(0)
    }

    /// Asserts this exit code and returns standard output.
    #[track_caller]
    pub fn exits(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        self.stdout
    }
}

/// The result of one run of curl.
#[derive(Debug)]
pub struct Curl {
    pub exit: i32,
    /// Status of the response; 0 if there was none besides the response to the CONNECT.
    pub status: u16,
    /// Status of the response to the CONNECT; 0 if there was none.
    pub connect: u16,
    /// HTTP version of the response: `1.1` or `2`; `0` if there was none.
    pub version: String,
    pub body: Vec<u8>,
    pub stderr: String,
}

impl Curl {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}

impl Proxy {
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A command, not started yet, with the proxy variables and with the variables in which
    /// OpenSSL, curl, git, Python requests and Node.js look for a CA file. It starts in the proxy's
    /// directory, without git configuration of the user or the system.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for name in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"] {
            command.env(name, self.url());
        }
        for name in [
            "SSL_CERT_FILE",
            "CURL_CA_BUNDLE",
            "GIT_SSL_CAINFO",
            "REQUESTS_CA_BUNDLE",
            "NODE_EXTRA_CA_CERTS",
        ] {
            command.env(name, self.ca());
        }
        command
            .env_remove("no_proxy")
            .env_remove("NO_PROXY")
            .env_remove("ALL_PROXY")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .current_dir(self.path(""))
            .stdin(Stdio::null());
        command
    }

    /// Runs a program in the environment of [`Self::command`].
    pub fn run(&self, program: &str, arguments: &[&str]) -> Ran {
        Ran::of(self.command(program).args(arguments))
    }

    /// Runs a script in node. The source of [`NODE_AGENT`] precedes it and defines the class
    /// `Tunnels`.
    pub fn node(&self, script: &str) -> Ran {
        self.run("node", &["-e", &format!("{NODE_AGENT}{script}")])
    }

    /// Runs gh with a placeholder as its token.
    pub fn gh(&self, arguments: &[&str]) -> Ran {
        let placeholder = "up-placeholder-0123456789abcdef0123456789abcdef";
        let mut command = self.command("gh");
        command
            .env("GH_TOKEN", placeholder)
            .env("GH_CONFIG_DIR", self.path("gh"))
            // gh caches responses in `TMPDIR` for a day. A test must not get responses of another
            // test's origin.
            .env("TMPDIR", self.path(""))
            .env("XDG_CACHE_HOME", self.path("gh"))
            .env("GH_PROMPT_DISABLED", "1");
        Ran::of(command.args(arguments))
    }

    /// Runs `unified-proxy` to its end, in the directory and with the admin socket of this proxy.
    pub fn cli(&self, arguments: &[&str]) -> Ran {
        Ran::of(&mut self.own_command(arguments))
    }

    /// A command of `unified-proxy`, not started yet, in the directory and with the admin socket of
    /// this proxy.
    pub fn own_command(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_unified-proxy"));
        command
            .args(arguments)
            .env("UNIFIED_PROXY_SOCKET", self.path("api.sock"));
        command
    }

    pub fn curl(&self, arguments: &[&str]) -> Curl {
        self.curl_from(Ipv4Addr::LOCALHOST, arguments)
    }

    /// Runs curl with this source address: as the sandbox that is registered there.
    pub fn curl_from(&self, source: Ipv4Addr, arguments: &[&str]) -> Curl {
        let scratch = tempfile::TempDir::new().unwrap();
        let body = scratch.path().join("body");
        let output = self
            .command("curl")
            .args(["--silent", "--show-error", "--max-time", "60"])
            .args(["--suppress-connect-headers", "--interface"])
            .arg(source.to_string())
            .arg("--output")
            .arg(&body)
            .args([
                "--write-out",
                "%{http_code} %{http_connect} %{http_version}",
            ])
            .args(arguments)
            .output()
            .unwrap();
        let written = String::from_utf8_lossy(&output.stdout).into_owned();
        let written: Vec<&str> = written.split(' ').collect();
        Curl {
            exit: output.status.code().unwrap(),
            status: written[0].parse().unwrap(),
            connect: written[1].parse().unwrap(),
            version: written[2].to_owned(),
            body: std::fs::read(body).unwrap_or_default(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Queries the proxy's DNS listener with `dig` from a source address, and returns what `dig`
    /// printed. Sends the query once and waits 5 s, unless `arguments` say otherwise.
    pub fn dig(&self, source: Ipv4Addr, arguments: &[&str]) -> String {
        let server = format!("@{}", self.dns.ip());
        let port = self.dns.port().to_string();
        let source = source.to_string();
        let fixed = [
            "-b",
            &source,
            "-p",
            &port,
            &server,
            "+tries=1",
            "+timeout=5",
        ];
        let ran = self.run("dig", &[&fixed[..], arguments].concat());
        format!("{}{}", ran.stdout, ran.stderr)
    }
}
