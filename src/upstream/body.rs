//! The type of the request bodies that connections to upstreams send.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// Why a request's body broke off: the client's failure to send it, or a denial.
pub type BodyError = Box<dyn Error + Send + Sync>;

/// A request's body; most requests have none. Boxed, since a request is moved several times on its
/// way.
#[derive(Default)]
pub struct RequestBody(Option<Pin<Box<dyn Body<Data = Bytes, Error = BodyError> + Send>>>);

impl<B> From<Option<Box<B>>> for RequestBody
where
    B: Body<Data = Bytes, Error = BodyError> + Send + 'static,
{
    fn from(body: Option<Box<B>>) -> Self {
        Self(body.map(|body| Box::into_pin(body as Box<dyn Body<Data = _, Error = _> + Send>)))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.get_mut().0 {
            Some(body) => body.as_mut().poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|body| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let body = self.0.as_ref();
        body.map_or_else(|| SizeHint::with_exact(0), |body| body.size_hint())
    }
}
