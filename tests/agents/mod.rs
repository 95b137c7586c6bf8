//! Coding agents as npm installs them, with a new home directory and the files that the command
//! `sandbox-files` writes. They converse through the real binary with stand-ins for their APIs,
//! which must get the real credential.

mod approvals;
mod hooks;
mod packages;
mod stand_ins;
mod tool_calls;

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Origin, Proxy, RawOrigin, Seen, Setup};
use stand_ins::{ACCOUNT, HOSTS, REPLY};

const SECRET: &str = "real-4f9a1c7be02d58c36e";
const PLACEHOLDER: &str = "up-placeholder-";
/// Limit on the time of a run through the proxy, as a multiple of the time through a relay that
/// only copies bytes.
const MAX_SLOWDOWN: f64 = 1.5;
/// Maximum number of rounds, each with one run through the proxy and one through the relay. The
/// fastest run through the proxy is compared with the fastest through the relay, because other load
/// on the machine slows runs down.
const ROUNDS: u32 = 3;
/// Time limit of an agent, in seconds.
const TIMEOUT: &str = "90";

/// An agent, its login and its command.
struct Agent {
    name: &'static str,
    command: &'static str,
    /// The entry of `credentials.yaml`.
    credential: Value,
    /// Content of the entry's token file, if it has one.
    login: Option<Value>,
    /// A file of `sandbox-files`, and its path below the agent's home directory.
    mounted: Option<(&'static str, &'static str)>,
    /// A variable of `sandbox-files`, and the name under which the agent reads it.
    renamed: Option<(&'static str, &'static str)>,
}

/// The stand-ins for the APIs, and the bodies of all requests that reached them.
struct Fixture {
    origin: Origin,
    bodies: Arc<Mutex<String>>,
}

impl Fixture {
    fn start() -> Self {
        let bodies: Arc<Mutex<String>> = Arc::default();
        let kept = Arc::clone(&bodies);
        let origin = Origin::scripted(move |seen: &Seen, body| {
            *kept.lock() += body;
            Some(stand_ins::answer(seen, body))
        });
        Self { origin, bodies }
    }
}

fn start(agent: &Agent, origin: &Origin) -> Proxy {
    configured(agent, origin).start()
}

fn configured(agent: &Agent, origin: &Origin) -> Setup {
    let mut setup = Setup::new(origin);
    for host in HOSTS {
        setup.host(host, origin.https);
    }
    let mut credential = agent.credential.clone();
    if let Some(login) = &agent.login {
        let file = setup.dir().join("login.json");
        fs::write(&file, login.to_string()).unwrap();
        credential["oauth"]["token_file"] = json!(file);
    }
    setup.credential(credential);
    setup
}

/// A proxy that answers each CONNECT with 200 and copies bytes to one address.
fn relay(to: SocketAddr) -> RawOrigin {
    RawOrigin::start(move |mut client| {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte)?;
            head.extend(byte);
        }
        let mut upstream = TcpStream::connect(to)?;
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
        let (mut from, mut back) = (upstream.try_clone()?, client.try_clone()?);
        std::thread::spawn(move || {
            let _ = io::copy(&mut from, &mut back);
            let _ = back.shutdown(Shutdown::Write);
        });
        io::copy(&mut client, &mut upstream)?;
        upstream.shutdown(Shutdown::Write)
    })
}

/// A run of an agent: its home directory, output and duration.
struct Run {
    home: TempDir,
    output: String,
    took: Duration,
}

/// The environment and the files of an agent's process.
struct Sandbox<'a> {
    agent: &'a Agent,
    programs: &'a Path,
    files: PathBuf,
    env: Vec<(String, String)>,
}

impl<'a> Sandbox<'a> {
    fn new(agent: &'a Agent, programs: &'a Path, proxy: &Proxy) -> Self {
        let files = proxy.path("files");
        proxy.cli(&["sandbox-files", files.to_str().unwrap()]).ok();
        let env = fs::read_to_string(files.join("env")).unwrap();
        let pairs = env.lines().filter_map(|line| line.split_once('='));
        let named = |(name, value): (&str, &str)| {
            let renamed = agent.renamed.filter(|(from, _)| *from == name);
            (
                renamed.map_or(name, |(_, to)| to).to_owned(),
                value.to_owned(),
            )
        };
        Self {
            agent,
            programs,
            env: pairs.map(named).collect(),
            files,
        }
    }

    /// The same environment with the relay instead of the proxy, and with this CA file.
    fn direct(&self, proxy: &Proxy, relay: &RawOrigin, ca: &Path) -> Self {
        let value = |value: &str| match value {
            url if url == proxy.url() => format!("http://{}", relay.address),
            path if path.ends_with(".pem") => ca.display().to_string(),
            other => other.to_owned(),
        };
        let env = self.env.iter();
        Self {
            agent: self.agent,
            programs: self.programs,
            files: self.files.clone(),
            env: env.map(|(name, old)| (name.clone(), value(old))).collect(),
        }
    }

