//! The definitions of tools.

use std::fmt;
use std::sync::Arc;

use serde_json::value::RawValue;

/// A tool as its server lists it.
#[derive(Debug)]
pub struct Definition {
    /// The server's own name for the tool.
    pub name: Arc<str>,
    /// The whole entry of `tools/list`.
    pub raw: Box<RawValue>,
    /// Whether `raw` may contain the key `x-mcp-header`, with which a schema names HTTP fields that
    /// repeat arguments. Few definitions contain it. Calls of all other tools need no search for
    /// the key.
    pub may_name_fields: bool,
    /// The server's hints about the tool. If the operator sets a hint too, the stricter of the two
    /// counts.
    pub annotations: Annotations,
    /// How the definition compares with the accepted one.
    pub pin: Pin,
    /// The memory of the server's list.
    pub memory: HeldMemory,
}

/// Keeps a reservation of memory until the last clone is dropped. Each entry of a list has one, so
/// that the list stays charged as long as any of its entries is held.
#[derive(Clone, Default)]
pub struct HeldMemory {
    _reservation: Option<Arc<dyn Send + Sync>>,
}

impl HeldMemory {
    /// Holds a reservation, which is released when it is dropped.
    #[must_use]
    pub fn of(reservation: impl Send + Sync + 'static) -> Self {
        Self {
            _reservation: Some(Arc::new(reservation)),
        }
    }
}

impl fmt::Debug for HeldMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeldMemory")
    }
}

/// Hints of a tool's definition. A hint of the wrong type counts as missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Annotations {
    /// `readOnlyHint`: the tool does not modify its environment.
    pub read_only: Option<bool>,
    /// `destructiveHint`: the tool may delete or overwrite.
    pub destructive: Option<bool>,
    /// `idempotentHint`: a repeated call has no further effect.
    pub idempotent: Option<bool>,
    /// `openWorldHint`: the tool talks to systems outside the operator's control.
    pub open_world: Option<bool>,
}

impl Annotations {
    /// Whether the tool does not modify its environment. Without the hint: false.
    pub fn is_read_only(&self) -> bool {
        self.read_only.unwrap_or(false)
    }

    /// Whether the tool may delete or overwrite. Without the hint: true.
    pub fn is_destructive(&self) -> bool {
        self.destructive.unwrap_or(true)
    }

    /// Whether a repeated call has no further effect. Without the hint: false.
    pub fn is_idempotent(&self) -> bool {
        self.idempotent.unwrap_or(false)
    }

    /// Whether the tool talks to systems outside the operator's control. Without the hint: true.
    pub fn is_open_world(&self) -> bool {
        self.open_world.unwrap_or(true)
    }
}

/// How a tool's definition compares with the one that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// Equal to the first definition seen, or to the one that an operator accepted.
    Accepted,
    /// Different from the accepted definition, or not accepted at all, since the server has too
    /// many tools.
    Changed,
}
