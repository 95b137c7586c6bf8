//! A pseudo-terminal of the host, as a terminal emulator opens it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcgetpgrp, tcsetwinsize};

use crate::support::{SOON, eventually};

/// A pseudo-terminal, and the program of which it is the controlling terminal.
pub struct PseudoTerminal {
    controlling: OwnedFd,
    /// Keeps the terminal open after the program has ended.
    terminal: OwnedFd,
    shown: Arc<Mutex<Vec<u8>>>,
    pub child: Child,
}

impl PseudoTerminal {
    /// Starts a command with the terminal as all of its streams.
    pub fn start(command: &Command) -> Self {
        Self::start_with(command, [true; 3])
    }

    /// Starts a command. `streams` tells for standard input, output and error whether the stream is
    /// the terminal; if not, it is `/dev/null`.
    pub fn start_with(command: &Command, streams: [bool; 3]) -> Self {
        let controlling =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&controlling).unwrap();
        unlockpt(&controlling).unwrap();
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let terminal = ioctl_tiocgptpeer(&controlling, flags).unwrap();
        set_size(&controlling, 40, 120);
        let of = |is_terminal| match is_terminal {
            true => Stdio::from(terminal.try_clone().unwrap()),
            false => Stdio::null(),
        };
        let [stdin, stdout, stderr] = streams.map(of);
        // Starts a new session and opens the terminal, which becomes the controlling terminal.
        let child = Command::new("setsid")
            .arg("sh")
            .args(["-c", "exec 9<>\"$0\" 9>&- || exit 98; exec \"$@\""])
            .arg(format!(
                "/proc/{}/fd/{}",
                std::process::id(),
                raw(&terminal)
            ))
            .arg(command.get_program())
            .args(command.get_args())
            .env_clear()
            .envs(
                command
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .env("TERM", "xterm-256color")
            .current_dir(command.get_current_dir().unwrap())
            .stdin(stdin)
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .unwrap();
        let shown: Arc<Mutex<Vec<u8>>> = Arc::default();
        let (kept, mut from) = (
            Arc::clone(&shown),
            File::from(controlling.try_clone().unwrap()),
        );
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length) = from.read(&mut bytes) {
                kept.lock().extend(&bytes[..length]);
            }
        });
        Self {
            controlling,
            terminal,
            shown,
            child,
        }
    }

    /// Sends keys to the program.
    pub fn keys(&self, keys: &str) {
        let mut to = File::from(self.controlling.try_clone().unwrap());
        to.write_all(keys.as_bytes()).unwrap();
    }

    /// The output so far, without carriage returns.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock()).replace('\r', "")
    }

    /// Waits until the output contains a text; panics after 10 s.
    #[track_caller]
    pub fn wait_for(&self, text: &str) {
        let found = eventually_shown(self, text);
        assert!(found, "{text:?} is not in {:?}", self.shown());
    }

    /// Changes the size of the terminal.
    pub fn resize(&self, rows: u16, columns: u16) {
        set_size(&self.controlling, rows, columns);
    }

    pub fn modes(&self) -> Termios {
        tcgetattr(&self.terminal).unwrap()
    }

    /// Whether the foreground process group is the program's own and not that of a job it started.
    pub fn is_at_prompt(&self) -> bool {
        let group = tcgetpgrp(&self.controlling).unwrap().as_raw_nonzero().get();
        group.cast_unsigned() == self.child.id()
    }

    /// Whether canonical mode is off, so that the program reads single keys.
    pub fn is_raw(&self) -> bool {
        !self.modes().local_modes.contains(LocalModes::ICANON)
    }

    /// Waits for the end of the program; panics after 10 s.
    #[track_caller]
    pub fn end(&mut self) -> ExitStatus {
        let mut status = None;
        let what = format!("the program ends (output so far: {:?})", self.shown());
        eventually(&what, SOON, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for PseudoTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn raw(fd: &OwnedFd) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(fd)
}

fn set_size(controlling: impl AsFd, rows: u16, columns: u16) {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(controlling, size).unwrap();
}

fn eventually_shown(terminal: &PseudoTerminal, text: &str) -> bool {
    let until = std::time::Instant::now() + SOON;
    while !terminal.shown().contains(text) {
        if std::time::Instant::now() > until {
            return false;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    true
}

/// The modes that a program could leave changed: input, output and local modes.
pub fn compared(modes: &Termios) -> (u32, u32, u32) {
    (
        modes.input_modes.bits(),
        modes.output_modes.bits(),
        modes.local_modes.bits(),
    )
}