    fn command(&self, home: &Path, script: &str) -> Command {
        fs::create_dir(home.join("work")).unwrap();
        if let Some((from, to)) = self.agent.mounted {
            let to = home.join(to);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(self.files.join(from), to).unwrap();
        }
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new("timeout");
        command
            .args([TIMEOUT, "sh", "-c", script])
            .env_clear()
            .env("PATH", format!("{}:{path}", self.programs.display()))
            .env("HOME", home)
            .env("TERM", "xterm-256color")
            .envs(self.env.iter().cloned())
            .current_dir(home.join("work"))
            .stdin(Stdio::null());
        if let Some((_, file)) = self.agent.mounted.filter(|_| self.agent.login.is_some())
            && file.contains(".claude")
        {
            // The variable would take precedence over the file, which this run must use.
            command.env_remove("CLAUDE_CODE_OAUTH_TOKEN");
        }
        command
    }

    fn run(&self, script: &str) -> Run {
        let home = TempDir::new().unwrap();
        let began = Instant::now();
        let output = self.command(home.path(), script).output().unwrap();
        let took = began.elapsed();
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text += &String::from_utf8_lossy(&output.stderr);
        Run {
            home,
            output: text,
            took,
        }
    }

    fn converse(&self) -> Run {
        let run = self.run(self.agent.command);
        let said = &run.output;
        assert!(said.contains(REPLY), "{}: {said}", self.agent.name);
        run
    }
}

/// Installs the agents while other tests run, which takes minutes the first time.
#[test]
fn npm_installs_the_agents() {
    if let Some(programs) = packages::programs("all agents") {
        for name in ["claude", "codex", "gemini", "opencode"] {
            assert!(programs.join(name).exists(), "{name}");
        }
    }
}

/// Runs an agent through the proxy and through the relay. Asserts that the agent prints the reply,
/// that no secret leaked, and that the agent takes at most [`MAX_SLOWDOWN`] times as long through
/// the proxy.
fn converses(agent: &Agent) {
    let Some(programs) = packages::programs(agent.name) else {
        return;
    };
    let (fixture, relayed) = (Fixture::start(), Fixture::start());
    let proxy = start(agent, &fixture.origin);
    let sandbox = Sandbox::new(agent, &programs, &proxy);
    let ca = proxy.path("direct.pem");
    fs::write(&ca, &relayed.origin.ca_pem).unwrap();
    let relay = relay(relayed.origin.https);
    let direct = sandbox.direct(&proxy, &relay, &ca);
    let (mut without, mut with) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        let run = sandbox.converse();
        assert_nothing_leaked(&run, &fixture);
        with = with.min(run.took);
        without = without.min(direct.converse().took);
        if with <= without.mul_f64(MAX_SLOWDOWN) {
            break;
        }
    }
    println!(
        "{}: {with:?} through the proxy, {without:?} without",
        agent.name
    );
    assert!(
        with <= without.mul_f64(MAX_SLOWDOWN),
        "{with:?} through the proxy, {without:?} without"
    );
}

/// Asserts that the API got the secret and no placeholder, and that the agent's output and home
/// directory do not contain the secret.
fn assert_nothing_leaked(run: &Run, fixture: &Fixture) {
    let seen = format!("{:?}{}", fixture.origin.seen(), fixture.bodies.lock());
    assert!(seen.contains(SECRET), "{seen}");
    if let Some(at) = seen.find(PLACEHOLDER) {
        let around = seen.get(at.saturating_sub(300)..(at + 100).min(seen.len()));
        panic!("a placeholder reached the API: {around:?}");
    }
    assert!(!run.output.contains(SECRET), "{}", run.output);
    let mut dirs = vec![run.home.path().to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                dirs.push(entry.path());
            } else if kind.is_file() {
                let content = fs::read(entry.path()).unwrap_or_default();
                let mut windows = content.windows(SECRET.len());
                let found = windows.any(|window| window == SECRET.as_bytes());
                assert!(!found, "the secret is in {:?}", entry.path());
            }
        }
    }
}

fn claude(name: &'static str, credential: Value) -> Agent {
    Agent {
        name,
        command: "claude -p 'say pong'",
        credential,
        login: None,
        mounted: None,
        renamed: None,
    }
}

fn claude_with_a_key(name: &'static str) -> Agent {
    claude(
        name,
        json!({
            "name": "anthropic", "hosts": ["api.anthropic.com"],
            "set_headers": { "x-api-key": SECRET }, "remove_headers": ["authorization"],
        }),
    )
}

#[test]
fn claude_code_converses_with_an_api_key() {
    converses(&claude_with_a_key("Claude Code with an API key"));
}

