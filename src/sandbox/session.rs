//! Leads the session of a command in a sandbox of `scripts/sandbox`, so that the command has job
//! control. It runs with the rights of the command.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{
    Pid, Signal, WaitOptions, getpid, ioctl_tiocsctty, kill_process, kill_process_group,
};
use rustix::termios::{isatty, tcgetpgrp};

use super::handle::Refused;
use super::pid1;
use crate::exit_code as code;

/// Runs the command as the foreground process group of its terminal, if a standard stream is one.
/// This process must have started a session. Returns the command's exit code.
pub fn run(command: &[OsString]) -> ExitCode {
    match lead(command) {
        Ok(code) => ExitCode::from(code),
        Err(refused) => {
            eprintln!("unified-proxy: {refused}");
            ExitCode::from(refused.code)
        }
    }
}

fn lead(command: &[OsString]) -> Result<u8, Refused> {
    let streams = [
        rustix::stdio::stdin(),
        rustix::stdio::stdout(),
        rustix::stdio::stderr(),
    ];
    let terminal = streams.into_iter().find(|stream| isatty(stream));
    let terminal = terminal
        .map(|terminal| terminal.try_clone_to_owned())
        .transpose();
    let step = "opening its terminal";
    let terminal: Option<OwnedFd> = terminal.map_err(Refused::internal(step))?;
    if let Some(terminal) = &terminal {
        ioctl_tiocsctty(terminal).map_err(Refused::internal(step))?;
    }
    let command = start(command)?;
    if let Some(terminal) = &terminal {
        pid1::bring_to_foreground(terminal, command)?;
    }
    let stopped = || {
        // Neither call fails for our own processes. nsenter, the parent of this process, stops and
        // is continued with it.
        let _ = kill_process(getpid(), Signal::STOP);
        let foreground = terminal
            .as_ref()
            .and_then(|terminal| tcgetpgrp(terminal).ok());
        let _ = kill_process_group(foreground.unwrap_or(command), Signal::CONT);
    };
    Ok(pid1::reap(command, WaitOptions::UNTRACED, stopped)?.exit_code())
}

fn start(command: &[OsString]) -> Result<Pid, Refused> {
    let usage = |message: String| Refused {
        code: code::USAGE,
        message,
    };
    let (program, arguments) = command
        .split_first()
        .ok_or_else(|| usage("a command must follow --".to_owned()))?;
    let child = Command::new(program)
        .args(arguments)
        .process_group(0)
        .spawn();
    let child = child
        .map_err(|error| usage(format!("{}: cannot be started: {error}", program.display())))?;
    pid1::pid_of(&child)
}
