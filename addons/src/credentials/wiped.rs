//! Secrets in memory that are wiped when dropped.

use bytes::Bytes;
use serde_json::Value;
use zeroize::{Zeroize, Zeroizing};

/// A text with a secret, wiped when the last header value or `Bytes` that shares it is dropped.
pub(super) struct Wiped(pub(super) Zeroizing<String>);

impl AsRef<[u8]> for Wiped {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Wipes a response body that holds tokens, unless another reference to its bytes exists.
pub(super) fn wipe_bytes(body: Bytes) {
    if let Ok(mut body) = body.try_into_mut() {
        body.as_mut().zeroize();
    }
}

/// Wipes every string in a JSON value.
pub(super) fn wipe(value: &mut Value) {
    match value {
        Value::String(text) => text.zeroize(),
        Value::Array(items) => items.iter_mut().for_each(wipe),
        Value::Object(fields) => fields.values_mut().for_each(wipe),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
