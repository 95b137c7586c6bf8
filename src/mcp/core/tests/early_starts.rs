//! Processes that start because a lease begins.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;

use super::double::Server;
use super::fixture::Fixture;
use crate::mcp::Version;

#[tokio::test(start_paused = true)]
async fn at_most_eight_processes_start_within_two_seconds_and_none_after_the_lease() {
    for is_ended in [false, true] {
        let names: Vec<String> = (0..10).map(|number| format!("s{number}")).collect();
        let server = Server::new(Version::V2025_11_25);
        let servers: Vec<(&str, &Arc<Server>)> =
            names.iter().map(|name| (name.as_str(), &server)).collect();
        let fixture = Fixture::of(&servers);
        let started = || server.early.load(Ordering::SeqCst);
        fixture.core.mounts().lease_begins(&fixture.container);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(started(), 8);
        if is_ended {
            fixture.container.end();
        }
        sleep(Duration::from_secs(2)).await;
        assert_eq!(started(), if is_ended { 8 } else { 10 });
    }
}
