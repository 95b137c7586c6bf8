//! Runs a command once.

use std::future::pending;
use std::io;
use std::sync::Arc;

use rustix::io::retry_on_intr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio_util::sync::CancellationToken;

use super::check;
use crate::mcp::mounts::{Machine, Program, RunningProgram, Secrets, Spawner};
use crate::sandbox::{Ending, Event, Sandbox};

/// Limit on the length of standard output, in bytes.
const MAX_OUTPUT: usize = 64 << 10;
/// The end of standard error that is kept for the log, in bytes.
const MAX_STDERR: usize = 2 << 10;
/// Size of a read, in bytes.
const CHUNK: usize = 8 << 10;

/// A command that has ended.
pub struct Ran {
    /// Standard output, or why it does not count.
    pub output: Result<Vec<u8>, String>,
    /// The end of standard error, for the log.
    pub stderr: String,
}

impl Ran {
    pub fn failed(why: impl Into<String>) -> Self {
        Self {
            output: Err(why.into()),
            stderr: String::new(),
        }
    }
}

/// Runs a program with `input` as its standard input, until it ends or `unwanted` is cancelled.
/// Returns when the program and its descendants are gone.
pub async fn run(
    spawner: &Spawner,
    machine: &Arc<Machine>,
    program: Program,
    secrets: &Secrets,
    input: String,
    unwanted: CancellationToken,
) -> Ran {
    if let Err(why) = check(&input) {
        return Ran::failed(why);
    }
    let starting = program.start(spawner, machine, None);
    let running = match unwanted.run_until_cancelled(starting).await {
        Some(Ok(running)) => running,
        Some(Err(error)) => return Ran::failed(error.to_string()),
        None => return Ran::failed("nobody waits for it"),
    };
    let RunningProgram {
        mut sandbox,
        stdin,
        mut stdout,
        mut stderr,
    } = running;
    let (mut output, mut tail) = (Vec::new(), Tail::default());
    let copying = async {
        let read = collect(&mut stdout, &mut output);
        let copied = tokio::try_join!(read, feed(stdin, input), tail.follow(&mut stderr));
        match copied {
            Err(why) => why,
            // Only the end of the command counts: it may close its output early.
            Ok(_) => pending().await,
        }
    };
    let ended = tokio::select! {
        biased;
        () = unwanted.cancelled() => Err("nobody waits for it".to_owned()),
        why = copying => Err(why),
        ended = ended(&mut sandbox) => ended,
    };
    match &ended {
        // The processes that the command left may hold the pipes open. They are killed now.
        Ok(_) => sandbox.end().await,
        Err(_) => sandbox.kill().await,
    }
    tail.take_rest(&stderr);
    let result = match ended {
        Ok(Ending::Exit(0)) => take_rest(&stdout, &mut output),
        Ok(Ending::Exit(code)) => Err(format!("it exited with code {code}")),
        Ok(Ending::Signal(signal)) => Err(format!("it was ended by signal {signal}")),
        Err(why) => Err(why),
    };
    Ran {
        output: result.map(|()| output),
        stderr: tail.text(secrets),
    }
}

/// Waits until the command ends.
async fn ended(sandbox: &mut Sandbox) -> Result<Ending, String> {
    loop {
        match sandbox.next().await {
            Ok(Event::Ended(ending)) => return Ok(ending),
            Ok(Event::Started | Event::Stopped | Event::Terminal(_)) => {}
            Err(refused) => return Err(refused.message),
        }
    }
}

/// Writes the input, and closes the pipe. A command need not read its input.
async fn feed(mut stdin: pipe::Sender, input: String) -> Result<(), String> {
    let _ = stdin.write_all(input.as_bytes()).await;
    Ok(())
}

/// Reads standard output until it is closed. Fails if it is too long.
async fn collect(stdout: &mut pipe::Receiver, output: &mut Vec<u8>) -> Result<(), String> {
    let mut chunk = [0; CHUNK];
    loop {
        let read = stdout.read(&mut chunk).await;
        let read = read.map_err(|error| format!("its output cannot be read: {error}"))?;
        if read == 0 {
            return Ok(());
        }
        append(output, chunk.get(..read).unwrap_or_default())?;
    }
}

/// Reads what the command has printed and nobody has read yet.
fn take_rest(stdout: &pipe::Receiver, output: &mut Vec<u8>) -> Result<(), String> {
    rest(stdout, |chunk| append(output, chunk))
}

fn append(output: &mut Vec<u8>, chunk: &[u8]) -> Result<(), String> {
    if output.len().saturating_add(chunk.len()) > MAX_OUTPUT {
        return Err(format!("it printed more than {MAX_OUTPUT} bytes"));
    }
    output.extend_from_slice(chunk);
    Ok(())
}

/// Reads from a pipe until it is empty or closed. Does not use `try_read`, which may not know yet
/// that there is something to read.
fn rest<E>(pipe: &pipe::Receiver, mut take: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    let mut chunk = [0; CHUNK];
    while let Ok(read @ 1..) = retry_on_intr(|| rustix::io::read(pipe, &mut chunk)) {
        take(chunk.get(..read).unwrap_or_default())?;
    }
    Ok(())
}

/// The end of standard error.
#[derive(Default)]
struct Tail {
    bytes: Vec<u8>,
    is_cut: bool,
}

impl Tail {
    /// Reads standard error until it is closed.
    async fn follow(&mut self, stderr: &mut pipe::Receiver) -> Result<(), String> {
        let mut chunk = [0; CHUNK];
        while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
            self.add(chunk.get(..read).unwrap_or_default());
        }
        Ok(())
    }

    fn take_rest(&mut self, stderr: &pipe::Receiver) {
        let _ = rest::<io::Error>(stderr, |chunk| {
            self.add(chunk);
            Ok(())
        });
    }

    fn add(&mut self, chunk: &[u8]) {
        self.bytes.extend_from_slice(chunk);
        let surplus = self.bytes.len().saturating_sub(MAX_STDERR);
        if surplus > 0 {
            self.bytes.drain(..surplus);
            self.is_cut = true;
        }
    }

    /// The text without secrets. A line whose beginning was dropped is left out, since it may begin
    /// within a secret.
    fn text(&self, secrets: &Secrets) -> String {
        let bytes = match self.is_cut {
            true => self.bytes.splitn(2, |byte| *byte == b'\n').nth(1),
            false => Some(&*self.bytes),
        };
        secrets
            .redact(bytes.unwrap_or_default(), false)
            .trim()
            .to_owned()
    }
}
