//! Connects the user's terminal to a pseudo-terminal in the sandbox. If the command changes modes
//! or injects input, only its pseudo-terminal is affected.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{OFlags, SeekFrom, fcntl_getfl, fstat, seek};
use rustix::process::{Signal, getpgrp, getpid, kill_process, kill_process_group};
use rustix::termios::{
    OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr, tcsetwinsize,
};
use tokio::io::{AsyncWriteExt, copy};
use tokio::net::unix::pipe;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::sandbox;

/// The character that ends the input of a terminal in canonical mode (Ctrl-D).
const END_OF_INPUT: u8 = 4;
/// Limit on the bytes that are read from the keyboard at once.
const INPUT: usize = 1024;
/// How often a process in the background checks whether it is in the foreground. No signal reports
/// that: a shell sends SIGCONT only to a job that is stopped.
const FOREGROUND_POLL: Duration = Duration::from_millis(200);

/// The command's standard streams, and the terminal if one of them is a terminal.
pub struct Streams {
    pub streams: [OwnedFd; 3],
    /// The pseudo-terminal that the sandbox needs; `None` if no stream is a terminal.
    pub wanted: Option<sandbox::Terminal>,
    pub terminal: Option<HostTerminal>,
    pub relays: Relays,
}

impl Streams {
    /// Prepares the streams of this process for the command, with pipes in place of files.
    pub fn look() -> io::Result<Self> {
        let mut found = Self::with_files()?;
        let [stdin, stdout, stderr] = found.streams;
        let relays = &mut found.relays;
        let stdin = relays.input(stdin)?;
        // One pipe for `>file 2>&1`, so that the lines of both streams keep their order.
        let is_shared = are_one_file(&stdout, &stderr)?;
        let stdout = relays.output(stdout)?;
        let stderr = match is_shared {
            true => stdout.try_clone()?,
            false => relays.output(stderr)?,
        };
        found.streams = [stdin, stdout, stderr];
        Ok(found)
    }

    /// Prepares the streams for a command that may leave processes behind, which may write to a file
    /// for as long as they live.
    pub fn with_files() -> io::Result<Self> {
        let ours = [
            rustix::stdio::stdin(),
            rustix::stdio::stdout(),
            rustix::stdio::stderr(),
        ];
        let [stdin, stdout, stderr] = ours.map(|stream| stream.try_clone_to_owned());
        let [mut stdin, stdout, stderr] = [stdin?, stdout?, stderr?];
        let [mut tty_in, tty_out, tty_err] = ours.map(isatty);
        let of_terminal = [(tty_in, &stdin), (tty_out, &stdout), (tty_err, &stderr)];
        let any = of_terminal.iter().find(|(is_terminal, _)| *is_terminal);
        let mut terminal = match any {
            Some((_, stream)) => Some(HostTerminal::open(stream.as_fd(), tty_in && tty_out)?),
            None => None,
        };
        // In a pipeline such as `run … | less`, the last program may read the keyboard, so the
        // command must not.
        if tty_in && kind(&stdout)?.is_fifo() {
            stdin = File::open("/dev/null")?.into();
            tty_in = false;
        }
        let wanted = terminal.as_mut().map(|terminal| {
            terminal.has_input = tty_in;
            let (rows, columns) = terminal.size();
            sandbox::Terminal {
                streams: [tty_in, tty_out, tty_err],
                rows,
                columns,
                interactive: terminal.shared.interactive,
            }
        });
        Ok(Self {
            streams: [stdin, stdout, stderr],
            wanted,
            terminal,
            relays: Relays::default(),
        })
    }
}

fn kind(stream: &OwnedFd) -> io::Result<FileType> {
    Ok(File::from(stream.try_clone()?).metadata()?.file_type())
}

/// Threads that copy between files and pipes. The command gets pipes instead of files, because it
/// could open a file again through /proc with other access, for example for writing although the
/// file was opened for reading.
#[derive(Default)]
pub struct Relays {
    outputs: Vec<std::thread::JoinHandle<()>>,
}

impl Relays {
    /// Replaces a file with a pipe from which its contents can be read. Returns other streams
    /// unchanged. Fails for a directory.
    fn input(&mut self, stream: OwnedFd) -> io::Result<OwnedFd> {
        if !is_file(&stream)? {
            return Ok(stream);
        }
        let (from, mut to) = io::pipe()?;
        // The thread ends at the end of the file, or when the command has closed the pipe.
        std::thread::spawn(move || io::copy(&mut File::from(stream), &mut to));
        Ok(from.into())
    }

