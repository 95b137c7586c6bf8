//! The output of `explain --json`, one file for each subject.

use std::fmt::Write as _;

use serde_json::json;

use super::files::Recorded;
use super::policy;
use super::questions::SUBJECTS;
use crate::support::Origin;

pub fn record(recorded: &mut Recorded) {
    let origin = Origin::start();
    let mut setup = policy::setup(&origin, "report");
    setup.allow("*.wild.example.com");
    setup.allow("unresolved.example.org");
    setup.allow(json!({ "domain": "ports.example.com", "ports": [8443] }));
    setup.host("private.example.com", "10.0.0.1");
    setup.host("metadata.example.com", "169.254.169.254");
    for host in [
        "ports.example.com",
        "a.wild.example.com",
        "deep.a.wild.example.com",
    ] {
        setup.proxy["upstream"]["hosts"][host] = json!(origin.https.to_string());
    }
    let proxy = policy::registered(setup);
    for (subject, questions) in SUBJECTS {
        let mut text = String::new();
        for (container, method, url) in *questions {
            let ran = proxy.cli(&["explain", "--json", container, method, url]);
            let _ = writeln!(text, "explain --json {container} {method} {url}");
            let _ = writeln!(text, "exit code {}", ran.code.unwrap());
            let _ = writeln!(text, "{}{}", ran.stdout, ran.stderr);
        }
        recorded.add(format!("{subject}.txt"), text);
    }
    origin.assert_untouched();
}
