//! Reads the response stream of a command: pieces of its output, then how the command ended.

use std::time::Duration;

use serde::Deserialize;
use tokio::time::{sleep_until, timeout};

use super::answer::{Lines, read_rest, shortened};
use super::endpoint::{Body, Failure};
use super::progress::Progress;
use super::tail::Tail;
use crate::http::OwnClient;

/// Time limit for draining a body after its last line, so that its connection can be reused.
const REST: Duration = Duration::from_secs(2);

/// One line of the stream.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Line {
    Delta {
        data: String,
    },
    Done {
        #[serde(rename = "exitCode")]
        exit_code: Option<i64>,
        #[serde(rename = "timedOut", default)]
        timed_out: bool,
    },
    Error {
        message: String,
    },
}

/// How a command ended.
pub enum Ended {
    /// The command exited or was killed. `exit_code` is `None` if the sidecar reported none.
    Done {
        exit_code: Option<i64>,
        timed_out: bool,
    },
    /// The sidecar could not run the command to its end; holds the sidecar's reason.
    Failed(String),
}

/// Reads the stream to its end, and sends the output to `progress` meanwhile. Returns the last part
/// of the output, and how the command ended. Fails if the stream breaks off or is malformed.
pub async fn follow(
    client: &OwnClient,
    body: Body,
    mut progress: Option<Progress>,
) -> Result<(Tail, Ended), Failure> {
    let mut lines = Lines::of(client, body);
    let mut tail = Tail::default();
    let ended = loop {
        let due = progress.as_ref().and_then(Progress::due);
        let line = tokio::select! {
            line = lines.next() => line?,
            () = sleep_until(due.unwrap_or_else(tokio::time::Instant::now)), if due.is_some() => {
                if let Some(progress) = &mut progress {
                    progress.tell().await;
                }
                continue;
            }
        };
        let Some(line) = line else {
            let why = "the sidecar closed the stream before the command ended";
            return Err(Failure::BrokeOff(why.to_owned()));
        };
        match read(&line)? {
            None => {}
            Some(Line::Delta { data }) => {
                tail.push(&data);
                if let Some(progress) = &mut progress {
                    progress.add(&data);
                }
            }
            Some(Line::Done {
                exit_code,
                timed_out,
            }) => {
                break Ended::Done {
                    exit_code,
                    timed_out,
                };
            }
            Some(Line::Error { message }) => break Ended::Failed(shortened(&message)),
        }
    };
    if let Some(progress) = &mut progress {
        progress.tell().await;
    }
    tokio::spawn(timeout(REST, read_rest(lines.into_body())));
    Ok((tail, ended))
}

/// Parses a line; `None` for an empty one.
fn read(line: &[u8]) -> Result<Option<Line>, Failure> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let line = serde_json::from_slice(line);
    let line = line.map_err(|_| {
        Failure::Wrong("the sidecar sent a line that is not part of a command's stream".to_owned())
    })?;
    Ok(Some(line))
}
