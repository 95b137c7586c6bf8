//! The progress token, the subscription id and the log level in a message's params.

use serde::Deserialize;
use serde_json::value::RawValue;

/// Members of the params of a message.
#[derive(Default, Deserialize)]
pub(super) struct Related<'a> {
    #[serde(rename = "_meta", borrow, default)]
    pub meta: Meta<'a>,
    /// The progress token in a progress notification.
    #[serde(rename = "progressToken", borrow)]
    pub progress: Option<&'a RawValue>,
}

/// Members of `_meta`.
#[derive(Default, Deserialize)]
pub(super) struct Meta<'a> {
    /// The progress token in a request.
    #[serde(rename = "progressToken", borrow)]
    pub progress: Option<&'a RawValue>,
    #[serde(rename = "io.modelcontextprotocol/subscriptionId", borrow)]
    pub subscription: Option<&'a RawValue>,
    #[serde(rename = "io.modelcontextprotocol/logLevel", borrow)]
    pub log_level: Option<&'a RawValue>,
}

impl<'a> Related<'a> {
    /// Reads params; all members are absent if they cannot be read.
    pub fn read(params: Option<&'a RawValue>) -> Self {
        let read = params.and_then(|params| serde_json::from_str(params.get()).ok());
        read.unwrap_or_default()
    }
}
