//! Incremental parser for server-sent events (WHATWG HTML, section 9.2) of bounded length.

use std::time::Duration;

use bytes::{Buf, Bytes};
use thiserror::Error;

/// Limit on the length of an event id, in bytes, since the id has to fit into a header field. A
/// longer id resets the last event id, as an empty id does.
const MAX_EVENT_ID: usize = 1024;
/// The shortest and the longest reconnection time. The value of a `retry` field is clamped to them.
const RETRY_BOUNDS: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(60 * 60));
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// One event that carries data.
#[derive(Debug, PartialEq, Eq)]
pub struct StreamEvent {
    /// The value of the `event` field. Empty if the event has no such field; its type is then
    /// `message`.
    pub kind: String,
    /// Its data, the lines joined by LF; not checked to be UTF-8.
    pub data: Vec<u8>,
}

/// Error: an event, or a line of it, is longer than the bound.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("an event of the stream is longer than {0} bytes")]
pub struct EventTooLong(pub usize);

/// Parses one stream.
#[derive(Default)]
pub struct EventReader {
    /// The longest event, in bytes.
    most: usize,
    /// The unfinished line.
    line: Vec<u8>,
    kind: String,
    data: Vec<u8>,
    has_data: bool,
    /// The id of the event that is being read; kept for later events without an id.
    id: Option<Box<[u8]>>,
    last_event_id: Option<Box<[u8]>>,
    retry: Option<Duration>,
    /// The previous byte was a CR: an LF that follows is part of the same line end.
    after_cr: bool,
    /// A line has been read: no byte order mark may follow.
    has_begun: bool,
}

