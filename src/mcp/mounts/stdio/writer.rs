//! Writes lines to the server. A line is written completely even if the task that sent it is
//! dropped.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::calls::Calls;
use crate::mcp::mounts::MessageReservation;
use crate::mcp::mounts::process::ProcessManager;

/// The most lines that wait to be written.
const MAX_LINES: usize = 512;
/// The most bytes of waiting lines. A longer line is queued only while no other line waits.
const MAX_BYTES: u32 = 16 << 20;

/// Takes lines for the server.
#[derive(Clone)]
pub(super) struct Writer {
    lines: mpsc::Sender<Line>,
    bytes: Arc<Semaphore>,
}

/// A queued line.
struct Line {
    text: String,
    /// The id of the request, if the line is one.
    id: Option<u64>,
    _bytes: OwnedSemaphorePermit,
    /// The memory of the text: a line outlives a cancelled request.
    _memory: MessageReservation,
}

/// A message and its memory.
pub(super) type Charged = (String, MessageReservation);

/// The receiving end of a [`Writer`].
pub(super) struct Lines(mpsc::Receiver<Line>);

impl Writer {
    pub fn new() -> (Self, Lines) {
        let (lines, receiver) = mpsc::channel(MAX_LINES);
        let bytes = Arc::new(Semaphore::new(MAX_BYTES as usize));
        (Self { lines, bytes }, Lines(receiver))
    }

    /// Queues a message; waits for room. `None` once the server is gone.
    pub async fn send(&self, message: Charged, id: Option<u64>) -> Option<()> {
        let bytes = Arc::clone(&self.bytes).acquire_many_owned(weight(&message.0));
        let bytes = bytes.await.ok()?;
        self.lines.send(line(message, id, bytes)).await.ok()
    }

    /// Queues a message; `None` if there is no room, or the server is gone.
    pub fn try_send(&self, message: Charged) -> Option<()> {
        let bytes = Arc::clone(&self.bytes).try_acquire_many_owned(weight(&message.0));
        self.lines.try_send(line(message, None, bytes.ok()?)).ok()
    }

    /// Whether the server is gone.
    pub fn is_closed(&self) -> bool {
        self.lines.is_closed()
    }
}

fn weight(text: &str) -> u32 {
    u32::try_from(text.len())
        .unwrap_or(MAX_BYTES)
        .min(MAX_BYTES)
}

/// Replaces line breaks by spaces. JSON text has line breaks only between tokens, where a space
/// means the same.
fn line((text, memory): Charged, id: Option<u64>, bytes: OwnedSemaphorePermit) -> Line {
    let mut text = match text.contains(['\n', '\r']) {
        true => text.replace(['\n', '\r'], " "),
        false => text,
    };
    text.push('\n');
    Line {
        text,
        id,
        _bytes: bytes,
        _memory: memory,
    }
}

impl Lines {
    /// Writes lines until the [`Writer`] is dropped or a line cannot be written. If the line that
    /// could not be written is a request, fails the request.
    pub async fn write_all(mut self, process: &dyn ProcessManager, calls: &Calls) {
        while let Some(line) = self.0.recv().await {
            let Line { text, id, .. } = &line;
            let Err(error) = process.write(text.as_bytes()).await else {
                continue;
            };
            if let Some(id) = id {
                calls.answer(*id, Err(error));
            }
            // A failed pipe cannot be written to again.
            return;
        }
    }
}

#[cfg(test)]
impl Lines {
    /// The text of the next line.
    pub async fn next_text(&mut self) -> Option<String> {
        self.0.recv().await.map(|line| line.text)
    }
}
