//! Start and end of MCP servers as processes. After the end, no process and no descriptor is left.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use addons::mcp::Confine;
use serde_json::json;
use unified_proxy::mcp::*;

use super::fixture::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_starts_and_stops_leave_no_process_no_zombie_and_no_descriptor() {
    let fixture = Fixture::new(Vec::new());
    let own = std::process::id();
    let cycle = async |confine: Confine| {
        let mut settings = stdio(&["sh", "-c", LEGACY_SH]);
        settings.confine = confine;
        let session = fixture.open(mounted("t", settings)).await.unwrap();
        session.ended().cancel();
    };
    let settled = async || {
        let gone = || descendants(own).is_empty();
        let limit = Duration::from_secs(20);
        assert!(eventually(limit, gone).await, "{:?}", descendants(own));
    };
    // A first cycle of each kind opens the descriptors that stay open.
    cycle(Confine::Namespaces).await;
    cycle(Confine::None).await;
    settled().await;
    let before = open_descriptors();
    for _ in 0..50 {
        cycle(Confine::Namespaces).await;
        cycle(Confine::None).await;
    }
    settled().await;
    let limit = Duration::from_secs(5);
    let same = eventually(limit, || open_descriptors() <= before).await;
    assert!(same, "{before} descriptors became {}", open_descriptors());
    let none_runs = || {
        let metrics = fixture.metrics.gather();
        let status = metrics
            .iter()
            .find(|family| family.name() == "proxy_mcp_process_status");
        let series = status.unwrap().get_metric();
        series
            .iter()
            .all(|series| series.get_gauge().get_value() == 0.0)
    };
    assert!(eventually(limit, none_runs).await);
}

