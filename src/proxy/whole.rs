//! Reading a body whole, where an addon must judge it whole.

use std::sync::atomic::Ordering;

use addons::contract::{Chain, Code, Counters, Denial, Request, WholeBody};
use addons::decode::{Decoder, Side};
use bytes::{Bytes, BytesMut};
use http::HeaderValue;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::activity::Activity;

/// Reads a body and has it judged. Afterwards the head tells of the body that is sent: plain, with
/// its length.
pub async fn judge(
    head: &mut Request,
    body: &mut Incoming,
    whole: WholeBody,
    chain: &Chain,
    counters: &Counters,
    activity: &Activity,
) -> Result<Bytes, Denial> {
    let decoder = Decoder::of(Side::Request, &head.headers)?;
    let held = collect(whole.limit, decoder, body, counters, activity).await?;
    let held = chain.body(whole, held).await?;
    head.headers.remove(CONTENT_ENCODING);
    if !held.is_empty() || head.headers.contains_key(CONTENT_LENGTH) {
        let length = HeaderValue::from(held.len());
        head.headers.insert(CONTENT_LENGTH, length);
    }
    Ok(held)
}

async fn collect(
    limit: usize,
    mut decoder: Option<Decoder>,
    body: &mut Incoming,
    counters: &Counters,
    activity: &Activity,
) -> Result<Bytes, Denial> {
    // An encoded body grows, so its length says as much about one that is too large.
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large(limit));
    }
    let mut held = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Denial::malformed("the body broke off"))?;
        let Ok(chunk) = frame.into_data() else {
            continue;
        };
        let length = chunk.len() as u64;
        counters.bytes_in.fetch_add(length, Ordering::Relaxed);
        activity.moved();
        let Some(decoder) = &mut decoder else {
            hold(&mut held, &chunk, limit)?;
            continue;
        };
        decoder.feed(chunk);
        while let Some(piece) = decoder.next(limit - held.len())? {
            hold(&mut held, &piece, limit)?;
        }
    }
    if let Some(decoder) = &mut decoder {
        decoder.end()?;
    }
    Ok(held.freeze())
}

fn hold(held: &mut BytesMut, plain: &[u8], limit: usize) -> Result<(), Denial> {
    if held.len().saturating_add(plain.len()) > limit {
        return Err(too_large(limit));
    }
    held.extend_from_slice(plain);
    Ok(())
}

fn too_large(limit: usize) -> Denial {
    let sentence = format!("Body too large to inspect: at most {limit} bytes here");
    Denial::new(Code::BodyTooLargeToInspect, sentence).with("limit_bytes", limit)
}
