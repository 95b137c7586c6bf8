//! Runs commands and file operations in one folder, for clients on a Unix socket or TCP.
#![deny(missing_docs)]

use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use tokio::runtime;

use crate::config::Config;
use crate::workspace::Workspace;

mod access;
mod bash;
pub mod config;
mod connection;
pub mod failure;
mod fields;
pub mod files;
pub mod search;
mod server;
pub mod truncation;
pub mod work;
pub mod workspace;

pub use crate::bash::supervise;

/// The version of this crate, which `/health` and `--version` report.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The most time that the process waits for cancelled file operations before it exits.
const OPERATIONS_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
///
/// A sentence that names the object that cannot be opened, and the reason.
pub fn run(config: Config) -> Result<(), String> {
    // Commands run as the same user, and could otherwise read the token in `/proc/PID/environ`.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| format!("cannot hide the environment from commands: {error}"))?;
    let root = &config.workspace_root;
    let workspace =
        Workspace::open(root, config.allow_outside).map_err(|error| unusable_root(root, &error))?;
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(server::THREADS)
        .thread_keep_alive(server::THREADS_KEPT)
        .build()
        .map_err(|error| format!("cannot start the runtime: {error}"))?;
    let outcome = runtime.block_on(server::serve(config, workspace));
    runtime.shutdown_timeout(OPERATIONS_TIMEOUT);
    outcome
}

/// The message for a root that cannot be opened, with advice.
fn unusable_root(root: &Path, error: &io::Error) -> String {
    let advice = match error.kind() {
        io::ErrorKind::NotFound => "; make the folder or mount it there",
        io::ErrorKind::NotADirectory => "; name a folder",
        _ => "",
    };
    format!("WORKSPACE_ROOT {}: {error}{advice}", root.display())
}

/// Writes a line to standard error. Ignores errors, since standard error may be closed.
pub fn report(line: &str) {
    let _ = writeln!(io::stderr(), "coding-sidecar: {line}");
}
