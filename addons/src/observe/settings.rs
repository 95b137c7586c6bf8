//! The keys of `audit` in `proxy.yaml` that bound what one container may write to the log.

use std::num::NonZeroU32;

use crate::contract::settings::{Files, at_least_one};

const KB: u64 = 1 << 10;
const GB: u64 = 1 << 30;

/// A hundred flows a second, each with its own line.
const LINES_PER_MINUTE: NonZeroU32 = at_least_one(6000);
/// As many lines of 350 bytes, a common length.
const BYTES_PER_MINUTE: NonZeroU32 = at_least_one(2 << 20);

/// What one container may write to the log. The appliance's own flows share as much, and so do
/// those of unknown sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditSettings {
    /// Lines in any minute. Folded lines may come on top: 512, and the coarse ones.
    pub lines_per_minute_per_container: NonZeroU32,
    /// The same in bytes. Folded lines count, but for the coarse ones, which have at most 128 KiB
    /// a minute.
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
