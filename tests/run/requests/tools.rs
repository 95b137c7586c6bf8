//! The MCP gateway of a run: the appliance of the run mounts the servers of `mcp.yaml`.

use crate::fixture::{Person, User};
use crate::mcp_servers::{CLIENT, McpServers, assert_reached};
use crate::support::Origin;

#[test]
fn a_client_in_a_run_finds_the_gateway_in_its_environment() {
    for user in [User::Unprivileged, User::Root] {
        let Some(person) = Person::with(user, Origin::start()) else {
            continue;
        };
        let servers = McpServers::start();
        servers.mount(&person.config());
        // The user's PATH lacks `unified-proxy`; `run` adds a directory with it to the sandbox's
        // PATH.
        assert_reached(&person.sh(&[], CLIENT).ok());
    }
}

#[test]
fn the_directory_with_unified_proxy_is_last_in_path_and_read_only() {
    let Some(person) = Person::new() else { return };
    let script =
        "echo $PATH; command -v unified-proxy; echo >>/run/unified-proxy/bin/unified-proxy";
    let ran = person.sh(&[], script);
    let lines: Vec<_> = ran.stdout.lines().collect();
    assert!(lines[0].ends_with(":/run/unified-proxy/bin"), "{ran:?}");
    assert_eq!(lines[1], "/run/unified-proxy/bin/unified-proxy");
    assert_ne!(
        ran.code,
        Some(0),
        "the program could be written to: {ran:?}"
    );
}
