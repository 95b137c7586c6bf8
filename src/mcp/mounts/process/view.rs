//! A child's view of the machine, and its environment.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use addons::mcp::Confine;
use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

use super::Program;
use crate::sandbox::machine::{self, CERTIFICATES};
use crate::sandbox::{Access, Command, Entry, PROXY_PORT, Spec};
use crate::tls::variables;

/// The host name in the sandbox.
const HOST_NAME: &str = "mcp";
/// The home directory in the sandbox if the proxy has none.
const PLAIN_HOME: &str = "/home/mcp";
/// `PATH` of children if the proxy's environment has none.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Variables of the proxy's environment that children inherit.
const PASSED_ON: [&str; 4] = ["LANG", "LC_ALL", "PATH", "TZ"];
/// The error for a program that does not exist in the sandbox.
const IF_MISSING: &str = "not found inside its sandbox: a program outside the system's directories \
                          and PATH becomes visible when `read` in mcp.yaml names its directory";
/// How long the listing of the system's directories is cached.
const SYSTEM_LIFETIME: Duration = Duration::from_secs(60);

/// The parts of this machine that children may see.
pub struct Machine {
    /// The directory of the proxy's CA certificate and the bundle of roots.
    certificates: PathBuf,
    /// Paths that no confined child may see, even below a path in `read`: state, configuration,
    /// secrets, sockets.
    hidden: Vec<PathBuf>,
    home: PathBuf,
    system: Mutex<Option<(Instant, Vec<Entry>)>>,
}

impl Machine {
    /// Creates a view in which confined children trust the CA certificate in the directory
    /// `certificates` and never see the paths in `hidden`.
    pub fn new(certificates: PathBuf, hidden: Vec<PathBuf>) -> Self {
        let home = env::var_os("HOME").map(PathBuf::from);
        let home = home.filter(|home| home.is_absolute() && home != Path::new("/"));
        let home = home.and_then(|home| fs::canonicalize(home).ok());
        Self {
            certificates,
            hidden,
            home: home.unwrap_or_else(|| PLAIN_HOME.into()),
            system: Mutex::new(None),
        }
    }

    /// Refuses a program that does not exist, or whose settings name a path that does not exist or
    /// cannot be shown. Blocks.
    pub fn check_program(&self, program: &Program) -> Result<(), String> {
        let directory = self.directory(program)?;
        if program.confine == Confine::Namespaces {
            self.shown(program, &directory)?;
        }
        match self.find(program, &directory) {
            Some(_) => Ok(()),
            None => Err(format!(
                "the program {:?} is not found, or is not executable: install it, or give its path \
                 in `command`, absolute or relative to `work_dir`",
                program.name()
            )),
        }
    }

    /// The command and its view of the file system. Reads directories, so it blocks.
    pub fn spec(&self, program: &Program) -> Result<Spec, String> {
        let directory = self.directory(program)?;
        let (files, directory) = match program.confine {
            Confine::Namespaces => (self.files(program, &directory)?, directory),
            Confine::None if directory.is_dir() => (Vec::new(), directory),
            Confine::None => (Vec::new(), PathBuf::from("/")),
        };
        Ok(Spec {
            hostname: HOST_NAME.to_owned(),
            files,
            command: Command {
                program: program.name(),
                arguments: program.arguments(),
                environment: self.environment(program),
                directory,
                if_missing: match program.confine {
                    Confine::Namespaces => IF_MISSING.to_owned(),
                    Confine::None => "not found".to_owned(),
                },
            },
            terminal: None,
            unix_sockets: program.unix_sockets,
            limits: program.limits,
        })
    }

    fn directory(&self, program: &Program) -> Result<PathBuf, String> {
        match &program.work_dir {
            Some(directory) => self.canonical(directory),
            None => Ok(self.home.clone()),
        }
    }

    /// The paths that the program's settings show.
    fn shown(&self, program: &Program, directory: &Path) -> Result<Vec<(PathBuf, Access)>, String> {
        let mut shown = Vec::new();
        for (paths, access) in [
            (&program.read, Access::ReadOnly),
            (&program.write, Access::Writable),
        ] {
            for path in paths {
                shown.push((self.canonical(path)?, access));
            }
        }
        let named: Vec<PathBuf> = shown.iter().map(|(path, _)| path.clone()).collect();
        if directory != self.home && !is_below(&named, directory) {
            shown.push((directory.to_owned(), Access::ReadOnly));
        }
        self.check(&shown)?;
        Ok(shown)
    }

