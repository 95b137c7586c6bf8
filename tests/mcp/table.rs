//! Compares `docs/mcp-compatibility.md` with the results of the test, or writes it.

use std::fs;
use std::path::Path;

use crate::clients::{Client, Found, Mount, Transport};
use crate::support::installed::{recorded_line, recorded_today};
use crate::tools::Tools;

/// The environment variable that makes the test write the document instead of comparing it.
const RECORD: &str = "RECORD_COMPATIBILITY";

const HEAD: &str = "\
# MCP clients and servers

Clients that use the MCP gateway, and the revision of the protocol that each negotiates with it. `tests/mcp` makes this table: one
gateway mounts all the servers, each client lists the tools and calls one of each server, and the test fails when a line differs.
`RECORD_COMPATIBILITY=1 ./scripts/test every_client_calls_a_tool` writes the table again.

";

/// The line of a client whose calls all succeeded.
pub fn line(client: &Client, transport: Transport, found: &Found) -> String {
    let revision = found.revision.as_deref().unwrap_or("not shown");
    format!("| {} | {} | {revision} |", client.name, transport.name())
}

/// Compares the document with the lines of the clients and with the pinned versions, or writes it.
/// The comparison ignores the date and the version of the machine's Python.
pub fn compare(mounts: &[Mount], lines: &[String], tools: &Tools) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/mcp-compatibility.md");
    let recorded = fs::read_to_string(&path).unwrap_or_default();
    let is_recording = std::env::var_os(RECORD).is_some();
    let versions = match is_recording {
        true => recorded_today(&tools.of_the_machine()),
        false => recorded_line(&recorded),
    };
    let installed = format!("Installed by the tests: {}.", Tools::pinned());
    let head = format!("{HEAD}{versions}\n{installed}\n\n");
    let found = head + &table(mounts, lines);
    if is_recording {
        return fs::write(path, found).unwrap();
    }
    for line in found
        .lines()
        .filter(|line| !recorded.lines().any(|old| old == *line))
    {
        println!("docs/mcp-compatibility.md lacks: {line}");
    }
    assert!(
        found == recorded,
        "docs/mcp-compatibility.md differs: {RECORD}=1 writes it again"
    );
}

fn table(mounts: &[Mount], lines: &[String]) -> String {
    let mut head = "| client | transport | revision |".to_owned();
    let mut rule = "| --- | --- | --- |".to_owned();
    for mount in mounts {
        head += &format!(" {} |", mount.name);
        rule += " --- |";
    }
    let works = " works |".repeat(mounts.len());
    let lines = lines.iter().map(|line| format!("{line}{works}\n"));
    format!("{head}\n{rule}\n{}", lines.collect::<String>())
}
