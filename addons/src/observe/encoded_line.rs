//! Encodes audit lines as JSON, for the log and for live viewers.

use std::ops::Range;

use super::json::{beginning, excerpt, host, member, optional, socket_address};
use super::line::{AuditLine, Cost, McpLine};

/// The initial capacity in bytes, which suffices for most lines. A line can have 11 KiB: 9 KiB for
/// a path of 1 KiB and a policy's reason of 512 bytes, whose bytes may each become an escape of six
/// bytes, and 2 KiB for the other members.
const TYPICAL_LENGTH: usize = 512;

pub(super) struct EncodedLine {
    /// One JSON object without a line feed.
    pub(super) json: Vec<u8>,
    /// Offset of the first byte after `ts` and `flow`.
    key_start: usize,
    /// The bytes of `json` that hold the cost of the flow.
    cost: Range<usize>,
}

/// A line without its cost. Lines with equal keys can be folded.
pub(super) struct FoldableLine {
    /// `ts` and `flow`, which differ between flows.
    pub(super) head: Vec<u8>,
    /// The rest of the line.
    pub(super) key: Vec<u8>,
    /// Offset in `key` at which the cost is inserted.
    pub(super) cost_at: usize,
}

impl EncodedLine {
    pub(super) fn foldable(mut self) -> FoldableLine {
        self.json.drain(self.cost.clone());
        FoldableLine {
            key: self.json.split_off(self.key_start),
            head: self.json,
            cost_at: self.cost.start - self.key_start,
        }
    }
}

/// Bytes of the longest cost and count: four numbers with their keys.
const LONGEST_NUMBERS: usize = 129;

impl FoldableLine {
    /// Upper bound on the length of the line in bytes, with any cost and count.
    pub(super) fn max_length(&self) -> usize {
        self.head.len() + self.key.len() + LONGEST_NUMBERS
    }

    /// Encodes the line for `count` flows. `cost` has the sums of the flows' bytes, and the
    /// duration of the first flow.
    pub(super) fn encode(&self, cost: Cost, count: u64) -> Vec<u8> {
        let (before, after) = self.key.split_at(self.cost_at);
        let mut out = [&self.head, before].concat();
        cost.write(&mut out);
        out.extend_from_slice(after);
        if count > 1 {
            out.pop();
            member(&mut out, ",\"count\":", count);
            out.push(b'}');
        }
        out
    }
}

impl AuditLine<'_> {
    /// Encodes the line as a JSON object with the keys in the order of the log. Absent values have
    /// no key.
    pub(super) fn encode(&self) -> EncodedLine {
        let mut json = Vec::with_capacity(TYPICAL_LENGTH);
        let out = &mut json;
        beginning(out, self.ts, self.flow);
        let key_start = out.len();
        member(out, ",\"kind\":", self.kind.as_str());
        optional(out, ",\"container_id\":", self.container_id);
        optional(out, ",\"client\":", self.client);
        excerpt(out, ",\"method\":", self.method);
        host(out, ",\"host\":", self.host);
        member(out, ",\"port\":", self.port);
        excerpt(out, ",\"path\":", self.path);
        optional(out, ",\"status\":", self.status);
        member(out, ",\"outcome\":", self.outcome);
        optional(out, ",\"code\":", self.code);
        optional(out, ",\"addon\":", self.addon);
        optional(out, ",\"rule\":", self.rule);
        let cost_start = out.len();
        self.cost.write(out);
        let cost = cost_start..out.len();
        socket_address(out, ",\"upstream_addr\":", self.upstream_addr);
        optional(out, ",\"credential\":", self.credential);
        if let Some(mcp) = &self.mcp {
            mcp.write(out);
        }
        optional(out, ",\"approval\":", self.approval);
        optional(out, ",\"waited_ms\":", self.waited_ms);
        out.push(b'}');
        EncodedLine {
            json,
            key_start,
            cost,
        }
    }
}

impl McpLine<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        optional(out, ",\"server\":", self.server);
        excerpt(out, ",\"tool\":", self.tool);
        optional(out, ",\"args_sha256\":", self.args_sha256);
        optional(out, ",\"decision\":", self.decision);
        optional(out, ",\"reason\":", self.reason);
        if self.suspicious {
            member(out, ",\"suspicious\":", true);
        }
        optional(out, ",\"agent_id\":", self.agent_id);
        optional(out, ",\"request_id\":", self.request_id);
        optional(out, ",\"phase\":", self.phase);
    }
}

impl Cost {
    fn write(&self, out: &mut Vec<u8>) {
        member(out, ",\"bytes_in\":", self.bytes_in);
        member(out, ",\"bytes_out\":", self.bytes_out);
        member(out, ",\"duration_ms\":", self.duration_ms);
    }
}

#[cfg(test)]
mod tests;
