//! The entry point: arguments, the runtime, exit codes.

use std::process::ExitCode;

use unified_proxy::cli::{self, AuditCommand, Command, Failure};
use unified_proxy::{app, sandbox};

/// Returns freed memory to the kernel, with the settings of `.cargo/config.toml`. Other
/// architectures have kernels with pages of several sizes, and jemalloc is built for one.
#[cfg(target_arch = "x86_64")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // These five commands start before any thread does, since a process with several threads cannot
    // create a user namespace.
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
