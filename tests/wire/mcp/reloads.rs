//! Reloads of valid and invalid configurations, in turn.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use super::hostile::client::{Client, DENIED, Era, Gateway};
use super::hostile::server::{McpServer, tool};

/// What is wrong with a configuration.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Syntax,
    Value,
    UnknownKey,
    /// Two overrides give the same name.
    Names,
    /// `mcp.yaml` is valid, but another file is not.
    OtherFile,
    FileGone,
    PolicyBroken,
    PolicyGone,
    /// The bundle in force was edited, and does not compile.
    PolicyEdited,
}

const FAULTS: [Fault; 9] = [
    Fault::Syntax,
    Fault::Value,
    Fault::UnknownKey,
    Fault::Names,
    Fault::OtherFile,
    Fault::FileGone,
    Fault::PolicyBroken,
    Fault::PolicyGone,
    Fault::PolicyEdited,
];

struct Reloads<'s> {
    server: &'s McpServer,
    gateway: Gateway,
    /// The number of the newest configuration; 0 before the first.
    number: Cell<u32>,
}

impl Reloads<'_> {
    /// Makes a bundle with one decision. The number is part of the decision's reason.
    fn bundle(&self, number: u32, denies: bool) -> PathBuf {
        let path = self.gateway.proxy.path(&format!("bundle-{number}"));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("authz.rego"), rules(number, denies)).unwrap();
        path
    }

    /// A valid `mcp.yaml`. The number is part of the tool's name.
    fn settings(&self, number: u32, bundle: &Path) -> Value {
        json!({
            "mcpServers": { "kb": self.server.mount() },
            "overrides": { "kb:read": { "rename": format!("read-{number}") } },
            "policies": {
                "bundles": [{ "id": "main", "path": bundle, "entrypoint": "mcp/authz" }],
                "on_unavailable": "allow",
            },
        })
    }

    /// Replaces a file in one step, so that the proxy never reads a part of it.
    fn replace(&self, name: &str, text: &str) {
        let new = self.gateway.proxy.path("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.gateway.proxy.path(name)).unwrap();
    }

    fn next_number(&self) -> u32 {
        self.number.set(self.number.get() + 1);
        self.number.get()
    }

    fn reload(&self) -> u16 {
        let reply = self.gateway.proxy.admin("POST", "/internal/reload", None);
        reply.status
    }

    /// Puts a valid configuration into force, and returns its number.
    fn apply(&self, denies: bool) -> u32 {
        let number = self.next_number();
        let bundle = self.bundle(number, denies);
        let settings = self.settings(number, &bundle).to_string();
        self.replace("config/mcp.yaml", &settings);
        self.replace("config/policy.yaml", &policy_file(number));
        assert_eq!(self.reload(), 200);
        number
    }

    /// Writes a configuration with a fault. Its tool has another name than in the configuration in
    /// force.
    fn damage(&self, fault: Fault, in_force: u32) {
        let number = self.next_number();
        let bundle = self.bundle(number, false);
        let mut settings = self.settings(number, &bundle);
        let path = &mut settings["policies"]["bundles"][0]["path"];
        match fault {
            Fault::PolicyBroken => fs::write(bundle.join("authz.rego"), "package").unwrap(),
            Fault::PolicyGone => *path = json!(bundle.join("gone")),
            Fault::PolicyEdited => {
                let edited = format!("bundle-{in_force}");
                *path = json!(self.gateway.proxy.path(&edited));
                self.replace(&format!("{edited}/authz.rego"), "package");
            }
            Fault::OtherFile => self.replace("config/policy.yaml", "version: 1\nbogus: 1\n"),
            Fault::Value => settings["policies"]["on_unavailable"] = json!("perhaps"),
            Fault::UnknownKey => settings["polices"] = json!({}),
            Fault::Names => {
                let rename = json!({ "rename": format!("read-{number}") });
                settings["overrides"]["kb:other"] = rename;
            }
            Fault::Syntax | Fault::FileGone => {}
        }
        let mut text = settings.to_string();
        match fault {
            Fault::FileGone => fs::remove_file(self.gateway.proxy.path("config/mcp.yaml")).unwrap(),
            Fault::Syntax => {
                text.pop();
                self.replace("config/mcp.yaml", &text);
            }
            _ => self.replace("config/mcp.yaml", &text),
        }
    }

    /// The listed tools, and the code and the reason of the answer to a call of the first one.
    fn state(&self, client: &Client<'_>) -> (Vec<String>, i64, String) {
        let tools = client.tools();
        let called = client.call(&tools[0], json!({}));
        let error = &called["error"];
        let (code, reason) = (error["code"].as_i64(), error["data"]["reason"].as_str());
        let reason = reason.unwrap_or_default().to_owned();
        (tools, code.unwrap_or_default(), reason)
    }
}

fn rules(number: u32, denies: bool) -> String {
    let decision = if denies { "deny_continue" } else { "allow" };
    format!("package mcp.authz\n\ndecision := \"{decision}\"\n\nreason := \"rule {number}\"\n")
}

/// A valid `policy.yaml`, with limits that no test reaches.
fn policy_file(number: u32) -> String {
    let rates = json!({ "requests_per_second": 100_000 + number, "burst_size": 200_000 });
    json!({ "version": 1, "rate_limits": { "defaults": rates } }).to_string()
}

// Feature: unified-sidecar, Property 8: Configuration Hot-Reload Atomicity
#[test]
fn a_valid_configuration_applies_as_a_whole_and_an_invalid_one_changes_nothing() {
    let server = McpServer::start(vec![tool("read")]);
    let gateway = Gateway::start(&json!({ "mcpServers": { "kb": server.mount() } }));
    let reloads = Reloads {
        server: &server,
        gateway,
        number: Cell::new(0),
    };
    let client = Client::open(&reloads.gateway, Era::Modern).wait_for(&["kb_read"]);
    let mut runner = TestRunner::new(Config {
        cases: 108,
        failure_persistence: None,
        ..Config::default()
    });
    let case = (any::<bool>(), prop::sample::select(FAULTS.to_vec()));
    let tested = runner.run(&case, |(denies, fault)| {
        let number = reloads.apply(denies);
        let expected = match denies {
            true => (DENIED, format!("rule {number}")),
            false => (0, String::new()),
        };
        let expected = (vec![format!("read-{number}")], expected.0, expected.1);
        prop_assert_eq!(reloads.state(&client), expected.clone());
        reloads.damage(fault, number);
        prop_assert_eq!(reloads.reload(), 422);
        prop_assert_eq!(reloads.state(&client), expected);
        Ok(())
    });
    tested.unwrap();
}
