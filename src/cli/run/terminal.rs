//! The person's terminal, connected to a pseudo-terminal in the sandbox, so that changes of modes
//! and injected input by the command stay inside.

use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};

use rustix::fs::OFlags;
use rustix::process::{Signal, getpgrp, getpid, kill_process};
use rustix::termios::{
    OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr, tcsetwinsize,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;

use crate::sandbox;

/// The character that ends the input of a terminal in canonical mode (Ctrl-D).
const END_OF_INPUT: u8 = 4;
/// The most bytes read from the keyboard at once.
const INPUT: usize = 1024;

/// The command's standard streams, and the terminal behind those that are one.
pub struct Streams {
    pub streams: [OwnedFd; 3],
    /// The pseudo-terminal that the sandbox needs, if any.
    pub wanted: Option<sandbox::Terminal>,
    pub terminal: Option<HostTerminal>,
    pub relays: Relays,
}

impl Streams {
    /// Prepares the streams of this process for the command.
    pub fn look() -> io::Result<Self> {
        let ours = [
            rustix::stdio::stdin(),
            rustix::stdio::stdout(),
            rustix::stdio::stderr(),
        ];
        let [stdin, stdout, stderr] = ours.map(|stream| stream.try_clone_to_owned());
        let [mut stdin, mut stdout, mut stderr] = [stdin?, stdout?, stderr?];
        let [mut reads, writes, complains] = ours.map(isatty);
        let mut relays = Relays::default();
        let of_terminal = [(reads, &stdin), (writes, &stdout), (complains, &stderr)];
        let any = of_terminal.iter().find(|(is_terminal, _)| *is_terminal);
        let terminal = match any {
            Some((_, stream)) => Some(HostTerminal::open(stream.as_fd(), reads && writes)?),
            None => None,
        };
        // In a pipeline, the program that shows the output (`less`) reads the keyboard.
        if reads && kind(&stdout)?.is_fifo() {
            stdin = File::open("/dev/null")?.into();
            reads = false;
        }
        stdin = relays.input(stdin)?;
        stdout = relays.output(stdout)?;
        stderr = relays.output(stderr)?;
        let wanted = terminal.as_ref().map(|terminal| {
            let (rows, columns) = terminal.size();
            sandbox::Terminal {
                streams: [reads, writes, complains],
                rows,
                columns,
                interactive: terminal.interactive,
            }
        });
        Ok(Self {
            streams: [stdin, stdout, stderr],
            wanted,
            terminal: terminal.map(|terminal| terminal.for_input(reads)),
            relays,
        })
    }
}

fn kind(stream: &OwnedFd) -> io::Result<FileType> {
    Ok(File::from(stream.try_clone()?).metadata()?.file_type())
}

/// Threads that copy between files and pipes. A process that has a file open could open it again
/// through /proc with other access; a pipe does not allow that.
#[derive(Default)]
pub struct Relays {
    outputs: Vec<std::thread::JoinHandle<()>>,
}

impl Relays {
    /// Replaces a file by a pipe with its contents. Other streams are returned as they are; a
    /// directory is an error.
    fn input(&mut self, stream: OwnedFd) -> io::Result<OwnedFd> {
        if !is_file(&stream)? {
            return Ok(stream);
        }
        let (from, mut to) = io::pipe()?;
        // The thread ends when the command closes its end.
        std::thread::spawn(move || io::copy(&mut File::from(stream), &mut to));
        Ok(from.into())
    }

    /// Replaces a file by a pipe that is written to it. Other streams are returned as they are; a
    /// directory is an error.
    fn output(&mut self, stream: OwnedFd) -> io::Result<OwnedFd> {
        if !is_file(&stream)? {
            return Ok(stream);
        }
        let (mut from, to) = io::pipe()?;
        let relay = std::thread::spawn(move || {
            // The command cannot be told of a write error.
            let _ = io::copy(&mut from, &mut File::from(stream));
        });
        self.outputs.push(relay);
        Ok(to.into())
    }

    /// Waits until all output of the command has been written.
    pub async fn finish(self) {
        for output in self.outputs {
            let _ = tokio::task::spawn_blocking(|| output.join()).await;
        }
    }
}

fn is_file(stream: &OwnedFd) -> io::Result<bool> {
    let kind = kind(stream)?;
    match kind.is_dir() {
        true => Err(io::Error::other("one of them is a directory")),
        false => Ok(kind.is_file()),
    }
}

/// The person's terminal. Its modes are restored when this is dropped.
pub struct HostTerminal {
    /// A separate open file description, so that our flags do not affect other processes that have
    /// the terminal open.
    file: OwnedFd,
    modes: Termios,
    interactive: bool,
    has_input: bool,
    relay: Option<Relay>,
}

/// The tasks that copy both directions, and the controlling end of the terminal inside.
struct Relay {
    controlling: OwnedFd,
    input: Option<JoinHandle<()>>,
    output: JoinHandle<()>,
}

impl HostTerminal {
    fn open(stream: BorrowedFd<'_>, interactive: bool) -> io::Result<Self> {
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let open = |path: &str| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(flags)
                .open(path)
        };
        // A session without a controlling terminal may still have one open.
        let same = format!("/proc/self/fd/{}", stream.as_raw_fd());
        let file = open("/dev/tty").or_else(|_| open(&same))?;
        let file = OwnedFd::from(file);
        Ok(Self {
            modes: tcgetattr(&file)?,
            file,
            interactive,
            has_input: true,
            relay: None,
        })
    }

    fn for_input(mut self, has_input: bool) -> Self {
        self.has_input = has_input;
        self
    }

    fn size(&self) -> (u16, u16) {
        let size = tcgetwinsize(&self.file);
        size.map_or((24, 80), |size| (size.ws_row, size.ws_col))
    }

    /// Connects the terminal to the one inside.
    pub fn connect(&mut self, controlling: OwnedFd) -> io::Result<()> {
        rustix::fs::fcntl_setfl(&controlling, OFlags::RDWR | OFlags::NONBLOCK)?;
        let output_from = pipe::Receiver::from_owned_fd_unchecked(controlling.try_clone()?)?;
        let output_to = pipe::Sender::from_owned_fd_unchecked(self.file.try_clone()?)?;
        let input = match self.has_input {
            true => {
                let from = pipe::Receiver::from_owned_fd_unchecked(self.file.try_clone()?)?;
                let to = pipe::Sender::from_owned_fd_unchecked(controlling.try_clone()?)?;
                Some(tokio::spawn(copy_input(from, to, self.interactive)))
            }
            false => None,
        };
        self.relay = Some(Relay {
            controlling,
            input,
            output: tokio::spawn(copy_output(output_from, output_to)),
        });
        self.set_raw();
        Ok(())
    }

    /// Sets raw mode if this process is in the foreground, so that the terminal inside handles keys
    /// and echo.
    pub fn set_raw(&self) {
        let is_foreground = tcgetpgrp(&self.file).is_ok_and(|group| group == getpgrp());
        if self.interactive && is_foreground {
            let mut raw = self.modes.clone();
            raw.make_raw();
            // Fails if the terminal has been closed.
            let _ = tcsetattr(&self.file, OptionalActions::Now, &raw);
        }
    }

    /// Restores the modes of the terminal.
    pub fn restore(&self) {
        let _ = tcsetattr(&self.file, OptionalActions::Flush, &self.modes);
    }

    /// Copies the size to the terminal inside.
    pub fn resize(&self) {
        if let Some(relay) = &self.relay
            && let Ok(size) = tcgetwinsize(&self.file)
        {
            let _ = tcsetwinsize(&relay.controlling, size);
        }
    }

    /// Copies the remaining output after the sandbox has ended, for at most 1 s.
    pub async fn finish(mut self) {
        if let Some(relay) = self.relay.take() {
            if let Some(input) = &relay.input {
                input.abort();
            }
            let limit = std::time::Duration::from_secs(1);
            let _ = tokio::time::timeout(limit, relay.output).await;
        }
    }
}

impl Drop for HostTerminal {
    fn drop(&mut self) {
        self.restore();
    }
}

/// Stops this process because its command was stopped; returns when it is continued.
pub fn stop_ourselves(terminal: Option<&HostTerminal>) {
    if let Some(terminal) = terminal {
        terminal.restore();
    }
    // Cannot fail for our own process.
    let _ = kill_process(getpid(), Signal::STOP);
}

/// Copies the input. At its end, sends the end-of-input character unless the terminal is
/// interactive.
async fn copy_input(mut from: pipe::Receiver, mut to: pipe::Sender, interactive: bool) {
    let mut keys = [0; INPUT];
    loop {
        let typed = match from.read(&mut keys).await {
            Ok(0) if interactive => return,
            Ok(0) => &[END_OF_INPUT][..],
            Ok(length) => keys.get(..length).unwrap_or_default(),
            // EIO, if this process is in the background and ignores SIGTTIN.
            Err(_) => return,
        };
        if to.write_all(typed).await.is_err() {
            return;
        }
    }
}

/// Copies the output until the last process inside has closed the terminal.
async fn copy_output(mut from: pipe::Receiver, mut to: pipe::Sender) {
    // The end is reported as an error, EIO.
    let _ = copy(&mut from, &mut to).await;
}
