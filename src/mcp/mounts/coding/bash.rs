//! Reads the response stream of a command: pieces of its output, then how the command ended.

use std::time::Duration;

use serde::Deserialize;
use tokio::time::{sleep_until, timeout};

use super::answer::{Lines, drain, shortened};
use super::endpoint::{Body, Failure};
use super::progress::Progress;
use super::tail::Tail;
use crate::http::OwnClient;

/// Time limit for draining a body after its last line, so that its connection can be reused.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// One line of the stream.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Line {
    Delta { data: String },
    Done(Ended),
    Error { message: String },
}

/// How a command ended: it exited, or was killed.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    /// `None` if the sidecar reported none.
    pub exit_code: Option<i64>,
    #[serde(default)]
    pub timed_out: bool,
}

/// Reads the stream until the command has ended, and reports the output to `progress` meanwhile.
/// Returns the last part of the output, together with how the command ended or why the sidecar
/// could not run it to its end. Fails if the stream breaks off or is malformed.
pub async fn follow(
    client: &OwnClient,
    body: Body,
    mut progress: Option<Progress>,
) -> Result<(Tail, Result<Ended, String>), Failure> {
    let mut lines = Lines::of(client, body);
    let mut tail = Tail::default();
    let ended = loop {
        let due = progress.as_ref().and_then(Progress::due);
        let line = tokio::select! {
            line = lines.next() => line?,
            () = sleep_until(due.unwrap_or_else(tokio::time::Instant::now)), if due.is_some() => {
                if let Some(progress) = &mut progress {
                    progress.send().await;
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
            Some(Line::Done(ended)) => break Ok(ended),
            Some(Line::Error { message }) => break Err(shortened(&message)),
        }
    };
    if let Some(progress) = &mut progress {
        progress.send().await;
    }
    tokio::spawn(timeout(DRAIN_TIMEOUT, drain(lines.into_body())));
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