    fn files(&self, program: &Program, directory: &Path) -> Result<Vec<Entry>, String> {
        let certificates = fs::canonicalize(&self.certificates)
            .map_err(|error| format!("{}: {error}", self.certificates.display()))?;
        let mut shown = self.shown(program, directory)?;
        let roots: Vec<PathBuf> = shown.iter().map(|(path, _)| path.clone()).collect();
        // Parents are mounted first: a mount covers everything that was mounted below it before.
        shown.sort_by_key(|(path, _)| path.components().count());
        let writable = |path: &Path| {
            let mut all = shown.iter();
            all.any(|(root, access)| *access == Access::Writable && path.starts_with(root))
        };
        // Leaves out paths that a confined process could change.
        let resolve = |path: &Path| {
            let real = fs::canonicalize(path).ok()?;
            (!writable(path) && !writable(&real)).then_some(real)
        };
        let mut files = self.system();
        files.extend(machine::own(&self.home, &certificates));
        let found = self.find(program, directory);
        let real_home = Some(self.home.as_path()).filter(|home| home.is_dir());
        let programs = machine::programs(&self.home, real_home, found.as_deref(), resolve);
        // Programs below a shown path are visible already. The mount of the shown path would cover
        // a mount for them, and a covered mount cannot be made read-only.
        let programs = programs.into_iter();
        files.extend(programs.filter(|entry| !is_below(&roots, entry.at())));
        files.extend(shown.into_iter().map(|(path, access)| Entry::Bind {
            from: path.clone(),
            at: path,
            access,
        }));
        files.extend(machine::hidden_sockets(&files, &[])?);
        files.extend(self.hidden.iter().filter_map(|path| {
            let at = fs::canonicalize(path).ok()?;
            Some(Entry::Hide { at })
        }));
        Ok(files)
    }

    /// The system's directories. Of /etc, only world-readable files are shown.
    fn system(&self) -> Vec<Entry> {
        let mut system = self.system.lock();
        match &*system {
            Some((read, entries)) if read.elapsed() < SYSTEM_LIFETIME => entries.clone(),
            _ => {
                let entries = machine::system();
                *system = Some((Instant::now(), entries.clone()));
                entries
            }
        }
    }

    /// Resolves `~` and symbolic links in a path of the settings.
    fn canonical(&self, path: &Path) -> Result<PathBuf, String> {
        let path = match path.strip_prefix("~") {
            Ok(below) => self.home.join(below),
            Err(_) => path.to_owned(),
        };
        fs::canonicalize(&path).map_err(|error| {
            let path = path.display();
            match error.kind() {
                ErrorKind::NotFound => format!(
                    "{path} does not exist: create it, or correct `read`, `write` and `work_dir` \
                     in mcp.yaml"
                ),
                _ => format!("{path}: {error}"),
            }
        })
    }

    /// Refuses the home directory and its parents. Also refuses hidden paths and the machine's
    /// `/proc`, `/dev` and `/sys`, with all paths below them.
    fn check(&self, shown: &[(PathBuf, Access)]) -> Result<(), String> {
        for (path, _) in shown {
            let own = ["/proc", "/dev", "/sys"].map(Path::new);
            if self.home.starts_with(path) || own.iter().any(|own| path.starts_with(own)) {
                return Err(format!(
                    "{} cannot be shown to a confined server: name directories below the home \
                     directory, or others outside /proc, /dev and /sys",
                    path.display()
                ));
            }
            let holds = |hidden: &&PathBuf| {
                fs::canonicalize(hidden).is_ok_and(|hidden| path.starts_with(hidden))
            };
            if let Some(hidden) = self.hidden.iter().find(holds) {
                return Err(format!(
                    "{} belongs to the proxy itself ({}) and cannot be shown to a server",
                    path.display(),
                    hidden.display()
                ));
            }
        }
        Ok(())
    }