#[test]
fn claude_code_converses_with_a_setup_token() {
    converses(&claude(
        "Claude Code with a token of `claude setup-token`",
        json!({
            "name": "claude", "hosts": ["api.anthropic.com"],
            "bearer": SECRET, "remove_headers": ["x-api-key"],
        }),
    ));
}

#[test]
fn claude_code_converses_with_a_subscription_login() {
    let mut agent = claude(
        "Claude Code with the login of a subscription",
        json!({
            "name": "claude", "hosts": ["api.anthropic.com"], "remove_headers": ["x-api-key"],
            "oauth": { "provider": "claude" },
        }),
    );
    agent.login = Some(json!({ "claudeAiOauth": {
        "accessToken": SECRET, "refreshToken": SECRET, "expiresAt": 4_102_444_800_000_u64,
    }}));
    agent.mounted = Some(("claude/.credentials.json", ".claude/.credentials.json"));
    converses(&agent);
}

const CODEX: &str = "codex exec --skip-git-repo-check --sandbox read-only 'say pong'";

fn codex_with_a_key(name: &'static str) -> Agent {
    Agent {
        name,
        command: CODEX,
        credential: json!({ "name": "openai", "hosts": ["api.openai.com"], "bearer": SECRET }),
        login: None,
        mounted: None,
        renamed: Some(("OPENAI_API_KEY", "CODEX_API_KEY")),
    }
}

#[test]
fn codex_converses_with_an_api_key() {
    converses(&codex_with_a_key("Codex with an API key"));
}

fn codex_with_a_login() -> Agent {
    let claims = json!({
        "exp": 4_102_444_800_u64,
        "https://api.openai.com/auth": { "chatgpt_account_id": ACCOUNT },
    });
    let jwt = format!(
        "e30.{}.{SECRET}",
        URL_SAFE_NO_PAD.encode(claims.to_string())
    );
    Agent {
        name: "Codex with a ChatGPT login",
        command: CODEX,
        credential: json!({
            "name": "codex", "hosts": ["chatgpt.com"], "oauth": { "provider": "codex" },
        }),
        login: Some(json!({ "tokens": {
            "access_token": jwt, "refresh_token": SECRET, "id_token": jwt, "account_id": ACCOUNT,
        }})),
        mounted: Some(("codex/auth.json", ".codex/auth.json")),
        renamed: None,
    }
}

#[test]
fn codex_converses_with_a_chatgpt_login() {
    converses(&codex_with_a_login());
}

fn gemini_with_a_key() -> Agent {
    Agent {
        name: "Gemini with an API key",
        command: "gemini --skip-trust -m gemini-2.5-flash -p 'say pong'",
        credential: json!({
            "name": "gemini", "hosts": ["generativelanguage.googleapis.com"],
            "set_headers": { "x-goog-api-key": SECRET }, "remove_query": ["key"],
        }),
        login: None,
        mounted: None,
        renamed: None,
    }
}

#[test]
fn gemini_converses_with_an_api_key() {
    converses(&gemini_with_a_key());
}

fn opencode_with_a_key() -> Agent {
    Agent {
        name: "OpenCode with an API key",
        command: "opencode run -m openai/gpt-5 'say pong'",
        credential: json!({ "name": "openai", "hosts": ["api.openai.com"], "bearer": SECRET }),
        login: None,
        mounted: None,
        renamed: None,
    }
}

#[test]
fn opencode_converses_with_an_api_key() {
    converses(&opencode_with_a_key());
}

#[test]
fn opencode_converses_with_a_chatgpt_login() {
    converses(&Agent {
        name: "OpenCode with a ChatGPT login",
        command: "opencode run -m openai/gpt-5.6-sol 'say pong'",
        credential: json!({
            "name": "opencode", "hosts": ["chatgpt.com"], "oauth": { "provider": "opencode" },
        }),
        login: Some(json!({ "openai": {
            "type": "oauth", "access": SECRET, "refresh": SECRET, "accountId": ACCOUNT,
            "expires": 4_102_444_800_000_u64,
        }})),
        mounted: Some(("opencode/auth.json", ".local/share/opencode/auth.json")),
        renamed: None,
    });
}

/// Starts an agent for the first time in a terminal, with a home directory that has only the files
/// of `sandbox-files`. Asserts that it prints `greeting` without a connection error. `None` if the
/// agents cannot be installed.
fn starts(agent: &Agent, program: &str, greeting: &str) -> Option<Fixture> {
    let programs = packages::programs(agent.name)?;
    let fixture = Fixture::start();
    let proxy = start(agent, &fixture.origin);
    let sandbox = Sandbox::new(agent, &programs, &proxy);
    let said = visible(&in_a_terminal(&sandbox, program, greeting));
    assert!(said.contains(greeting), "{}: {said}", agent.name);
    assert!(
        !said.contains("Unable to connect"),
        "{}: {said}",
        agent.name
    );
    let seen = format!("{:?}", fixture.origin.seen());
    assert!(!said.contains(SECRET) && !seen.contains(PLACEHOLDER));
    Some(fixture)
}

