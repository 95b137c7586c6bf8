//! The program: parses its arguments, reads the configuration from the environment and serves.

use std::env;
use std::io::Write as _;
use std::process::ExitCode;

use coding_sidecar::config::{Config, VARIABLES, is_misspelt};
use coding_sidecar::{VERSION, report, run, supervise};

/// Exit code for unknown arguments (`EX_USAGE` of sysexits.h).
const USAGE: u8 = 64;
/// Exit code if the sidecar cannot serve, for example because the socket or the workspace cannot be
/// opened (`EX_UNAVAILABLE`).
const UNAVAILABLE: u8 = 69;
/// Exit code for invalid environment variables (`EX_CONFIG`).
const CONFIG: u8 = 78;

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    let (first, second, third) = (arguments.next(), arguments.next(), arguments.next());
    let name = first.as_ref().map(|name| name.to_str().unwrap_or_default());
    match (name, second, third) {
        (None, None, None) => serve(),
        (Some("--version" | "-V"), None, None) => print(&format!("coding-sidecar {VERSION}\n")),
        (Some("--help" | "-h"), None, None) => print(&help()),
        // The supervisor, which the sidecar starts for each command; not meant for users.
        (Some("supervise"), Some(command), None) => supervise(&command),
        _ => {
            report("takes no arguments but --help and --version");
            ExitCode::from(USAGE)
        }
    }
}

fn serve() -> ExitCode {
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| is_misspelt(name)) {
        report(&format!("WARNING: {name} is not a setting: see --help"));
    }
    let config = match Config::read(|name| env::var_os(name)) {
        Ok(config) => config,
        Err(errors) => {
            for line in errors.to_string().lines() {
                report(&format!("error: {line}"));
            }
            return ExitCode::from(CONFIG);
        }
    };
    match run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&format!("error: {error}"));
            ExitCode::from(UNAVAILABLE)
        }
    }
}

/// Prints a text to standard output, and returns the exit code of the program.
fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn help() -> String {
    let mut help = String::from(
        "Runs bash, read, write, edit, ls, find and grep below one folder, for a caller on a \
         Unix socket or TCP.\n\nEnvironment (defaults in brackets):\n",
    );
    for (name, meaning) in VARIABLES {
        help.push_str(&format!("  {name:<38}{meaning}\n"));
    }
    help
}