    /// Finds a program as the child would, in its own `PATH`, and resolves symbolic links in its
    /// path.
    fn find(&self, program: &Program, directory: &Path) -> Option<PathBuf> {
        let name = program.name();
        let name = Path::new(&name);
        if name.components().count() > 1 {
            return executable(directory.join(name));
        }
        let environment = self.environment(program);
        let (_, path) = environment.iter().find(|(name, _)| name == "PATH")?;
        env::split_paths(path).find_map(|folder| executable(folder.join(name)))
    }

    fn environment(&self, program: &Program) -> Vec<(OsString, OsString)> {
        let mut environment: Vec<(OsString, OsString)> = PASSED_ON
            .iter()
            .filter_map(|name| Some(((*name).into(), env::var_os(name)?)))
            .collect();
        let mut add = |name: &str, value: OsString| {
            environment.retain(|(known, _)| known != name);
            environment.push((name.into(), value));
        };
        if env::var_os("PATH").is_none() {
            add("PATH", PATH.into());
        }
        add("HOME", self.home.clone().into());
        if program.confine == Confine::Namespaces {
            add("TMPDIR", "/tmp".into());
        }
        if program.confine == Confine::Namespaces && program.knows_proxy {
            let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
            for (name, value) in variables(&proxy, Path::new(CERTIFICATES), None) {
                add(name, value.into());
            }
        }
        for (name, value) in &program.env {
            add(name, value.as_str().into());
        }
        environment
    }
}

/// Whether a path is one of `roots`, or below one.
fn is_below(roots: &[PathBuf], path: &Path) -> bool {
    roots.iter().any(|root| path.starts_with(root))
}

/// Resolves symbolic links in the path of a program; `None` if it is not an executable file.
fn executable(path: PathBuf) -> Option<PathBuf> {
    let path = fs::canonicalize(path).ok()?;
    let metadata = fs::metadata(&path).ok()?;
    let is_executable = metadata.is_file() && metadata.permissions().mode() & 0o111 != 0;
    is_executable.then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Program {
        Program {
            command: vec!["true".to_owned()],
            env: vec![("API_KEY".to_owned(), "x".to_owned().into())],
            work_dir: None,
            read: Vec::new(),
            write: Vec::new(),
            confine: Confine::Namespaces,
            unix_sockets: false,
            knows_proxy: true,
            limits: None,
        }
    }

    #[test]
    fn a_child_inherits_only_the_listed_variables_of_the_proxy() {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine::new(root.path().to_owned(), Vec::new());
        let spec = machine.spec(&program()).unwrap();
        let mut names: Vec<_> = spec.command.environment.iter().map(|(n, _)| n).collect();
        for name in PASSED_ON {
            names.retain(|known| *known != name);
        }
        let proxy = variables("http://127.0.0.1:3128", Path::new(CERTIFICATES), None);
        names.retain(|name| proxy.iter().all(|(known, _)| name != known));
        assert_eq!(names, ["HOME", "TMPDIR", "API_KEY"]);

        let mut without_proxy = program();
        without_proxy.knows_proxy = false;
        let spec = machine.spec(&without_proxy).unwrap();
        let names = spec.command.environment.iter().map(|(name, _)| name);
        let names: Vec<_> = names
            .filter(|name| PASSED_ON.iter().all(|one| name != one))
            .collect();
        assert_eq!(names, ["HOME", "TMPDIR", "API_KEY"]);
    }

    #[test]
    fn files_of_the_proxy_are_hidden_and_cannot_be_shown() {
        let root = tempfile::tempdir().unwrap();
        let state = fs::canonicalize(root.path()).unwrap().join("state");
        fs::create_dir(&state).unwrap();
        let machine = Machine::new(root.path().to_owned(), vec![state.clone()]);
        let hide = Entry::Hide { at: state.clone() };
        assert!(machine.spec(&program()).unwrap().files.contains(&hide));
        let mut shows = program();
        shows.read = vec![state.clone()];
        assert!(
            machine
                .spec(&shows)
                .unwrap_err()
                .contains("belongs to the proxy")
        );
        shows.read = vec![root.path().to_owned()];
        let files = machine.spec(&shows).unwrap().files;
        assert_eq!(files.last(), Some(&hide), "hidden below a shown directory");
        shows.read = vec![state.join("missing")];
        assert!(machine.spec(&shows).is_err());
    }
}
