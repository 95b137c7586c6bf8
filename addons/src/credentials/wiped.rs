//! Bytes of secrets, wiped once nothing refers to them.

use bytes::Bytes;
use serde_json::Value;
use zeroize::{Zeroize, Zeroizing};

/// Bytes that are wiped when the last header value that shares them is gone.
pub(super) struct Wiped(pub(super) Zeroizing<String>);

impl AsRef<[u8]> for Wiped {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Wipes a response that held tokens, unless another reference to its bytes exists.
pub(super) fn wipe_bytes(body: Bytes) {
    if let Ok(mut body) = body.try_into_mut() {
        body.as_mut().zeroize();
    }
}

/// Wipes every text in JSON.
pub(super) fn wipe(value: &mut Value) {
    match value {
        Value::String(text) => text.zeroize(),
        Value::Array(items) => items.iter_mut().for_each(wipe),
        Value::Object(fields) => fields.values_mut().for_each(wipe),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
