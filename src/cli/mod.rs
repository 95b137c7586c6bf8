//! The command line: its definition, and the commands that query a running server or use its files.

mod approvals;
mod audit;
mod ca;
mod client;
mod containers;
mod dev;
mod env;
mod events;
mod examples;
mod exit;
mod explain;
mod health;
mod mcp;
mod registry;
mod run;
mod sandbox_files;
mod table;
mod tail;
mod unreachable;

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::{fs, io};

use addons::contract::ContainerId;
use clap::{Args, Parser, Subcommand};
use serde::Serialize;

use crate::config::{self, Config, DEV_STATE, Profile};
use crate::mcp::Machine;
use crate::mcp::policy::Policies;
use crate::sandbox;

pub use audit::verify as verify_audit;
pub use exit::Failure;
pub use run::run_appliance;

use client::Client;
use exit::{code, print};

/// The default configuration directory of the appliance.
const CONFIG_DIR: &str = "/etc/unified-proxy";
/// The environment variable with the path of the admin socket, used without `--socket`.
const SOCKET_VARIABLE: &str = "UNIFIED_PROXY_SOCKET";
/// The default admin socket of the appliance.
const SOCKET: &str = "/var/run/proxy/api.sock";
/// The text of `--version`. `scripts/release` puts version, commit, target and profile into
/// `UNIFIED_PROXY_BUILD`. Cargo recompiles this crate when the variable changes, so no build script
/// is needed.
const VERSION: &str = match option_env!("UNIFIED_PROXY_BUILD") {
    Some(build) => build,
    None => env!("CARGO_PKG_VERSION"),
};

#[derive(Debug, Parser)]
#[command(name = "unified-proxy", version = VERSION, about, after_help = examples::ALL)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The subcommands of `unified-proxy`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run one command in a sandbox of its own
    #[command(after_help = examples::RUN)]
    Run(Box<run::Run>),
    /// Serve this machine until Ctrl-C, with local defaults
    #[command(after_help = examples::DEV)]
    Dev(dev::Dev),
    /// Serve registered containers: the proxy, DNS and the MCP gateway
    Serve(ConfigDir),
    /// Validate every configuration file
    Check(ConfigDir),
    #[command(flatten)]
    Client(ClientCommand),
    /// The appliance of one `run`
    #[command(name = run::APPLIANCE, hide = true)]
    RunAppliance,
    /// Forward a sandbox's connections to the proxy
    #[command(name = sandbox::FORWARDER, hide = true)]
    SandboxForwarder,
    /// PID 1 of a sandbox
    #[command(name = sandbox::PID1, hide = true)]
    SandboxPid1,
    /// Run a program that enters a sandbox, without the terminal
    #[command(name = run::ENTER, hide = true)]
    SandboxEnter(run::Enter),
    /// Lead the session of a command in a sandbox
    #[command(name = sandbox::SESSION, hide = true)]
    SandboxSession {
        /// The command and its arguments
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Kill what an unconfined command leaves when it ends
    #[command(name = sandbox::SUPERVISOR, hide = true)]
    SandboxSupervisor,
    /// Start an unconfined command in a PID namespace
    #[command(name = sandbox::INIT, hide = true)]
    SandboxInit,
    /// The interception CA
    #[command(subcommand)]
    Ca(ca::CaCommand),
    /// The audit log
    #[command(subcommand)]
    Audit(AuditCommand),
}

/// Subcommands of `audit`.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Find out whether a line was changed or cut, and how many were folded or lost
    Verify(ConfigDir),
}

/// The state directory of `dev` in the working directory, if this user made it. In a directory that
/// others can write to, another user could have made one, with a server of their own behind its
/// socket. An empty one is a placeholder of `run`.
fn dev_state() -> Option<&'static Path> {
    let path = Path::new(DEV_STATE);
    let us = rustix::process::geteuid().as_raw();
    let found = [path.symlink_metadata(), path.metadata()];
    let is_ours = found
        .into_iter()
        .all(|found| found.is_ok_and(|found| found.uid() == us));
    let mut entries = fs::read_dir(path).into_iter().flatten();
    (is_ours && entries.next().is_some()).then_some(path)
}

