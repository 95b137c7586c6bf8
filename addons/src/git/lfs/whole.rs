//! A JSON body that is judged whole, and sent on as it was understood.

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use serde_json::Value;

use super::as_its_client_shows;
use crate::contract::{BodyFilter, BodyOut, Code, Denial, Verdict};

/// Holds a body up to a limit. What goes on is written anew from what was judged, so that a
/// member that stands there twice is read once, by us.
pub(super) struct WholeJson<F> {
    held: BytesMut,
    limit: usize,
    judge: F,
}

impl<F: FnMut(&mut Value) -> Verdict + Send> WholeJson<F> {
    pub fn new(limit: usize, judge: F) -> Self {
        Self {
            held: BytesMut::new(),
            limit,
            judge,
        }
    }

    fn hold(&mut self, chunk: &[u8]) -> Verdict {
        if self.held.len() + chunk.len() > self.limit {
            let sentence = format!("Body too large to inspect: over {} bytes", self.limit);
            return Err(Denial::new(Code::BodyTooLargeToInspect, sentence)
                .rule("limits.inspect_body_bytes"));
        }
        self.held.extend_from_slice(chunk);
        Ok(())
    }

    fn judged(&mut self) -> Result<Bytes, Denial> {
        let malformed = |_| Denial::malformed("an LFS batch is not JSON");
        let mut value = serde_json::from_slice(&self.held).map_err(malformed)?;
        (self.judge)(&mut value)?;
        serde_json::to_vec(&value)
            .map(Bytes::from)
            .map_err(|_| Denial::internal())
    }
}

impl<F: FnMut(&mut Value) -> Verdict + Send> BodyFilter for WholeJson<F> {
    fn chunk(&mut self, chunk: Bytes, _out: &mut BodyOut) -> Verdict {
        self.hold(&chunk).map_err(denied)
    }

    fn end(&mut self, out: &mut BodyOut, _trailers: Option<&mut HeaderMap>) -> Verdict {
        let judged = self.judged().map_err(denied)?;
        out.push(judged);
        Ok(())
    }

    fn keeps_length(&self) -> bool {
        false
    }
}

fn denied(denial: Denial) -> Denial {
    as_its_client_shows(denial).by("git")
}
