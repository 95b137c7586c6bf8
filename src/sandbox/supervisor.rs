//! Supervises an unconfined command: when the launcher or the command ends, every process that the
//! command started is killed.

use std::convert::Infallible;
use std::fs;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpgid, getpid, kill_process, kill_process_group,
    set_child_subreaper, wait,
};

use super::channel::Channel;
use super::handle::{Refused, SandboxMessage, ToPid1};
use super::pid1;
use crate::exit_code as code;

/// The first pause between two rounds of killing, doubled up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_micros(100);
/// The longest pause between two rounds of killing.
const MAX_PAUSE: Duration = Duration::from_millis(20);

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

fn serve(launcher: &Arc<Channel>) -> Result<Infallible, Refused> {
    // The name in `ps`; an error here is harmless.
    let _ = rustix::thread::set_name(c"up-supervisor");
    // Orphans of the command become children of this process.
    set_child_subreaper(Some(getpid())).map_err(Refused::internal("starting its supervisor"))?;
    let (spec, streams) = pid1::receive_start(launcher)?;
    pid1::limit(&spec)?;
    let command = pid1::start(&spec.command, streams)?;
    launcher
        .send(&SandboxMessage::Started, &[])
        .map_err(Refused::internal("reporting its start"))?;
    let follower = Arc::clone(launcher);
    std::thread::spawn(move || follow(&follower, command));
    let ending = pid1::reap(command, WaitOptions::empty(), || {})?;
    let _ = launcher.send(&SandboxMessage::Ended(ending), &[]);
    kill_all(command);
    std::process::exit(code::DONE.into());
}

/// Forwards signals until the launcher has ended, then kills all processes.
fn follow(launcher: &Channel, command: Pid) {
    while let Ok(Some((message, _))) = launcher.receive::<ToPid1>() {
        if let ToPid1::Signal { number, .. } = message
            && let Some(signal) = Signal::from_named_raw(number)
        {
            // Fails if the process has ended.
            let _ = kill_process(command, signal);
        }
    }
    kill_all(command);
    std::process::exit(code::SOFTWARE.into());
}

/// Kills all children until none is left, also those in other process groups and sessions. When a
/// child is killed, its children become children of this process.
fn kill_all(command: Pid) {
    let mut pause = FIRST_PAUSE;
    loop {
        let children = children();
        for child in &children {
            kill(*child, command);
        }
        let mut reaped = 0_usize;
        // The children of the reaped ones must be killed before they start others.
        while reaped < children.len().max(1) {
            // `waitpid(None)` would wait only for children in this process's own group.
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => reaped = reaped.saturating_add(1),
                Err(Errno::INTR) => {}
                Err(_) => return,
                Ok(None) => break,
            }
        }
        if reaped > 0 {
            pause = FIRST_PAUSE;
        } else {
            sleep(pause);
            pause = pause.saturating_mul(2).min(MAX_PAUSE);
        }
    }
}

/// Kills a child. If its process group is that of the command or its own, kills the group, with
/// the processes that its members start meanwhile. A child that was not reaped keeps its process id
/// and its group from being reused.
fn kill(child: Pid, command: Pid) {
    // These fail if the child has ended or belongs to another user.
    if let Ok(group) = getpgid(Some(child))
        && (group == command || group == child)
    {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = kill_process(child, Signal::KILL);
}

/// The children of this process.
fn children() -> Vec<Pid> {
    let own = getpid().as_raw_nonzero().get().to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let children = processes.filter_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(process.path().join("stat")).ok()?;
        // The program's name, in parentheses, may contain spaces and parentheses. The fields after
        // it begin with the state and the parent.
        let (_, fields) = stat.rsplit_once(')')?;
        let parent = fields.split_ascii_whitespace().nth(1)?;
        (parent == own).then(|| Pid::from_raw(pid))?
    });
    children.collect()
}
