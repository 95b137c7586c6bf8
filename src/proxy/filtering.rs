//! The filters of one body, one behind the other.

use addons::contract::{BodyFilter, BodyOut, Denial};
use bytes::Bytes;
use http::HeaderMap;

/// Runs chunks through the filters of one body.
pub struct Filtering {
    filters: Vec<Box<dyn BodyFilter>>,
    /// What may go out.
    pub passed: BodyOut,
    /// Whether the body did, all filters included.
    pub ended: bool,
}

impl Filtering {
    pub fn new(filters: Vec<Box<dyn BodyFilter>>) -> Self {
        Self {
            filters,
            passed: BodyOut::default(),
            ended: false,
        }
    }

    /// Whether `Content-Length` stays true.
    pub fn keeps_length(&self) -> bool {
        self.filters.iter().all(|filter| filter.keeps_length())
    }

    /// Takes a piece of the body.
    pub fn chunk(&mut self, chunk: Bytes) -> Result<(), Denial> {
        through(&mut self.filters, chunk, &mut self.passed)
    }

    /// Ends the filters one after the other: what one held back still passes those behind it.
    pub fn end(&mut self, mut trailers: Option<&mut HeaderMap>) -> Result<(), Denial> {
        self.ended = true;
        let mut left = self.filters.as_mut_slice();
        while let Some((filter, behind)) = left.split_first_mut() {
            let mut held = BodyOut::default();
            filter.end(&mut held, trailers.as_deref_mut())?;
            for piece in held.drain() {
                through(behind, piece, &mut self.passed)?;
            }
            left = behind;
        }
        Ok(())
    }
}

/// Sends bytes through filters, one behind the other.
fn through(
    filters: &mut [Box<dyn BodyFilter>],
    bytes: Bytes,
    passed: &mut BodyOut,
) -> Result<(), Denial> {
    match filters {
        [] => passed.push(bytes),
        [last] => last.chunk(bytes, passed)?,
        [first, behind @ ..] => {
            let mut out = BodyOut::default();
            first.chunk(bytes, &mut out)?;
            for piece in out.drain() {
                through(behind, piece, passed)?;
            }
        }
    }
    Ok(())
}
