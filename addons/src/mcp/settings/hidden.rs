//! Text of settings that is never shown.

use std::fmt;

use zeroize::Zeroizing;

/// Text that may contain a secret; its `Debug` output is redacted.
#[derive(Clone, PartialEq, Eq)]
pub struct HiddenValue(pub Zeroizing<String>);

impl HiddenValue {
    pub(super) fn of(text: &str) -> Self {
        Self(text.to_owned().into())
    }
}

impl fmt::Debug for HiddenValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}
