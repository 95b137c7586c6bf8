//! Reports the output of a running command as progress.

use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::super::{Event, Events, Params};

/// The shortest time between two notifications. Output in between is reported together. The
/// notification at the end of the command does not wait.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest output in one notification, in bytes. A longer output loses its beginning, as in the
/// result of a command.
const MAX_MESSAGE: usize = 16 * 1024;

/// Reports a command's output to a client.
pub struct Progress {
    /// The progress token of the request, as JSON.
    token: Box<str>,
    events: Events,
    pending: String,
    /// Bytes that were dropped from the beginning of `pending`.
    left_out: usize,
    /// Bytes of output so far: the `progress` value, which has to grow with each notification.
    written: u64,
    /// When the last notification was sent.
    sent: Option<Instant>,
}

impl Progress {
    /// Creates a reporter for this progress token.
    pub fn new(token: &str, events: Events) -> Self {
        Self {
            token: token.into(),
            events,
            pending: String::new(),
            left_out: 0,
            written: 0,
            sent: None,
        }
    }

    /// Adds output.
    pub fn add(&mut self, output: &str) {
        self.written = self.written.saturating_add(output.len() as u64);
        self.pending.push_str(output);
        let over = self.pending.len().saturating_sub(MAX_MESSAGE);
        if over > 0 {
            let from = self.pending.ceil_char_boundary(over);
            self.pending.drain(..from);
            self.left_out = self.left_out.saturating_add(from);
        }
    }

    /// When the next notification is due; `None` without pending output.
    pub fn due(&self) -> Option<Instant> {
        let has_some = !self.pending.is_empty();
        has_some.then(|| self.sent.map_or_else(Instant::now, |sent| sent + PAUSE))
    }

    /// Sends the pending output. If the future is dropped, the output that it was sending is lost.
    pub async fn send(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let output = std::mem::take(&mut self.pending);
        let message = match std::mem::take(&mut self.left_out) {
            0 => output,
            left_out => format!("[{left_out} bytes left out]\n{output}"),
        };
        self.sent = Some(Instant::now());
        let (token, written) = (&self.token, self.written);
        let params = format!(
            "{{\"progressToken\":{token},\"progress\":{written},\"message\":{}}}",
            Value::from(message)
        );
        let event = Event::Notification {
            method: "notifications/progress".into(),
            params: RawValue::from_string(params).ok().map(Params::from),
        };
        self.events.send(event).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pending_output_is_sent_together_and_its_beginning_is_cut_beyond_the_limit() {
        let (events, mut receiver) = Events::uncharged(8);
        let mut progress = Progress::new("7", events);
        assert_eq!(progress.due(), None);
        progress.add("a");
        assert!(progress.due().unwrap() <= Instant::now());
        progress.send().await;
        progress.add("b");
        progress.add("c");
        assert_eq!(progress.due().unwrap() - Instant::now(), PAUSE);
        progress.send().await;
        progress.add(&"ä".repeat(MAX_MESSAGE));
        progress.send().await;
        progress.send().await;
        drop(progress);
        let mut params = Vec::new();
        while let Some(Event::Notification { params: sent, .. }) = receiver.recv().await {
            params.push(sent.unwrap().get().to_owned());
        }
        assert_eq!(params.len(), 3);
        assert_eq!(
            params[0],
            r#"{"progressToken":7,"progress":1,"message":"a"}"#
        );
        assert_eq!(
            params[1],
            r#"{"progressToken":7,"progress":3,"message":"bc"}"#
        );
        let begin = r#"{"progressToken":7,"progress":32771,"message":"[16384 bytes left out]\nää"#;
        assert!(params[2].starts_with(begin), "{}", &params[2][..100]);
    }
}
