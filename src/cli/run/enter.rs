//! `scripts/sandbox exec`: runs a program that enters a sandbox. If a standard stream is a terminal,
//! the program gets a pseudo-terminal of the sandbox instead, so that no process of the sandbox can
//! read from the user's terminal, neither during the command nor after it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use clap::Args;
use rustix::io::retry_on_intr;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_current_process_group, kill_process,
    kill_process_group, waitpid,
};
use tokio::sync::mpsc;

use super::signals::{SignalEvent, Signals};
use super::terminal::{HostTerminal, Streams};
use crate::cli::exit::Failure;
use crate::sandbox::{Ending, PseudoTerminal, Signalled};

/// The hidden subcommand.
pub const ENTER: &str = "sandbox-enter";

/// The program, and the sandbox that it enters.
#[derive(Args, Debug)]
pub struct Enter {
    /// The multiplexer of the sandbox's pseudo-terminals, as a path of the host
    #[arg(long, value_name = "PATH")]
    multiplexer: PathBuf,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Enter {
    /// Runs the program and returns its exit code.
    pub fn run(self) -> ExitCode {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let ran = runtime
            .map_err(Failure::internal)
            .and_then(|runtime| runtime.block_on(self.enter()));
        match ran {
            Ok(code) => ExitCode::from(code),
            Err(failure) => failure.report(),
        }
    }

    async fn enter(self) -> Result<u8, Failure> {
        let (program, arguments) = self
            .command
            .split_first()
            .ok_or_else(|| Failure::usage("a command must follow --"))?;
        let mut signals = Signals::listen().map_err(Failure::internal)?;
        let Streams {
            mut streams,
            wanted,
            mut terminal,
            relays: _,
        } = Streams::with_files().map_err(Failure::usage)?;
        if let (Some(wanted), Some(terminal)) = (wanted, &mut terminal) {
            let opened = PseudoTerminal::open(&self.multiplexer, wanted).map_err(|error| {
                let multiplexer = self.multiplexer.display();
                Failure::internal(format_args!(
                    "{multiplexer}: the sandbox has no pseudo-terminal: {error}"
                ))
            })?;
            opened
                .replace(wanted, &mut streams)
                .and_then(|()| terminal.connect(opened.controlling))
                .map_err(Failure::internal)?;
        }
        let [stdin, stdout, stderr] = streams.map(Stdio::from);
        let child = Command::new(program)
            .args(arguments)
            // A group of its own, since this process forwards the signals of the terminal.
            .process_group(0)
            .stdin(stdin)
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .map_err(Failure::internal)?;
        let child = Pid::from_child(&child);
        let mut states = states(child);
        let code = loop {
            tokio::select! {
                state = states.recv() => match state {
                    Some(state) if state.stopped() => stop(terminal.as_ref()),
                    Some(state) => break exit_code(state),
                    None => return Err(Failure::internal("the state of the command is unknown")),
                },
                signal = signals.next() => forward(signal, child, terminal.as_ref()),
            }
        };
        if let Some(terminal) = terminal {
            terminal.finish().await;
        }
        Ok(code)
    }
}

/// Waits in a thread for changes of a child's state.
fn states(child: Pid) -> mpsc::UnboundedReceiver<WaitStatus> {
    let (to, states) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while let Ok(Some((_, state))) =
            retry_on_intr(|| waitpid(Some(child), WaitOptions::UNTRACED))
        {
            // Fails if the command has ended.
            let _ = to.send(state);
        }
    });
    states
}

fn exit_code(state: WaitStatus) -> u8 {
    let ending = match (state.exit_status(), state.terminating_signal()) {
        (_, Some(signal)) => Ending::Signal(signal),
        (code, None) => Ending::Exit(
            code.and_then(|code| u8::try_from(code).ok())
                .unwrap_or(u8::MAX),
        ),
    };
    ending.exit_code()
}

/// Stops the process group, of which the script that `up --while` runs is a member.
fn stop(terminal: Option<&HostTerminal>) {
    if let Some(terminal) = terminal {
        terminal.restore();
    }
    // Cannot fail for our own group.
    let _ = kill_current_process_group(Signal::STOP);
}

/// Forwards a signal to the command: to the foreground process group of its terminal, or to the
/// command's own group. nsenter, the child, would not forward it: it would end, and with it, by
/// SIGKILL, the command.
fn forward(signal: SignalEvent, child: Pid, terminal: Option<&HostTerminal>) {
    let SignalEvent::Signal { number, to } = signal else {
        if let Some(terminal) = terminal {
            terminal.resize();
        }
        return;
    };
    let Some(signal) = Signal::from_named_raw(number) else {
        return;
    };
    let done = if signal == Signal::CONT {
        if let Some(terminal) = terminal {
            terminal.resume();
        }
        // nsenter was stopped with the command. It continues its own child, and this the command.
        false
    } else {
        let in_foreground =
            |terminal: &HostTerminal| to == Signalled::Foreground && terminal.signal(signal);
        terminal.is_some_and(in_foreground)
            || command_of(child).is_some_and(|command| kill_process_group(command, signal).is_ok())
    };
    if !done {
        // The command has not started yet, or has ended.
        let _ = kill_process(child, signal);
    }
}

/// Finds the command, which leads a process group: the only child of `sandbox-session`, which is
/// the only child of nsenter.
fn command_of(nsenter: Pid) -> Option<Pid> {
    let only_child = |of: Pid| {
        let of = of.as_raw_pid();
        let children = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).ok()?;
        Pid::from_raw(children.trim().parse().ok()?)
    };
    only_child(nsenter).and_then(only_child)
}
