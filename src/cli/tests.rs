use std::os::unix::net::UnixListener;
use std::sync::Arc;

use addons::contract::{BoxFuture, Container, RpcError};
use clap::CommandFactory;
use serde_json::value::RawValue;
use testkit::{each_row, each_row_async};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::admin::{
    AdminState, Check, ControlPlane, ExplainRequest, Explanation, Health, NamedTool, OperatorAct,
    OperatorRequest, SandboxSettings,
};
use crate::approvals::sqlite::SqliteApprovals;
use crate::approvals::{Learner, Ledger, LiveGrants};
use crate::mcp::policy::PolicyKeeper;
use crate::mcp::{AcceptError, Digests, Outcome, People, PolicyDesk};
use crate::registry::Registry;
use crate::registry::sqlite::{FILE_NAME, SqliteStore};
use crate::telemetry::FlowLog;

/// Parses a command line whose words are separated by white space.
fn read(line: &str) -> Result<Command, clap::Error> {
    let words = std::iter::once("unified-proxy").chain(line.split_whitespace());
    Cli::try_parse_from(words).map(|cli| cli.command)
}

#[test]
fn clap_accepts_the_definition_of_the_command_line() {
    Cli::command().debug_assert();
}

#[test]
fn a_socket_that_an_ended_server_has_left_behind_has_no_server() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("api.sock");
    assert!(!has_no_server(&socket));
    let listener = UnixListener::bind(&socket).unwrap();
    assert!(!has_no_server(&socket));
    drop(listener);
    assert!(has_no_server(&socket));
}

#[test]
fn documented_command_lines_are_parsed() {
    each_row(
        [
            "serve",
            "serve --config /tmp/c",
            "dev --repo o/n --repo https://github.com/o/m.git",
            "dev --proxy-port 8081 --dns-port 5354 --mcp-port 8091 --config /tmp/c",
            "check --config /tmp/c",
            "ca path",
            "ca show --config /tmp/c",
            "ca rotate",
            "explain c1 GET https://github.com/",
            "tail --container c1 --denied --socket /tmp/s",
            "container add c1 --ip 10.0.0.5 --repo o/n --auth-mode bot --expires 8h",
            "container add c1 --listener unix --expires 2100-01-01T00:00:00Z --json",
            "container add c1 --ip ::1 --allow-domain github.com --allow-domain *.example.com",
            "container rm c1",
            "container rm c1 --keep-level --json",
            "container reset c1 --json",
            "container list --json",
            "container show c1",
            "health --json",
            "sandbox-files /tmp/d --force --config /tmp/c",
            "sandbox-files /tmp/d --socket /tmp/s --proxy http://proxy:8080 --certs /certs",
            "explain c1 tools/call kb read",
            "explain c1 tools/call kb read {\"a\":1}",
            "mcp stdio",
            "mcp stdio --url unix:/run/lease.sock",
            "mcp list --json",
            "mcp list --container c1 --socket /tmp/s",
            "mcp call kb_read",
            "mcp call kb_read {\"a\":1} --url http://127.0.0.1:8091/mcp",
            "mcp accept kb read",
            "run -- ls",
            "run --ask --learn /tmp/a -- ls",
            "env",
            "env --shell fish --socket /tmp/s",
            "env --shell json --proxy http://proxy:8080 --certs /certs",
            "approvals",
            "approvals --watch --json",
            "approvals --json --socket /tmp/s",
            "approvals list --watch --exec notify",
            "approvals show 0a1b --json",
            "approvals approve 0a1b",
            "approvals approve 0a1b --for 10m --comment yes",
            "approvals approve 0a1b --lease",
            "approvals approve 0123456789abcdef0123456789abcdef --always",
            "approvals deny 0a1b --comment no --socket /tmp/s",
            "approvals forget 0a1b",
            "approvals grants --json",
            "approvals learned --json",
            "approvals learned --patch --socket /tmp/s",
            "approvals grant c1 a.example.com",
            "approvals grant c1 a.example.com:8443 --for 24h",
            "approvals grant c1 a.example.com --lease --json",
            "approvals revoke 0a1b",
            "registry check --data-dir /tmp/d",
            "registry backup /tmp/f --force",
            "registry restore /tmp/f",
        ],
        |line| {
            if let Err(error) = read(line) {
                panic!("{line}: {error}");
            }
        },
    );
}

