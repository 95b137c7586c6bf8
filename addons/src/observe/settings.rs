//! The keys of `audit` in `proxy.yaml` that limit the log lines of one container.

use std::num::NonZeroU32;

use crate::contract::settings::{Files, at_least_one};

const KB: u64 = 1 << 10;
const GB: u64 = 1 << 30;

/// Enough for 100 flows per second with a line each.
const LINES_PER_MINUTE: NonZeroU32 = at_least_one(6000);
/// Three quarters are for lines that are written as their flows end: 4,500 lines of 350 bytes.
const BYTES_PER_MINUTE: NonZeroU32 = at_least_one(2 << 20);

/// The limits of one container in the log. The same limits apply to the appliance's own flows
/// together, and to the flows of all unknown sources together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditSettings {
    /// Lines in any minute. Folded lines come on top: up to 512 lines in full, and one coarse line
    /// for each combination of a flow's kind, outcome and code.
    pub lines_per_minute_per_container: NonZeroU32,
    /// Bytes in any minute, folded lines included. Coarse lines come on top, with at most 128 KiB
    /// per minute, and as much again when the lease ends.
    pub bytes_per_minute_per_container: NonZeroU32,
}

impl AuditSettings {
    /// Reads the settings.
    pub fn read(files: &Files<'_>) -> Self {
        let fields = files.proxy.fields().section("audit");
        Self {
            lines_per_minute_per_container: fields
                .count("lines_per_minute_per_container", LINES_PER_MINUTE),
            bytes_per_minute_per_container: fields.or(
                "bytes_per_minute_per_container",
                BYTES_PER_MINUTE,
                |at| at.size(64 * KB..=GB).and_then(NonZeroU32::new),
            ),
        }
    }
}
