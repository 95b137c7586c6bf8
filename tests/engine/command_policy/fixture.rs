//! The evaluator of a command that is a Python program, and evaluations of it.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use addons::contract::*;
use prometheus::{Encoder, TextEncoder};
use serde_json::{Value, json};
use tempfile::TempDir;
use unified_proxy::config::{Profile, load_with};
use unified_proxy::mcp::policy::*;
use unified_proxy::mcp::{Machine, Spawner};

use crate::children::fixture::{eventually, running};

/// Path of the proxy's binary, which starts the confined processes.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_unified-proxy");
/// Executes the policy in `POLICY_SRC`.
pub const SHIM: &str = "import os; exec(os.environ['POLICY_SRC'])";
/// A time limit that no evaluation reaches that is expected to end before it.
pub const LONG: Duration = Duration::from_secs(60);

pub struct Fixture {
    pub evaluator: Arc<dyn Evaluator>,
    commands: Arc<CommandRunner>,
    registry: prometheus::Registry,
    /// A directory that unconfined policies may write to; `DIR` in the text of a policy.
    pub directory: TempDir,
}

impl Fixture {
    /// Loads a policy in Python.
    pub fn new(policy: &str) -> Self {
        Self::with(policy, &json!({}))
    }

    /// Loads a policy in Python, with these keys of `policies.evaluator`.
    pub fn with(policy: &str, keys: &Value) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("policy.py");
        let path = directory.path().display().to_string();
        fs::write(&source, policy.replace("DIR", &path)).unwrap();
        // The last word marks the processes of this fixture.
        let command = json!(["python3", "-c", SHIM, path]);
        let mut evaluator = json!({ "kind": "command", "command": command, "source": source });
        for (key, value) in keys.as_object().unwrap() {
            evaluator[key] = value.clone();
        }
        let mcp = json!({ "policies": { "evaluator": evaluator } });
        fs::write(directory.path().join("mcp.yaml"), mcp.to_string()).unwrap();
        let config = load_with(directory.path(), Profile::Serve, &|_| None).unwrap();
        let settings = &config.addons.mcp.policies;
        let certificates = directory.path().join("certs");
        fs::create_dir(&certificates).unwrap();
        fs::write(certificates.join("ca-bundle.pem"), "").unwrap();
        let machine = Machine::new(certificates, Vec::new());
        let policies = Policies::load(settings, None, &machine);
        assert!(policies.unloaded.is_empty(), "{:?}", policies.unloaded);
        let spawner = Spawner::start(PROGRAM.into()).unwrap();
        let registry = prometheus::Registry::new();
        let parts = PolicyParts {
            threads: Arc::new(PolicyThreads::start().unwrap()),
            commands: Arc::new(CommandRunner::new(spawner, Arc::new(machine))),
            metrics: Arc::new(PolicyMetrics::new(&registry).unwrap()),
        };
        Self {
            evaluator: policies.evaluator(settings.on_unavailable, &parts),
            commands: parts.commands,
            registry,
            directory,
        }
    }

    /// Evaluates a call of the tool `send` with these arguments.
    pub async fn call(&self, arguments: &Value) -> Result<Decision, EvaluatorError> {
        self.call_of("agent-1", arguments, LONG).await
    }

    /// Evaluates a call of a container within a time limit.
    pub async fn call_of(
        &self,
        container: &str,
        arguments: &Value,
        limit: Duration,
    ) -> Result<Decision, EvaluatorError> {
        let mut input = PolicyInput::default();
        input.text("tool", "send");
        input.json("arguments", &arguments.to_string());
        let evaluation = Evaluation {
            container: ContainerId::parse(container).unwrap(),
            input,
            decided: 0,
            ends: Instant::now().checked_add(limit),
        };
        let decided = self.evaluator.evaluate("tools/call", evaluation).await?;
        assert!(!decided.more);
        let [decision] = <[Decision; 1]>::try_from(decided.all).unwrap();
        assert_eq!(&*decision.bundle, "command");
        Ok(decision)
    }

    /// Waits until every evaluation has ended, and asserts that no process of the policy is left,
    /// not even one whose parent has ended.
    pub async fn settle(&self) {
        let settled = tokio::time::timeout(LONG, self.commands.settled()).await;
        assert!(settled.is_ok(), "an evaluation has not ended");
        assert_eq!(self.processes(), 0, "a process is left");
    }

    /// The number of processes of the policy.
    pub fn processes(&self) -> usize {
        running(self.directory.path().to_str().unwrap())
    }

    /// Begins a call, and stops waiting for it once the policy has this number of processes.
    pub async fn call_until(&self, processes: usize) {
        let arguments = json!({});
        tokio::select! {
            decided = self.call(&arguments) => panic!("{decided:?}"),
            begun = eventually(LONG, || self.processes() >= processes) => assert!(begun),
        }
    }

    /// The number of files in the directory whose names begin with a prefix.
    pub fn files(&self, prefix: &str) -> usize {
        let entries = fs::read_dir(self.directory.path()).unwrap().flatten();
        let named = entries.filter(|entry| {
            let name = entry.file_name();
            name.to_str().unwrap().starts_with(prefix)
        });
        named.count()
    }

    pub fn metrics(&self) -> String {
        let mut text = Vec::new();
        let families = self.registry.gather();
        TextEncoder::new().encode(&families, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }
}
