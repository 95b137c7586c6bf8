//! What the params of a message say of the request that it belongs to.

use serde::Deserialize;
use serde_json::value::RawValue;

/// Members of the params of any message.
#[derive(Default, Deserialize)]
pub(super) struct Related<'a> {
    #[serde(rename = "_meta", borrow, default)]
    pub meta: Meta<'a>,
    /// The progress token that a progress notification names.
    #[serde(rename = "progressToken", borrow)]
    pub progress: Option<&'a RawValue>,
}

/// Members of `_meta`.
#[derive(Default, Deserialize)]
pub(super) struct Meta<'a> {
    /// The progress token that a request gives.
    #[serde(rename = "progressToken", borrow)]
    pub progress: Option<&'a RawValue>,
    #[serde(rename = "io.modelcontextprotocol/subscriptionId", borrow)]
    pub subscription: Option<&'a RawValue>,
    #[serde(rename = "io.modelcontextprotocol/logLevel", borrow)]
    pub log_level: Option<&'a RawValue>,
}

impl<'a> Related<'a> {
    /// Reads params; those that are no such object name no request.
    pub fn read(params: Option<&'a RawValue>) -> Self {
        let read = params.and_then(|params| serde_json::from_str(params.get()).ok());
        read.unwrap_or_default()
    }
}
