//! Agents whose model calls a tool about which a policy asks a person.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::*;
use crate::mcp::hostile::server::{Answer, McpServer, Seen as Received, tool};
use crate::support::{free_address, installed};

const POLICY: &str = r#"package mcp.authz

default decision := "ask"

reason := "it costs money"
"#;
const PAID: &str = "the invoice is paid";
const WORDS: &str = "use the test account";
/// In the error that the model gets if its question expires.
const EXPIRY: &str = "nobody decided in time";
/// The invoice of a payment that is approved while the agent waits.
const APPROVED: u64 = 1;
/// The invoice of a payment that is denied.
const DENIED: u64 = 2;
/// The invoice of a payment that is approved after the agent has given up.
const LATE: u64 = 3;
/// The invoice of a payment whose question expires.
const EXPIRED: u64 = 4;
/// How long a model waits for the late approval before it repeats the call, at most.
const PATIENCE: Duration = Duration::from_secs(60);

/// A proxy whose policy asks about a tool, a server with the tool, and a model that calls it.
struct Paying {
    server: McpServer,
    proxy: Proxy,
    url: String,
    /// The results of tools in the latest request to the model that had any.
    read: Arc<Mutex<Vec<String>>>,
    /// Whether the agent has waited for the late approval.
    has_waited: AtomicBool,
    /// Set when the late approval was given.
    is_late: Arc<AtomicBool>,
    _origin: Origin,
    _bundle: TempDir,
}

impl Paying {
    /// Starts everything for a model that pays these invoices, one after the other.
    fn start(agent: &Agent, invoices: &'static [u64]) -> Self {
        let pay = |seen: &Received| (seen.tool() == "pay").then(|| Answer::text(PAID));
        let server = McpServer::scripted(vec![tool("pay")], pay);
        let read: Arc<Mutex<Vec<String>>> = Arc::default();
        let is_late: Arc<AtomicBool> = Arc::default();
        let (kept, approved) = (Arc::clone(&read), Arc::clone(&is_late));
        let calls: Vec<_> = invoices
            .iter()
            .map(|one| json!({ "invoice": one }))
            .collect();
        let origin = Origin::scripted(move |seen: &Seen, body| {
            let parsed: Value = serde_json::from_str(body).unwrap_or_default();
            let results = tool_calls::results(&parsed);
            if let Some(last) = results.len().checked_sub(1) {
                *kept.lock() = results.iter().map(ToString::to_string).collect();
                if invoices[last..].starts_with(&[LATE, LATE]) {
                    tokio::task::block_in_place(|| wait_for(&approved));
                }
            }
            let called = tool_calls::answer(seen, &parsed, "kb_pay", &calls);
            Some(called.unwrap_or_else(|| stand_ins::answer(seen, body)))
        });
        let bundle = TempDir::new().unwrap();
        fs::write(bundle.path().join("authz.rego"), POLICY).unwrap();
        let bundles = json!([{ "id": "main", "path": bundle.path(), "entrypoint": "mcp/authz" }]);
        let mcp = json!({
            "mcpServers": { "kb": server.mount() },
            "policies": { "bundles": bundles },
        });
        let mut setup = configured(agent, &origin);
        let address = free_address();
        setup.proxy["listen"]["mcp"] = json!([address.to_string()]);
        if invoices.contains(&EXPIRED) {
            setup.proxy["approvals"] = json!({ "ttl": "8s" });
        }
        fs::write(setup.dir().join("config/mcp.yaml"), mcp.to_string()).unwrap();
        Self {
            server,
            proxy: setup.start(),
            url: format!("http://{address}/mcp"),
            read,
            has_waited: AtomicBool::new(false),
            is_late,
            _origin: origin,
            _bundle: bundle,
        }
    }

