//! Encodes audit lines as JSON, for the log and for live viewers.

use std::ops::Range;

use super::json::{address, beginning, excerpt, host, number, socket_address, text, word};
use super::line::{AuditLine, Cost, McpLine};

/// The initial capacity in bytes, which suffices for most lines. A line has at most 11 KiB besides
/// the operator's own names: a path of 1 KiB and a policy's reason of 512 bytes, in which an escape
/// may take six bytes for each; no other member that a client or a server chooses is long.
const TYPICAL_LENGTH: usize = 512;

/// The JSON of a line.
pub(super) struct EncodedLine {
    json: Vec<u8>,
    /// Offset of the first byte after `ts` and `flow`; two lines that are equal from here on can be
    /// folded.
    fold_start: usize,
    /// The bytes that hold the cost of the flow.
    cost_at: Range<usize>,
}

/// A line split into the parts that differ between flows and the rest, which is the key for
/// folding.
pub(super) struct FoldKey {
    /// `ts` and `flow`.
    pub(super) head: Vec<u8>,
    /// The rest of the line without its cost: equal for lines that can be folded.
    pub(super) rest: Vec<u8>,
    /// Offset in `rest` at which the cost is inserted.
    pub(super) cost_at: usize,
}

impl EncodedLine {
    /// One JSON object without a line feed.
    pub(super) fn json(&self) -> &[u8] {
        &self.json
    }

    pub(super) fn into_json(self) -> Vec<u8> {
        self.json
    }

    pub(super) fn fold_key(mut self) -> FoldKey {
        self.json.drain(self.cost_at.clone());
        FoldKey {
            rest: self.json.split_off(self.fold_start),
            head: self.json,
            cost_at: self.cost_at.start - self.fold_start,
        }
    }
}

/// Bytes of the longest cost and count: four numbers with their keys.
const LONGEST_NUMBERS: usize = 129;

impl FoldKey {
    /// The most bytes of the line with any cost and count.
    pub(super) fn longest(&self) -> usize {
        self.head.len() + self.rest.len() + LONGEST_NUMBERS
    }

    /// Encodes the line for `count` flows with the given cost in total.
    pub(super) fn encode(&self, cost: Cost, count: u64) -> Vec<u8> {
        let (before, after) = self.rest.split_at(self.cost_at);
        let mut out = [&self.head, before].concat();
        cost.write(&mut out);
        out.extend_from_slice(after);
        if count > 1 {
            out.pop();
            out.extend_from_slice(b",\"count\":");
            number(&mut out, count);
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
        out.extend_from_slice(&beginning(self.ts, self.flow.number()));
        let fold_start = out.len();
        self.write_request(out);
        self.write_outcome(out);
        let cost_start = out.len();
        self.cost.write(out);
        let cost_at = cost_start..out.len();
        self.write_upstream(out);
        out.push(b'}');
        EncodedLine {
            json,
            fold_start,
            cost_at,
        }
    }

    /// Appends the client and the request.
    fn write_request(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\"kind\":");
        word(out, self.kind.as_str());
        if let Some(id) = self.container_id {
            out.extend_from_slice(b",\"container_id\":");
            word(out, id);
        }
        if let Some(client) = self.client {
            out.extend_from_slice(b",\"client\":\"");
            address(out, client);
            out.push(b'"');
        }
        if let Some(method) = self.method {
            out.extend_from_slice(b",\"method\":");
            excerpt(out, method);
        }
        out.extend_from_slice(b",\"host\":");
        host(out, self.host);
        out.extend_from_slice(b",\"port\":");
        number(out, self.port.into());
        if let Some(path) = self.path {
            out.extend_from_slice(b",\"path\":");
            excerpt(out, path);
        }
    }

    /// Appends the outcome and the rule that decided.
    fn write_outcome(&self, out: &mut Vec<u8>) {
        if let Some(status) = self.status {
            out.extend_from_slice(b",\"status\":");
            number(out, status.into());
        }
        out.extend_from_slice(b",\"outcome\":");
        word(out, self.outcome);
        if let Some(code) = self.code {
            out.extend_from_slice(b",\"code\":");
            word(out, code);
        }
        if let Some(addon) = self.addon {
            out.extend_from_slice(b",\"addon\":");
            word(out, addon);
        }
        if let Some(rule) = self.rule {
            out.extend_from_slice(b",\"rule\":");
            text(out, rule);
        }
    }

    /// Appends the upstream, the credential, and the facts of an MCP message.
    fn write_upstream(&self, out: &mut Vec<u8>) {
        if let Some(upstream) = self.upstream_addr {
            out.extend_from_slice(b",\"upstream_addr\":\"");
            socket_address(out, upstream);
            out.push(b'"');
        }
        if let Some(credential) = self.credential {
            out.extend_from_slice(b",\"credential\":");
            text(out, credential);
        }
        if let Some(mcp) = &self.mcp {
            mcp.write(out);
        }
    }
}

impl McpLine<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        if let Some(server) = self.server {
            out.extend_from_slice(b",\"server\":");
            text(out, server);
        }
        if let Some(tool) = self.tool {
            out.extend_from_slice(b",\"tool\":");
            excerpt(out, tool);
        }
        if let Some(hash) = self.args_sha256 {
            out.extend_from_slice(b",\"args_sha256\":");
            word(out, hash);
        }
        if let Some(decision) = self.decision {
            out.extend_from_slice(b",\"decision\":");
            word(out, decision);
        }
        if let Some(reason) = self.reason {
            out.extend_from_slice(b",\"reason\":");
            text(out, reason);
        }
        if self.suspicious {
            out.extend_from_slice(b",\"suspicious\":true");
        }
    }
}

impl Cost {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"bytes_in\":");
        number(out, self.bytes_in);
        out.extend_from_slice(b",\"bytes_out\":");
        number(out, self.bytes_out);
        out.extend_from_slice(b",\"duration_ms\":");
        number(out, self.duration_ms);
    }
}

#[cfg(test)]
mod tests;
