//! Questions that a person decides, and the answers to them.

use std::fmt;
use std::sync::Arc;

use serde_json::value::RawValue;
use thiserror::Error;

use super::container::ContainerId;
use super::lease_id::LeaseId;
use super::level::Level;
use crate::json::{Node, ObjectText, RawJsonError, canonical, sha256_hex};

/// Defines an id of 128 random bits, written as 32 lower-case hexadecimal digits.
macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u128);

        impl $name {
            /// Generates a new id; `None` if the system has no random numbers.
            #[must_use]
            pub fn generate() -> Option<Self> {
                let mut bits = [0; 16];
                aws_lc_rs::rand::fill(&mut bits).ok()?;
                Some(Self(u128::from_be_bytes(bits)))
            }

            /// Parses the form that `Display` writes; `None` for any other text.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                let id = Self(u128::from_str_radix(text, 16).ok()?);
                (id.to_string() == text).then_some(id)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

random_id! {
    /// Identifies a question across all containers, restarts and proxies.
    ApprovalId
}

random_id! {
    /// Identifies a grant across all containers, restarts and proxies.
    GrantId
}

/// What a person decides about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuestionKind {
    /// An MCP call, for which a policy decided `ask`.
    Tool,
    /// A request, for which one of the operator's rules has the effect `ask`.
    Request,
    /// A host that is on no allowlist.
    Host,
    /// A tool's definition that has changed.
    Definition,
    /// A policy that an agent proposes.
    Policy,
}

impl QuestionKind {
    /// Every kind.
    pub const ALL: [Self; 5] = [
        Self::Tool,
        Self::Request,
        Self::Host,
        Self::Definition,
        Self::Policy,
    ];

    /// `tool`, `request`, `host`, `definition` or `policy`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Request => "request",
            Self::Host => "host",
            Self::Definition => "definition",
            Self::Policy => "policy",
        }
    }

    /// Parses the form of [`as_str`](Self::as_str); `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// What a question is about, without its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// The lease whose flow asks.
    pub lease: LeaseId,
    /// The container of the lease.
    pub container: ContainerId,
    /// What is decided.
    pub kind: QuestionKind,
    /// The MCP server, for a tool or a definition.
    pub server: Option<Box<str>>,
    /// The object of the decision in its normal form, compared byte by byte: a tool's original
    /// name; `host:port`; method, host, port and path of a request.
    pub subject: Box<str>,
    /// The rule or policy that asks.
    pub rule: Option<Box<str>>,
    /// The reason that the rule or policy gives.
    pub reason: Option<Box<str>>,
    /// The container's security level, up to which an approval holds.
    pub level: Level,
    /// The revision of the rules that ask. An approval under other rules is none.
    pub revision: Box<str>,
}

impl Topic {
    /// The number of bytes of all texts that a flow or a rule chose.
    pub fn size(&self) -> usize {
        let optional = [&self.server, &self.rule, &self.reason];
        let texts = optional.into_iter().flatten();
        let texts = texts.chain([&self.subject, &self.revision]);
        texts.map(|text| text.len()).sum()
    }
}

/// A question to a person. Immutable, with owned data, so that it can outlive its flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    topic: Topic,
    arguments: Option<String>,
    digest: String,
}

impl Question {
    /// Makes a question. Brings the arguments into their canonical form (RFC 8785). Refuses
    /// arguments with a duplicate key or too many levels.
    pub fn new(topic: Topic, arguments: Option<&RawValue>) -> Result<Self, RawJsonError> {
        let arguments = arguments.map(|json| Node::read(json).map(|node| canonical(&node)));
        let arguments = arguments.transpose()?;
        let digest = digest(&topic, arguments.as_deref());
        Ok(Self {
            topic,
            arguments,
            digest,
        })
    }

    /// What the question is about.
    pub fn topic(&self) -> &Topic {
        &self.topic
    }

    /// The arguments in their canonical form.
    pub fn arguments(&self) -> Option<&str> {
        self.arguments.as_deref()
    }

    /// SHA-256 in hexadecimal, equal for two questions exactly if lease, kind, server, subject,
    /// arguments and revision are equal. Rule, reason and level do not count.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

/// The SHA-256 of the canonical form of an object. An absent server or absent arguments are absent
/// members, so that they differ from an empty text and from `null`.
fn digest(topic: &Topic, arguments: Option<&str>) -> String {
    // In the order of RFC 8785, which sorts the keys.
    let mut object = ObjectText::default();
    if let Some(arguments) = arguments {
        object.member("arguments", arguments);
    }
    object.text("kind", topic.kind.as_str());
    object.text("lease", &topic.lease.to_string());
    object.text("revision", &topic.revision);
    if let Some(server) = &topic.server {
        object.text("server", server);
    }
    object.text("subject", &topic.subject);
    sha256_hex(&object.end())
}

/// The answer to a question at the time when it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalAnswer {
    /// A grant answers it. The grant must be used before anything is sent: it may be for one
    /// execution, and another caller may be faster.
    Granted {
        /// The grant.
        grant: GrantId,
        /// The question from which it came; `None` if an operator gave it without one.
        approval: Option<ApprovalId>,
    },
    /// A person denied it.
    Denied {
        /// The question that was denied.
        approval: ApprovalId,
        /// The person's words for the agent.
        words: Option<Arc<str>>,
    },
    /// It waits for a person.
    Open(ApprovalId),
    /// It was approved for one execution, and another caller got that: ask again.
    Used,
    /// It cannot be kept.
    Full(QuestionLimit),
}

/// The result of waiting for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalOutcome {
    /// See [`ApprovalAnswer::Granted`].
    Granted(GrantId),
    /// See [`ApprovalAnswer::Denied`].
    Denied(Option<Arc<str>>),
    /// Another caller got the approval, which was for one execution: ask again.
    Used,
    /// Nobody decided in time, or the rules that asked have changed.
    Expired,
    /// The lease ended.
    Ended,
}

/// The limit that a new question exceeds.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum QuestionLimit {
    /// The container has too many open questions.
    #[error("the container has as many open questions as it may have")]
    Container,
    /// All containers together have too many open questions.
    #[error("all containers together have as many open questions as they may have")]
    All,
    /// The container asked too many new questions within a minute.
    #[error("the container has asked too many new questions within a minute")]
    Rate,
    /// The texts of the question are too long.
    #[error("the question is too long for a person to be asked")]
    TooLong,
    /// The texts of all open questions are too long.
    #[error("the texts of the open questions take as much space as they may take")]
    Space,
}

#[cfg(test)]
mod tests;
