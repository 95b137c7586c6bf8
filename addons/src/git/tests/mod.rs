mod push;
mod rules;

use std::sync::Arc;

use prometheus::Registry;

use super::*;
use crate::contract::Host;

const ID: &str = "0123456789abcdef0123456789abcdef01234567";
const ZERO: &str = "0000000000000000000000000000000000000000";

pub(super) fn settings() -> GitSettings {
    GitSettings {
        hosts: Host::parse("github.com").into_iter().collect(),
        bot_branch_prefixes: ["refs/heads/sandbox/".to_owned()].into(),
        allow_branch_deletion: false,
        public_reads: false,
        report_push_denials: true,
        warning_bytes: 500,
        hard_limit_bytes: 1000,
    }
}

/// The addon with these settings; every host but evil.example.com is reachable.
pub(super) fn git(settings: GitSettings) -> Git {
    let reachable = |_: &Container, host: &Host, _| host.name() != Some("evil.example.com");
    let metrics = GitMetrics::new(&Registry::new()).unwrap();
    Git::new(settings, Arc::new(reachable), Arc::new(metrics))
}

/// The commands of a push. The first one requests a report.
fn commands(commands: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (at, (new, name)) in commands.iter().enumerate() {
        let capabilities = if at == 0 {
            "\0 report-status side-band-64k"
        } else {
            "\n"
        };
        let line = format!("{ID} {new} {name}{capabilities}");
        pkt_line::write(&mut out, line.as_bytes());
    }
    out.extend_from_slice(b"0000");
    out
}