#[test]
fn a_run_takes_its_command_with_or_without_two_dashes() {
    each_row(
        [
            ("run ls", vec!["ls"]),
            ("run -- ls", vec!["ls"]),
            ("run ls -la --color", vec!["ls", "-la", "--color"]),
            ("run --quiet ls --quiet", vec!["ls", "--quiet"]),
            (
                "run --repo o/n -- git log --oneline",
                vec!["git", "log", "--oneline"],
            ),
            ("run ls -- -x", vec!["ls", "--", "-x"]),
            (
                "run -- sh -c true -- a",
                vec!["sh", "-c", "true", "--", "a"],
            ),
        ],
        |(line, command)| {
            let read = format!("{:?}", read(line).unwrap());
            let command = format!("command: {command:?}");
            assert!(read.contains(&command), "{line}: {read}");
        },
    );
}

#[test]
fn the_help_begins_with_run_and_ends_with_examples_and_exit_codes() {
    let help = Cli::command().render_help().to_string();
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let first = commands.split_whitespace().next();
    assert_eq!(first, Some("run"), "{help}");
    let (_, ending) = help.split_once("Examples:\n").unwrap();
    let (_, codes) = ending.split_once("Exit codes:\n").unwrap();
    let all = [
        code::DONE,
        code::DENIED,
        code::USAGE,
        code::UNAVAILABLE,
        code::SOFTWARE,
        code::CONFIG,
    ];
    each_row(all, |code| {
        let line = format!("  {code:<4}");
        assert!(
            codes.lines().any(|known| known.starts_with(&line)),
            "{code}: {help}"
        );
    });
}

#[test]
fn every_example_of_the_help_is_a_command_line() {
    let texts = [
        examples::ALL,
        examples::RUN,
        examples::DEV,
        examples::EXPLAIN,
        examples::CONTAINER_ADD,
        examples::APPROVALS,
        examples::APPROVALS_APPROVE,
        examples::APPROVALS_GRANT,
        examples::ENV,
    ];
    each_row(texts, |text| {
        let lines = text.lines();
        let examples: Vec<_> = lines
            .filter_map(|line| line.trim().strip_prefix("unified-proxy "))
            .collect();
        assert!(!examples.is_empty(), "{text}");
        for example in examples {
            // A comment follows two spaces, another program a bar.
            let line = example.split("  ").next().unwrap();
            let line = line.split(" | ").next().unwrap().replace('\'', "");
            if let Err(error) = read(&line) {
                panic!("{line}: {error}");
            }
        }
    });
}

#[test]
fn invalid_command_lines_are_usage_errors() {
    each_row(
        [
            "",
            "fly",
            "dev --repo o",
            "dev --repo https://git.example.com/o/n",
            "dev --proxy-port 0",
            "dev --dns-port 65536",
            "container add c1",
            "container add c1 --ip 10.0.0.5 --listener unix",
            "container add c/1 --ip 10.0.0.5",
            "container add c1 --ip 10.0.0",
            "container add c1 --ip 10.0.0.5 --auth-mode root",
            "container add c1 --ip 10.0.0.5 --expires soon",
            "container add c1 --ip 10.0.0.5 --expires 2030-01-01",
            "run",
            "run --",
            "run --unknown ls",
            "container rm",
            "tail --container c/1",
            "explain c1 tools/call kb",
            "mcp",
            "mcp stdio --url https://x.example/mcp",
            "mcp list --container c/1",
            "mcp list --container c1 --url http://127.0.0.1:1/mcp",
            "mcp call",
            "mcp call kb_read [1]",
            "mcp accept kb",
            "approvals --exec notify",
            "approvals show",
            "approvals show 0A",
            "approvals show xyz",
            "approvals show 0123456789abcdef0123456789abcdef0",
            "approvals approve 0a --for soon",
            "approvals approve 0a --for 10m --lease",
            "approvals approve 0a --lease --always",
            "approvals deny 0a --for 10m",
            "approvals learned --patch --json",
            "run --ask --server /tmp/s -- ls",
            "approvals grant c1",
            "approvals grant c/1 a.example.com",
            "approvals grant c1 a.example.com:0",
            "approvals grant c1 a.example.com:https",
            "approvals grant c1 a.example.com --always",
            "env --shell csh",
            "env --proxy proxy:8080",
            "registry backup",
        ],
        |line| {
            let error = read(line).expect_err(line);
            assert!(error.use_stderr(), "{line}");
        },
    );
}

