//! Records which tests ran, for the summary that `scripts/test` prints: test runners hide the
//! output of tests that pass.

use std::process::{Command, Stdio};

use crate::support::summarize;

const PROGRAMS: [&str; 10] = [
    "ip", "nft", "ss", "unshare", "nsenter", "setpriv", "perl", "ping", "dig", "git",
];

/// Whether a test can run on this machine; if not, the summary has the reason.
pub fn can_run(test: &str) -> bool {
    let can = obstacle().map_or(Ok(()), Err);
    summarize("e2e", test, &can);
    can.is_ok()
}

/// The reason for which no test of namespaces can run on this machine.
pub fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces and firewall rules need root".to_owned());
    }
    let missing: Vec<&str> = PROGRAMS
        .into_iter()
        .filter(|name| !is_there(name))
        .collect();
    if !missing.is_empty() {
        return Some(format!("not installed: {}", missing.join(", ")));
    }
    let rule = "nft add table netdev probe && ip link add probe type veth peer name other";
    let allowed = Command::new("unshare")
        .args(["--net", "--mount", "--pid", "--fork", "sh", "-c", rule])
        .stdin(Stdio::null())
        .output();
    let output = allowed.unwrap();
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then(|| format!("namespaces are forbidden: {}", why.trim()))
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
