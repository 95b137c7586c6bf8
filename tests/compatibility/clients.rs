//! The clients, each with one line of the table in docs/compatibility.md.

use super::place::{Place, Printed};
use super::stand_ins::{GIT_MESSAGE, PIECES, PLACEHOLDER};
use super::tools::{Tool, Tools};
use crate::support::PACE;

/// A host that is not on the allowlist.
pub const DENIED_HOST: &str = "denied.example.com";

/// Exit code of `timeout` if the program took too long.
const TIMED_OUT: i32 = 124;

/// Code that precedes every script. In PATH, programs that were installed for the tests precede
/// those of the machine. The toolchain's Cargo precedes rustup's, which would look for a toolchain
/// in `HOME`.
const PRELUDE: &str = "PATH=\"$CARGO_BIN:$TOOLS/python/bin:$TOOLS/node/node_modules/.bin:$PATH\"
    export GIT_TERMINAL_PROMPT=0
    export OPENAI_API_KEY=$KEY OPENAI_BASE_URL=https://$HOST/v1
    export ANTHROPIC_API_KEY=$KEY ANTHROPIC_BASE_URL=https://$HOST
";

/// Makes curl and git show the response to a CONNECT, of which they otherwise show only the status.
const VERBOSE: &str = "echo verbose >$HOME/.curlrc
    export GIT_CURL_VERBOSE=1
";

/// A client and the script that uses it.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// Name in the table.
    pub name: &'static str,
    pub needs: &'static [Tool],
    /// An allowed host.
    host: &'static str,
    /// A script of sh that uses the client with `$HOST`; installed programs are below `$TOOLS`.
    script: &'static str,
    expects: Expects,
    /// Further settings that the client needs, in the words of the table; empty if none.
    with: &'static str,
}

/// The required output of the script for the allowed host.
#[derive(Clone, Copy, Debug)]
enum Expects {
    Text(&'static str),
    /// The pieces of the stand-in's reply, a space, and the milliseconds between the first and the
    /// last piece.
    Stream,
}

/// The part of a denial that a client shows.
#[derive(Clone, Copy, Debug)]
pub enum Shown {
    Sentence,
    Status,
    Nothing,
}

/// The authority of the request, which the origin's `/echo` returns.
const ECHO: Expects = Expects::Text("\"authority\":\"api.example.com\"");

const fn fetch(name: &'static str, needs: &'static [Tool], script: &'static str) -> Client {
    Client {
        name,
        needs,
        host: "api.example.com",
        script,
        expects: ECHO,
        with: "",
    }
}

const fn python(name: &'static str, script: &'static str) -> Client {
    fetch(name, &[Tool::Python], script)
}

const fn node(name: &'static str, script: &'static str) -> Client {
    fetch(name, &[Tool::Node], script)
}

/// A package manager that installs the package `demo`, or only downloads it (Cargo).
const fn packages(name: &'static str, needs: &'static [Tool], script: &'static str) -> Client {
    Client {
        host: "packages.example.com",
        expects: Expects::Text("demo is installed"),
        ..fetch(name, needs, script)
    }
}

const fn stream(
    name: &'static str,
    tool: &'static [Tool],
    host: &'static str,
    script: &'static str,
) -> Client {
    Client {
        host,
        expects: Expects::Stream,
        ..fetch(name, tool, script)
    }
}

impl Client {
    const fn with(self, with: &'static str) -> Self {
        Self { with, ..self }
    }

    /// Runs the script with an allowed host, where it must succeed. Then runs it with a denied
    /// host, where it must fail before the timeout. Returns the part of the denial that the script
    /// prints.
    pub fn try_in(&self, place: &Place<'_>, tools: &Tools) -> Shown {
        self.assert_works(&place.run(&script(self.host, tools, self.script)));
        let said = assert_fails(place.run(&script(DENIED_HOST, tools, self.script)));
        println!("{}: {said}", self.name);
        if said.contains(&format!("Domain not allowed: {DENIED_HOST}")) {
            Shown::Sentence
        } else if said.contains("403") {
            Shown::Status
        } else {
            Shown::Nothing
        }
    }

    /// Runs the script while a person must decide about its host: it must fail and show what to do.
    /// Then calls `approve`, which returns the approval's id, and runs the script again, which must
    /// succeed.
    pub fn try_asking(&self, place: &Place<'_>, tools: &Tools, approve: &dyn Fn() -> String) {
        let script = script(self.host, tools, &[VERBOSE, self.script].concat());
        let said = assert_fails(place.run(&script));
        let id = approve();
        let sentence =
            format!("Waiting for approval {id}: repeat the request after it was approved");
        assert!(said.contains(&sentence), "{said}");
        self.assert_works(&place.run(&script));
    }

