//! Replaces every echo of a secret (a copy in one of the encodings of [`Forms`]) while a response
//! streams.

use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use zeroize::Zeroizing;

use super::forms::Forms;
use crate::contract::{BodyFilter, BodyOut, Verdict};

/// Finds and replaces every form of each secret in a set. It has no `Debug` on purpose.
pub(super) struct Scrubber {
    automaton: AhoCorasick,
    /// The forms, sorted, to check whether a text is the beginning of a form.
    forms: Vec<Zeroizing<Vec<u8>>>,
    /// The replacement of each form.
    replacements: Vec<Bytes>,
    /// For each byte value, whether a form begins with it.
    begins: [bool; 256],
    longest: usize,
    shortest: usize,
}

impl Scrubber {
    pub(super) fn new(forms: Forms) -> Result<Self, String> {
        let (forms, names): (Vec<_>, Vec<_>) = forms.0.into_iter().unzip();
        // Leftmost-longest, so that matches do not depend on the order of the forms. A DFA would
        // take a few hundred kilobytes per host and be no faster than this automaton with its
        // prefilter.
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(forms.iter().map(|form| form.as_slice()))
            .map_err(|_| "a search for its echoes in responses could not be built".to_owned())?;
        let mut begins = [false; 256];
        for form in &forms {
            if let Some(slot) = form.first().and_then(|b| begins.get_mut(usize::from(*b))) {
                *slot = true;
            }
        }
        let lengths = forms.iter().map(|form| form.len());
        let replacements = names.iter().map(|name| format!("[REDACTED:{name}]").into());
        Ok(Self {
            automaton,
            replacements: replacements.collect(),
            begins,
            longest: lengths.clone().max().unwrap_or(0),
            shortest: lengths.min().unwrap_or(usize::MAX),
            forms,
        })
    }

    /// The length of the shortest form; a shorter text holds no echo. `usize::MAX` if there are no
    /// secrets.
    pub(super) fn shortest(&self) -> usize {
        self.shortest
    }

    /// Replaces echoes in every header value.
    pub(super) fn scrub_headers(&self, headers: &mut HeaderMap) {
        for value in headers.values_mut() {
            if value.len() < self.shortest || !self.automaton.is_match(value.as_bytes()) {
                continue;
            }
            let mut clean = BodyOut::default();
            let rest = self.scrub(Bytes::copy_from_slice(value.as_bytes()), true, &mut clean);
            debug_assert!(rest.is_empty());
            let clean: Vec<u8> = clean.drain().flatten().collect();
            // If a credential's name is not allowed in a field value, `[REDACTED]` replaces the
            // whole value.
            *value = HeaderValue::from_bytes(&clean)
                .unwrap_or_else(|_| HeaderValue::from_static("[REDACTED]"));
        }
    }

    /// Writes the data to `out` with echoes replaced. Unless the body has `ended`, stops at the
    /// first byte that may begin an incomplete echo. Returns the rest, to be scrubbed together with
    /// the next data.
    fn scrub(&self, mut data: Bytes, ended: bool, out: &mut BodyOut) -> Bytes {
        if data.is_empty() {
            return data;
        }
        let waits_from = |data: &Bytes| match ended {
            true => data.len(),
            false => self.first_beginning(data),
        };
        let mut waiting = waits_from(&data);
        while let Some(found) = self.automaton.find(&data) {
            // Not final: more data may complete a longer form, or a form that begins before this
            // match.
            if found.start() >= waiting {
                break;
            }
            out.push(data.split_to(found.start()));
            drop(data.split_to(found.len()));
            let replacement = self.replacements.get(found.pattern().as_usize());
            out.push(replacement.cloned().unwrap_or_default());
            waiting = match waiting.checked_sub(found.end()) {
                Some(waiting) => waiting,
                None => waits_from(&data),
            };
        }
        out.push(data.split_to(waiting));
        data
    }

    /// The index at which the longest incomplete form at the end of the data begins; the length of
    /// the data if there is none.
    fn first_beginning(&self, data: &[u8]) -> usize {
        let from = data.len().saturating_sub(self.longest.saturating_sub(1));
        let tail = data.get(from..).unwrap_or_default();
        let may_begin = |byte: &u8| self.begins.get(usize::from(*byte)).is_some_and(|b| *b);
        let is_beginning = |(at, byte): (usize, &u8)| {
            may_begin(byte) && tail.get(at..).is_some_and(|rest| self.begins_a_form(rest))
        };
        let found = tail.iter().enumerate().position(is_beginning);
        found.map_or(data.len(), |at| from + at)
    }

    /// Whether the text is the beginning of a longer form.
    fn begins_a_form(&self, text: &[u8]) -> bool {
        let at = self.forms.partition_point(|form| form.as_slice() <= text);
        self.forms
            .get(at)
            .is_some_and(|form| form.starts_with(text))
    }
}

/// Scrubs a body and its trailers.
pub(super) struct ScrubBody {
    scrubber: Arc<Scrubber>,
    held: Bytes,
}

impl ScrubBody {
    pub(super) fn new(scrubber: Arc<Scrubber>) -> Self {
        Self {
            scrubber,
            held: Bytes::new(),
        }
    }

    fn pass(&mut self, data: Bytes, ended: bool, out: &mut BodyOut) {
        let data = if self.held.is_empty() {
            data
        } else {
            [&*self.held, &*data].concat().into()
        };
        let rest = self.scrubber.scrub(data, ended, out);
        // Copied, so that a few bytes do not keep a whole buffer alive.
        self.held = Bytes::copy_from_slice(&rest);
    }
}

impl BodyFilter for ScrubBody {
    fn chunk(&mut self, chunk: Bytes, out: &mut BodyOut) -> Verdict {
        self.pass(chunk, false, out);
        Ok(())
    }

    fn end(&mut self, out: &mut BodyOut, trailers: Option<&mut HeaderMap>) -> Verdict {
        self.pass(Bytes::new(), true, out);
        if let Some(trailers) = trailers {
            self.scrubber.scrub_headers(trailers);
        }
        Ok(())
    }

    fn keeps_length(&self) -> bool {
        false
    }
}

/// Scrubs the trailers of a response whose body is empty, or too short for an echo.
pub(super) struct ScrubTrailers(pub(super) Arc<Scrubber>);

impl BodyFilter for ScrubTrailers {
    fn chunk(&mut self, chunk: Bytes, out: &mut BodyOut) -> Verdict {
        out.push(chunk);
        Ok(())
    }

    fn end(&mut self, _out: &mut BodyOut, trailers: Option<&mut HeaderMap>) -> Verdict {
        if let Some(trailers) = trailers {
            self.0.scrub_headers(trailers);
        }
        Ok(())
    }

    fn reads_content(&self) -> bool {
        false
    }
}