/// Runs a command line, in which `DIR` stands for the directory, and returns its exit code.
async fn exit_code(line: &str, directory: &Path) -> u8 {
    let line = line.replace("DIR", directory.to_str().unwrap());
    match read(&line).unwrap() {
        Command::Client(command) => match run(command).await {
            Ok(()) => code::DONE,
            Err(failure) => failure.code(),
        },
        other => panic!("{other:?} is not a client command"),
    }
}

/// The health check fails while two or more containers are registered. `explain` allows every
/// request, MCP requests other than `tools/list` are denied, and only tools named `read` can be
/// accepted.
struct Control(Arc<Registry>);

impl ControlPlane for Control {
    fn health(&self) -> Health {
        Health(vec![Check {
            name: "registry_accessible",
            ok: self.0.count() < 2,
            critical: true,
        }])
    }

    fn reload(&self) -> Result<(), Vec<String>> {
        Ok(())
    }

    fn sandbox(&self) -> SandboxSettings {
        SandboxSettings::default()
    }

    fn explain(&self, _: ExplainRequest) -> BoxFuture<'_, Result<Explanation, String>> {
        let explanation = Explanation {
            allowed: true,
            steps: Vec::new(),
        };
        Box::pin(async { Ok(explanation) })
    }

    fn mcp(&self, request: OperatorRequest) -> BoxFuture<'_, Outcome> {
        let outcome = match &*request.method {
            "tools/list" => Ok(r#"{"tools":[{"name":"kb_read"}]}"#),
            _ => Err(RpcError {
                code: -32951,
                message: "policy_denied_continue".into(),
                data: None,
            }),
        };
        let outcome = outcome.map(|result| RawValue::from_string(result.into()).unwrap());
        Box::pin(async { outcome })
    }

    fn lease_began(&self, _: &Arc<Container>) {}

    fn audit(&self, _: OperatorAct) {}

    fn definition(&self, NamedTool { server, tool }: NamedTool) -> Result<Digests, AcceptError> {
        match tool.as_str() {
            "read" => Ok(Digests {
                accepted: "0a".into(),
                changed: Some("0b".into()),
            }),
            _ => Err(AcceptError::Unknown { server, tool }),
        }
    }

    fn accept_definition(
        &self,
        _: NamedTool,
        digest: Option<String>,
    ) -> Result<String, AcceptError> {
        assert_eq!(digest.as_deref(), Some("0b"));
        Ok("0b".into())
    }
}

/// A ledger with its file in the directory.
pub(super) fn ledger(directory: &Path) -> Arc<Ledger> {
    let store = SqliteApprovals::new(directory.join("approvals.db"));
    Ledger::open(store, Arc::new(time::OffsetDateTime::now_utc)).unwrap()
}

fn serve(directory: &Path) -> CancellationToken {
    serve_with(directory, ledger(directory))
}

/// Serves the admin API at `api.sock` in the directory, with a real registry, until the returned
/// token is cancelled.
pub(super) fn serve_with(directory: &Path, approvals: Arc<Ledger>) -> CancellationToken {
    let registry = Registry::open(SqliteStore::new(directory.join(FILE_NAME)), directory);
    let grants = LiveGrants::new(Arc::clone(&approvals), Arc::clone(&registry));
    let learner = Learner::new(Arc::clone(&approvals), grants, || None, || Ok(()));
    let current = || unreachable!("no request asks for the policy");
    let policies = PolicyKeeper::new(Arc::clone(&approvals), current, || Ok(()));
    let desk = PolicyDesk::new(&policies, &approvals, CancellationToken::new());
    let state = AdminState {
        people: People::new(&desk),
        policies,
        learner,
        control: Arc::new(Control(Arc::clone(&registry))),
        registry,
        admin_uids: Vec::new(),
        metrics: prometheus::Registry::new(),
        flows: Arc::new(FlowLog::new(&prometheus::Registry::new()).unwrap()),
        approvals,
    };
    let shutdown = CancellationToken::new();
    let listener = crate::admin::bind(&directory.join("api.sock"), 0o600).unwrap();
    tokio::spawn(crate::admin::serve(listener, state, shutdown.clone()));
    shutdown
}

