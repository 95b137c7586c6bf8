//! The entry point: arguments, the runtime, exit codes.

use std::path::PathBuf;
use std::process::ExitCode;

use unified_proxy::app::{self, DevOptions};
use unified_proxy::cli::{self, AuditCommand, Command, Failure};
use unified_proxy::sandbox;

/// jemalloc, with the settings of `.cargo/config.toml` (docs/adr/017-jemalloc.md). It is built for one
/// page size, so it is used only on x86-64: on other architectures, the page size depends on the
/// kernel.
#[cfg(all(feature = "jemalloc", target_arch = "x86_64"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let ended = match cli::parse() {
        // These eight commands start a runtime themselves if they need one. The forwarder and init
        // must begin with one thread: a process with several threads cannot enter a new user
        // namespace.
        Command::Run(run) => return run.run(),
        Command::RunAppliance => {
            return_freed_memory();
            cli::run_appliance()
        }
        Command::SandboxForwarder => return sandbox::run_forwarder(),
        Command::SandboxPid1 => return sandbox::run_pid1(),
        Command::SandboxEnter(enter) => return enter.run(),
        Command::SandboxSession { command } => return sandbox::run_session(&command),
        Command::SandboxSupervisor => return sandbox::run_supervisor(),
        Command::SandboxInit => return sandbox::run_init(),
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
    return_freed_memory();
    block_on(async { Ok(app::run(config, dev).await?) })
}

fn block_on(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| Failure::internal(format_args!("cannot start: {error}")))?;
    runtime.block_on(command)
}

/// Starts jemalloc's thread, which returns freed memory to the kernel; without it, jemalloc returns
/// memory only while the process allocates. Only for servers: a command that creates a user namespace
/// must have one thread.
fn return_freed_memory() {
    #[cfg(all(feature = "jemalloc", target_arch = "x86_64"))]
    if let Err(error) = tikv_jemalloc_ctl::background_thread::write(true) {
        eprintln!(
            "unified-proxy: freed memory is returned late: jemalloc's thread does not start: {error}"
        );
    }
}
