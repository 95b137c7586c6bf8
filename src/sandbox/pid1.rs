//! PID 1 of a sandbox: builds the root, drops every privilege, starts the command, and reaps
//! orphans. When it ends, the kernel kills all processes inside.

use std::convert::Infallible;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::io::retry_on_intr;
use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitOptions, ioctl_tiocsctty, kill_process, kill_process_group,
    set_dumpable_behavior, set_parent_process_death_signal, setsid, wait,
};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

use super::channel::{self, Channel};
use super::handle::{Ending, Refused, SandboxMessage, Signalled, ToPid1};
use super::pseudo_terminal::PseudoTerminal;
use super::spec::{self, Spec, Terminal};
use super::{diagnosis, namespaces, new_root, privileges, system_calls};
use crate::exit_code as code;

/// The multiplexer of the sandbox's pseudo-terminals.
const MULTIPLEXER: &str = "/dev/pts/ptmx";

type Launcher = Channel<std::os::fd::BorrowedFd<'static>>;

/// The name of the process, for `ps` and [`is_inside`].
const NAME: &CStr = c"up-pid1";

/// Whether this process is in a sandbox, of `run` or of an MCP server.
pub fn is_inside() -> bool {
    let name = std::fs::read("/proc/1/comm").unwrap_or_default();
    name.strip_suffix(b"\n") == Some(NAME.to_bytes())
}

/// Runs as PID 1. Its standard input is the launcher's channel.
pub fn run() -> ExitCode {
    let launcher = Channel::from_stdin();
    let Err(refused) = serve(&launcher);
    // Fails if the launcher has ended.
    let _ = launcher.send(&SandboxMessage::Refused(refused), &[]);
    ExitCode::from(code::SOFTWARE)
}

fn serve(launcher: &Launcher) -> Result<Infallible, Refused> {
    // The name in `ps`; an error here is harmless.
    let _ = rustix::thread::set_name(NAME);
    let step = "setting the parent-death signal of PID 1 (PR_SET_PDEATHSIG)";
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(Refused::internal(step))?;
    let (spec, streams) = receive_start(launcher)?;
    namespaces::enter_mounts()?;
    let memory = spec.limits.map(|limits| limits.memory);
    new_root::build(&spec.files, memory).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => diagnosis::refused("mounting its files")(error),
        _ => Refused::internal("mounting its files")(error),
    })?;
    rustix::system::sethostname(spec.hostname.as_bytes())
        .map_err(Refused::internal("setting its host name"))?;
    // Keeps other processes of the same user from tracing this one.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .and_then(|()| setsid().map(drop))
        .map_err(Refused::internal("starting its session"))?;
    let (streams, terminal) = match spec.terminal {
        None => (streams, None),
        Some(wanted) => {
            let opened = open_terminal(launcher, wanted, streams);
            let (streams, terminal) = opened.map_err(Refused::internal("opening its terminal"))?;
            (streams, Some(terminal))
        }
    };
    privileges::limit_resources()
        .and_then(|()| privileges::drop_capabilities())
        .and_then(|()| system_calls::restrict(spec.unix_sockets))
        .map_err(Refused::internal("giving up privileges"))?;
    limit(&spec)?;
    let command = start(&spec.command, streams)?;
    if let Some(terminal) = &terminal {
        bring_to_foreground(terminal, command)?;
    }
    launcher
        .send(&SandboxMessage::Started, &[])
        .map_err(Refused::internal("reporting its start"))?;
    std::thread::spawn(move || pass_signals(&Channel::from_stdin(), command, terminal.as_ref()));
    let stopped = || {
        let _ = launcher.send(&SandboxMessage::Stopped, &[]);
    };
    let ending = reap(command, WaitOptions::UNTRACED, stopped)?;
    let _ = launcher.send(&SandboxMessage::Ended(ending), &[]);
    std::process::exit(code::DONE.into());
}

/// Applies the limits of the specification, if it has any.
pub(super) fn limit(spec: &Spec) -> Result<(), Refused> {
    let limited = spec
        .limits
        .as_ref()
        .map_or(Ok(()), privileges::limit_command);
    limited.map_err(Refused::internal("limiting its memory and processors"))
}

