//! Compares `docs/compatibility.md` with the results of the test, or writes it.

use std::fs;
use std::path::Path;

use super::clients::CLIENTS;
use super::tools::Tools;
use crate::support::installed::{recorded_line, recorded_today};

/// Variable that makes the test write the document instead of comparing it.
const RECORD: &str = "RECORD_COMPATIBILITY";

const HEAD: &str = "\
# Compatibility

The table lists clients that work with the variables of `unified-proxy env` ([certificates.md](certificates.md)), further settings that they need,
and what they show for a host that is not on the allowlist. `tests/compatibility` makes this table: it runs each client with only these variables,
over TLS, against a stand-in for the server that the client uses, and fails when a line differs.
`RECORD_COMPATIBILITY=1 ./scripts/test compatibility::` writes the table again, if every client is installed.

The response to a denied CONNECT has the sentence of the denial as its reason phrase, `Domain not allowed: NAME`. A client that shows only the
status hides the reason; `unified-proxy tail --denied` shows it for every client. The response to a request that is denied inside a tunnel
has the sentence in its body.

";

const TABLE: &str = "\
| client | an allowed host | a denied host |
| --- | --- | --- |
";

/// Compares the document with the lines of the clients that ran and with the pinned versions, or
/// writes it. The comparison ignores the lines of other clients, the date and the versions of the
/// machine's programs.
pub fn compare(rows: &[(&str, String)], tools: &Tools) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/compatibility.md");
    let recorded = fs::read_to_string(&path).unwrap_or_default();
    let is_recording = std::env::var_os(RECORD).is_some();
    assert!(
        !is_recording || rows.len() == CLIENTS.len(),
        "clients are missing: {rows:?}"
    );
    let versions = match is_recording {
        true => recorded_today(&tools.of_the_machine()),
        false => recorded_line(&recorded),
    };
    let installed = format!("Installed by the tests: {}.", Tools::pinned());
    let names = CLIENTS.iter().map(|client| client.name);
    let lines = names.map(|name| {
        let ran = rows.iter().find(|(ran, _)| *ran == name);
        let start = format!("| {name} |");
        let kept = || recorded.lines().find(|line| line.starts_with(&start));
        ran.map(|(_, line)| line.as_str())
            .or_else(kept)
            .unwrap_or_default()
            .to_owned()
            + "\n"
    });
    let lines: String = lines.collect();
    let found = format!("{HEAD}{versions}\n{installed}\n\n{TABLE}{lines}");
    if is_recording {
        return fs::write(path, found).unwrap();
    }
    for line in found
        .lines()
        .filter(|line| !recorded.lines().any(|old| old == *line))
    {
        println!("docs/compatibility.md lacks: {line}");
    }
    assert!(
        found == recorded,
        "docs/compatibility.md differs: {RECORD}=1 writes it again"
    );
}