/// Runs a program in a terminal until it has printed `greeting` and then for 4 s, at most for
/// [`TIMEOUT`]. Returns the output.
///
/// A program may ask the terminal for its size and its cursor position: `stty` sets the size, and
/// this function answers with a position. It presses Return every 5 s until the greeting, which
/// accepts the default answer to a question about a style or about trust in the directory.
fn in_a_terminal(sandbox: &Sandbox<'_>, program: &str, greeting: &str) -> String {
    const POSITION_REQUEST: &str = "\x1b[6n";
    let home = TempDir::new().unwrap();
    let screen = home.path().join("screen");
    let script = format!("exec script -qefc 'stty rows 40 cols 120; {program}' /dev/null");
    let mut command = sandbox.command(home.path(), &script);
    command.stdin(Stdio::piped());
    command.stdout(fs::File::create(&screen).unwrap());
    let mut child = command.spawn().unwrap();
    let mut keyboard = child.stdin.take().unwrap();
    let output = || String::from_utf8_lossy(&fs::read(&screen).unwrap()).into_owned();
    let (mut positions, mut pressed) = (0, Instant::now());
    let (mut has_pressed, mut greeted) = (false, None::<Instant>);
    while greeted.is_none_or(|at| at.elapsed() < Duration::from_secs(4)) {
        std::thread::sleep(Duration::from_millis(100));
        let output = output();
        let requests = output.matches(POSITION_REQUEST).count();
        let mut keys = "\x1b[1;1R".repeat(requests - positions);
        positions = requests;
        if greeted.is_none() && pressed.elapsed() > Duration::from_secs(5) {
            keys += "\r";
            (has_pressed, pressed) = (true, Instant::now());
        }
        if has_pressed && greeted.is_none() && visible(&output).contains(greeting) {
            greeted = Some(Instant::now());
        }
        // Fails if the program has ended.
        if keyboard.write_all(keys.as_bytes()).is_err() || child.try_wait().unwrap().is_some() {
            break;
        }
    }
    let _ = child.kill();
    child.wait().unwrap();
    kill_leftover_processes(home.path());
    output()
}

/// The output without control sequences, backslashes and white space: programs may move the cursor
/// instead of printing a space.
fn visible(output: &str) -> String {
    let mut said = String::new();
    let mut rest = output.chars().peekable();
    while let Some(one) = rest.next() {
        match one {
            '\u{1b}' => match rest.next() {
                Some('[') => while rest.next().is_some_and(|next| !('@'..='~').contains(&next)) {},
                // The sequence ends with a bell, or with an escape and a backslash.
                Some(']') => {
                    while rest
                        .next_if(|next| !['\u{7}', '\u{1b}'].contains(next))
                        .is_some()
                    {}
                }
                _ => {}
            },
            other if other.is_whitespace() || other.is_control() || other == '\\' => {}
            other => said.push(other),
        }
    }
    said
}

/// Kills the processes with this `HOME`: Codex leaves some of its processes running.
fn kill_leftover_processes(home: &Path) {
    let home = format!("HOME={}", home.display());
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let id = process.file_name().into_string().ok();
        let id = id.and_then(|id| Pid::from_raw(id.parse().ok()?));
        let environment = fs::read(process.path().join("environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        if let Some(id) = id.filter(|_| variables.any(|one| one == home.as_bytes())) {
            let _ = kill_process(id, Signal::KILL);
        }
    }
}

#[test]
fn claude_code_starts_on_a_fresh_home_in_a_terminal() {
    let agent = claude_with_a_key("Claude Code's first start in a terminal");
    if let Some(fixture) = starts(&agent, "claude", "Welcome") {
        let asked = |seen: &Seen| seen.authority == "platform.claude.com";
        assert!(fixture.origin.seen().iter().any(asked));
    }
}

#[test]
fn codex_starts_on_a_fresh_home_in_a_terminal() {
    let mut agent = codex_with_a_login();
    agent.name = "Codex's first start in a terminal";
    starts(&agent, "codex", "Codex");
}

#[test]
fn gemini_starts_on_a_fresh_home_in_a_terminal() {
    let mut agent = gemini_with_a_key();
    agent.name = "Gemini's first start in a terminal";
    starts(&agent, "gemini", "Gemini");
}

#[test]
fn opencode_starts_on_a_fresh_home_in_a_terminal() {
    let mut agent = opencode_with_a_key();
    agent.name = "OpenCode's first start in a terminal";
    starts(&agent, "opencode", "Ask");
}
