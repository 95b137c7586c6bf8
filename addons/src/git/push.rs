//! The body of a push: its commands are held until they are judged, its pack streams on.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;

use super::commands::{Command, Commands};
use super::pkt_line::{self, Frame};
use super::report::report;
use super::{refs, size};
use crate::contract::{BodyFilter, BodyOut, Code, Denial, Verdict};

/// The most that commands may take, and so the most of a push that is ever held.
const MAX_COMMANDS: usize = 1 << 20;

const BRANCHES: &str = "refs/heads/";

/// What one push may do.
pub(super) struct PushRules {
    /// Below which it must stay; `None` in user mode.
    pub only_below: Option<Arc<[String]>>,
    pub allow_deletion: bool,
    /// In bytes, the commands included.
    pub limit: u64,
    /// Where the limit was set.
    pub limit_rule: String,
    /// Whether git is told of a denial in its own protocol.
    pub report: bool,
}

impl PushRules {
    fn judge(&self, command: &Command) -> Verdict {
        if command.deletes && !self.allow_deletion {
            let sentence = format!("Branch deletion blocked: {}", command.shown());
            return Err(Denial::new(Code::BranchDeletionBlocked, sentence)
                .rule("policy.allow_branch_deletion")
                .hint("set policy.allow_branch_deletion: true in policy.yaml"));
        }
        if let Some(prefixes) = &self.only_below {
            let below = |prefix: &String| command.name.starts_with(prefix.as_bytes());
            if !prefixes.iter().any(below) {
                return Err(bot_denied(prefixes));
            }
        }
        if !refs::is_writable(&command.name) {
            let sentence = format!("Write not allowed: push to {}", command.shown());
            return Err(Denial::new(Code::WriteNotAllowed, sentence)
                .with("allowed", refs::NAMESPACES.to_vec())
                .rule("writable refs"));
        }
        Ok(())
    }

    /// Every command must pass: a push is denied whole, so that what reaches the forge is what
    /// was asked for.
    fn judge_all(&self, commands: &Commands) -> Verdict {
        commands.refuse_options()?;
        commands.list.iter().try_for_each(|one| self.judge(one))
    }

    pub fn too_large(&self, size: u64) -> Denial {
        size::too_large(size, self.limit).rule(self.limit_rule.as_str())
    }

    fn reported(&self, denial: Denial, commands: &Commands) -> Denial {
        if !self.report {
            return denial;
        }
        let advice = match denial.code() {
            Code::PushTooLarge => &size::OPTIONS[..],
            _ => &[],
        };
        report(denial, commands, advice, DRAIN_BYTES)
    }
}

fn bot_denied(prefixes: &[String]) -> Denial {
    let below = |prefix: &String| format!("{}*", prefix.strip_prefix(BRANCHES).unwrap_or(prefix));
    let below: Vec<_> = prefixes.iter().map(below).collect();
    let sentence = match below.as_slice() {
        [] => "Bot mode: can push to no branches".to_owned(),
        some => format!("Bot mode: can only push to {} branches", some.join(", ")),
    };
    Denial::new(Code::BotBranchRestricted, sentence)
        .rule("git.bot_branch_prefixes")
        .hint("register the container with auth_mode \"user\", or add a prefix under git.bot_branch_prefixes in policy.yaml")
}

/// Judges the commands of a push before a byte of it goes out, and counts the rest.
pub(super) struct PushBody {
    rules: PushRules,
    announced: Option<u64>,
    commands: Commands,
    held: BytesMut,
    /// How much of what is held has been read.
    read: usize,
    size: u64,
    state: State,
}

/// What is still read of a denied push: git hears no answer before it has sent all, so this is as
/// much as the largest limit that a registration may have.
pub(super) const DRAIN_BYTES: u64 = 500 * 1024 * 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Commands,
    /// A probe, which asks only whether a push would be taken: nothing may follow.
    Probe,
    Pack,
}

impl PushBody {
    pub fn new(rules: PushRules, announced: Option<u64>) -> Self {
        Self {
            rules,
            announced,
            commands: Commands::default(),
            held: BytesMut::new(),
            read: 0,
            size: 0,
            state: State::Commands,
        }
    }

    fn pass(&mut self, chunk: Bytes, out: &mut BodyOut) -> Verdict {
        self.size += chunk.len() as u64;
        if self.state == State::Commands {
            self.held.extend_from_slice(&chunk);
            self.read_commands()?;
            if self.state == State::Commands {
                return Ok(());
            }
            self.judge()?;
            self.check_size()?;
            out.push(self.held.split().freeze());
            return Ok(());
        }
        self.check_size()?;
        out.push(chunk);
        Ok(())
    }

    /// Reads as many lines as have arrived, to the end of the list at most.
    fn read_commands(&mut self) -> Verdict {
        loop {
            let unread = self.held.get(self.read..).unwrap_or_default();
            let Some(frame) = pkt_line::header(unread)? else {
                return Ok(());
            };
            let length = match frame {
                Frame::Flush => pkt_line::HEADER,
                Frame::Line(length) => length,
            };
            // By what is announced, so that it does not matter how much has arrived.
            if self.read + length > MAX_COMMANDS {
                let sentence = "Push commands of more than 1 MiB: push fewer refs at once";
                return Err(Denial::new(Code::BodyTooLargeToInspect, sentence));
            }
            if frame == Frame::Flush {
                self.read += length;
                self.state = match self.commands.list.as_slice() {
                    [] => State::Probe,
                    _ => State::Pack,
                };
                return Ok(());
            }
            let Some(line) = unread.get(pkt_line::HEADER..length) else {
                return Ok(());
            };
            self.commands.read(line)?;
            self.read += length;
        }
    }

    fn judge(&self) -> Verdict {
        let ill_formed = |one: &&Command| !refs::is_well_formed(&one.name);
        if let Some(command) = self.commands.list.iter().find(ill_formed) {
            let what = format!("{:?} is no name for a ref", command.shown());
            return Err(Denial::malformed(what).rule("ref names"));
        }
        let judged = self.rules.judge_all(&self.commands);
        judged.map_err(|denial| self.rules.reported(denial, &self.commands))
    }

    fn check_size(&self) -> Verdict {
        if self.state == State::Probe && self.size > self.read as u64 {
            return Err(Denial::malformed("something follows a push of nothing"));
        }
        let size = self.announced.unwrap_or_default().max(self.size);
        if size > self.rules.limit {
            let denial = self.rules.too_large(size);
            return Err(self.rules.reported(denial, &self.commands));
        }
        Ok(())
    }
}

impl BodyFilter for PushBody {
    fn chunk(&mut self, chunk: Bytes, out: &mut BodyOut) -> Verdict {
        self.pass(chunk, out).map_err(|denial| denial.by("git"))
    }

    fn end(&mut self, _out: &mut BodyOut, _trailers: Option<&mut HeaderMap>) -> Verdict {
        if self.state == State::Commands {
            let what = "the push ended before its commands did";
            return Err(Denial::malformed(what).by("git"));
        }
        Ok(())
    }
}
