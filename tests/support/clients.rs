//! The clients that sandboxes really use, pointed at the proxy as the documents say.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::proxy::Proxy;

/// An agent for node, whose own `https` knows no proxies.
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

/// A program that ran to its end.
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

    /// Its output, once it ended well.
    #[track_caller]
    pub fn ok(self) -> String {
        self.exits(0)
    }

    /// Its output, once it ended with this code.
    #[track_caller]
    pub fn exits(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        self.stdout
    }
}

/// What curl fetched.
#[derive(Debug)]
pub struct Curl {
    pub exit: i32,
    /// 0 where there was no answer but the one to the CONNECT.
    pub status: u16,
    /// The status of the CONNECT, 0 without one.
    pub connect: u16,
    /// `1.1` or `2`.
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

    /// A program in the environment of a sandbox: proxy variables, and the CA wherever the
    /// usual clients look for one.
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

    /// Runs a program in the environment of a sandbox.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Ran {
        Ran::of(self.command(program).args(arguments))
    }

    /// Runs a script of node's, which finds an agent for tunnels as `Tunnels`.
    pub fn node(&self, script: &str) -> Ran {
        self.run("node", &["-e", &format!("{NODE_AGENT}{script}")])
    }

    /// Runs gh with a placeholder for a token.
    pub fn gh(&self, arguments: &[&str]) -> Ran {
        let placeholder = "up-placeholder-0123456789abcdef0123456789abcdef";
        let mut command = self.command("gh");
        command
            .env("GH_TOKEN", placeholder)
            .env("GH_CONFIG_DIR", self.path("gh"))
            // Where it keeps answers for a day: those of another test's origin are not for this one.
            .env("TMPDIR", self.path(""))
            .env("XDG_CACHE_HOME", self.path("gh"))
            .env("GH_PROMPT_DISABLED", "1");
        Ran::of(command.args(arguments))
    }

    /// Runs one of our own commands on this proxy's configuration and socket.
    pub fn cli(&self, arguments: &[&str]) -> Ran {
        Ran::of(&mut self.own_command(arguments))
    }

    /// One of our own commands, not running yet.
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

    /// curl as the sandbox at this address.
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

    /// Asks the proxy's DNS from an address, and returns what `dig` printed.
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
