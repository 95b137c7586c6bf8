//! Installs the suite, clients and servers once, in pinned versions, below the target directory.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{installed, summarize};

const NODE: &str = include_str!("package.json");
/// The virtual environments: the two versions of the SDK cannot share one.
const PYTHON: [(&str, &str); 2] = [
    ("python-1", include_str!("requirements-1.txt")),
    ("python-2", include_str!("requirements-2.txt")),
];
/// The source distribution, which contains the server and the client with which the SDK is tested.
/// The installed package lacks both.
const SOURCE: &str = "mcp==2.3.0";
const PROGRAMS: [(&str, &str); 6] = [
    ("client.py", include_str!("programs/client.py")),
    ("client.mjs", include_str!("programs/client.mjs")),
    ("everything.py", include_str!("programs/everything.py")),
    ("keep_open.cjs", include_str!("programs/keep_open.cjs")),
    ("through.sh", include_str!("programs/through.sh")),
    ("weather.py", include_str!("programs/weather.py")),
];

/// The installation directory.
pub struct Tools(PathBuf);

impl Tools {
    /// Installs missing parts; a second process waits for the first. `None` if an installation
    /// fails; then the summary that `scripts/test` prints has the reason.
    pub fn install(test: &str) -> Option<Self> {
        let (dir, _lock) = installed::directory("mcp");
        for (name, text) in PROGRAMS {
            let path = dir.join(name);
            // Does not write an unchanged file again, since another test may be reading the file.
            if fs::read_to_string(&path).is_ok_and(|there| there == text) {
                continue;
            }
            fs::write(path, text).unwrap();
        }
        let result = all(&dir);
        summarize("mcp", test, &result);
        result.is_ok().then_some(Self(dir))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The path as text, for arguments and configuration.
    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// The Python of the environment with this version of the SDK.
    pub fn python(&self, version: u8) -> String {
        self.text(&format!("python-{version}/bin/python"))
    }

    pub fn node(&self) -> String {
        self.text("node_modules/node/bin/node")
    }

    /// A file of a package that npm installed.
    pub fn package(&self, file: &str) -> String {
        self.text(&format!("node_modules/@modelcontextprotocol/{file}"))
    }

    /// The program that the machine provides: `Python VERSION`.
    pub fn of_the_machine(&self) -> String {
        let output = Command::new(self.python(2)).arg("--version").output();
        let printed = String::from_utf8(output.unwrap().stdout).unwrap();
        format!("Python {}", installed::version_in(&printed).unwrap())
    }

    /// The conformance suite, the clients and the servers: `NAME VERSION, …`.
    pub fn pinned() -> String {
        installed::pinned(&PYTHON.map(|(_, requirements)| requirements), NODE)
    }

    /// Returns a value that only the first caller makes in a run of the test runner. Without a
    /// runner that names its runs, every caller makes the value.
    pub fn once_in_a_run(&self, name: &str, make: impl FnOnce() -> Value) -> Value {
        let Ok(run) = std::env::var("NEXTEST_RUN_ID") else {
            return make();
        };
        let path = self.path(name).with_extension("json");
        let lock = File::create(path.with_extension("lock")).unwrap();
        lock.lock().unwrap();
        let made = fs::read_to_string(&path).unwrap_or_default();
        if let Ok((by, value)) = serde_json::from_str::<(String, Value)>(&made)
            && by == run
        {
            return value;
        }
        let value = make();
        fs::write(path, json!([run, value]).to_string()).unwrap();
        value
    }

    /// The paths that servers in a sandbox must read: the installation directory, and the Python
    /// that the environments refer to, unless it is below `/usr`.
    pub fn readable(&self) -> Vec<String> {
        let python = fs::canonicalize(self.python(2)).unwrap();
        let prefix = python.ancestors().nth(2).unwrap();
        let mut paths = vec![self.0.clone()];
        paths.extend((!prefix.starts_with("/usr")).then(|| prefix.to_owned()));
        paths
            .iter()
            .map(|path| path.display().to_string())
            .collect()
    }
}

fn all(dir: &Path) -> Result<(), String> {
    installed::once(dir, "npm", NODE, || node(dir))?;
    for (name, pinned) in PYTHON {
        installed::once(dir, name, pinned, || python(dir, name, pinned))?;
    }
    installed::once(dir, "source", SOURCE, || source(dir))
}

fn node(dir: &Path) -> Result<(), String> {
    fs::write(dir.join("package.json"), NODE).unwrap();
    let mut install = Command::new("npm");
    install
        .args(["install", "--no-audit", "--no-fund", "--loglevel=error"])
        .args(["--fetch-retries=1", "--fetch-timeout=60000"])
        .current_dir(dir);
    installed::run("npm cannot install the MCP packages", &mut install)
}

fn python(dir: &Path, name: &str, pinned: &str) -> Result<(), String> {
    let requirements = dir.join(format!("{name}.txt"));
    fs::write(&requirements, pinned).unwrap();
    let mut make = Command::new("python3");
    make.args(["-m", "venv", "--clear"]).arg(dir.join(name));
    installed::run("python3 cannot make a virtual environment", &mut make)?;
    let mut install = pip(dir, name, "install");
    install.arg("--requirement").arg(&requirements);
    installed::run("pip cannot install the MCP packages", &mut install)
}

fn source(dir: &Path) -> Result<(), String> {
    let to = dir.join("source");
    let _ = fs::remove_dir_all(&to);
    fs::create_dir_all(&to).unwrap();
    let mut download = pip(dir, "python-2", "download");
    download.args(["--no-deps", "--no-binary", "mcp", SOURCE, "--dest"]);
    download.arg(&to);
    installed::run("pip cannot download the SDK's source", &mut download)?;
    let mut unpack = Command::new("sh");
    unpack.args([
        "-c",
        "tar --extract --strip-components=1 --file mcp-*.tar.gz",
    ]);
    unpack.current_dir(&to);
    installed::run("tar cannot unpack the SDK's source", &mut unpack)
}

fn pip(dir: &Path, environment: &str, command: &str) -> Command {
    let mut pip = Command::new(dir.join(environment).join("bin/pip"));
    pip.args([
        command,
        "--quiet",
        "--disable-pip-version-check",
        "--retries=1",
    ]);
    pip
}
