//! The program of the operator that learns of each new question.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::json;
use crate::admin::Approval;
use crate::cli::exit::warn;

/// Programs that run at the same time. Further ones wait.
const MAX_RUNNING: usize = 4;
/// How long a program may take. Then it is killed.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Starts the program for each question.
pub(super) struct Exec {
    program: String,
    running: Arc<Semaphore>,
}

impl Exec {
    pub(super) fn new(program: String) -> Self {
        Self {
            program,
            running: Arc::new(Semaphore::new(MAX_RUNNING)),
        }
    }

    /// Starts the program by a shell, with the question on its standard input only: nothing that a
    /// container chose is part of a command line.
    pub(super) fn start(&self, question: &Approval) {
        let Ok(question) = json(question) else {
            return;
        };
        let (program, running) = (self.program.clone(), Arc::clone(&self.running));
        tokio::spawn(async move {
            let _running = running.acquire().await;
            let done = timeout(TIME_LIMIT, run(&program, &question)).await;
            match done {
                Ok(Ok(())) => {}
                Ok(Err(error)) => warn(format_args!("{program}: {error}")),
                Err(_) => warn(format_args!("{program} was killed after {TIME_LIMIT:?}")),
            }
        });
    }
}

async fn run(program: &str, question: &str) -> std::io::Result<()> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", program])
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        // Fails if the program does not read its input.
        let _ = input.write_all(format!("{question}\n").as_bytes()).await;
    }
    child.wait().await.map(drop)
}