#[tokio::test]
async fn commands_return_their_documented_exit_codes() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let shutdown = serve(at);
    each_row_async(
        [
            (
                "container add c1 --ip 10.0.0.5 --repo o/n --socket DIR/api.sock",
                code::DONE,
            ),
            (
                "container add c1 --ip 10.0.0.5 --repo bad --socket DIR/api.sock",
                code::USAGE,
            ),
            ("container list --socket DIR/api.sock", code::DONE),
            ("container show c1 --json --socket DIR/api.sock", code::DONE),
            ("container show c2 --socket DIR/api.sock", code::USAGE),
            ("health --socket DIR/api.sock", code::DONE),
            (
                "container add c2 --ip 10.0.0.6 --socket DIR/api.sock",
                code::DONE,
            ),
            ("health --json --socket DIR/api.sock", code::SOFTWARE),
            (
                "container rm c1 --keep-level --socket DIR/api.sock",
                code::DONE,
            ),
            (
                "container rm c1 --keep-level --socket DIR/api.sock",
                code::USAGE,
            ),
            (
                "container add c1 --ip 10.0.0.5 --socket DIR/api.sock",
                code::DONE,
            ),
            ("container rm c2 --socket DIR/api.sock", code::DONE),
            ("container reset c1 --socket DIR/api.sock", code::DONE),
            ("container reset c2 --socket DIR/api.sock", code::USAGE),
            (
                "explain c1 GET https://github.com/ --socket DIR/api.sock",
                code::DONE,
            ),
            (
                "explain c1 tools/call kb read {\"a\":1} --socket DIR/api.sock",
                code::DONE,
            ),
            ("explain c1 GET kb read --socket DIR/api.sock", code::USAGE),
            ("mcp list --container c1 --socket DIR/api.sock", code::DONE),
            (
                "mcp list --container nobody --socket DIR/api.sock",
                code::USAGE,
            ),
            (
                "mcp call kb_read --container c1 --socket DIR/api.sock",
                code::DENIED,
            ),
            ("mcp list --url unix:DIR/nobody.sock", code::UNAVAILABLE),
            ("mcp accept kb read --socket DIR/api.sock", code::DONE),
            ("mcp accept kb other --socket DIR/api.sock", code::USAGE),
            ("health --socket DIR/nobody.sock", code::UNAVAILABLE),
            (
                "env --proxy http://proxy:8080 --certs /certs --socket DIR/nobody.sock",
                code::DONE,
            ),
            ("env --socket DIR/nobody.sock", code::UNAVAILABLE),
            ("env --socket DIR/api.sock", code::CONFIG),
            (
                "sandbox-files DIR/out --socket DIR/nobody.sock",
                code::UNAVAILABLE,
            ),
            (
                "sandbox-files DIR/out --proxy http://proxy:8080 --socket DIR/api.sock",
                code::DONE,
            ),
            ("registry check --data-dir DIR", code::DONE),
            ("registry backup DIR/copy.db --data-dir DIR", code::DONE),
            ("registry backup DIR/copy.db --data-dir DIR", code::USAGE),
            (
                "registry backup DIR/copy.db --data-dir DIR --force",
                code::DONE,
            ),
            ("registry restore DIR/copy.db --data-dir DIR", code::DONE),
            (
                "registry restore DIR/api.sock --data-dir DIR",
                code::SOFTWARE,
            ),
            ("registry check --data-dir DIR/nowhere", code::SOFTWARE),
        ],
        async |(line, expected)| {
            assert_eq!(exit_code(line, at).await, expected, "{line}");
        },
    )
    .await;
    // The admin API denies writes beyond 10 in a second with 429; the client retries them.
    for number in 0..12 {
        let line = format!("container add c{number} --ip 10.0.1.{number} --socket DIR/api.sock");
        assert_eq!(exit_code(&line, at).await, code::DONE, "{line}");
    }
    shutdown.cancel();
}

#[tokio::test]
async fn tail_fails_as_unavailable_when_the_server_stops() {
    let directory = tempfile::tempdir().unwrap();
    let shutdown = serve(directory.path());
    let stop = async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        shutdown.cancel();
    };
    let line = "tail --denied --socket DIR/api.sock";
    let (code, ()) = tokio::join!(exit_code(line, directory.path()), stop);
    assert_eq!(code, code::UNAVAILABLE);
}
