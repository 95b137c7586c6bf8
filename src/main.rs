//! The entry point: arguments, the runtime, exit codes.

use std::path::PathBuf;
use std::process::ExitCode;

use unified_proxy::app::{self, DevOptions};
use unified_proxy::cli::{self, AuditCommand, Command, Failure};
use unified_proxy::sandbox;

/// Returns freed memory to the kernel, with the settings of `.cargo/config.toml`. Other
/// architectures have kernels with different page sizes, and jemalloc is built for one size.
#[cfg(target_arch = "x86_64")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let ended = match cli::parse() {
        // No runtime is started here for these five commands: the forwarder creates a user
        // namespace, which a process with several threads cannot. The others start what they need.
        Command::Run(run) => return run.run(),
        Command::RunAppliance => cli::run_appliance(),
        Command::SandboxForwarder => return sandbox::run_forwarder(),
        Command::SandboxPid1 => return sandbox::run_pid1(),
        Command::SandboxSupervisor => return sandbox::run_supervisor(),
        Command::Serve(dir) => serve(dir.served(), None),
        Command::Dev(dev) => {
            let (config, options) = dev.into_options();
            serve(config, Some(options))
        }
        Command::Check(dir) => cli::check(&dir),
        Command::Ca(command) => command.run(),
        Command::Audit(AuditCommand::Verify(dir)) => cli::verify_audit(&dir),
        Command::Client(command) => block_on(cli::run(command)),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn serve(config: PathBuf, dev: Option<DevOptions>) -> Result<(), Failure> {
    block_on(async { Ok(app::run(config, dev).await?) })
}

fn block_on(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| Failure::internal(format_args!("cannot start: {error}")))?;
    runtime.block_on(command)
}
