//! The entry point: arguments, the runtime, exit codes.

use std::process::ExitCode;

use unified_proxy::cli::{self, AuditCommand, Command, Failure};
use unified_proxy::{app, sandbox};

fn main() -> ExitCode {
    // These five run, or begin, without threads: a process with several cannot create a user
    // namespace.
    let command = match cli::parse() {
        Command::Run(run) => return run.run(),
        Command::RunAppliance => return cli::run_appliance(),
        Command::SandboxForwarder => return sandbox::run_forwarder(),
        Command::SandboxPid1 => return sandbox::run_pid1(),
        Command::SandboxSupervisor => return sandbox::run_supervisor(),
        command => command,
    };
    let runtime = match app::runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            return Failure::internal(format_args!("cannot start: {error}")).report();
        }
    };
    let ended = match command {
        Command::Serve(dir) => runtime
            .block_on(app::run(dir.served(), None))
            .map_err(stopped),
        Command::Dev(dev) => {
            let (config, options) = dev.into_options();
            runtime
                .block_on(app::run(config, Some(options)))
                .map_err(stopped)
        }
        Command::Check(dir) => cli::check(&dir),
        Command::Ca(command) => command.run(),
        Command::Audit(AuditCommand::Verify(dir)) => cli::verify_audit(&dir),
        Command::Client(command) => return runtime.block_on(cli::run(command)),
        Command::Run(_)
        | Command::RunAppliance
        | Command::SandboxForwarder
        | Command::SandboxPid1
        | Command::SandboxSupervisor => return ExitCode::SUCCESS,
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn stopped(failure: app::Failure) -> Failure {
    Failure::new(failure.code(), failure)
}
