//! Arguments, exit codes, and the runtime that everything runs on.

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use addons::shards;
use unified_proxy::app;
use unified_proxy::cli::{self, AuditCommand, CaCommand, Command, ConfigDir, Failure, code, load};
use unified_proxy::tls::CaFiles;

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
            return Failure::new(code::SOFTWARE, format_args!("cannot start: {error}")).report();
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
        Command::Check(dir) => check(&dir),
        Command::Ca(command) => ca(&command),
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

fn check(dir: &ConfigDir) -> Result<(), Failure> {
    let (dir, config) = load(dir)?;
    for warning in &config.warnings {
        eprintln!("warning: {warning}");
    }
    println!("{}: no errors", dir.display());
    Ok(())
}

fn ca(command: &CaCommand) -> Result<(), Failure> {
    let (CaCommand::Path(dir) | CaCommand::Show(dir) | CaCommand::Rotate(dir)) = command;
    let proxy = load(dir)?.1.proxy;
    let files = CaFiles::new(&proxy.data_dir, &proxy.certs_dir);
    let failed = |error: &dyn std::fmt::Display| Failure::new(code::CONFIG, error);
    match command {
        CaCommand::Path(_) => println!("{}", files.public_path().display()),
        CaCommand::Show(_) => print!("{}", files.describe().map_err(|error| failed(&error))?),
        CaCommand::Rotate(_) => {
            let from = files
                .rotate(time::OffsetDateTime::now_utc())
                .map_err(|error| failed(&error))?;
            println!(
                "the new CA is published in {}; it signs from {from} on",
                files.public_path().display()
            );
        }
    }
    Ok(())
}
