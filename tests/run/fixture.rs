//! The user who starts `unified-proxy run`, with a home directory, a working directory and a
//! configuration.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::support::{Origin, Ran, Setup, summarize};

/// Uid and gid of `nobody`.
pub const NOBODY: u32 = 65_534;
/// `PATH` with directories that every user may read.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

/// The account that starts `run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// `nobody`, or the user of the tests if they do not run as root.
    Unprivileged,
    Root,
}

impl User {
    /// The name in the summary that `scripts/test` prints.
    fn summarized(self) -> &'static str {
        match self {
            Self::Unprivileged => "sandboxes of an unprivileged user",
            Self::Root => "sandboxes of root",
        }
    }
}

/// A user, an origin instead of the internet, and a configuration with the origin's addresses.
pub struct Person {
    pub user: User,
    pub origin: Origin,
    /// The configuration, which [`Person::config`] writes to files.
    pub setup: Setup,
    /// Further variables of the user's environment.
    pub env: Vec<(String, String)>,
    base: TempDir,
}

impl Person {
    /// An unprivileged user. `None` if user namespaces do not work; then the summary that
    /// `scripts/test` prints has the reason.
    pub fn new() -> Option<Self> {
        Self::with(User::Unprivileged, Origin::start())
    }

    /// Root. `None` if the tests do not run as root, or if user namespaces do not work.
    pub fn root() -> Option<Self> {
        Self::with(User::Root, Origin::start())
    }

    /// A user with this account and this origin. `None` if the account cannot create sandboxes on
    /// this machine.
    pub fn with(user: User, origin: Origin) -> Option<Self> {
        let possible = possible(user);
        summarize("run", user.summarized(), &possible);
        possible.is_ok().then(|| Self {
            user,
            setup: Setup::new(&origin),
            origin,
            env: Vec::new(),
            base: base(user),
        })
    }

    /// The directory above all directories of this user.
    pub fn base(&self) -> &Path {
        self.base.path()
    }

    pub fn home(&self) -> PathBuf {
        self.base().join("home")
    }

    /// The working directory, below the home directory.
    pub fn work(&self) -> PathBuf {
        self.home().join("project")
    }

    /// Directory for `XDG_RUNTIME_DIR`.
    pub fn runtime(&self) -> PathBuf {
        self.base().join("runtime")
    }

    /// A hard link to the binary, or a copy of it, which every user can execute.
    pub fn binary(&self) -> PathBuf {
        self.base().join("bin/unified-proxy")
    }

    /// Writes a file that the user owns, below the home directory, with its missing directories.
    pub fn write(&self, path: impl AsRef<Path>, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.home().join(path);
        let missing = path.ancestors().skip(1).take_while(|path| !path.exists());
        let missing: Vec<_> = missing.map(Path::to_owned).collect();
        for directory in missing.iter().rev() {
            fs::create_dir(directory).unwrap();
            self.own(directory);
        }
        fs::write(&path, text).unwrap();
        self.own(&path);
        path
    }

    /// Creates a directory that the user owns, below the home directory.
    pub fn directory(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = self.home().join(path);
        if !path.is_dir() {
            fs::create_dir_all(&path).unwrap();
            for directory in path.ancestors().take_while(|path| *path != self.home()) {
                self.own(directory);
            }
        }
        path
    }