    /// Decides each question, until `done`.
    fn decide_until(&self, done: &AtomicBool) {
        while !done.load(Ordering::Acquire) {
            let pending = self
                .proxy
                .admin("GET", "/internal/approvals?state=pending", None);
            for question in pending.json()["approvals"].as_array().unwrap() {
                self.decide(question);
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn decide(&self, question: &Value) {
        let is_waiting = question["waiting"] != 0;
        let (act, body) = match question["arguments"]["invoice"].as_u64().unwrap() {
            APPROVED if is_waiting => ("approve", json!({})),
            DENIED if is_waiting => ("deny", json!({ "comment": WORDS })),
            LATE if is_waiting => return self.has_waited.store(true, Ordering::Release),
            LATE if self.has_waited.load(Ordering::Acquire) => ("approve", json!({})),
            _ => return,
        };
        let path = format!(
            "/internal/approvals/{}/{act}",
            question["id"].as_str().unwrap()
        );
        let reply = self.proxy.admin("POST", &path, Some(body));
        assert_eq!(reply.status, 200, "{}", reply.text());
        self.is_late.fetch_or(!is_waiting, Ordering::AcqRel);
    }
}

fn wait_for(approved: &AtomicBool) {
    let until = Instant::now() + PATIENCE;
    while !approved.load(Ordering::Acquire) && Instant::now() < until {
        thread::sleep(Duration::from_millis(50));
    }
}

/// Runs an agent with the script, in which `URL` stands for the gateway, while a person decides.
/// Asserts that its model pays the invoices, and reads the result or the denial of each call.
fn pays(agent: &Agent, script: &str, invoices: &'static [u64]) {
    let Some(programs) = packages::programs(agent.name) else {
        return;
    };
    let paying = Paying::start(agent, invoices);
    let sandbox = Sandbox::new(agent, &programs, &paying.proxy);
    let done = AtomicBool::new(false);
    let run = thread::scope(|scope| {
        scope.spawn(|| paying.decide_until(&done));
        let run = sandbox.run(&script.replace("URL", &paying.url));
        done.store(true, Ordering::Release);
        run
    });
    let read = paying.read.lock();
    let said = format!("{}: {}\n{read:#?}", agent.name, run.output);
    assert!(run.output.contains(REPLY), "{said}");
    assert_eq!(read.len(), invoices.len(), "{said}");
    let mut paid = 0;
    for (at, (invoice, result)) in invoices.iter().zip(&*read).enumerate() {
        let expected = match *invoice {
            DENIED => WORDS,
            EXPIRED => EXPIRY,
            LATE if invoices[at..].starts_with(&[LATE, LATE]) => continue,
            _ => PAID,
        };
        assert!(result.contains(expected), "{invoice}: {said}");
        paid += usize::from(expected == PAID);
    }
    assert_eq!(paying.server.calls().len(), paid, "{said}");
}

#[test]
fn claude_code_waits_for_people_reads_their_words_and_finds_an_approval_after_it_gave_up() {
    // Without ENABLE_TOOL_SEARCH=false, its model may have to search for the tool first.
    let script = r#"echo '{"mcpServers":{"tools":{"type":"http","url":"URL"}}}' >mcp.json
        ENABLE_TOOL_SEARCH=false MCP_TOOL_TIMEOUT=10000 claude -p pay --mcp-config mcp.json --allowedTools mcp__tools__kb_pay"#;
    let agent = claude_with_a_key("Claude Code with a tool that people approve");
    pays(&agent, script, &[APPROVED, DENIED, LATE, LATE]);
}

#[test]
fn codex_waits_for_people_and_reads_their_words_or_that_the_question_expired() {
    let script = r#"codex exec -m gpt-5 --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox \
        -c 'mcp_servers.tools.url="URL"' pay"#;
    let agent = codex_with_a_key("Codex with a tool that people approve");
    pays(&agent, script, &[APPROVED, DENIED, EXPIRED]);
}

#[test]
fn gemini_waits_for_people_and_reads_their_words_or_that_the_question_expired() {
    let script = r#"mkdir -p ~/.gemini
        echo '{"mcpServers":{"tools":{"httpUrl":"URL","trust":true}},
            "security":{"auth":{"selectedType":"gemini-api-key"}}}' >~/.gemini/settings.json
        gemini --skip-trust --yolo -m gemini-2.5-flash -p pay"#;
    let mut agent = gemini_with_a_key();
    agent.name = "Gemini with a tool that people approve";
    pays(&agent, script, &[APPROVED, DENIED, EXPIRED]);
}

#[test]
fn opencode_waits_for_people_and_reads_their_words_or_that_the_question_expired() {
    let script = r#"echo '{"mcp":{"tools":{"type":"remote","url":"URL"}}}' >opencode.json
        opencode run -m openai/gpt-5 pay"#;
    let mut agent = opencode_with_a_key();
    agent.name = "OpenCode with a tool that people approve";
    pays(&agent, script, &[APPROVED, DENIED, EXPIRED]);
}

/// The clients that `docs/approvals.md` names, as the packages that the tests install.
const CLIENTS: [&str; 7] = [
    "@anthropic-ai/claude-code",
    "@google/gemini-cli",
    "@openai/codex",
    "opencode-ai",
    "mcp",
    "fastmcp",
    "@modelcontextprotocol/sdk",
];

#[test]
fn the_table_of_waits_has_the_versions_of_the_clients_that_are_tested() {
    let requirements = [
        include_str!("../mcp/requirements-1.txt"),
        include_str!("../mcp/requirements-2.txt"),
    ];
    let pinned = [
        installed::pinned(&[], include_str!("package.json")),
        installed::pinned(&requirements, include_str!("../mcp/package.json")),
    ]
    .join(", ");
    let tested = pinned.split(", ").filter(|one| {
        let (name, _) = one.split_once(' ').unwrap();
        CLIENTS.contains(&name)
    });
    let tested: Vec<_> = tested.collect();
    let line = format!("Tested with {}.", tested.join(", "));
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/approvals.md");
    let document = fs::read_to_string(document).unwrap();
    assert!(document.contains(&line), "docs/approvals.md lacks: {line}");
}
