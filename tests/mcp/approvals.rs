//! Real clients call a tool about which a policy asks a person.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::each_row;

use crate::clients::{CLIENTS, Client, Transport};
use crate::gateway::Gateway;
use crate::scripted::{Answer, McpServer, Seen, tool};
use crate::support::{Origin, SOON, eventually};
use crate::tools::Tools;

const POLICY: &str = r#"package mcp.authz

default decision := "ask"

reason := "it costs money"
"#;
const PAID: &str = "the invoice is paid";
const WORDS: &str = "use the test account";

/// A gateway that asks about each call of the tool `pay`.
struct Asking {
    server: McpServer,
    gateway: Gateway,
    _origin: Origin,
    _bundle: TempDir,
}

impl Asking {
    fn start() -> Self {
        let pay = |seen: &Seen| (seen.tool() == "pay").then(|| Answer::text(PAID));
        let server = McpServer::scripted(vec![tool("pay")], pay);
        let bundle = TempDir::new().unwrap();
        std::fs::write(bundle.path().join("authz.rego"), POLICY).unwrap();
        let bundles = json!([{ "id": "main", "path": bundle.path(), "entrypoint": "mcp/authz" }]);
        let mcp = json!({
            "mcpServers": { "kb": server.mount() },
            "policies": { "bundles": bundles },
        });
        let origin = Origin::start();
        let gateway = Gateway::start(&origin, &mcp);
        gateway.wait_for(&["kb_pay".to_owned()]);
        Self {
            server,
            gateway,
            _origin: origin,
            _bundle: bundle,
        }
    }

    fn questions(&self) -> Vec<Value> {
        let path = "/internal/approvals?state=pending";
        let listed = self.gateway.proxy.admin("GET", path, None).json();
        listed["approvals"].as_array().unwrap().clone()
    }

    #[track_caller]
    fn decide(&self, question: &Value, act: &str, body: Value) {
        let path = format!(
            "/internal/approvals/{}/{act}",
            question["id"].as_str().unwrap()
        );
        let reply = self.gateway.proxy.admin("POST", &path, Some(body));
        assert_eq!(reply.status, 200, "{}", reply.text());
    }

    /// Decides each question for which a client waits, until `done`: approves calls with an odd
    /// number of the invoice.
    fn answer_until(&self, done: &AtomicBool) {
        while !done.load(Ordering::Acquire) {
            for question in self.questions() {
                let invoice = question["arguments"]["invoice"].as_u64().unwrap();
                match question["waiting"].as_u64().unwrap() {
                    0 => {}
                    _ if invoice % 2 == 1 => self.decide(&question, "approve", json!({})),
                    _ => self.decide(&question, "deny", json!({ "comment": WORDS })),
                }
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Sets the flag when it is dropped, also by a panic, so that the thread that reads it ends.
struct Finally<'a>(&'a AtomicBool);

impl Drop for Finally<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn client(name: &str) -> Client {
    *CLIENTS.iter().find(|client| client.name == name).unwrap()
}

const SDKS: [&str; 4] = [
    "Python `mcp` 1.30",
    "Python `mcp` 2.3",
    "`fastmcp` 4.1",
    "TypeScript `@modelcontextprotocol/sdk` 1.32",
];

#[test]
fn each_sdk_gets_the_result_of_an_approved_call_and_the_words_of_a_denial() {
    let Some(tools) = Tools::install("approvals for MCP clients") else {
        return;
    };
    let asking = Asking::start();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let _finally = Finally(&done);
        scope.spawn(|| asking.answer_until(&done));
        let mut paid = 0;
        each_row(SDKS, |name| {
            let call = |invoice: usize| json!(["kb_pay", { "invoice": invoice }]);
            let calls = json!([call(2 * paid + 1), call(2 * paid + 2)]);
            paid += 1;
            let found = client(name).run(&tools, Transport::Http, &asking.gateway, &calls);
            let [first, second] = &found.results[..] else {
                panic!("{found:?}");
            };
            assert_eq!(first, PAID);
            let words = format!("policy_denied_continue: denied by a person: {WORDS}");
            assert!(second.contains(&words), "{second}");
            assert_eq!(asking.server.calls().len(), paid);
        });
    });
}

#[test]
fn an_approval_after_the_client_has_given_up_is_for_its_next_call() {
    let Some(tools) = Tools::install("approvals after an MCP client gave up") else {
        return;
    };
    let asking = Asking::start();
    let sdk = client("TypeScript `@modelcontextprotocol/sdk` 1.32");
    let call = |timeout: Option<u64>| {
        let calls = json!([["kb_pay", { "invoice": 1 }, timeout]]);
        let mut found = sdk.run(&tools, Transport::Http, &asking.gateway, &calls);
        found.results.remove(0)
    };
    let given_up = call(Some(3000));
    assert!(given_up.contains("timed out"), "{given_up}");
    eventually("nobody waits", SOON, || {
        let questions = asking.questions();
        questions.len() == 1 && questions[0]["waiting"] == 0
    });
    asking.decide(&asking.questions()[0], "approve", json!({}));
    assert_eq!(asking.server.calls().len(), 0);
    assert_eq!(call(None), PAID);
    assert_eq!(asking.server.calls().len(), 1);
}
