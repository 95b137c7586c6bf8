//! The filters of one body, one behind the other.

use std::collections::VecDeque;

use addons::contract::{BodyFilter, BodyOut, Denial};
use bytes::Bytes;
use http::HeaderMap;

/// Runs chunks through the filters of one body.
pub struct Filtering {
    filters: Vec<Box<dyn BodyFilter>>,
    /// What may go out.
    pub passed: VecDeque<Bytes>,
    /// Whether the body did, all filters included.
    pub ended: bool,
}

impl Filtering {
    pub fn new(filters: Vec<Box<dyn BodyFilter>>) -> Self {
        Self {
            filters,
            passed: VecDeque::new(),
            ended: false,
        }
    }

    /// Whether `Content-Length` stays true.
    pub fn keeps_length(&self) -> bool {
        self.filters.iter().all(|filter| filter.keeps_length())
    }

    /// Takes a piece of the body.
    pub fn chunk(&mut self, chunk: Bytes) -> Result<(), Denial> {
        self.through(0, chunk)
    }

    /// Sends bytes through the filters from `first` on.
    fn through(&mut self, first: usize, chunk: Bytes) -> Result<(), Denial> {
        let mut pieces = vec![chunk];
        for filter in self.filters.iter_mut().skip(first) {
            let mut out = BodyOut::default();
            for piece in pieces.drain(..) {
                filter.chunk(piece, &mut out)?;
            }
            pieces.extend(out.drain());
        }
        self.passed
            .extend(pieces.into_iter().filter(|piece| !piece.is_empty()));
        Ok(())
    }

    /// Ends the filters one after the other: what one held back still passes those behind it.
    pub fn end(&mut self, mut trailers: Option<&mut HeaderMap>) -> Result<(), Denial> {
        self.ended = true;
        for at in 0..self.filters.len() {
            let mut out = BodyOut::default();
            if let Some(filter) = self.filters.get_mut(at) {
                filter.end(&mut out, trailers.as_deref_mut())?;
            }
            let held: Vec<Bytes> = out.drain().collect();
            for piece in held {
                self.through(at + 1, piece)?;
            }
        }
        Ok(())
    }
}
