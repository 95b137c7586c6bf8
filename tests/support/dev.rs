//! `unified-proxy dev` as a new user runs it: in a directory with a copy of `config/`.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

use super::ports::free_address;
use super::{Origin, eventually};

const STARTUP: Duration = Duration::from_secs(20);

/// A running `unified-proxy dev`, killed on drop. Its configuration is the shipped one, except that
/// it listens at the test's addresses, and reaches github.com, api.github.com and api.anthropic.com
/// at the test origin.
pub struct Dev {
    pub address: SocketAddr,
    pub dns: SocketAddr,
    dir: TempDir,
    child: Child,
}

impl Dev {
    pub fn start(origin: &Origin, arguments: &[&str], env: &[(&str, &str)]) -> Self {
        Self::start_at(origin, (free_address(), free_address()), arguments, env)
    }

    /// Like [`Self::start`]; `addresses` are those of the proxy and of DNS in proxy.yaml.
    pub fn start_at(
        origin: &Origin,
        addresses: (SocketAddr, SocketAddr),
        arguments: &[&str],
        env: &[(&str, &str)],
    ) -> Self {
        Self::start_with(origin, addresses, &[], arguments, env)
    }

    /// Starts `dev` with an MCP gateway at this address.
    pub fn with_gateway(origin: &Origin, gateway: SocketAddr) -> Self {
        let addresses = (free_address(), free_address());
        Self::start_with(origin, addresses, &[gateway], &[], &[])
    }

    /// Like [`Self::start_at`], with the MCP gateway at the addresses `gateway`.
    pub fn start_with(
        origin: &Origin,
        (address, dns): (SocketAddr, SocketAddr),
        gateway: &[SocketAddr],
        arguments: &[&str],
        env: &[(&str, &str)],
    ) -> Self {
        let dir = TempDir::new().unwrap();
        copy_config(dir.path(), origin, address, dns, gateway);
        let output = |name: &str| Stdio::from(File::create(dir.path().join(name)).unwrap());
        let child = Command::new(env!("CARGO_BIN_EXE_unified-proxy"))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .envs(env.iter().copied())
            .arg("dev")
            .args(arguments)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(output("stdout"))
            .stderr(output("stderr"))
            .spawn()
            .unwrap();
        let mut dev = Self {
            address,
            dns,
            dir,
            child,
        };
        // When it is ready, `dev` prints commands to try, and then an empty line.
        eventually("dev prints commands to try", STARTUP, || {
            let ended = dev.child.try_wait().unwrap();
            assert!(
                ended.is_none(),
                "dev ended with {ended:?}: {}",
                dev.output("stderr")
            );
            dev.output("stdout").ends_with("\n\n")
        });
        dev
    }

    /// The text that `dev` has printed so far; `stream` is `stdout` or `stderr`.
    pub fn output(&self, stream: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(stream)).unwrap()
    }

    /// Runs a script with bash in the directory of `dev`, with `PATH` and `HOME` as the only
    /// variables.
    pub fn shell(&self, script: &str) -> std::process::Output {
        // `unified-proxy run` refuses a working directory that contains the home directory.
        let home = TempDir::new().unwrap();
        Command::new("bash")
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", home.path())
            .args(["-c", script])
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of dev ---\n{}", self.output("stderr"));
        }
    }
}

fn copy_config(
    dir: &Path,
    origin: &Origin,
    address: SocketAddr,
    dns: SocketAddr,
    gateway: &[SocketAddr],
) {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let config = dir.join("config");
    std::fs::create_dir(&config).unwrap();
    for file in std::fs::read_dir(shipped).unwrap().flatten() {
        std::fs::copy(file.path(), config.join(file.file_name())).unwrap();
    }
    std::fs::write(dir.join("upstream-ca.pem"), &origin.ca_pem).unwrap();
    let hosts = ["github.com", "api.github.com", "api.anthropic.com"];
    let hosts: serde_json::Map<_, _> = hosts
        .map(|host| (host.to_owned(), json!(origin.https.to_string())))
        .into_iter()
        .collect();
    let ca = dir.join("upstream-ca.pem");
    let path = config.join("proxy.yaml");
    let mut text = std::fs::read_to_string(&path).unwrap();
    for (from, to) in [
        ("hosts: {}", format!("hosts: {}", json!(hosts))),
        (
            "allow_private: []",
            "allow_private: [127.0.0.0/8]".to_owned(),
        ),
        ("upstream_ca: null", format!("upstream_ca: {}", json!(ca))),
    ] {
        assert!(text.contains(from), "{from} is not in {text}");
        text = text.replacen(from, &to, 1);
    }
    let gateway: Vec<_> = gateway.iter().map(ToString::to_string).collect();
    let listen =
        json!({ "proxy": [address.to_string()], "dns": [dns.to_string()], "mcp": gateway });
    std::fs::write(path, format!("{text}\nlisten: {listen}\n")).unwrap();
}