    /// Makes the user the owner of a file.
    pub fn own(&self, path: &Path) {
        if self.changes_user() {
            chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }

    fn changes_user(&self) -> bool {
        self.user == User::Unprivileged && is_root()
    }

    /// A command, not started yet, that runs a program as this user in the working directory,
    /// outside any sandbox.
    pub fn outside(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = match self.changes_user() {
            true => {
                let mut command = Command::new("setpriv");
                let id = NOBODY.to_string();
                command.args([&format!("--reuid={id}"), &format!("--regid={id}")]);
                command.args(["--clear-groups", "--"]).arg(program);
                command
            }
            false => Command::new(program),
        };
        command
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", self.home())
            .env("XDG_RUNTIME_DIR", self.runtime())
            .envs(self.env.iter().cloned())
            .current_dir(self.work())
            .stdin(Stdio::null());
        command
    }

    /// `unified-proxy run` with flags, without the configuration of this test.
    pub fn bare(&self, flags: &[&str], command: &[&str]) -> Command {
        let mut run = self.outside(self.binary());
        run.arg("run").args(flags).arg("--").args(command);
        run
    }

    /// `unified-proxy run` with the configuration of this test.
    pub fn command(&self, flags: &[&str], command: &[&str]) -> Command {
        let config = self.config();
        let flags = [&["--config", config.to_str().unwrap()], flags].concat();
        self.bare(&flags, command)
    }

    /// Runs a command in a sandbox to its end.
    pub fn run(&self, flags: &[&str], command: &[&str]) -> Ran {
        Ran::of(&mut self.command(flags, command))
    }

    /// Runs a script with `sh` in a sandbox to its end.
    pub fn sh(&self, flags: &[&str], script: &str) -> Ran {
        self.run(flags, &["sh", "-c", script])
    }

    /// Runs `command` in a mount namespace that has a changed copy of /etc. Root runs the script
    /// `prepare` there first. Only for tests as root.
    pub fn run_with_etc(
        &self,
        command: &Command,
        prepare: &str,
        change: impl FnOnce(&Path),
    ) -> Ran {
        let etc = tempfile::tempdir_in(self.base()).unwrap();
        let mut copy = Command::new("cp");
        copy.args(["-a", "/etc/."]).arg(etc.path());
        assert!(copy.status().unwrap().success());
        change(etc.path());
        let script = format!("{prepare}\nmount --bind \"$0\" /etc; exec \"$@\"");
        let mut unshare = Command::new("unshare");
        unshare
            .args(["--mount", "sh", "-ec", &script])
            .arg(etc.path())
            .arg(command.get_program())
            .args(command.get_args())
            .env_clear()
            .current_dir(self.work());
        let variables = command.get_envs();
        Ran::of(unshare.envs(variables.filter_map(|(name, value)| Some((name, value?)))))
    }

    /// Starts a command in a sandbox, with pipes as its three standard streams.
    pub fn spawn(&self, flags: &[&str], command: &[&str]) -> Child {
        self.command(flags, command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Writes the configuration, readable for every user, and returns its directory.
    pub fn config(&self) -> PathBuf {
        self.setup.write();
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.setup.dir(), mode).unwrap();
        self.setup.dir().join("config")
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Checks that the user can create the namespaces of a sandbox on this machine; the error is the
/// reason why not.
fn possible(user: User) -> Result<(), String> {
    if user == User::Root && !is_root() {
        return Err("the tests are not started by root".to_owned());
    }
    let mut probe = match user {
        User::Unprivileged if is_root() => {
            let mut probe = Command::new("setpriv");
            probe.args([
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "--",
                "unshare",
            ]);
            probe
        }
        _ => Command::new("unshare"),
    };
    let probe = probe
        .args([
            "--user",
            "--map-current-user",
            "--net",
            "--mount",
            "--ipc",
            "--uts",
        ])
        .args(["--pid", "--fork", "--mount-proc", "true"])
        .output();
    match probe {
        Err(error) => Err(format!("unshare cannot be started ({error})")),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let said = said.lines().next().unwrap_or_default();
            Err(format!("user namespaces do not work here ({said})"))
        }
    }
}

fn base(user: User) -> TempDir {
    let base = tempfile::Builder::new()
        .prefix("run-")
        .tempdir_in("/tmp")
        .unwrap();
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(base.path(), mode.clone()).unwrap();
    for name in ["bin", "home", "home/project", "runtime"] {
        let path = base.path().join(name);
        fs::create_dir(&path).unwrap();
        if user == User::Unprivileged && is_root() && name != "bin" {
            chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
    let private = fs::Permissions::from_mode(0o700);
    fs::set_permissions(base.path().join("runtime"), private).unwrap();
    let (from, to) = (
        Path::new(env!("CARGO_BIN_EXE_unified-proxy")),
        base.path().join("bin/unified-proxy"),
    );
    // A hard link takes no space on the disk; on another file system, a copy is needed.
    if fs::hard_link(from, &to).is_err() {
        fs::copy(from, &to).unwrap();
    }
    base
}

/// The sorted names of the entries of a directory; empty if there is no such directory.
pub fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