    /// Replaces a file with a pipe whose contents are written to the file. Returns other streams
    /// unchanged. Fails for a directory.
    fn output(&mut self, stream: OwnedFd) -> io::Result<OwnedFd> {
        if !is_file(&stream)? {
            return Ok(stream);
        }
        let (mut from, to) = io::pipe()?;
        let relay = std::thread::spawn(move || {
            let mut file = File::from(stream);
            // Hides the types from `io::copy`, which would splice. A splice writes where the file's
            // position was before it waited, although others, such as the other stream's relay,
            // have written since.
            let to: &mut dyn Write = &mut file;
            // A write error cannot be reported to the command.
            let _ = io::copy(&mut from, to);
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

/// Whether two streams are the same file, opened in the same way and at the same position.
fn are_one_file(first: &OwnedFd, second: &OwnedFd) -> io::Result<bool> {
    if !is_file(first)? || !is_file(second)? {
        return Ok(false);
    }
    let state = |stream: &OwnedFd| {
        let found = fstat(stream)?;
        let position = seek(stream, SeekFrom::Current(0))?;
        io::Result::Ok((found.st_dev, found.st_ino, fcntl_getfl(stream)?, position))
    };
    Ok(state(first)? == state(second)?)
}

fn is_file(stream: &OwnedFd) -> io::Result<bool> {
    let kind = kind(stream)?;
    match kind.is_dir() {
        true => Err(io::Error::other("one of them is a directory")),
        false => Ok(kind.is_file()),
    }
}

/// The user's terminal. Dropping this restores its modes.
pub struct HostTerminal {
    shared: Arc<Shared>,
    /// Whether the command reads from the terminal.
    has_input: bool,
    relay: Option<Relay>,
}

/// The part of [`HostTerminal`] that the task for the input has too.
struct Shared {
    /// A separate open file description, so that `O_NONBLOCK` does not affect other processes that
    /// have the terminal open.
    file: OwnedFd,
    /// Whether standard input and standard output are terminals.
    interactive: bool,
    /// The modes to restore; `None` unless this process has set raw mode.
    saved: Mutex<Option<Termios>>,
    /// Notified when this process was continued.
    continued: Notify,
}

/// The tasks that copy input and output, and the controlling end of the pseudo-terminal.
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
        // A process without a controlling terminal may still have a terminal as a standard stream.
        let same = format!("/proc/self/fd/{}", stream.as_raw_fd());
        let file = open("/dev/tty").or_else(|_| open(&same))?;
        Ok(Self {
            shared: Arc::new(Shared {
                file: file.into(),
                interactive,
                saved: Mutex::default(),
                continued: Notify::new(),
            }),
            has_input: true,
            relay: None,
        })
    }

    fn size(&self) -> (u16, u16) {
        let size = tcgetwinsize(&self.shared.file);
        size.map_or((24, 80), |size| (size.ws_row, size.ws_col))
    }

    /// Connects the terminal to the pseudo-terminal of this controlling end. In the foreground, sets
    /// raw mode if the terminal is interactive: the pseudo-terminal handles keys and echo.
    pub fn connect(&mut self, controlling: OwnedFd) -> io::Result<()> {
        rustix::fs::fcntl_setfl(&controlling, OFlags::RDWR | OFlags::NONBLOCK)?;
        let output_from = pipe::Receiver::from_owned_fd_unchecked(controlling.try_clone()?)?;
        let file = &self.shared.file;
        let output_to = pipe::Sender::from_owned_fd_unchecked(file.try_clone()?)?;
        let input = match self.has_input {
            true => {
                let from = pipe::Receiver::from_owned_fd_unchecked(file.try_clone()?)?;
                let to = pipe::Sender::from_owned_fd_unchecked(controlling.try_clone()?)?;
                Some(tokio::spawn(copy_input(self.shared.clone(), from, to)))
            }
            false => None,
        };
        self.relay = Some(Relay {
            controlling,
            input,
            output: tokio::spawn(copy_output(output_from, output_to)),
        });
        Ok(())
    }

    /// Sets raw mode again and the size of the pseudo-terminal, after this process was continued.
    pub fn resume(&self) {
        self.shared.continued.notify_one();
        self.resize();
    }

    /// Restores the modes that [`Shared::set_raw`] replaced. In the background, another process has
    /// set the modes that the terminal needs, and the kernel would stop this one (SIGTTOU).
    pub fn restore(&self) {
        let Some(modes) = self.shared.saved.lock().take() else {
            return;
        };
        if self.shared.is_foreground() == Some(true) {
            // Fails if the terminal has been closed.
            let _ = tcsetattr(&self.shared.file, OptionalActions::Flush, &modes);
        }
    }

    /// Sets the size of the pseudo-terminal to that of the terminal.
    pub fn resize(&self) {
        if let Some(relay) = &self.relay
            && let Ok(size) = tcgetwinsize(&self.shared.file)
        {
            let _ = tcsetwinsize(&relay.controlling, size);
        }
    }

    /// Sends a signal to the foreground process group of the pseudo-terminal. Returns whether this
    /// process can see that group.
    pub fn signal(&self, signal: Signal) -> bool {
        let foreground = self
            .relay
            .as_ref()
            .map(|relay| tcgetpgrp(&relay.controlling));
        let foreground = foreground.and_then(Result::ok);
        foreground.is_some_and(|group| kill_process_group(group, signal).is_ok())
    }

    /// Copies the remaining output of the command, for at most 1 s.
    pub async fn finish(mut self) {
        if let Some(relay) = self.relay.take() {
            if let Some(input) = &relay.input {
                input.abort();
            }
            let limit = Duration::from_secs(1);
            let _ = tokio::time::timeout(limit, relay.output).await;
        }
    }
}

impl Drop for HostTerminal {
    fn drop(&mut self) {
        self.restore();
    }
}

impl Shared {
    /// Whether this process is in the foreground; `None` if this is not its controlling terminal.
    fn is_foreground(&self) -> Option<bool> {
        let group = tcgetpgrp(&self.file).ok()?;
        Some(group == getpgrp())
    }

    /// Sets raw mode if the terminal is interactive and this process is in the foreground.
    fn set_raw(&self) {
        if !self.interactive || self.is_foreground() != Some(true) {
            return;
        }
        let mut saved = self.saved.lock();
        if saved.is_none() {
            *saved = tcgetattr(&self.file).ok();
        }
        if let Some(mut raw) = saved.clone() {
            raw.make_raw();
            // Fails if the terminal has been closed.
            let _ = tcsetattr(&self.file, OptionalActions::Now, &raw);
        }
    }
}

/// Restores the terminal and stops this process, because its command was stopped. Returns when this
/// process is continued.
pub fn stop_ourselves(terminal: Option<&HostTerminal>) {
    if let Some(terminal) = terminal {
        terminal.restore();
    }
    // Cannot fail for our own process.
    let _ = kill_process(getpid(), Signal::STOP);
}

/// Copies the keyboard's input to the pseudo-terminal while this process is in the foreground. A
/// read from the background would stop this process (SIGTTIN). Unless the terminal is interactive,
/// it is in canonical mode and turns Ctrl-D into an empty read. Every empty read is then sent as
/// [`END_OF_INPUT`].
async fn copy_input(terminal: Arc<Shared>, from: pipe::Receiver, mut to: pipe::Sender) {
    let mut keys = [0; INPUT];
    loop {
        while terminal.is_foreground() == Some(false) {
            sleep(FOREGROUND_POLL).await;
        }
        terminal.set_raw();
        loop {
            tokio::select! {
                () = terminal.continued.notified() => break,
                ready = from.readable() => if ready.is_err() {
                    return;
                }
            }
            if terminal.is_foreground() == Some(false) {
                break;
            }
            let typed = match from.try_read(&mut keys) {
                Ok(0) if terminal.interactive => return,
                Ok(0) => &[END_OF_INPUT][..],
                Ok(length) => keys.get(..length).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => return,
            };
            if to.write_all(typed).await.is_err() {
                return;
            }
        }
    }
}

/// Copies the output until the last process in the sandbox has closed the pseudo-terminal.
async fn copy_output(mut from: pipe::Receiver, mut to: pipe::Sender) {
    // The kernel reports the end as the error EIO, which is ignored like any other error.
    let _ = copy(&mut from, &mut to).await;
}
