//! Parses server-sent events, in which the admin API streams flows.

/// One event of a stream. The lines of `data` are joined without a newline.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) name: String,
    pub(super) data: String,
}

/// Parses events from chunks that may be cut anywhere.
#[derive(Default)]
pub(super) struct Events {
    rest: Vec<u8>,
    event: Event,
}

impl Events {
    /// Takes a chunk; returns the events that it completes.
    pub(super) fn feed(&mut self, chunk: &[u8]) -> Vec<Event> {
        let mut done = Vec::new();
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(piece);
            if self.rest.ends_with(b"\n") {
                let line = std::mem::take(&mut self.rest);
                done.extend(self.line(String::from_utf8_lossy(&line).trim_end()));
            }
        }
        done
    }

    fn line(&mut self, line: &str) -> Option<Event> {
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            return (!event.data.is_empty()).then_some(event);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.name),
            "data" => self.event.data.push_str(value),
            _ => {}
        }
        None
    }
}