/// Receives the launcher's first message: the specification, and the command's standard streams.
pub(super) fn receive_start<Fd: AsFd>(
    launcher: &Channel<Fd>,
) -> Result<(Spec, [OwnedFd; 3]), Refused> {
    let receive = || {
        let received = launcher.receive::<ToPid1>()?;
        let (message, fds) = received.ok_or(io::ErrorKind::UnexpectedEof)?;
        match (message, <[_; 4]>::try_from(fds)) {
            (ToPid1::Start, Ok(fds)) => Ok(fds),
            _ => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        }
    };
    let step = "receiving the launcher's first message";
    let [spec, stdin, stdout, stderr] = receive().map_err(Refused::internal(step))?;
    let step = "reading its specification";
    let spec = channel::from_memory(spec).map_err(Refused::internal(step))?;
    Ok((spec, [stdin, stdout, stderr]))
}

/// Opens a pseudo-terminal of the sandbox's own `/dev/pts`, makes it the controlling terminal of
/// the session, and replaces the wanted streams by it.
fn open_terminal(
    launcher: &Launcher,
    wanted: Terminal,
    mut streams: [OwnedFd; 3],
) -> io::Result<([OwnedFd; 3], OwnedFd)> {
    let opened = PseudoTerminal::open(Path::new(MULTIPLEXER), wanted)?;
    ioctl_tiocsctty(&opened.terminal)?;
    launcher.send(&SandboxMessage::Terminal, &[opened.controlling.as_fd()])?;
    opened.replace(wanted, &mut streams)?;
    Ok((streams, opened.terminal))
}

/// Makes a command's process group the foreground one of a terminal.
pub(super) fn bring_to_foreground(terminal: &OwnedFd, command: Pid) -> Result<(), Refused> {
    // If the command has read from the terminal before it was in the foreground, the kernel has
    // stopped it. SIGCONT continues it.
    tcsetpgrp(terminal, command)
        .and_then(|()| kill_process_group(command, Signal::CONT))
        .map_err(Refused::internal("moving its command to the foreground"))
}

pub(super) fn pid_of(child: &Child) -> Result<Pid, Refused> {
    Pid::from_raw(child.id().cast_signed())
        .ok_or(io::ErrorKind::UnexpectedEof)
        .map_err(Refused::internal("starting its command"))
}

/// Starts the command in a new process group.
pub(super) fn start(command: &spec::Command, streams: [OwnedFd; 3]) -> Result<Pid, Refused> {
    let [stdin, stdout, stderr] = streams.map(Stdio::from);
    let child = Command::new(&command.program)
        .args(&command.arguments)
        .env_clear()
        .envs(command.environment.iter().cloned())
        .current_dir(&command.directory)
        .process_group(0)
        .stdin(stdin)
        .stdout(stdout)
        .stderr(stderr)
        .spawn();
    let child = child.map_err(|error| {
        let program = command.program.to_string_lossy();
        let message = match error.kind() {
            io::ErrorKind::NotFound => format!("{program}: {}", command.if_missing),
            _ => format!("{program}: cannot be started: {error}"),
        };
        Refused {
            code: code::USAGE,
            message,
        }
    })?;
    pid_of(&child)
}

/// Forwards signals until the launcher has ended, then ends this process and so the sandbox.
fn pass_signals(launcher: &Launcher, command: Pid, terminal: Option<&OwnedFd>) {
    while let Ok(Some((message, _))) = launcher.receive::<ToPid1>() {
        let ToPid1::Signal { number, to } = message else {
            continue;
        };
        let Some(signal) = Signal::from_named_raw(number) else {
            continue;
        };
        let foreground = || terminal.and_then(|terminal| tcgetpgrp(terminal).ok());
        // Fails if the process has ended.
        let _ = match to {
            Signalled::Command => kill_process(command, signal),
            Signalled::Foreground => kill_process_group(foreground().unwrap_or(command), signal),
        };
    }
    std::process::exit(code::SOFTWARE.into());
}

/// Reaps all children of this process until the command has ended, and returns how it ended. With
/// [`WaitOptions::UNTRACED`], calls `stopped` when the command is stopped.
pub(super) fn reap(
    command: Pid,
    options: WaitOptions,
    stopped: impl Fn(),
) -> Result<Ending, Refused> {
    loop {
        let waited = retry_on_intr(|| wait(options));
        let waited = waited.map_err(Refused::internal("waiting for its command"))?;
        let Some((_, status)) = waited.filter(|(pid, _)| *pid == command) else {
            continue;
        };
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => return Ok(Ending::Exit(u8::try_from(code).unwrap_or(u8::MAX))),
            (_, Some(signal)) => return Ok(Ending::Signal(signal)),
            _ => stopped(),
        }
    }
}
