//! The terminal of the person, and the sandbox's own between it and the command: what the
//! command does to its terminal, and puts into its input, stays inside.

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

/// What ends the input of a terminal that edits lines.
const END_OF_INPUT: u8 = 4;
/// What is read from a keyboard at once, in bytes.
const INPUT: usize = 1024;

/// The streams that the command gets, and the terminal behind those of them that are one.
pub struct Streams {
    pub streams: [OwnedFd; 3],
    /// What the sandbox's own terminal is to be, if it needs one.
    pub wanted: Option<sandbox::Terminal>,
    pub terminal: Option<HostTerminal>,
    pub relays: Relays,
}

impl Streams {
    /// Looks at the streams of this process.
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
        // In a pipeline the keyboard belongs to whoever shows the output.
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

/// Threads that carry bytes between files and pipes: a process that has a file open can open it
/// again, for more than it was given to it for.
#[derive(Default)]
pub struct Relays {
    outputs: Vec<std::thread::JoinHandle<()>>,
}

impl Relays {
    /// A pipe that gives what is in a file; anything else but a directory as it is.
    fn input(&mut self, stream: OwnedFd) -> io::Result<OwnedFd> {
        if !is_file(&stream)? {
            return Ok(stream);
        }
        let (from, mut to) = io::pipe()?;
        // Ends with the command, which closes its end.
        std::thread::spawn(move || io::copy(&mut File::from(stream), &mut to));
        Ok(from.into())
    }

    /// A pipe whose bytes go into a file; anything else but a directory as it is.
    fn output(&mut self, stream: OwnedFd) -> io::Result<OwnedFd> {
        if !is_file(&stream)? {
            return Ok(stream);
        }
        let (mut from, to) = io::pipe()?;
        let relay = std::thread::spawn(move || {
            // A full disk is what the command would not have been told either.
            let _ = io::copy(&mut from, &mut File::from(stream));
        });
        self.outputs.push(relay);
        Ok(to.into())
    }

    /// Waits until everything that the command wrote is written.
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

/// The terminal of the person. Its modes are restored when this is dropped.
pub struct HostTerminal {
    /// Opened anew, so that no mode of ours is seen by others who have it open.
    file: OwnedFd,
    modes: Termios,
    interactive: bool,
    has_input: bool,
    relay: Option<Relay>,
}

/// The two directions, and the controlling end of the terminal inside.
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
        // A session without a controlling terminal may have one open all the same.
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

    /// Connects the terminal with the one inside.
    pub fn connect(&mut self, controlling: OwnedFd) -> io::Result<()> {
        rustix::fs::fcntl_setfl(&controlling, OFlags::RDWR | OFlags::NONBLOCK)?;
        let output_from = pipe::Receiver::from_owned_fd_unchecked(controlling.try_clone()?)?;
        let output_to = pipe::Sender::from_owned_fd_unchecked(self.file.try_clone()?)?;
        let input = match self.has_input {
            true => {
                let from = pipe::Receiver::from_owned_fd_unchecked(self.file.try_clone()?)?;
                let to = pipe::Sender::from_owned_fd_unchecked(controlling.try_clone()?)?;
                Some(tokio::spawn(type_in(from, to, self.interactive)))
            }
            false => None,
        };
        self.relay = Some(Relay {
            controlling,
            input,
            output: tokio::spawn(show(output_from, output_to)),
        });
        self.take();
        Ok(())
    }

    /// Leaves keys and echo to the terminal inside, if this process is in the foreground.
    pub fn take(&self) {
        let is_foreground = tcgetpgrp(&self.file).is_ok_and(|group| group == getpgrp());
        if self.interactive && is_foreground {
            let mut raw = self.modes.clone();
            raw.make_raw();
            // A terminal that went away has no keys.
            let _ = tcsetattr(&self.file, OptionalActions::Now, &raw);
        }
    }

    /// Gives the terminal its modes again.
    pub fn give_back(&self) {
        let _ = tcsetattr(&self.file, OptionalActions::Flush, &self.modes);
    }

    /// Tells the terminal inside of the size.
    pub fn resize(&self) {
        if let Some(relay) = &self.relay
            && let Ok(size) = tcgetwinsize(&self.file)
        {
            let _ = tcsetwinsize(&relay.controlling, size);
        }
    }

    /// Shows what is left of the output once the sandbox has ended.
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
        self.give_back();
    }
}

/// Stops this process as its command was stopped; returns when it is continued.
pub fn stop_ourselves(terminal: Option<&HostTerminal>) {
    if let Some(terminal) = terminal {
        terminal.give_back();
    }
    // Cannot fail: it is our own.
    let _ = kill_process(getpid(), Signal::STOP);
}

/// Carries what is typed. An end of the input is passed on as the key that means it.
async fn type_in(mut from: pipe::Receiver, mut to: pipe::Sender, interactive: bool) {
    let mut keys = [0; INPUT];
    loop {
        let typed = match from.read(&mut keys).await {
            Ok(0) if interactive => return,
            Ok(0) => &[END_OF_INPUT][..],
            Ok(length) => keys.get(..length).unwrap_or_default(),
            // In the background there is no input; it comes with SIGCONT.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
                return;
            }
            Err(_) => return,
        };
        if to.write_all(typed).await.is_err() {
            return;
        }
    }
}

/// Carries the output until the last process inside has closed its end.
async fn show(mut from: pipe::Receiver, mut to: pipe::Sender) {
    // The end is an error of the terminal, EIO.
    let _ = copy(&mut from, &mut to).await;
}
