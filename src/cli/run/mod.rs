//! `run`: runs one command in a new sandbox, with its own appliance or with a running server.

mod appliance;
mod changes;
mod directories;
mod enter;
mod environment;
mod file_watch;
mod fingerprint;
mod git_config;
mod git_copies;
mod git_directory;
mod git_harmless;
mod git_settings;
mod launch;
mod learned_file;
mod loads;
mod logins;
mod named;
mod obeyed;
mod placeholders;
mod programs;
mod protected;
mod registration;
mod report;
mod search;
mod secrets;
mod signals;
mod specification;
mod terminal;
mod version_control;
mod visible;
mod watched;

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use addons::contract::AuthMode;
use addons::policy::{LOCALHOST, parse_entry};
use clap::Args;

use crate::sandbox::{GATEWAY_PORT, PROXY_PORT};

pub use appliance::{APPLIANCE, run as run_appliance, sockets_of_runs};
pub use enter::{ENTER, Enter};

/// The command and its permissions.
#[derive(Args, Debug)]
pub struct Run {
    /// A repository that the command may use, also as its URL at github.com; may be repeated
    #[arg(long = "repo", value_name = "OWNER/NAME", value_parser = super::dev::parse_repo)]
    repos: Vec<String>,
    /// A host that is allowed besides those of the configuration: HOST, *.HOST, or HOST:PORT for
    /// that port alone; may be repeated
    #[arg(long, value_name = "HOST", value_parser = parse_host)]
    allow: Vec<String>,
    /// A port of this machine, at 127.0.0.1, that the command may send HTTP requests to, at the same
    /// port of its own loopback; may be repeated
    #[arg(long = "allow-host-port", value_name = "PORT", value_parser = parse_host_port, conflicts_with = "server")]
    host_ports: Vec<u16>,
    /// Who pushes: user or bot
    #[arg(long, value_name = "MODE", value_parser = ["user", "bot"], default_value = AuthMode::User.as_str())]
    mode: String,
    /// The directory of the configuration files [default: ~/.config/unified-proxy,
    /// /etc/unified-proxy, or the shipped allowlist]
    #[arg(long, value_name = "DIR")]
    config: Option<PathBuf>,
    /// Let the command use this user's logins of gh, claude, codex, gemini and opencode, and keys
    /// from the environment: the proxy injects them, the sandbox sees placeholders
    #[arg(long)]
    with_logins: bool,
    /// A directory or file that the command may write to; may be repeated
    #[arg(long, value_name = "PATH")]
    write: Vec<PathBuf>,
    /// A directory or file that the command may read; may be repeated
    #[arg(long, value_name = "PATH")]
    read: Vec<PathBuf>,
    /// Ask a person about unlisted hosts, who answers in another terminal with `unified-proxy
    /// approvals --watch`, instead of denying them
    #[arg(long)]
    ask: bool,
    /// Write an allowlist of every requested host to FILE, with --ask only of those that were
    /// reached; unlisted hosts are still denied, or asked about
    #[arg(long, value_name = "FILE")]
    learn: Option<PathBuf>,
    /// Use the running server with this admin socket instead of starting one for this run
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["allow", "ask", "config", "with_logins"])]
    server: Option<PathBuf>,
    /// Print only errors, and files of the command that the host would execute or obey
    #[arg(long)]
    quiet: bool,
    /// The command and its arguments; options of `run` come before it
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn parse_host(text: &str) -> Result<String, String> {
    let entry = parse_entry(text)?;
    let name = entry.pattern.to_string();
    let port = entry.ports.first().filter(|_| entry.ports.len() == 1);
    match is_loopback(&name) {
        false => Ok(text.to_owned()),
        true => Err(format!(
            "the command has a loopback of its own: to reach a server of this machine, use --allow-host-port {}",
            port.map_or("PORT".to_owned(), u16::to_string)
        )),
    }
}

/// Whether a host is on loopback.
fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == LOCALHOST
        || host.ends_with(".localhost")
        || address.is_ok_and(|address| address.is_loopback())
}

fn parse_host_port(text: &str) -> Result<u16, String> {
    let port = text.parse::<u16>().ok().filter(|port| *port >= 1024);
    match port {
        Some(PROXY_PORT | GATEWAY_PORT) => Err(format!(
            "the ports {PROXY_PORT} and {GATEWAY_PORT} of the sandbox belong to the proxy: let the server listen at another port"
        )),
        Some(port) => Ok(port),
        None => Err("must be a port from 1024 to 65535".to_owned()),
    }
}

impl Run {
    /// Runs the command and returns its exit code. Call it before the process starts a thread.
    pub fn run(self) -> ExitCode {
        match launch::launch(self) {
            Ok(code) => ExitCode::from(code),
            Err(failure) => failure.report(),
        }
    }
}