/// Whether the server that made a socket has ended.
fn has_no_server(socket: &Path) -> bool {
    UnixStream::connect(socket).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// The configuration directory of a server.
#[derive(Args, Debug)]
pub struct ConfigDir {
    /// The directory of the configuration files [default: /etc/unified-proxy; except for serve,
    /// ./config if /etc/unified-proxy does not exist and `dev` has run here]
    #[arg(long, value_name = "DIR")]
    config: Option<PathBuf>,
}

impl ConfigDir {
    /// Returns the configuration directory for `serve`.
    pub fn served(self) -> PathBuf {
        self.config.unwrap_or_else(|| CONFIG_DIR.into())
    }

    /// Returns the configuration directory and the profile of the server on this machine.
    ///
    /// - Without `--config`, the directory is `./config` if `/etc/unified-proxy` does not exist and
    ///   the working directory has a state directory of `dev`, else `/etc/unified-proxy`.
    /// - The profile is `Dev` if the working directory has a state directory of `dev` and the
    ///   configuration directory is not `/etc/unified-proxy`, else `Serve`.
    pub fn here(&self) -> (PathBuf, Profile) {
        let dev_ran = dev_state().is_some();
        match &self.config {
            Some(dir) if dev_ran && dir != Path::new(CONFIG_DIR) => (dir.clone(), Profile::Dev),
            Some(dir) => (dir.clone(), Profile::Serve),
            None if dev_ran && !Path::new(CONFIG_DIR).is_dir() => ("./config".into(), Profile::Dev),
            None => (CONFIG_DIR.into(), Profile::Serve),
        }
    }
}

/// Loads the configuration of the server on this machine.
fn load(dir: &ConfigDir) -> Result<Config, Failure> {
    let (dir, profile) = dir.here();
    Ok(config::load(&dir, profile)?)
}

/// Loads the configuration of the server on this machine, with its MCP policies, and prints its
/// warnings. If the configuration is invalid, the failure lists all errors.
pub fn check(dir: &ConfigDir) -> Result<(), Failure> {
    let (dir, profile) = dir.here();
    // The directories of the state are not known before the configuration is.
    let machine = Machine::new(PathBuf::new(), vec![dir.clone()]);
    let config = config::load_checked(&dir, profile, |settings, report| {
        for policy in Policies::load(&settings.mcp.policies, None, &machine).unloaded {
            report.error(policy.config_error());
        }
    })?;
    for warning in &config.warnings {
        eprintln!("warning: {warning}");
    }
    print(format_args!("{}: no errors", dir.display()))
}

/// The commands that [`run`] performs. None of them starts a server.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Say what would happen to a request, and why
    #[command(after_help = examples::EXPLAIN)]
    Explain(explain::Explain),
    /// Show flows as they end
    Tail(tail::Tail),
    /// Register, remove and show containers
    #[command(subcommand)]
    Container(containers::ContainerCommand),
    /// What waits for a person, and the answers
    #[command(after_help = examples::APPROVALS)]
    Approvals(approvals::Approvals),
    /// Tools of MCP servers, for people and for agents that speak stdio only
    #[command(subcommand)]
    Mcp(mcp::McpCommand),
    /// Say whether listeners, registry and chain work
    #[command(after_help = examples::HEALTH)]
    Health(Output),
    /// Print the environment that points clients at the proxy
    #[command(after_help = examples::ENV)]
    Env(env::Env),
    /// Write the placeholder credential files that a sandbox mounts
    SandboxFiles(sandbox_files::SandboxFiles),
    /// Check, copy and restore the registry's file
    #[command(subcommand)]
    Registry(registry::RegistryCommand),
}

