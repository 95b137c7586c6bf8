//! Arguments, exit codes, and the runtime that everything runs on.

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use addons::shards;
use unified_proxy::app;
use unified_proxy::cli::{self, AuditCommand, Command, Failure};

fn main() -> ExitCode {
    // Those that serve DNS come first; what starts later only waits for disks and look-ups.
    let started = AtomicUsize::new(0);
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .on_thread_start(move || shards::claim(started.fetch_add(1, Ordering::Relaxed)))
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            return Failure::internal(format_args!("cannot start: {error}")).report();
        }
    };
    let ended = match cli::parse() {
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
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn stopped(failure: app::Failure) -> Failure {
    Failure::new(failure.code(), failure)
}
