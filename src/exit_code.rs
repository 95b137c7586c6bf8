//! The exit codes; scripts rely on them.

/// It is done.
pub const DONE: u8 = 0;
/// `explain` was answered, and the answer is a denial.
pub const DENIED: u8 = 1;
/// It was asked for wrongly.
pub const USAGE: u8 = 64;
/// A socket cannot be opened or reached.
pub const UNAVAILABLE: u8 = 69;
/// The fault is ours.
pub const SOFTWARE: u8 = 70;
/// The configuration is not in order.
pub const CONFIG: u8 = 78;