/// The server to query, by its admin socket.
#[derive(Args, Debug)]
struct Target {
    /// The admin socket [default: $UNIFIED_PROXY_SOCKET, else ./.unified-proxy/api.sock if it is
    /// there, else /var/run/proxy/api.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl Target {
    fn client(&self) -> Client {
        if let Some(socket) = &self.socket {
            return Client::new(socket.clone(), "--socket");
        }
        if let Some(socket) = std::env::var_os(SOCKET_VARIABLE) {
            return Client::new(socket.into(), format!("${SOCKET_VARIABLE}"));
        }
        let socket = dev_state().map(|state| state.join("api.sock"));
        // `dev` leaves its socket behind. If there is a socket of `serve`, started after `dev` in
        // the same directory, the commands are for that server.
        let is_left = |socket: &Path| Path::new(SOCKET).exists() && has_no_server(socket);
        match socket.filter(|socket| socket.exists() && !is_left(socket)) {
            Some(socket) => Client::new(socket, "of `dev` in this directory"),
            None if Path::new(DEV_STATE).symlink_metadata().is_ok() => {
                let named_by = format!(
                    "the default; {DEV_STATE} is another user's or has no socket of a running server"
                );
                Client::new(SOCKET.into(), named_by)
            }
            None => Client::new(
                SOCKET.into(),
                format!("the default; there is no {DEV_STATE}"),
            ),
        }
    }
}

/// The server to query, by its admin socket or by its configuration.
#[derive(Args, Debug)]
struct Server {
    #[command(flatten)]
    target: Target,
    /// The server's configuration directory, whose proxy.yaml names the admin socket; --socket
    /// overrides it
    #[arg(long, value_name = "DIR")]
    config: Option<PathBuf>,
}

impl Server {
    fn client(&self) -> Result<Client, Failure> {
        let Some(dir) = self.config.clone().filter(|_| self.target.socket.is_none()) else {
            return Ok(self.target.client());
        };
        let (dir, profile) = ConfigDir { config: Some(dir) }.here();
        let named_by = format!("listen.admin of the configuration in {}", dir.display());
        Ok(Client::new(config::admin_socket(&dir, profile)?, named_by))
    }
}

/// The server to send the request to, and the format of the output.
#[derive(Args, Debug)]
pub struct Output {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

impl Output {
    fn print<T: Serialize>(
        &self,
        response: &T,
        lines: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        match self.json {
            true => print(serde_json::to_string(response).map_err(Failure::internal)?),
            false => print(lines(response)),
        }
    }
}

fn parse_id(text: &str) -> Result<ContainerId, String> {
    ContainerId::parse(text)
        .ok_or_else(|| "an id has 1 to 128 characters of A-Z a-z 0-9 _ . -".to_owned())
}

/// Parses the command line. Exits after `--help` and `--version`, and after a usage error.
pub fn parse() -> Command {
    match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => {
            // An error of `print` is ignored: there is no other output for a message.
            let _ = error.print();
            let code = match error.use_stderr() {
                true => code::USAGE,
                false => code::DONE,
            };
            std::process::exit(code.into());
        }
    }
}

/// Runs the command.
pub async fn run(command: ClientCommand) -> Result<(), Failure> {
    match command {
        ClientCommand::Explain(explain) => explain.run().await,
        ClientCommand::Tail(tail) => tail.run().await,
        ClientCommand::Container(command) => command.run().await,
        ClientCommand::Approvals(approvals) => approvals.run().await,
        ClientCommand::Mcp(command) => command.run().await,
        ClientCommand::Health(output) => health::run(&output).await,
        ClientCommand::Env(env) => env.run().await,
        ClientCommand::SandboxFiles(files) => files.run().await,
        ClientCommand::Registry(command) => command.run(),
    }
}

#[cfg(test)]
mod manual;
#[cfg(test)]
mod tests;
