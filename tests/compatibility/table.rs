//! Compares `docs/compatibility.md` with the results of the test, or writes it.

use std::fs;
use std::path::Path;

/// Variable that makes the test write the document instead of comparing it.
const RECORD: &str = "RECORD_COMPATIBILITY";

const HEAD: &str = "\
# Compatibility

The table lists clients that work with the variables of `unified-proxy env` ([certificates.md](certificates.md)), further settings that they need,
and what they show for a host that is not on the allowlist. `tests/compatibility` makes this table: it runs each client with only these variables,
over TLS, against a stand-in for the server that the client uses, and fails when a line differs.
`RECORD_COMPATIBILITY=1 ./scripts/test compatibility::` writes the table again.

The response to a denied CONNECT has the sentence of the denial as its reason phrase, `Domain not allowed: NAME`. A client that shows only the
status hides the reason; `unified-proxy tail --denied` shows it for every client. The response to a request that is denied inside a tunnel
has the sentence in its body.

| client | an allowed host | a denied host |
| --- | --- | --- |
";

/// Compares the document with the lines of the clients that ran, or writes these lines to it. The
/// lines of other clients are kept.
pub fn compare(rows: &[(&str, String)]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/compatibility.md");
    let recorded = fs::read_to_string(&path).unwrap_or_default();
    let names = super::CLIENTS.iter().map(|client| client.name);
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
    let found = HEAD.to_owned() + &lines.collect::<String>();
    if std::env::var_os(RECORD).is_some() {
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
