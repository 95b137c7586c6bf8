//! Runs the official conformance suite, and reads its result files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::programs::node_server;
use crate::support::yaml;
use crate::tools::Tools;

/// The revisions of the specification that have a set of requirements.
pub const REVISIONS: [&str; 2] = ["2025-11-25", "2026-07-28"];

/// Time limit of a scenario, in milliseconds; without the gateway the longest takes 4 s.
const SCENARIO_TIMEOUT: &str = "20000";

/// A check: the scenario, and `id/name`, since ids alone are not unique within a scenario.
pub type Check = (String, String);

/// The statuses of each check, one for each execution.
pub type Checks = BTreeMap<Check, Vec<String>>;

/// The results of a run.
#[derive(Debug)]
pub struct Findings {
    pub checks: Checks,
    /// For [`Run::server`], whether every scored scenario passed. For [`Run::client`], whether its
    /// one scenario passed, scored or not; warnings count as failures.
    pub passed: bool,
}

/// The scenarios that a revision requires of a `side`: `server` or `client`.
pub fn scored(tools: &Tools, revision: &str, side: &str) -> Vec<String> {
    names(requirements(tools, revision)[side].as_array().unwrap())
}

/// The scenarios that a revision requires of clients, followed by the client scenarios that are not
/// scored.
pub fn client_scenarios(tools: &Tools, revision: &str) -> Vec<String> {
    let others = requirements(tools, revision)["not_scored"].take();
    let others = others.as_array().unwrap().iter();
    let others = others.filter(|entry| entry["leg"] == "client");
    let mut all = scored(tools, revision, "client");
    all.extend(names(others.map(|entry| &entry["scenario"])));
    all
}

fn requirements(tools: &Tools, revision: &str) -> Value {
    let path = tools.package(&format!("conformance/requirements/{revision}.yaml"));
    yaml(&fs::read_to_string(path).unwrap())
}

fn names<'a>(scenarios: impl IntoIterator<Item = &'a Value>) -> Vec<String> {
    let names = scenarios.into_iter();
    names
        .map(|name| name.as_str().unwrap().to_owned())
        .collect()
}

/// A run of the suite.
pub struct Run {
    child: Child,
    output: TempDir,
}

impl Run {
    /// Starts all server scenarios of a revision's requirements, also those that are not scored.
    pub fn server(tools: &Tools, revision: &str, url: &str) -> Self {
        Self::start(tools, |suite| {
            suite.args(["server", "--requirements", revision, "--url", url]);
        })
    }

    /// Starts one scenario with a client; `set` adds the client's command and its environment.
    pub fn client(
        tools: &Tools,
        revision: &str,
        scenario: &str,
        set: impl FnOnce(&mut Command),
    ) -> Self {
        Self::start(tools, |suite| {
            suite.args(["client", "--scenario", scenario]);
            suite.args(["--spec-version", revision, "--force"]);
            set(suite);
        })
    }

    fn start(tools: &Tools, set: impl FnOnce(&mut Command)) -> Self {
        let output = TempDir::new().unwrap();
        let mut suite = node_server(tools);
        suite.arg(tools.package("conformance/dist/index.js"));
        set(&mut suite);
        suite
            .args(["--timeout", SCENARIO_TIMEOUT, "--output-dir"])
            .arg(output.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self {
            child: suite.spawn().unwrap(),
            output,
        }
    }

    /// Waits for the end of the run, and reads its results; prints the checks that did not succeed,
    /// with the name of the run.
    pub fn end(mut self, name: &str) -> Findings {
        let status = self.child.wait().unwrap();
        let mut checks = Checks::new();
        for (check, status, why) in read(self.output.path()) {
            if status != "SUCCESS" {
                println!("{name}: {} {}: {status} {why}", check.0, check.1);
            }
            checks.entry(check).or_default().push(status);
        }
        Findings {
            checks,
            passed: status.success(),
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the checks, with status and error, from the `checks.json` of each directory. A directory
/// is named after its scenario and the time; it has no `checks.json` if the scenario failed to run.
fn read(directory: &Path) -> Vec<(Check, String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let text = fs::read_to_string(entry.path().join("checks.json")).unwrap_or("[]".to_owned());
        let scenario = &name[..name.len() - TIME.len()];
        let scenario = scenario.strip_prefix("server-").unwrap_or(scenario);
        let checks: Vec<Value> = serde_json::from_str(&text).unwrap();
        // Entries with the status INFO, such as exchanged messages, are not checks.
        for check in checks.iter().filter(|check| check["status"] != "INFO") {
            let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
            let key = (
                scenario.to_owned(),
                format!("{}/{}", text("id"), text("name")),
            );
            found.push((key, text("status"), text("errorMessage")));
        }
    }
    found
}

/// An example of the suffix that a directory's name has; only its length is used.
const TIME: &str = "-2026-11-23T04-30-16-963Z";