impl EventReader {
    /// Creates a reader for events of at most `most` bytes.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    /// Consumes `input` up to the end of the next event with data; `None` if `input` ends before.
    pub fn next(&mut self, input: &mut Bytes) -> Result<Option<StreamEvent>, EventTooLong> {
        while !input.is_empty() {
            if std::mem::take(&mut self.after_cr) && input.first() == Some(&b'\n') {
                input.advance(1);
                continue;
            }
            let end = input.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
            let Some(end) = end else {
                self.keep(input)?;
                input.clear();
                break;
            };
            let last = input.split_to(end);
            self.after_cr = input.first() == Some(&b'\r');
            input.advance(1);
            if let Some(event) = self.end_line(&last)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Bytes that are allocated for an unfinished event.
    pub fn held(&self) -> usize {
        self.line.capacity().saturating_add(self.data.capacity())
    }

    /// The id of the last event, to resume the stream after it.
    pub fn last_event_id(&self) -> Option<&[u8]> {
        self.last_event_id.as_deref()
    }

    /// The reconnection time, if the server set one.
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// Resets the reader for another connection of the same stream; drops an unfinished event.
    pub fn reconnect(&mut self) {
        *self = Self {
            last_event_id: self.last_event_id.take(),
            retry: self.retry,
            ..Self::new(self.most)
        };
        self.id.clone_from(&self.last_event_id);
    }

    fn keep(&mut self, piece: &[u8]) -> Result<(), EventTooLong> {
        self.fits(piece.len())?;
        self.line.extend_from_slice(piece);
        Ok(())
    }

    fn fits(&self, more: usize) -> Result<(), EventTooLong> {
        let held = self.line.len().saturating_add(self.data.len());
        if held.saturating_add(more) > self.most {
            return Err(EventTooLong(self.most));
        }
        Ok(())
    }

    fn end_line(&mut self, last: &[u8]) -> Result<Option<StreamEvent>, EventTooLong> {
        if self.line.is_empty() {
            self.fits(last.len())?;
            return Ok(self.read_line(last));
        }
        self.keep(last)?;
        let line = std::mem::take(&mut self.line);
        Ok(self.read_line(&line))
    }

    fn read_line(&mut self, line: &[u8]) -> Option<StreamEvent> {
        let mut line = line;
        if !std::mem::replace(&mut self.has_begun, true) {
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        if line.is_empty() {
            return self.dispatch();
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = match colon.and_then(|colon| line.split_at_checked(colon)) {
            Some((name, rest)) => (name, rest.get(1..).unwrap_or_default()),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
            }
            b"event" => self.kind = String::from_utf8_lossy(value).into_owned(),
            b"id" if !value.contains(&0) => {
                self.id = (value.len() <= MAX_EVENT_ID).then(|| value.into());
            }
            b"retry" => self.retry = read_retry(value).or(self.retry),
            _ => {}
        }
        None
    }

    fn dispatch(&mut self) -> Option<StreamEvent> {
        self.last_event_id.clone_from(&self.id);
        let kind = std::mem::take(&mut self.kind);
        let data = std::mem::take(&mut self.data);
        let has_data = std::mem::take(&mut self.has_data);
        (has_data && !data.is_empty()).then_some(StreamEvent { kind, data })
    }
}

fn read_retry(value: &[u8]) -> Option<Duration> {
    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(value).ok().filter(|_| is_number)?;
    // A number that exceeds 64 bits counts as the longest time.
    let wait = Duration::from_millis(text.parse().unwrap_or(u64::MAX));
    Some(wait.clamp(RETRY_BOUNDS.0, RETRY_BOUNDS.1))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use testkit::each_row;

    use super::*;
    use crate::mcp::message::{Id, Message, write_request};

    fn read_all(reader: &mut EventReader, pieces: &[&[u8]]) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        for piece in pieces {
            let mut piece = Bytes::copy_from_slice(piece);
            while let Some(event) = reader.next(&mut piece).unwrap() {
                events.push(event);
            }
        }
        events
    }

    fn data_of(text: &str) -> Vec<String> {
        let events = read_all(&mut EventReader::new(1024), &[text.as_bytes()]);
        let text = |event: StreamEvent| String::from_utf8(event.data).unwrap();
        events.into_iter().map(text).collect()
    }

    #[test]
    fn events_are_parsed_according_to_the_standard() {
        each_row(
            [
                ("data: a\n\n", vec!["a"]),
                ("data:a\r\rdata: b\r\n\r\ndata:c\n\n", vec!["a", "b", "c"]),
                ("\u{feff}data: a\n\n", vec!["a"]),
                ("data: one\ndata: two\ndata\n\n", vec!["one\ntwo\n"]),
                (": a comment\n\n:\n\ndata:  spaced\n\n", vec![" spaced"]),
                ("id: 7\ndata:\n\n", vec![]),
                ("unknown: x\nno colon\ndata: a\n\n", vec!["a"]),
                ("data: unfinished\n", vec![]),
            ],
            |(text, expected)| assert_eq!(data_of(text), *expected, "{text:?}"),
        );
    }

    #[test]
    fn ids_and_retry_times_persist_until_replaced() {
        let mut reader = EventReader::new(1024);
        read_all(&mut reader, &[b"id: e1\nretry: 500\ndata: \n\n"]);
        assert_eq!(reader.last_event_id(), Some(&b"e1"[..]));
        assert_eq!(reader.retry(), Some(Duration::from_millis(500)));
        let events = read_all(
            &mut reader,
            &[b"retry: soon\nevent: message\ndata: x\n\nid: e2\ndata: cut"],
        );
        assert_eq!(events[0].kind, "message");
        reader.reconnect();
        assert_eq!(reader.last_event_id(), Some(&b"e1"[..]));
        assert_eq!(reader.retry(), Some(Duration::from_millis(500)));
        assert_eq!(read_all(&mut reader, &[b"\n"]), []);
        read_all(&mut reader, &[b"retry: 0\nid: \0\ndata: y\n\n"]);
        assert_eq!(reader.last_event_id(), Some(&b"e1"[..]));
        assert_eq!(reader.retry(), Some(RETRY_BOUNDS.0));
        read_all(&mut reader, &[b"retry: 99999999999999999999999\n"]);
        assert_eq!(reader.retry(), Some(RETRY_BOUNDS.1));
    }

    #[test]
    fn an_event_over_the_bound_is_refused_in_any_chunking() {
        let long = [b"data: ".to_vec(), vec![b'x'; 60]].concat();
        let lines = b"data: 0123456789\n".repeat(10);
        each_row([long, lines, b": comment".repeat(10)], |text| {
            for size in [1, 7, 1000] {
                let mut reader = EventReader::new(50);
                let refused = text.chunks(size).any(|piece| {
                    let mut piece = Bytes::copy_from_slice(piece);
                    reader.next(&mut piece).is_err()
                });
                assert!(refused, "in pieces of {size}");
                assert!(reader.held() <= 200, "{}", reader.held());
            }
        });
    }

    /// Writes an event with `newline` as line ends.
    fn write(data: &str, id: Option<&str>, newline: &str) -> String {
        let mut text = String::new();
        if let Some(id) = id {
            text.push_str(&format!("id: {id}{newline}"));
        }
        for line in data.split('\n') {
            text.push_str(&format!("data: {line}{newline}"));
        }
        text + newline
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        // Feature: unified-sidecar, Property 12: SSE events and JSON-RPC messages round-trip with
        // multi-line data and special characters.
        #[test]
        fn events_are_read_in_any_chunking_and_with_any_line_end(
            events in vec((".{0,40}(\n.{0,40}){0,3}", proptest::option::of("[!-~]{1,20}")), 1..6),
            newline in prop_oneof!["\n", "\r", "\r\n"],
            cuts in vec(1_usize..20, 1..8),
        ) {
            // CR ends a line as well, so data cannot contain it.
            let events: Vec<_> = events
                .into_iter()
                .map(|(data, id)| (data.replace('\r', " "), id))
                .collect();
            let text: String = events
                .iter()
                .map(|(data, id)| write(data, id.as_deref(), &newline))
                .collect();
            let mut pieces = Vec::new();
            let mut left = text.as_bytes();
            for cut in cuts.iter().cycle() {
                if left.is_empty() {
                    break;
                }
                let (piece, rest) = left.split_at((*cut).min(left.len()));
                pieces.push(piece);
                left = rest;
            }
            let mut reader = EventReader::new(64 * 1024);
            let read = read_all(&mut reader, &pieces);
            let read: Vec<_> = read.iter().map(|event| std::str::from_utf8(&event.data).unwrap()).collect();
            let expected: Vec<_> = events.iter().map(|(data, _)| &**data).filter(|data| !data.is_empty()).collect();
            prop_assert_eq!(read, expected);
            let last = events.iter().rev().find_map(|(_, id)| id.as_deref());
            prop_assert_eq!(reader.last_event_id(), last.map(str::as_bytes));
        }

        // Feature: unified-sidecar, Property 12: SSE events and JSON-RPC messages round-trip with
        // multi-line data and special characters.
        #[test]
        fn a_message_in_an_event_is_read_unchanged(
            text in "\\PC{0,60}",
            number in any::<i64>(),
            id in any::<u64>(),
            pretty in any::<bool>(),
        ) {
            let params = serde_json::json!({"text": text, "lines": format!("{text}\n\r\t\"{text}"), "n": number});
            let params = if pretty {
                serde_json::to_string_pretty(&params).unwrap()
            } else {
                params.to_string()
            };
            let raw = serde_json::value::RawValue::from_string(params).unwrap();
            let id = Id::number(id);
            let message = write_request(Some(&id), "sampling/createMessage", Some(&raw));
            let stream = write(&message, None, "\n");
            let events = read_all(&mut EventReader::new(64 * 1024), &[stream.as_bytes()]);
            prop_assert_eq!(events.len(), 1);
            let Ok(Message::Request { id: read, method, params }) = Message::parse(&events[0].data, 1000) else {
                return Err(TestCaseError::fail("no request"));
            };
            prop_assert_eq!(read, id);
            prop_assert_eq!(&*method, "sampling/createMessage");
            let params = params.unwrap();
            prop_assert_eq!(params.get(), raw.get());
        }
    }
}
