//! Judges the body of a push: its commands are buffered and judged; its pack passes as it arrives.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;

use super::commands::{Command, Commands};
use super::pkt_line::{self, Frame};
use super::refs;
use super::report::report;
use super::size::{self, Limit};
use crate::contract::{
    BodyFilter, BodyJudge, BodyOut, BoxFuture, Buffered, Code, Denial, Flow, Request, Verdict,
    names,
};

/// Limit on the bytes of commands. It bounds the part of a push that is buffered.
pub(super) const MAX_COMMANDS: usize = 1 << 20;

/// The longest beginning of a push, in bytes, that is kept while a pack of unknown length streams.
/// The beginning holds the commands, which a report needs. Commands for about 600 refs with names
/// of 20 bytes fit. The limit bounds the memory of slow pushes. After a longer beginning, a pack
/// that becomes too large is denied without a report.
const KEPT_FOR_REPORT: usize = 64 * 1024;

const BRANCHES: &str = "refs/heads/";

pub(super) struct PushRules {
    /// The repository, for denials.
    pub repo: String,
    /// The prefixes that bot mode restricts refs to; `None` in user mode.
    pub ref_prefixes: Option<Arc<[String]>>,
    pub allow_deletion: bool,
    /// The size limit, commands included.
    pub limit: Limit,
    /// Whether a denial is rendered as git's own report instead of an HTTP status.
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
        if let Some(prefixes) = &self.ref_prefixes {
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

    /// Judges every command. One denied command denies the whole push, so that the forge receives
    /// exactly the push that the client sent, or nothing.
    fn judge_all(&self, commands: &Commands) -> Verdict {
        let options = commands.refuse_options();
        let judged =
            options.and_then(|()| commands.list.iter().try_for_each(|one| self.judge(one)));
        judged.map_err(|denial| denial.with("repo", self.repo.as_str()))
    }

    /// Renders the denial as git's report, if that is configured and the client requested reports.
    /// The report uses the memory budget of `body`, which holds the commands. If the budget is used
    /// up, the client gets the denial with its HTTP status.
    fn reported(&self, denial: Denial, commands: &Commands, body: &Buffered) -> Denial {
        if !self.report {
            return denial;
        }
        let advice = match denial.code() {
            Code::PushTooLarge => &size::OPTIONS[..],
            _ => &[],
        };
        report(denial, commands, advice, body)
    }
}

fn bot_denied(prefixes: &[String]) -> Denial {
    let below = |prefix: &String| format!("{}*", prefix.strip_prefix(BRANCHES).unwrap_or(prefix));
    let below: Vec<_> = prefixes.iter().map(below).collect();
    let sentence = match below.as_slice() {
        [] => "Bot mode: cannot push to any branch".to_owned(),
        some => format!("Bot mode: can only push to {} branches", some.join(", ")),
    };
    Denial::new(Code::BotBranchRestricted, sentence)
        .rule("git.bot_branch_prefixes")
        .hint("register the container with auth_mode \"user\", or add a prefix under git.bot_branch_prefixes in policy.yaml")
}

/// Judges the commands of a push before a byte of it is sent.
pub(super) struct JudgePush {
    rules: PushRules,
    /// The request's `Content-Length`.
    announced: Option<u64>,
    list: CommandList,
}

/// The commands read so far.
#[derive(Default)]
struct CommandList {
    commands: Commands,
    /// Bytes parsed.
    read: usize,
    /// Whether the flush packet that ends the list has been read.
    complete: bool,
}

impl CommandList {
    /// Parses the complete lines up to the end of the list. `beginning` is all of the body so far,
    /// including the bytes that were parsed before.
    fn read(&mut self, beginning: &[u8]) -> Verdict {
        while !self.complete {
            let unread = beginning.get(self.read..).unwrap_or_default();
            let Some(frame) = pkt_line::header(unread)? else {
                return Ok(());
            };
            let length = match frame {
                Frame::Flush => pkt_line::HEADER,
                Frame::Line(length) => length,
            };
            // The length in the frame's header is judged, so that the verdict does not depend on
            // how much of the line has arrived.
            if self.read + length > MAX_COMMANDS {
                let sentence = "Push commands of more than 1 MiB: push fewer refs at once";
                return Err(Denial::new(Code::BodyTooLargeToInspect, sentence)
                    .with("limit", "inspect_body_bytes")
                    .with("limit_bytes", MAX_COMMANDS));
            }
            if frame == Frame::Flush {
                self.complete = true;
            } else {
                let Some(line) = unread.get(pkt_line::HEADER..length) else {
                    return Ok(());
                };
                self.commands.read(line)?;
            }
            self.read += length;
        }
        Ok(())
    }
}

impl JudgePush {
    pub fn new(rules: PushRules, announced: Option<u64>) -> Self {
        Self {
            rules,
            announced,
            list: CommandList::default(),
        }
    }

