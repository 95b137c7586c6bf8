//! The filters of one body, in their order.

use std::sync::Arc;

use addons::contract::{BodyFilter, BodyOut, Denial, Response};
use addons::decode::{Decoder, Side};
use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use super::inspection::Reservation;

/// The most bytes decoded in one step, so that a short encoded chunk cannot fill the memory.
const STEP: usize = 64 * 1024;

/// Passes a body through its filters; decodes a response first if a filter, a judge or a reader in
/// this process reads the content.
pub struct Filtering {
    /// Boxed, since few bodies are decoded, and every response moves its filters.
    decoder: Option<Box<Decoder>>,
    filters: Vec<Box<dyn BodyFilter>>,
    /// Bytes that may be sent.
    pub passed: BodyOut,
    /// Whether the body and all its filters have ended.
    pub ended: bool,
    /// The memory reserved for the decoder.
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

    /// The filters of a response. The body is decoded, and `Content-Encoding` is removed, if a
    /// filter reads the content or if `is_read` is set. `is_read` means that a judge or a reader in
    /// this process reads the content. `reserve` makes a reservation for the decoder's memory.
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
            filtering.decoder = Some(Box::new(decoder));
        }
        head.headers.remove(CONTENT_ENCODING);
        Ok(filtering)
    }

    /// A complete body without filters.
    pub fn passed(bytes: Bytes) -> Self {
        let mut filtering = Self::new(Vec::new());
        filtering.passed.push(bytes);
        filtering.ended = true;
        filtering
    }

    /// Whether the body passes unchanged, without a filter or a decoder.
    pub fn is_idle(&self) -> bool {
        self.filters.is_empty() && self.decoder.is_none()
    }

    /// Whether the length of the body does not change, so that `Content-Length` stays valid.
    pub fn keeps_length(&self) -> bool {
        self.decoder.is_none() && self.filters.iter().all(|filter| filter.keeps_length())
    }

    /// Passes a piece of the body through the filters. If the body is decoded, passes only the
    /// first 64 KiB that the piece decodes to. Before the next piece, call [`Filtering::advance`]
    /// until it returns `false`.
    pub fn feed(&mut self, chunk: Bytes) -> Result<(), Denial> {
        let Some(decoder) = &mut self.decoder else {
            return through(&mut self.filters, chunk, &mut self.passed);
        };
        decoder.feed(chunk);
        self.advance().map(drop)
    }

    /// Decodes up to 64 KiB more of the piece that was fed, and passes them through the filters.
    /// Returns `false` if nothing was left.
    pub fn advance(&mut self) -> Result<bool, Denial> {
        if let Some(decoder) = &mut self.decoder
            && let Some(piece) = decoder.next(STEP)?
        {
            through(&mut self.filters, piece, &mut self.passed)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Ends the filters in their order. Bytes that a filter held back pass the filters after it.
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
        // Set last: a body that is denied at its end must not look complete.
        self.ended = true;
        Ok(())
    }
}

/// Passes bytes through filters, in their order.
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

    /// Holds back the whole body. At the end, denies it if the second field is set, else passes it.
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
    fn bytes_held_back_by_a_filter_pass_the_filters_after_it() {
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
