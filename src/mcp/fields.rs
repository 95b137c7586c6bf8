//! Header fields of MCP over HTTP.

use http::HeaderName;

/// The revision of the protocol that a request uses.
pub const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The session of a request, up to 2025-11-25.
pub const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
/// The last event of a stream that the client received.
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// The method of a request, since 2026-07-28.
pub const METHOD: HeaderName = HeaderName::from_static("mcp-method");
/// The tool, prompt or resource of a request, since 2026-07-28.
pub const NAME: HeaderName = HeaderName::from_static("mcp-name");