    /// Judges the commands, and returns the filter for the rest of the push.
    fn pack(self, body: &Buffered) -> Result<Pack, Denial> {
        let (rules, announced, list) = (self.rules, self.announced, self.list);
        if !list.complete {
            return Err(Denial::malformed("the push ended before its commands did"));
        }
        let ill_formed = |one: &&Command| !refs::is_well_formed(&one.name);
        if let Some(command) = list.commands.list.iter().find(ill_formed) {
            let what = format!("{:?} is not a valid ref name", command.shown());
            return Err(Denial::malformed(what).rule("ref names"));
        }
        let judged = rules.judge_all(&list.commands);
        judged.map_err(|denial| rules.reported(denial, &list.commands, body))?;
        // Git sends a push without commands before a large push, to test whether the server accepts
        // the request.
        let is_probe = list.commands.list.is_empty();
        let mut pack = Pack {
            probe: is_probe.then_some(list.read as u64),
            beginning: Some(body.clone()),
            rules,
            announced,
            size: 0,
        };
        pack.check(body.bytes().len() as u64)?;
        // The commands are kept only for the report on a pack that becomes too large. A pack of
        // announced length cannot become too large, since its length has been judged already. A
        // long beginning is dropped, since it would occupy memory until the pack has ended.
        if announced.is_some() || body.bytes().len() > KEPT_FOR_REPORT {
            pack.beginning = None;
        }
        Ok(pack)
    }
}

impl BodyJudge<Request> for JudgePush {
    fn addon(&self) -> &'static str {
        names::GIT
    }

    fn may_judge_beginning(&self) -> bool {
        true
    }

    fn has_enough(&mut self, beginning: &[u8]) -> Result<bool, Denial> {
        self.list.read(beginning)?;
        Ok(self.list.complete)
    }

    fn judge<'a>(
        self: Box<Self>,
        _flow: &'a mut Flow,
        head: &'a mut Request,
        body: Buffered,
    ) -> BoxFuture<'a, Result<Bytes, Denial>> {
        Box::pin(async move {
            let pack = body.inspect(move |body| self.pack(body)).await?;
            head.push_filter(pack);
            Ok(body.bytes().clone())
        })
    }
}

/// Enforces the size limit while a push streams. The bytes of the commands count towards the limit.
struct Pack {
    rules: PushRules,
    announced: Option<u64>,
    /// Bytes that have passed.
    size: u64,
    /// The length of a push without commands, after which nothing may follow; `None` for others.
    probe: Option<u64>,
    /// The beginning with the commands, if it is kept for the report on a pack that becomes too
    /// large.
    beginning: Option<Buffered>,
}

impl Pack {
    /// Denies the push if its `size`, the number of bytes that have arrived, exceeds the limit, or
    /// if data follows an empty list of commands.
    fn check(&self, size: u64) -> Verdict {
        if self.probe.is_some_and(|length| size > length) {
            return Err(Denial::malformed("data follows a push without commands"));
        }
        let size = self.announced.unwrap_or_default().max(size);
        if size <= self.rules.limit.bytes {
            return Ok(());
        }
        let denial = self.rules.limit.too_large(size);
        let Some(beginning) = &self.beginning else {
            return Err(denial);
        };
        let mut list = CommandList::default();
        list.read(beginning.bytes())?;
        Err(self.rules.reported(denial, &list.commands, beginning))
    }
}

impl BodyFilter for Pack {
    fn chunk(&mut self, chunk: Bytes, out: &mut BodyOut) -> Verdict {
        self.size += chunk.len() as u64;
        self.check(self.size)
            .map_err(|denial| denial.by(names::GIT))?;
        out.push(chunk);
        Ok(())
    }

    fn end(&mut self, _out: &mut BodyOut, _trailers: Option<&mut HeaderMap>) -> Verdict {
        Ok(())
    }
}
