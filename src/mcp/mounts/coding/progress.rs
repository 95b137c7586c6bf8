//! Output of a command that is under way, told as progress.

use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::super::{Event, Events};

/// Time between two notifications. What comes meanwhile is told together.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest text of one notification, in bytes. The beginning of a longer one is left out: the
/// result has the end as well.
const MAX_MESSAGE: usize = 16 * 1024;

/// Tells a client what a command writes.
pub struct Progress {
    /// The progress token of the request, as JSON.
    token: Box<str>,
    events: Events,
    pending: String,
    /// Bytes that were dropped from the beginning of `pending`.
    left_out: usize,
    /// All bytes of output so far. Grows with each notification.
    written: u64,
    told: Option<Instant>,
}

impl Progress {
    /// Tells progress under this token.
    pub fn new(token: &str, events: Events) -> Self {
        Self {
            token: token.into(),
            events,
            pending: String::new(),
            left_out: 0,
            written: 0,
            told: None,
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

    /// When output is to be told; `None` without any.
    pub fn due(&self) -> Option<Instant> {
        let has_some = !self.pending.is_empty();
        has_some.then(|| self.told.map_or_else(Instant::now, |told| told + PAUSE))
    }

    /// Tells the output that was not told yet. Cancel safe but for what is being told.
    pub async fn tell(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let output = std::mem::take(&mut self.pending);
        let message = match std::mem::take(&mut self.left_out) {
            0 => output,
            left_out => format!("[{left_out} bytes left out]\n{output}"),
        };
        self.told = Some(Instant::now());
        let (token, written) = (&self.token, self.written);
        let params = format!(
            "{{\"progressToken\":{token},\"progress\":{written},\"message\":{}}}",
            Value::from(message)
        );
        let event = Event::Notification {
            method: "notifications/progress".into(),
            params: RawValue::from_string(params).ok(),
        };
        // Whoever called may have gone.
        let _ = self.events.send(event).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn output_is_told_together_and_its_beginning_left_out_where_it_is_long() {
        let (events, mut told) = mpsc::channel(8);
        let mut progress = Progress::new("7", events);
        assert_eq!(progress.due(), None);
        progress.add("a");
        assert!(progress.due().unwrap() <= Instant::now());
        progress.tell().await;
        progress.add("b");
        progress.add("c");
        assert_eq!(progress.due().unwrap() - Instant::now(), PAUSE);
        progress.tell().await;
        progress.add(&"ä".repeat(MAX_MESSAGE));
        progress.tell().await;
        progress.tell().await;
        drop(progress);
        let mut params = Vec::new();
        while let Some(Event::Notification { params: told, .. }) = told.recv().await {
            params.push(told.unwrap().get().to_owned());
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
