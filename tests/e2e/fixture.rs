//! A stand-in for the internet, a host with the proxy, and the sandboxes of the host.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::machine::Machine;
use crate::support::{Origin, Proxy, Ran, Setup};

/// The host's address on its link to the internet.
pub const HOST: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
/// The address of the origin and of all other listeners on the internet.
pub const INTERNET: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);

/// One host with a proxy that listens on all IPv4 addresses of the host. The host forwards packets,
/// and the internet has a route back to the sandboxes, so that only the firewall separates
/// sandboxes from the internet.
pub struct Fixture {
    pub internet: Machine,
    pub host: Machine,
    pub origin: Origin,
    pub proxy: Proxy,
    state: TempDir,
}

/// A sandbox that is up.
pub struct Sandbox {
    pub address: Ipv4Addr,
    /// The host's address on the sandbox's link, where the proxy is.
    pub proxy: Ipv4Addr,
    /// Pid, on the host, of the sandbox's first process; 0 for a docker sandbox.
    pub init: u32,
    /// The host's end of the sandbox's link.
    pub device: String,
}

impl Sandbox {
    /// The sandbox's network namespace, in which the test is root.
    pub fn machine(&self) -> Machine {
        Machine::of(self.init)
    }
}

impl Fixture {
    pub fn start() -> Self {
        Self::with(|_| ())
    }

    /// Like [`Self::start`], with a changed configuration.
    pub fn with(change: impl FnOnce(&mut Setup)) -> Self {
        let (internet, host) = (Machine::new(), Machine::new());
        host.sh(&format!(
            "ip link add uplink type veth peer name uplink netns {}
             ip address add {HOST}/24 dev uplink
             ip -6 address add 2001:db8::1/64 dev uplink nodad
             ip link set uplink up
             echo 1 >/proc/sys/net/ipv4/ip_forward
             echo 1 >/proc/sys/net/ipv6/conf/all/forwarding",
            internet.pid()
        ));
        internet.sh(&format!(
            "ip address add {INTERNET}/24 dev uplink
             ip -6 address add 2001:db8::2/64 dev uplink nodad
             ip link set uplink up
             ip route add default via {HOST}
             ip -6 route add default via 2001:db8::1"
        ));
        host.sh(&format!(
            "ip route add default via {INTERNET}
             ip -6 route add default via 2001:db8::2"
        ));
        let origin = internet.run(|| Origin::at(IpAddr::V4(INTERNET)));
        let mut setup = Setup::new(&origin);
        setup.containers.clear();
        setup.proxy["listen"]["proxy"] = json!(["0.0.0.0:8080"]);
        setup.proxy["listen"]["dns"] = json!(["0.0.0.0:53"]);
        setup.proxy["listen"]["mcp"] = json!(["0.0.0.0:8090"]);
        setup.proxy["upstream"]["allow_private"] = json!([format!("{INTERNET}/32")]);
        setup.policy = Some(json!({ "version": 1, "git": { "hosts": ["git.example.com"] } }));
        change(&mut setup);
        let proxy = host.run(|| setup.start());
        Self {
            internet,
            host,
            origin,
            proxy,
            state: TempDir::new().unwrap(),
        }
    }

    /// `scripts/sandbox`, not started yet. It must be started by a thread in the host's network
    /// namespace.
    pub fn script(&self, arguments: &[&str]) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/sandbox");
        let mut command = Command::new(script);
        command
            .args(arguments)
            .env("UNIFIED_PROXY", env!("CARGO_BIN_EXE_unified-proxy"))
            .env("UNIFIED_PROXY_SOCKET", self.proxy.path("api.sock"))
            .env("UNIFIED_PROXY_SANDBOXES", self.state.path())
            .stdin(Stdio::null());
        command
    }

    /// Runs `scripts/sandbox` to its end.
    pub fn sandbox(&self, arguments: &[&str]) -> Ran {
        let mut command = self.script(arguments);
        ran(self.host.run(|| command.output().unwrap()))
    }

    /// Starts a sandbox and leaves it running.
    #[track_caller]
    pub fn up(&self, name: &str, options: &[&str]) -> Sandbox {
        let said = self.sandbox(&[&["up", name], options].concat()).ok();
        assert!(said.starts_with(&format!("{name} is up at ")), "{said}");
        self.find(name)
    }

    /// The properties of a running sandbox, from its state files.
    pub fn find(&self, name: &str) -> Sandbox {
        let settings = self.read(name, "settings");
        let value = |key: &str| {
            let quoted = settings.split_once(&format!(" {key}=\"")).unwrap().1;
            quoted.split('"').next().unwrap().to_owned()
        };
        let init = self.read(name, "init");
        Sandbox {
            address: value("address").parse().unwrap(),
            proxy: value("proxy").parse().unwrap(),
            init: init.split(' ').next().unwrap().parse().unwrap_or(0),
            device: value("device"),
        }
    }

    /// The text of a file of a sandbox's state; empty if there is no such file.
    pub fn read(&self, name: &str, file: &str) -> String {
        std::fs::read_to_string(self.state_of(name).join(file)).unwrap_or_default()
    }

    pub fn state_of(&self, name: &str) -> PathBuf {
        self.state.path().join(name)
    }

    /// Runs a script with bash in a sandbox.
    pub fn exec(&self, name: &str, script: &str) -> Ran {
        self.sandbox(&["exec", name, "--", "bash", "-c", script])
    }

    /// `STATUS/CONNECT-STATUS` of a request with curl in a sandbox; if curl fails, a space and its
    /// exit code follow.
    pub fn status(&self, name: &str, url: &str) -> String {
        let format = "%{http_code}/%{http_connect}";
        let script = format!(
            "curl --silent --max-time 5 --output /dev/null --write-out '{format}' '{url}' || echo \" $?\""
        );
        self.exec(name, &script).ok().trim().to_owned()
    }

    /// The registration of a container, if it has one.
    pub fn registration(&self, name: &str) -> Option<Value> {
        let path = format!("/internal/containers/{name}");
        let reply = self.proxy.admin("GET", &path, None);
        (reply.status == 200).then(|| reply.json())
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(self.state.path()).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if entry.path().is_dir() {
                if std::thread::panicking() {
                    eprintln!("--- log of {name} ---\n{}", self.read(&name, "log"));
                }
                self.sandbox(&["down", &name]);
            }
        }
    }
}

/// Converts the output of a process.
pub fn ran(output: std::process::Output) -> Ran {
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Whether a process runs; a zombie does not.
pub fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim();
    !(state.is_empty() || state.starts_with(['Z', 'X']))
}
