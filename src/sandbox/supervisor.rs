//! Supervises an unconfined command: when the launcher or the command ends, every process that the
//! command started is killed.
//!
//! As PID 1 of a PID namespace, the supervisor only has to end: the kernel then kills all processes
//! inside, also those that start others meanwhile or belong to other users. Otherwise it finds and
//! kills them itself.

use std::collections::HashSet;
use std::convert::Infallible;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread::{self, sleep};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, pidfd_open, pidfd_send_signal,
    set_child_subreaper, set_parent_process_death_signal, wait,
};
use rustix::thread::{sched_getaffinity, sched_setaffinity};

use super::channel::Channel;
use super::handle::{Ending, Refused, SELF_EXE, SandboxMessage, ToPid1};
use super::{SUPERVISOR, namespaces, pid1, privileges};
use crate::exit_code as code;

/// The first pause between two rounds of killing, doubled up to [`MAX_PAUSE`] while none ends.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
/// The longest pause. A round reads all of /proc, and a process that belongs to another user, or
/// waits for a device, may stay for long.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Runs as the supervisor. Its standard output is the launcher's channel.
pub fn run() -> ExitCode {
    let launcher = match Channel::take_stdout() {
        Ok(launcher) => Arc::new(launcher),
        Err(_) => return ExitCode::from(code::SOFTWARE),
    };
    let Err(refused) = serve(&launcher);
    // Fails if the launcher has ended.
    let _ = launcher.send(&SandboxMessage::Refused(refused), &[]);
    ExitCode::from(code::SOFTWARE)
}

/// Starts the supervisor as PID 1 of a PID namespace, and waits until all processes inside are
/// gone. If this machine permits no PID namespace, runs as the supervisor itself. The process must
/// have one thread.
pub fn run_init() -> ExitCode {
    match namespaces::enter_pids() {
        Ok(false) => run(),
        Ok(true) => match Channel::take_stdout() {
            Ok(launcher) => run_as_init(launcher),
            Err(_) => ExitCode::from(code::SOFTWARE),
        },
        Err(refused) => {
            let launcher = Channel::take_stdout();
            // Fails if the launcher has ended.
            let _ = launcher.map(|launcher| launcher.send(&SandboxMessage::Refused(refused), &[]));
            ExitCode::from(code::SOFTWARE)
        }
    }
}

/// Starts the supervisor in the namespace of this process's children. The kernel lets PID 1 end
/// only after all other processes inside.
fn run_as_init(launcher: Channel) -> ExitCode {
    let started = Command::new(SELF_EXE)
        .arg0("unified-proxy")
        .arg(SUPERVISOR)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(launcher.into_inner())
        .spawn();
    match started.and_then(|mut supervisor| supervisor.wait()) {
        Ok(_) => ExitCode::from(code::DONE),
        Err(_) => ExitCode::from(code::SOFTWARE),
    }
}

/// Whether this process is PID 1 of its PID namespace. /proc then shows another namespace.
fn is_init() -> bool {
    getpid() == Pid::INIT
}

fn serve(launcher: &Arc<Channel>) -> Result<Infallible, Refused> {
    // The name in `ps`; an error here is harmless.
    let _ = rustix::thread::set_name(c"up-supervisor");
    // Orphans of the command become children of this process.
    set_child_subreaper(Some(getpid())).map_err(Refused::internal("starting its supervisor"))?;
    if is_init() {
        let step = "setting the supervisor's parent-death signal (PR_SET_PDEATHSIG)";
        set_parent_process_death_signal(Some(Signal::KILL)).map_err(Refused::internal(step))?;
    }
    let (spec, streams) = pid1::receive_start(launcher)?;
    let processors = sched_getaffinity(None);
    if spec.limits.is_some() {
        privileges::limit_resources().map_err(Refused::internal("limiting its processes"))?;
    }
    pid1::limit(&spec)?;
    let command = pid1::start(&spec.command, streams)?;
    // No failure may end this function from here on before the command has been killed.
    if let Ok(processors) = processors {
        // The processes to be killed must not take the time of this one.
        let _ = sched_setaffinity(None, &processors);
    }
    let ending = supervise(launcher, command);
    if let Ok(ending) = ending {
        // Fails if the launcher has ended.
        let _ = launcher.send(&SandboxMessage::Ended(ending), &[]);
    }
    if !is_init() {
        kill_all();
    }
    ending?;
    std::process::exit(code::DONE.into());
}

