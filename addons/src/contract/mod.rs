//! The contract between the engine and the addons.
//!
//! A flow begins at a listener, or in the appliance itself, and passes the [`Chain`] phase by
//! phase. If no addon denies the flow, the chain issues the permit that the next step needs: to
//! resolve a host, to connect, or to send an MCP message. Phases that judge responses issue none.
//! Addons get hosts and paths in normal form, and never open a socket.

mod addon;
mod approval;
mod asked;
mod body;
mod chain;
mod container;
mod definition;
mod denial;
mod effect;
mod endpoint;
mod entry;
mod facts;
mod flow;
mod host;
mod identify;
mod intercept;
mod judge;
mod learned;
mod lease_id;
mod ledger;
mod level;
mod live;
mod mcp;
mod message;
pub mod names;
mod order;
mod outcome;
mod path;
mod permit;
mod policy_input;
mod ports;
mod principal;
mod record;
mod refused_hosts;
pub mod settings;
mod target;
mod type_map;
mod url_secrets;
mod waits;

pub use addon::{Addon, Order, Step};
pub use approval::{
    ApprovalAnswer, ApprovalId, ApprovalOutcome, GrantId, Question, QuestionKind, QuestionLimit,
    Topic,
};
pub use asked::{ApprovalRecord, Executing};
pub use body::{BodyFilter, BodyOut, BoxFuture, MessageFilter};
pub use chain::Chain;
pub use container::{AuthMode, Container, ContainerId, Registration, Repo, Source, TOKEN_AGENT};
pub use definition::{Annotations, Definition, HeldMemory, Pin};
pub use denial::{Answer, Code, Denial, Fault, Stage, Verdict};
pub use effect::Effect;
pub use endpoint::{Endpoint, Scheme};
pub use entry::{
    Allowlist, Entry, EntryMap, HostMap, HostPattern, HostSet, Origin, PatternError, is_public_name,
};
pub use facts::{Anonymous, ApiCall, Lookup, McpSession, RestsOnGrant};
pub use flow::{Flow, FlowId, FlowStart, GATEWAY, Kind, OwnedFlow, Subject};
pub use host::{Authority, AuthorityError, Host, fold_address};
pub use identify::{Identified, Identify};
pub use intercept::{
    CLAUDE_CODE, Handover, INTERCEPTOR, Intercept, PolicyMetadata, RedactedArguments,
    RedactedOutcome, SpanParent,
};
pub use judge::{BodyJudge, Buffered, InspectionBudget, Judges, run_on};
pub use learned::{Learned, LearnedHost};
pub use lease_id::LeaseId;
pub use ledger::{ApprovalLedger, GRANTED, LiveGrant, NoLedger};
pub use level::{Level, Standing};
pub use live::LiveFlow;
pub use mcp::{
    CallPermit, Direction, Frame, FrameBody, FrameKind, McpPhase, McpRecord, McpSubject, RpcError,
    RpcOutcome,
};
pub use message::{DnsAnswer, DnsQuery, Request, Response};
pub use order::{Link, OrderError};
pub use outcome::Outcome;
pub use path::{Ambiguity, Path};
pub use permit::{Addresses, Permit, ResolvePermit};
pub use policy_input::PolicyInput;
pub use ports::{
    AcceptedDefinitions, Containers, Decision, Decisions, Definitions, Evaluation, Evaluator,
    EvaluatorError, FileLock, FileVersion, LeaseRecords, ListedDefinition, NoDefinitions, Outbound,
    OutboundError, OwnAddresses, Replacement, SecretFiles, SecretSource, SecretText, SystemPorts,
    Tasks, Unavailable,
};
pub use principal::{Client, Delegation, LeaseHandle, Principal, System};
pub use record::{Counters, Note, Record};
pub use refused_hosts::RefusedHosts;
pub use target::McpTarget;
pub use url_secrets::UrlSecrets;
pub use waits::Room;
