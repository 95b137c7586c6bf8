//! Places where clients run: this machine, or a sandbox.

use std::path::Path;
use std::process::{Command, Stdio};

/// A place where clients run, with the variables that lead to the proxy.
pub struct Place<'a> {
    /// Variables of a client besides `PATH` and `HOME`; empty if the place sets them itself.
    pub environment: Vec<(String, String)>,
    /// Makes the command that runs a program at this place. The arguments are a directory that the
    /// program may write to, and the program with its own arguments.
    pub start: &'a dyn Fn(&Path, &[&str]) -> Command,
}

/// Exit code and output of a script.
#[derive(Debug)]
pub struct Printed {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Place<'_> {
    /// Runs a script with sh in an empty directory, for at most a minute.
    pub fn run(&self, script: &str) -> Printed {
        let directory = tempfile::TempDir::new().unwrap();
        let output = (self.start)(directory.path(), &["timeout", "60", "sh", "-c", script])
            .envs(self.environment.iter().cloned())
            .output()
            .unwrap();
        Printed {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// A command on this machine that starts in `directory`. Its environment has only `PATH`, and
/// `directory` as `HOME`.
pub fn shell(directory: &Path, program: &[&str]) -> Command {
    let mut command = Command::new(program[0]);
    command
        .args(&program[1..])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", directory)
        .current_dir(directory)
        .stdin(Stdio::null());
    command
}
