//! Which tests ran, for the summary that `scripts/test` prints: a runner hides what tests that
//! pass print.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

const PROGRAMS: [&str; 10] = [
    "ip", "nft", "ss", "unshare", "nsenter", "setpriv", "perl", "ping", "dig", "git",
];

/// Whether a test can run here; where it cannot, the summary says why.
pub fn can_run(test: &str) -> bool {
    let said = match obstacle() {
        None => format!("ran: {test}"),
        Some(why) => format!("not run: {test}: {why}"),
    };
    println!("{said}");
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("e2e");
    std::fs::create_dir_all(&dir).unwrap();
    let mut summary = File::options();
    let summary = summary.append(true).create(true).open(dir.join("summary"));
    writeln!(summary.unwrap(), "{said}").unwrap();
    said.starts_with("ran")
}

fn obstacle() -> Option<String> {
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
