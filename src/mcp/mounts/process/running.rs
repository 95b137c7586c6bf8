//! Starts a program, confined or not, with pipes for its standard streams.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use tokio::net::unix::pipe;

use super::{Machine, Program, Spawner};
use crate::mcp::mounts::MountError;
use crate::sandbox::{Event, Refused, Sandbox};

/// A program that runs, and the parent's ends of its standard streams.
pub struct RunningProgram {
    /// Dropping it kills the program and its descendants.
    pub sandbox: Sandbox,
    /// Standard input.
    pub stdin: pipe::Sender,
    /// Standard output.
    pub stdout: pipe::Receiver,
    /// Standard error.
    pub stderr: pipe::Receiver,
}

impl Program {
    /// Starts the program, and returns before it runs. `egress` is the path of the Unix socket
    /// through which a confined program reaches the network.
    pub async fn begin(
        &self,
        spawner: &Spawner,
        machine: &Arc<Machine>,
        egress: Option<&Path>,
    ) -> Result<RunningProgram, MountError> {
        let cannot = MountError::CannotStart;
        // Spawned first: the sandbox creates its namespaces while `spec` reads directories.
        let sandbox = spawner.spawn(self.first()).await.map_err(refused)?;
        let (machine, program) = (Arc::clone(machine), self.clone());
        let spec = tokio::task::spawn_blocking(move || machine.spec(&program)).await;
        let spec = spec
            .map_err(|error| cannot(error.to_string()))?
            .map_err(cannot)?;
        let opened =
            Streams::open().map_err(|error| cannot(format!("cannot create pipes: {error}")));
        let (streams, ends) = opened?;
        let ends_of_child = ends.each_ref().map(AsFd::as_fd);
        let begun = sandbox.begin(egress, &spec, ends_of_child);
        begun.map_err(refused)?;
        // Closes the parent's copies of the child's ends, so that reads see the end of the output.
        drop(ends);
        Ok(RunningProgram {
            sandbox,
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
        })
    }
}

impl RunningProgram {
    /// Waits until the program runs. Fails if the sandbox cannot be created, or ends before the
    /// program has started.
    pub async fn started(mut self) -> Result<Self, MountError> {
        loop {
            let error = match self.sandbox.next().await {
                Ok(Event::Started) => return Ok(self),
                Ok(Event::Terminal(_) | Event::Stopped) => continue,
                Ok(Event::Ended(ending)) => MountError::Died {
                    exit: Some(ending.exit_code().into()),
                },
                Err(refusal) => refused(refusal),
            };
            self.sandbox.end().await;
            return Err(error);
        }
    }
}

/// The parent's ends of a process's standard streams.
struct Streams {
    stdin: pipe::Sender,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
}

impl Streams {
    fn open() -> io::Result<(Self, [OwnedFd; 3])> {
        let (stdin_of_child, stdin) = io::pipe()?;
        let (stdout, stdout_of_child) = io::pipe()?;
        let (stderr, stderr_of_child) = io::pipe()?;
        let streams = Self {
            stdin: pipe::Sender::from_owned_fd(stdin.into())?,
            stdout: pipe::Receiver::from_owned_fd(stdout.into())?,
            stderr: pipe::Receiver::from_owned_fd(stderr.into())?,
        };
        let ends = [
            stdin_of_child.into(),
            stdout_of_child.into(),
            stderr_of_child.into(),
        ];
        Ok((streams, ends))
    }
}

fn refused(refused: Refused) -> MountError {
    MountError::CannotStart(refused.message)
}
