//! Exit codes of the process; scripts rely on them.

/// Success.
pub const DONE: u8 = 0;
/// `explain` reports a denial, or a request of `mcp` was denied or its tool failed.
pub const DENIED: u8 = 1;
/// The arguments are invalid (`EX_USAGE` of sysexits.h).
pub const USAGE: u8 = 64;
/// A socket cannot be opened or reached (`EX_UNAVAILABLE`).
pub const UNAVAILABLE: u8 = 69;
/// An internal error (`EX_SOFTWARE`).
pub const SOFTWARE: u8 = 70;
/// The configuration is invalid (`EX_CONFIG`).
pub const CONFIG: u8 = 78;
