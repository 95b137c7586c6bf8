//! The filters of one body, one behind the other.

use std::sync::Arc;

use addons::contract::{BodyFilter, BodyOut, Denial, Response};
use addons::decode::{Decoder, Side};
use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use super::inspection::Reservation;

/// Bytes that are decoded at once: filters hold and pass on no more at a time.
const STEP: usize = 64 * 1024;

/// Runs a body through its filters, decoded where it came encoded.
pub struct Filtering {
    decoder: Option<Decoder>,
    filters: Vec<Box<dyn BodyFilter>>,
    /// What may go out.
    pub passed: BodyOut,
    /// The body has ended, and all filters have ended with it.
    pub ended: bool,
    /// Memory for the decoder.
    reservation: Option<Arc<Reservation>>,
}

impl Filtering {
    /// The filters of a body that is not encoded.
    pub fn new(filters: Vec<Box<dyn BodyFilter>>) -> Self {
        Self {
            decoder: None,
            filters,
            passed: BodyOut::default(),
            ended: false,
            reservation: None,
        }
    }

    /// The filters of a response. Where one of them reads the content, or `is_read` says that a
    /// judge does, the body is decoded, and the head says so; `reserve` makes a reservation for the
    /// decoder's memory.
    pub fn of_response(
        head: &mut Response,
        is_read: bool,
        reserve: impl FnOnce() -> Result<Arc<Reservation>, Denial>,
    ) -> Result<Self, Denial> {
        let mut filtering = Self::new(head.take_filters());
        let mut filters = filtering.filters.iter();
        if !is_read && !filters.any(|filter| filter.reads_content()) {
            return Ok(filtering);
        }
        if let Some(decoder) = Decoder::of(Side::Response, &head.headers)? {
            let reservation = reserve()?;
            reservation.grow(decoder.memory())?;
            filtering.reservation = Some(reservation);
            filtering.decoder = Some(decoder);
        }
        head.headers.remove(CONTENT_ENCODING);
        Ok(filtering)
    }

    /// A body that has passed already.
    pub fn passed(bytes: Bytes) -> Self {
        let mut filtering = Self::new(Vec::new());
        filtering.passed.push(bytes);
        filtering.ended = true;
        filtering
    }

    /// Whether there is nothing to be done to the body.
    pub fn is_idle(&self) -> bool {
        self.filters.is_empty() && self.decoder.is_none()
    }

    /// Whether `Content-Length` stays true.
    pub fn keeps_length(&self) -> bool {
        self.decoder.is_none() && self.filters.iter().all(|filter| filter.keeps_length())
    }

    /// Takes a piece of the body. Call [`Filtering::advance`] until it has nothing left before the
    /// next one.
    pub fn feed(&mut self, chunk: Bytes) -> Result<(), Denial> {
        let Some(decoder) = &mut self.decoder else {
            return through(&mut self.filters, chunk, &mut self.passed);
        };
        decoder.feed(chunk);
        self.advance().map(drop)
    }

    /// Decodes a little more of what was fed, and says whether there was more.
    pub fn advance(&mut self) -> Result<bool, Denial> {
        let Some(decoder) = &mut self.decoder else {
            return Ok(false);
        };
        let Some(piece) = decoder.next(STEP)? else {
            return Ok(false);
        };
        through(&mut self.filters, piece, &mut self.passed)?;
        Ok(true)
    }

    /// Ends the filters one after the other: what one held back still passes those behind it.
    pub fn end(&mut self, mut trailers: Option<&mut HeaderMap>) -> Result<(), Denial> {
        if let Some(decoder) = &mut self.decoder {
            decoder.end()?;
        }
        let mut left = self.filters.as_mut_slice();
        while let Some((filter, behind)) = left.split_first_mut() {
            let mut held = BodyOut::default();
            filter.end(&mut held, trailers.as_deref_mut())?;
            for piece in held.drain() {
                through(behind, piece, &mut self.passed)?;
            }
            left = behind;
        }
        // Not before: a body that was denied at its end is none that ended.
        self.ended = true;
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

#[cfg(test)]
mod tests {
    use addons::contract::{Code, Verdict};
    use testkit::each_row;

    use super::*;

    /// Holds everything back, and lets it go or denies it at the end.
    struct AtTheEnd(Vec<Bytes>, bool);

    impl BodyFilter for AtTheEnd {
        fn chunk(&mut self, chunk: Bytes, _out: &mut BodyOut) -> Verdict {
            self.0.push(chunk);
            Ok(())
        }

        fn end(&mut self, out: &mut BodyOut, _trailers: Option<&mut HeaderMap>) -> Verdict {
            if self.1 {
                return Err(Denial::new(Code::RuleDenied, "no"));
            }
            self.0.drain(..).for_each(|chunk| out.push(chunk));
            Ok(())
        }
    }

    fn filtering(denies: [bool; 2]) -> Filtering {
        let filters = denies.map(|denies| Box::new(AtTheEnd(Vec::new(), denies)) as _);
        Filtering::new(filters.into())
    }

    #[test]
    fn what_one_filter_held_back_passes_those_behind_it() {
        let mut filtering = filtering([false, false]);
        filtering.feed("ab".into()).unwrap();
        filtering.feed("c".into()).unwrap();
        assert!(filtering.passed.is_empty());
        filtering.end(None).unwrap();
        assert!(filtering.ended);
        let passed: Vec<_> = filtering.passed.drain().flatten().collect();
        assert_eq!(passed, b"abc");
    }

    #[test]
    fn a_body_that_is_denied_at_its_end_has_not_ended() {
        each_row([[true, false], [false, true]], |denies| {
            let mut filtering = filtering(denies);
            filtering.feed("ab".into()).unwrap();
            assert!(filtering.end(None).is_err());
            assert!(!filtering.ended && filtering.passed.is_empty());
        });
    }
}
