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
        filtering.chunk("ab".into()).unwrap();
        filtering.chunk("c".into()).unwrap();
        assert!(filtering.passed.is_empty());
        filtering.end(None).unwrap();
        assert!(filtering.ended);
        let passed: Vec<_> = filtering.passed.drain().flatten().collect();
        assert_eq!(passed, b"abc");
    }

    #[test]
    fn a_body_that_is_denied_at_its_end_has_not_ended() {
        for denies in [[true, false], [false, true]] {
            let mut filtering = filtering(denies);
            filtering.chunk("ab".into()).unwrap();
            assert!(filtering.end(None).is_err());
            assert!(!filtering.ended && filtering.passed.is_empty());
        }
    }
}
