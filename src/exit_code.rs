//! Exit codes of the process; scripts rely on them.

/// Success.
pub const DONE: u8 = 0;
/// `explain` reports a denial, an MCP request is denied or answered with an error, or `mcp list` finds
/// no server that is ready.
pub const DENIED: u8 = 1;
/// The arguments are invalid, or the server refused the request with a 4xx status (`EX_USAGE` of
/// sysexits.h).
pub const USAGE: u8 = 64;
/// A listener cannot be opened, another server uses the data directory, the server or the gateway
/// cannot be reached, or the system cannot run a sandbox (`EX_UNAVAILABLE`).
pub const UNAVAILABLE: u8 = 69;
/// An internal error, an unexpected response, or a failed check of `health`, `registry` or `audit
/// verify` (`EX_SOFTWARE`).
pub const SOFTWARE: u8 = 70;
/// The configuration, the data directory or the CA cannot be used (`EX_CONFIG`).
pub const CONFIG: u8 = 78;
