//! Runs a command once.

use std::future::pending;
use std::sync::Arc;

use rustix::io::retry_on_intr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio_util::sync::CancellationToken;

use crate::mcp::mounts::{Machine, Program, RunningProgram, Secrets, Spawner};
use crate::sandbox::{Ending, Event, Sandbox};

/// Limit on the length of standard output, in bytes.
const MAX_OUTPUT: usize = 64 << 10;
/// The end of standard error that is kept for the log, in bytes.
const MAX_STDERR: usize = 2 << 10;
/// Size of a read, in bytes.
const CHUNK: usize = 8 << 10;
/// The most reads of what is left in a pipe: its capacity. A process that the command left may
/// write as fast as it is read.
const MAX_RESTS: usize = 8;

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
/// Also returns the sandbox, if the program was started. The caller must end it.
pub async fn run(
    spawner: &Spawner,
    machine: &Arc<Machine>,
    program: Program,
    secrets: &Secrets,
    input: String,
    unwanted: CancellationToken,
) -> (Ran, Option<Sandbox>) {
    // Not cancelled: a command that is about to start must be ended, too.
    let running = match program.begin(spawner, machine, None).await {
        Ok(running) => running,
        Err(error) => return (Ran::failed(error.to_string()), None),
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
    tail.add(&rest(&stderr));
    let result = match ended {
        Ok(Ending::Exit(0)) => append(&mut output, &rest(&stdout)),
        Ok(Ending::Exit(code)) => Err(format!("it exited with code {code}")),
        Ok(Ending::Signal(signal)) => Err(format!("it was ended by signal {signal}")),
        Err(why) => Err(why),
    };
    let ran = Ran {
        output: result.map(|()| output),
        stderr: tail.text(secrets),
    };
    (ran, Some(sandbox))
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

fn append(output: &mut Vec<u8>, chunk: &[u8]) -> Result<(), String> {
    if output.len().saturating_add(chunk.len()) > MAX_OUTPUT {
        return Err(format!("it printed more than {MAX_OUTPUT} bytes"));
    }
    output.extend_from_slice(chunk);
    Ok(())
}

/// Reads from a pipe until it is empty or closed, at most its capacity. Does not use `try_read`,
/// which may not know yet that there is something to read.
fn rest(pipe: &pipe::Receiver) -> Vec<u8> {
    let (mut all, mut chunk) = (Vec::new(), [0; CHUNK]);
    for _ in 0..MAX_RESTS {
        match retry_on_intr(|| rustix::io::read(pipe, &mut chunk)) {
            Ok(read @ 1..) => all.extend_from_slice(chunk.get(..read).unwrap_or_default()),
            _ => break,
        }
    }
    all
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_of_stderr_has_no_secret_and_no_part_of_one() {
        let secrets = Secrets::among(["a-long-secret-value"].into_iter());
        let mut tail = Tail::default();
        tail.add(b"before a-long-secret-value after\n");
        assert!(!tail.text(&secrets).contains("secret"));
        // The cut is within the secret.
        let end = [&b"-long-secret-value\n"[..], &[b'x'; MAX_STDERR - 19]].concat();
        tail.add(&[b"a", &*end].concat());
        assert_eq!(tail.text(&secrets), "x".repeat(MAX_STDERR - 19));
    }
}
