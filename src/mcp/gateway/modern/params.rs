//! Reads the members of requests' params that the gateway uses.

use addons::json::Members;
use serde::Deserialize;
use serde_json::value::RawValue;

pub const VERSION: &str = "io.modelcontextprotocol/protocolVersion";

/// Members of a request's params, as raw JSON.
#[derive(Default, Deserialize)]
pub struct ModernParams<'a> {
    /// `_meta`, if it is an object.
    #[serde(skip)]
    pub meta: Option<Meta<'a>>,
    #[serde(borrow, rename = "_meta")]
    raw_meta: Option<&'a RawValue>,
    #[serde(borrow)]
    pub name: Option<&'a RawValue>,
    #[serde(borrow)]
    pub uri: Option<&'a RawValue>,
    #[serde(borrow)]
    pub arguments: Option<&'a RawValue>,
    #[serde(borrow, rename = "taskId")]
    pub task_id: Option<&'a RawValue>,
    #[serde(borrow, rename = "requestState")]
    pub request_state: Option<&'a RawValue>,
    #[serde(borrow, rename = "inputResponses")]
    pub input_responses: Option<&'a RawValue>,
    #[serde(borrow)]
    pub notifications: Option<&'a RawValue>,
}

/// Members of `_meta` that describe the client.
#[derive(Default, Deserialize)]
pub struct Meta<'a> {
    #[serde(borrow, rename = "io.modelcontextprotocol/protocolVersion")]
    pub version: Option<&'a RawValue>,
    #[serde(borrow, rename = "io.modelcontextprotocol/clientCapabilities")]
    pub capabilities: Option<&'a RawValue>,
    #[serde(borrow, rename = "io.modelcontextprotocol/clientInfo")]
    pub info: Option<&'a RawValue>,
    #[serde(borrow, rename = "io.modelcontextprotocol/logLevel")]
    pub log_level: Option<&'a RawValue>,
    #[serde(borrow, rename = "progressToken")]
    pub progress_token: Option<&'a RawValue>,
}

impl<'a> ModernParams<'a> {
    /// Reads params. All members are `None` if the params are absent or not a valid object.
    pub fn read(params: Option<&'a RawValue>) -> Self {
        let mut read: Self = object(params).unwrap_or_default();
        read.meta = object(read.raw_meta);
        read
    }

    pub fn progress_token(&self) -> Option<&'a RawValue> {
        self.meta.as_ref()?.progress_token
    }
}

/// Whether a message names its revision, as in the modern era.
pub fn names_version(params: Option<&RawValue>) -> bool {
    let named = || {
        let meta = Members::read(params?).ok()?.members("_meta").ok()??;
        meta.get(VERSION).filter(|version| *version != "null")
    };
    named().is_some()
}

/// Reads the members of an object. Refuses an array, which serde would read as members in order.
pub fn object<'a, T: Deserialize<'a>>(raw: Option<&'a RawValue>) -> Option<T> {
    let text = raw?.get();
    let is_object = text.starts_with('{');
    is_object.then(|| serde_json::from_str(text).ok()).flatten()
}
