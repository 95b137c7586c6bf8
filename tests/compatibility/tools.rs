//! Installs clients once, in pinned versions, below the target directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::clients::script;
use super::place::{Place, shell};
use crate::support::installed;

const REQUIREMENTS: &str = include_str!("requirements.txt");
const NODE: &str = include_str!("node.json");
const GO: &str = include_str!("programs/fetch.go");
const JAVA: &str = include_str!("programs/Fetch.java");
/// Scripts and their paths. The scripts of Node.js are beside its packages, as imports require.
const PROGRAMS: [(&str, &str); 4] = [
    ("fetch.py", include_str!("programs/fetch.py")),
    ("stream.py", include_str!("programs/stream.py")),
    ("node/fetch.mjs", include_str!("programs/fetch.mjs")),
    ("node/stream.mjs", include_str!("programs/stream.mjs")),
];

/// Commands that print the version of a client that the machine provides.
const OF_THE_MACHINE: [(&str, &str); 10] = [
    ("curl", "curl --version"),
    ("wget", "wget --version"),
    ("git", "git --version"),
    ("gh", "gh --version"),
    ("Python", "python --version"),
    ("pip", "pip --version"),
    ("npm", "npm --version"),
    ("Go", "go version"),
    ("Java", "java -version 2>&1"),
    ("Cargo", "cargo --version"),
];

/// A requirement of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// A virtual environment with the packages of `requirements.txt`.
    Python,
    /// The packages of `node.json`, Node.js itself among them.
    Node,
    /// A compiled `fetch.go`.
    Go,
    /// A compiled `Fetch.java`.
    Java,
    /// A program on PATH.
    Program(&'static str),
}

/// The directory of installed tools, and the reasons why others could not be installed.
pub struct Tools {
    pub dir: PathBuf,
    failed: Vec<(Tool, String)>,
}

impl Tools {
    /// Installs missing tools. Concurrent processes wait for each other.
    pub fn install() -> Self {
        let (dir, _lock) = installed::directory("compatibility");
        fs::create_dir_all(dir.join("node")).unwrap();
        for (path, text) in PROGRAMS {
            fs::write(dir.join(path), text).unwrap();
        }
        let installations = [
            (
                Tool::Python,
                "python",
                REQUIREMENTS,
                python as fn(&Path) -> _,
            ),
            (Tool::Node, "npm", NODE, node),
            (Tool::Go, "go", GO, go),
            (Tool::Java, "java", JAVA, java),
        ];
        let results = installations.map(|(tool, name, pinned, install)| {
            let result = installed::once(&dir, name, pinned, || install(&dir));
            Some((tool, result.err()?))
        });
        Self {
            failed: results.into_iter().flatten().collect(),
            dir,
        }
    }

    /// The reason why a tool is missing; `None` if it is installed.
    pub fn missing(&self, tool: Tool) -> Option<String> {
        if let Tool::Program(name) = tool {
            let lookup = Command::new("sh")
                .args(["-c", "command -v \"$0\"", name])
                .output();
            let found = lookup.is_ok_and(|output| output.status.success());
            return (!found).then(|| format!("{name} is not installed"));
        }
        let failed = self.failed.iter().find(|(failed, _)| *failed == tool);
        failed.map(|(_, why)| why.clone())
    }

    /// The clients that the machine provides: `NAME VERSION, …`.
    pub fn of_the_machine(&self) -> String {
        let place = Place {
            environment: Vec::new(),
            start: &shell,
        };
        let named = OF_THE_MACHINE.map(|(name, command)| {
            let printed = place.run(&script("none.example.com", self, command));
            let version = installed::version_in(&printed.stdout);
            format!(
                "{name} {}",
                version.unwrap_or_else(|| panic!("{printed:?}"))
            )
        });
        named.join(", ")
    }

    /// The clients that the tests install: `NAME VERSION, …`.
    pub fn pinned() -> String {
        installed::pinned(&[REQUIREMENTS], NODE)
    }

    /// Adds a line to the summary that `scripts/test` prints.
    pub fn summarize(&self, client: &str, missing: Option<&String>) {
        let result = missing.cloned().map_or(Ok(()), Err);
        crate::support::summarize("compatibility", client, &result);
    }
}

fn python(dir: &Path) -> Result<(), String> {
    let environment = dir.join("python");
    let requirements = dir.join("requirements.txt");
    fs::write(&requirements, REQUIREMENTS).unwrap();
    let mut make = Command::new("python3");
    make.args(["-m", "venv", "--clear"]).arg(&environment);
    installed::run("python3 cannot make a virtual environment", &mut make)?;
    let mut install = Command::new(environment.join("bin/pip"));
    install.args(["install", "--quiet", "--disable-pip-version-check"]);
    install
        .args(["--retries", "1", "--requirement"])
        .arg(&requirements);
    installed::run("pip cannot install the clients", &mut install)
}

fn node(dir: &Path) -> Result<(), String> {
    let dir = dir.join("node");
    fs::write(dir.join("package.json"), NODE).unwrap();
    let mut install = Command::new("npm");
    install.args(["install", "--no-audit", "--no-fund", "--loglevel=error"]);
    install
        .args(["--fetch-retries=1", "--fetch-timeout=60000"])
        .current_dir(dir);
    installed::run("npm cannot install the clients", &mut install)
}

fn go(dir: &Path) -> Result<(), String> {
    let source = dir.join("fetch.go");
    fs::write(&source, GO).unwrap();
    let mut build = Command::new("go");
    build
        .args(["build", "-o"])
        .arg(dir.join("fetch-go"))
        .arg(&source);
    build.env("GOCACHE", dir.join("go-cache"));
    installed::run("go cannot build the client", &mut build)
}

fn java(dir: &Path) -> Result<(), String> {
    let source = dir.join("Fetch.java");
    fs::write(&source, JAVA).unwrap();
    let mut build = Command::new("javac");
    build.arg("-d").arg(dir.join("java")).arg(&source);
    installed::run("javac cannot build the client", &mut build)
}