    fn assert_works(&self, printed: &Printed) {
        assert_eq!(printed.code, Some(0), "{printed:?}");
        match self.expects {
            Expects::Text(text) => assert!(printed.stdout.contains(text), "{printed:?}"),
            Expects::Stream => assert_streamed(printed),
        }
    }

    /// The client's line of the table.
    pub fn line(&self, shown: Shown) -> String {
        let streams = match self.expects {
            Expects::Text(_) => "",
            Expects::Stream => "; a reply arrives as it is sent",
        };
        let with = match self.with {
            "" => String::new(),
            with => format!(", with {with}"),
        };
        let shown = match shown {
            Shown::Sentence => "shows the sentence",
            Shown::Status => "shows the status 403",
            Shown::Nothing => "shows a failed connection",
        };
        format!("| {} | works{with}{streams} | {shown} |", self.name)
    }
}

/// A script with the variables that it needs. In its PATH, the tests' own programs come first.
pub fn script(host: &str, tools: &Tools, commands: &str) -> String {
    let tools = tools.dir.display();
    let cargo = std::path::Path::new(env!("CARGO"))
        .parent()
        .unwrap()
        .display();
    format!(
        "TOOLS='{tools}' CARGO_BIN='{cargo}' HOST={host} KEY={PLACEHOLDER}\n{PRELUDE}{commands}"
    )
}

/// Asserts that a script failed before the timeout. Returns its output.
fn assert_fails(printed: Printed) -> String {
    assert_ne!(printed.code, Some(0), "{printed:?}");
    assert_ne!(printed.code, Some(TIMED_OUT), "{printed:?}");
    printed.stdout + &printed.stderr
}

/// Asserts that the pieces of a reply arrived over at least half of the time that sending took: a
/// proxy that buffers the reply would pass on all of it at once.
fn assert_streamed(printed: &Printed) {
    let (text, milliseconds) = printed.stdout.trim().split_once(' ').unwrap();
    assert_eq!(text, PIECES.concat(), "{printed:?}");
    let between: u128 = milliseconds.parse().unwrap();
    let sent = PACE.as_millis() * (PIECES.len() as u128 - 1);
    assert!(
        between >= sent / 2,
        "the reply was sent over {sent} ms, but arrived within {between} ms"
    );
}

/// A client that clones with each git on PATH, with one version of the git protocol. The git
/// configuration names a closed port as the proxy, so a clone fails unless the variables take
/// precedence over it.
macro_rules! git {
    ($name:literal, $version:literal) => {
        Client {
            host: "git.example.com",
            expects: Expects::Text(GIT_MESSAGE),
            ..fetch(
                $name,
                &[Tool::Program("git")],
                concat!(
                    "git config --global http.proxy http://127.0.0.1:9
                    IFS=:; for dir in $PATH; do
                        [ -x \"$dir/git\" ] && [ ! -L \"$dir\" ] || continue
                        rm -rf copy
                        \"$dir/git\" -c protocol.version=",
                    $version,
                    " clone --quiet \
                            https://$HOST/team/project.git copy || exit 1
                        \"$dir/git\" -C copy log --format=%s
                    done"
                ),
            )
        }
    };
}

pub const CLIENTS: [Client; 30] = [
    fetch("curl", &[Tool::Program("curl")], "curl --silent --show-error https://$HOST/echo"),
    fetch(
        "wget",
        &[Tool::Program("wget")],
        "wget --no-verbose --output-document=- --ca-certificate=\"$SSL_CERT_FILE\" https://$HOST/echo",
    )
    .with("`--ca-certificate` if it is built with GnuTLS"),
    git!("git, protocol v0", "0"),
    git!("git, protocol v1", "1"),
    git!("git, protocol v2", "2"),
    Client {
        host: "api.github.com",
        expects: Expects::Text("Half measures"),
        ..fetch(
            "gh",
            &[Tool::Program("gh")],
            // For gh, every host other than api.github.com is a GitHub Enterprise server.
            "export GH_TOKEN=token GH_ENTERPRISE_TOKEN=token
            [ $HOST = api.github.com ] || enterprise=\"--hostname $HOST\"
            gh api $enterprise zen",
        )
    },
    python("Python requests", "python $TOOLS/fetch.py requests https://$HOST/echo"),
    python("Python urllib3", "python $TOOLS/fetch.py urllib3 https://$HOST/echo")
        .with("a `ProxyManager`"),
    python("Python httpx", "python $TOOLS/fetch.py httpx https://$HOST/echo"),
    python("Python aiohttp", "python $TOOLS/fetch.py aiohttp https://$HOST/echo")
        .with("`ClientSession(trust_env=True)`"),
    node("Node.js `https`", "node $TOOLS/node/fetch.mjs https https://$HOST/echo").with(NODE),
    node("Node.js `fetch`", "node $TOOLS/node/fetch.mjs fetch https://$HOST/echo").with(NODE),
    node("axios", "node $TOOLS/node/fetch.mjs axios https://$HOST/echo").with(NODE),
    // Sends `GET https://…` to the proxy instead of CONNECT, whatever the version of Node.js.
    node("axios up to 1.15", "node $TOOLS/node/fetch.mjs axios-1.15 https://$HOST/echo"),
    node("undici", "node $TOOLS/node/fetch.mjs undici https://$HOST/echo").with(NODE),
    node("Bun", "bun $TOOLS/node/fetch.mjs fetch https://$HOST/echo"),
    node("Deno", "deno run --quiet --allow-all $TOOLS/node/fetch.mjs fetch https://$HOST/echo"),
    fetch("Go `net/http`", &[Tool::Go], "$TOOLS/fetch-go https://$HOST/echo"),
    fetch(
        "Java `HttpClient`",
        &[Tool::Java],
        "java -cp $TOOLS/java Fetch HttpClient https://$HOST/echo",
    ),
    fetch(
        "Java `HttpURLConnection`",
        &[Tool::Java],
        "java -cp $TOOLS/java Fetch HttpURLConnection https://$HOST/echo",
    ),
    packages(
        "pip",
        &[Tool::Python],
        "python -m pip install --quiet --disable-pip-version-check --no-cache-dir --retries 1 \
            --target here --index-url https://$HOST/pip/simple demo \
            && [ -e here/demo.py ] && echo demo is installed",
    ),
    packages(
        "uv",
        &[Tool::Python],
        "UV_HTTP_RETRIES=0 uv pip install --quiet --no-cache --target here \
            --index-url https://$HOST/pip/simple demo \
            && [ -e here/demo.py ] && echo demo is installed",
    ),
    packages(
        "npm",
        &[Tool::Program("npm")],
        // The npm configuration has roots without the proxy's CA. npm fails unless the variables
        // take precedence over it.
        "echo cafile=/etc/ssl/certs/ca-certificates.crt >.npmrc
        npm install --silent --loglevel=error --fetch-retries=0 --registry=https://$HOST/npm demo \
            && [ -e node_modules/demo/package.json ] && echo demo is installed",
    ),
    packages(
        "pnpm",
        &[Tool::Node],
        "echo '{}' >package.json
        pnpm add --config.fetch-retries=0 --registry=https://$HOST/npm demo \
            && [ -e node_modules/demo/package.json ] && echo demo is installed",
    ),
    packages(
        "Yarn",
        &[Tool::Node],
        // Yarn's minimal age gate needs publication times, which the stand-in does not have, so the
        // gate is off.
        "echo '{}' >package.json
        touch yarn.lock
        export YARN_NPM_REGISTRY_SERVER=https://$HOST/npm YARN_HTTP_RETRY=0
        export YARN_ENABLE_TELEMETRY=0 YARN_NPM_MINIMAL_AGE_GATE=0 YARN_NODE_LINKER=node-modules
        yarn add demo && [ -e node_modules/demo/package.json ] && echo demo is installed",
    ),
    packages(
        "Cargo",
        &[],
        "mkdir src && touch src/lib.rs
        printf '%s\\n' '[package]' 'name = \"here\"' 'edition = \"2021\"' '[dependencies]' \
            'demo = { version = \"1\", registry = \"stand-in\" }' >Cargo.toml
        export CARGO_REGISTRIES_STAND_IN_INDEX=sparse+https://$HOST/cargo/ CARGO_NET_RETRY=0
        cargo fetch --quiet && [ -e $HOME/.cargo/registry/cache/*/demo-1.0.0.crate ] && echo demo is installed",
    ),
    stream(
        "OpenAI's SDK for Python",
        &[Tool::Python],
        "api.openai.com",
        "python $TOOLS/stream.py openai",
    ),
    stream(
        "Anthropic's SDK for Python",
        &[Tool::Python],
        "api.anthropic.com",
        "python $TOOLS/stream.py anthropic",
    ),
    stream(
        "OpenAI's SDK for Node.js",
        &[Tool::Node],
        "api.openai.com",
        "node $TOOLS/node/stream.mjs openai",
    )
    .with(NODE),
    stream(
        "Anthropic's SDK for Node.js",
        &[Tool::Node],
        "api.anthropic.com",
        "node $TOOLS/node/stream.mjs anthropic",
    )
    .with(NODE),
];

/// The versions of Node.js that read the proxy variables, in the words of the table.
const NODE: &str = "Node.js from 24.5 on, or 22 from 22.21 on";