/// Waits until the command ends, or the launcher, which ends the command.
fn supervise(launcher: &Arc<Channel>, command: Pid) -> Result<Ending, Refused> {
    let running = Arc::new(Mutex::new(Some(command)));
    let (launcher_of_thread, followed) = (Arc::clone(launcher), Arc::clone(&running));
    thread::Builder::new()
        .spawn(move || follow(&launcher_of_thread, &followed))
        .map_err(Refused::internal("following its launcher"))?;
    // Fails if the launcher has ended. The thread then kills the command.
    let _ = launcher.send(&SandboxMessage::Started, &[]);
    let ending = pid1::reap(command, WaitOptions::empty(), || {});
    // The id of the command may be reused from now on.
    *running.lock() = None;
    ending
}

/// Forwards signals until the launcher has ended, then kills the command.
fn follow(launcher: &Channel, running: &Mutex<Option<Pid>>) {
    let send = |signal| {
        if let Some(command) = *running.lock() {
            // Fails if the process belongs to another user.
            let _ = kill_process(command, signal);
        }
    };
    while let Ok(Some((message, _))) = launcher.receive::<ToPid1>() {
        if let ToPid1::Signal { number, .. } = message
            && let Some(signal) = Signal::from_named_raw(number)
        {
            send(signal);
        }
    }
    if is_init() {
        std::process::exit(code::SOFTWARE.into());
    }
    send(Signal::KILL);
}

/// Kills all descendants of this process until none is left, also those in other process groups
/// and sessions. Only this thread reaps them.
fn kill_all() {
    let mut pause = FIRST_PAUSE;
    loop {
        kill_descendants();
        let mut is_reaped = false;
        loop {
            // `waitpid(None)` would wait only for children in this process's own group.
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => is_reaped = true,
                Ok(None) => break,
                Err(Errno::INTR) => {}
                // No child is left, and so no descendant: orphans become children.
                Err(_) => return,
            }
        }
        if is_reaped {
            pause = FIRST_PAUSE;
        } else {
            sleep(pause);
            pause = pause.saturating_mul(2).min(MAX_PAUSE);
        }
    }
}

/// Kills the descendants of this process, each as soon as it is found. /proc lists processes by
/// their id, and a new process has a greater id than its parent (until the ids begin again), so one
/// round also meets the processes that start during the round.
fn kill_descendants() {
    let own = getpid();
    let mut found = HashSet::from([own]);
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = process.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        let Some(pid) = number.and_then(Pid::from_raw) else {
            continue;
        };
        let parent = || parent_of(pid).filter(|parent| found.contains(parent));
        // These fail if the process has ended or belongs to another user.
        match parent() {
            // Its id is not reused before it is reaped.
            Some(parent) if parent == own => drop(kill_process(pid, Signal::KILL)),
            Some(_) => {
                let handle = pidfd_open(pid, PidfdFlags::empty());
                // The id may have been reused before the handle was opened.
                if let Ok(handle) = handle
                    && parent().is_some()
                {
                    let _ = pidfd_send_signal(&handle, Signal::KILL);
                }
            }
            None => continue,
        }
        found.insert(pid);
    }
}

fn parent_of(process: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The program's name, in parentheses, may contain spaces and parentheses. The fields after it
    // begin with the state and the parent.
    let (_, fields) = stat.rsplit_once(')')?;
    let parent = fields.split_ascii_whitespace().nth(1)?;
    Pid::from_raw(parent.parse().ok()?)
}