/// A shell script that answers `initialize` and then reads without answering.
pub const LEGACY_SH: &str = r#"read -r line
printf '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}\n'
while read -r line; do :; done"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ignores_sigterm_ends_within_five_seconds_of_the_end_of_its_lease() {
    let stubborn = format!("trap '' TERM HUP INT; {LEGACY_SH}; while :; do sleep 1; done");
    let fixture = Fixture::new(vec![mounted("t", stdio(&["sh", "-c", &stubborn]))]);
    fixture.session("t", Version::V2025_11_25).await.unwrap();
    let began = Instant::now();
    fixture.container().end();
    let own = std::process::id();
    let gone = eventually(Duration::from_secs(5), || descendants(own).is_empty()).await;
    assert!(gone, "{:?} after {:?}", descendants(own), began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn if_a_server_exits_its_calls_fail_with_the_exit_code_and_it_starts_again() {
    let fixture = Fixture::new(vec![mounted("t", python("legacy"))]);
    let version = Version::V2025_11_25;
    let pooled = fixture.session("t", version).await.unwrap();
    let hanging = fixture.call(&pooled, "hang", json!({}));
    let killing = fixture.call(&pooled, "exit", json!({"code": 42}));
    let (hanging, killing) = tokio::join!(hanging, killing);
    for died in [hanging, killing] {
        assert!(
            matches!(died, Err(MountError::Died { exit: Some(42) })),
            "{died:?}"
        );
    }
    let again = async {
        loop {
            match fixture.session("t", version).await {
                Ok(pooled) => return pooled,
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    };
    let again = tokio::time::timeout(Duration::from_secs(15), again)
        .await
        .unwrap();
    let echoed = fixture.call(&again, "echo", json!({})).await;
    assert_eq!(echoed.unwrap(), json!({}));
}

#[tokio::test]
async fn variables_in_arguments_and_environment_are_redacted_in_the_log() {
    let (log, path) = tempfile::NamedTempFile::new().unwrap().keep().unwrap();
    let subscriber = tracing_subscriber::fmt().with_writer(Mutex::new(log));
    let _logs = tracing::subscriber::set_default(subscriber.finish());
    let (argument, variable) = ("of-an-argument", "of-a-variable");
    let env = |name: &str| match name {
        "ARGUMENT" => Some(argument.to_owned()),
        "VARIABLE" => Some(variable.to_owned()),
        _ => None,
    };
    let script =
        format!("echo \"0 $0\" >&2; printenv KEY | cut -c8- >&2; echo end >&2; {LEGACY_SH}");
    let mcp = json!({ "mcpServers": { "t": {
        "command": "sh", "args": ["-c", script, "--token=${ARGUMENT}"],
        "env": { "KEY": "Bearer ${VARIABLE}" }, "confine": "none",
    } } });
    let servers = servers_of(&mcp, &env);
    let fixture = Fixture::new(Vec::new());
    let session = fixture.open((*servers["t"]).clone()).await.unwrap();
    let text = || std::fs::read_to_string(&path).unwrap();
    let printed = eventually(Duration::from_secs(10), || text().contains("\"end\"")).await;
    let text = text();
    std::fs::remove_file(&path).unwrap();
    assert!(printed && text.contains("0 --token=[REDACTED]"), "{text}");
    assert!(
        !text.contains(argument) && !text.contains(variable),
        "{text}"
    );
    session.ended().cancel();
}

/// Environment variable. If it is set, [`appliance_that_is_killed`] runs as the appliance. The
/// variable's value is on the command lines of the MCP servers and of their daemons.
const MARKER: &str = "APPLIANCE_TEST_MARKER";

/// The appliance that [`a_killed_appliance_leaves_no_child`] starts and kills. Does nothing if the
/// test runner starts it.
#[tokio::test(flavor = "multi_thread")]
async fn appliance_that_is_killed() {
    let Ok(marker) = std::env::var(MARKER) else {
        return;
    };
    let servers = [("confined", Confine::Namespaces), ("free", Confine::None)];
    let servers = servers.map(|(name, confine)| {
        let mut settings = stdio(&["python3", "-c", SERVER, "legacy", &marker]);
        settings.confine = confine;
        mounted(name, settings)
    });
    let fixture = Fixture::new(servers.into());
    for name in ["confined", "free"] {
        let pooled = fixture.session(name, Version::V2025_11_25).await.unwrap();
        let daemon = json!({ "seconds": marker });
        fixture.call(&pooled, "daemon", daemon).await.unwrap();
    }
    println!("\nready");
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_appliance_leaves_no_child() {
    // A number that no other process has in its command line. The daemon sleeps for that number of
    // seconds.
    let marker = format!("98{}", std::process::id());
    let mut appliance = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "children::life::appliance_that_is_killed",
            "--nocapture",
        ])
        .env(MARKER, &marker)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(appliance.stdout.take().unwrap()).lines();
    let ready = lines.map_while(Result::ok).any(|line| line == "ready");
    assert!(ready && is_running(&marker));
    appliance.kill().unwrap();
    appliance.wait().unwrap();
    let gone = eventually(Duration::from_secs(5), || !is_running(&marker)).await;
    assert!(gone, "children outlive the appliance");
}

/// A server that writes a line into the file whenever it starts, and then runs a script.
fn marking(name: &str, file: &std::path::Path, script: &str) -> addons::mcp::ServerSettings {
    let script = format!("echo started >>'{}'; {script}", file.display());
    let mut settings = stdio(&["sh", "-c", &script]);
    settings.confine = Confine::None;
    mounted(name, settings)
}

fn starts(file: &std::path::Path) -> usize {
    let written = std::fs::read_to_string(file).unwrap_or_default();
    written.lines().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_starts_with_the_lease_serves_the_first_session_and_ends_with_the_lease() {
    let directory = tempfile::tempdir().unwrap();
    let [eager, lazy] = ["eager", "lazy"].map(|name| directory.path().join(name));
    let mut not_eager = marking("a", &lazy, LEGACY_SH);
    if let addons::mcp::ServerKind::Stdio(process) = &mut not_eager.kind {
        process.eager = false;
    }
    let servers = vec![not_eager, marking("b", &eager, LEGACY_SH)];
    let fixture = Fixture::new(servers);
    let limit = Duration::from_secs(20);
    fixture.mounts.lease_begins(fixture.container());
    assert!(eventually(limit, || starts(&eager) == 1).await);
    // Servers start in the order of their names.
    assert_eq!(starts(&lazy), 0);
    let version = Version::V2025_11_25;
    fixture.session("b", version).await.unwrap();
    assert_eq!(starts(&eager), 1);
    fixture.container().end();
    let own = std::process::id();
    assert!(eventually(limit, || descendants(own).is_empty()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_no_client_used_ends_with_the_lease_a_changed_server_and_the_proxy() {
    type End = fn(&Fixture);
    let ends: [End; 3] = [
        |fixture| fixture.container().end(),
        |fixture| fixture.mounts.apply(&Default::default()),
        |fixture| {
            let mounts = std::sync::Arc::clone(&fixture.mounts);
            tokio::spawn(async move { mounts.stop(Duration::from_secs(20)).await });
        },
    ];
    for end in ends {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("starts");
        let fixture = Fixture::new(vec![marking("t", &file, LEGACY_SH)]);
        fixture.mounts.lease_begins(fixture.container());
        let limit = Duration::from_secs(20);
        assert!(eventually(limit, || starts(&file) == 1).await);
        end(&fixture);
        let own = std::process::id();
        assert!(eventually(limit, || descendants(own).is_empty()).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_ended_before_a_client_came_is_started_again() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("starts");
    let script = format!(
        "[ $(wc -l <'{}') -gt 1 ] || exit 3; {LEGACY_SH}",
        file.display()
    );
    let fixture = Fixture::new(vec![marking("t", &file, &script)]);
    fixture.mounts.lease_begins(fixture.container());
    let limit = Duration::from_secs(20);
    let own = std::process::id();
    let has_ended = || starts(&file) == 1 && descendants(own).is_empty();
    assert!(eventually(limit, has_ended).await);
    fixture.session("t", Version::V2025_11_25).await.unwrap();
    assert_eq!(starts(&file), 2);
}
