//! Denials: why a flow was refused, one type for all ingresses.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value};

use super::container::Source;

/// A hook's result: pass, or a [`Denial`] that ends the flow.
pub type Verdict = Result<(), Denial>;

/// Who caused a denial. The outcome of the flow is `denied` for `Policy` and `Client`, and `failed`
/// for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A rule or a limit denied.
    Policy,
    /// The client violated a protocol.
    Client,
    /// The upstream could not be reached, or failed.
    Upstream,
    /// The appliance failed.
    Us,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal, $status:literal, $fault:ident;)*) => {
        /// The stable machine-readable reason of a denial.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code { $($(#[$doc])* $variant,)* }

        impl Code {
            /// Every code, for documents and tests that must cover all of them.
            pub const ALL: &'static [Code] = &[$(Code::$variant,)*];

            /// The code on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$variant => $text,)* }
            }

            /// The HTTP status of the code.
            pub const fn status(self) -> u16 {
                match self { $(Code::$variant => $status,)* }
            }

            /// Who caused the denial.
            pub const fn fault(self) -> Fault {
                match self { $(Code::$variant => Fault::$fault,)* }
            }
        }
    };
}

codes! {
    /// The peer's address is unknown.
    ClientAddressUnknown = "client_address_unknown", 403, Policy;
    /// No container is registered at the peer's address, or the lease of its connection has ended. Also:
    /// a person's token is not accepted.
    UnknownSource = "unknown_source", 403, Policy;
    /// `X-Container-Id` names another container.
    ContainerIdMismatch = "container_id_mismatch", 403, Policy;
    /// The lease has expired.
    RegistrationExpired = "registration_expired", 403, Policy;
    /// The registry, or a record that must survive a restart, cannot be read or written.
    RegistryUnavailable = "registry_unavailable", 503, Us;
    /// One of:
    /// - A budget of requests, tunnels, DNS questions, distinct names or certificates is spent.
    /// - Too many flows or DNS questions wait.
    /// - Too many MCP requests, sessions or streams are open.
    RateLimited = "rate_limited", 429, Policy;
    /// A cap on connections is reached.
    TooManyConnections = "too_many_connections", 429, Policy;
    /// The upstream failed too often lately.
    CircuitOpen = "circuit_open", 503, Upstream;
    /// One of:
    /// - The host is not on the allowlist, or not on the container's own list.
    /// - An MCP server, or another part of the proxy, sends a request to a host and port that are
    ///   not on its own list, or sends a request in clear text without `trust_private`.
    /// - A request to the MCP gateway has a `Host` or `Origin` that is not the gateway's.
    DomainNotAllowed = "domain_not_allowed", 403, Policy;
    /// One of:
    /// - The host has no address that may be dialled.
    /// - The host is an address literal that is not on the allowlist.
    /// - Secrets would be sent to a public address in clear text.
    AddressNotAllowed = "address_not_allowed", 403, Policy;
    /// The allowlist entry does not list the port.
    PortNotAllowed = "port_not_allowed", 403, Policy;
    /// TRACE, TRACK, CONNECT in a tunnel, an unknown method, or a method that the requested
    /// endpoint of the proxy does not have.
    MethodNotAllowed = "method_not_allowed", 405, Policy;
    /// The allowlist entry has `websocket: false`. Clients fall back to plain HTTP on this status.
    WebsocketNotAllowed = "websocket_not_allowed", 426, Policy;
    /// The client sent a TLS alert about the proxy's certificate, or closed the connection in the
    /// handshake or right after it. Most likely the client does not trust the proxy's CA. The audit
    /// has no status for the flow, since no response is sent.
    ClientRejectedCertificate = "client_rejected_certificate", 0, Client;
    /// The container's security level is above the `max_level` of the allowlist entry.
    LevelExceeded = "level_exceeded", 403, Policy;
    /// A rule of `policy.rules` denied.
    RuleDenied = "rule_denied", 403, Policy;
    /// A person must approve the host or the request, and has not decided yet.
    ApprovalPending = "approval_pending", 403, Policy;
    /// A person denied the host or the request.
    ApprovalRejected = "approval_rejected", 403, Policy;
    /// `Host`, `:authority` or the TLS server name differs from the destination of the tunnel or
    /// request.
    HostMismatch = "host_mismatch", 421, Client;
    /// A tunnel contains a protocol other than TLS and HTTP/1, or a tunnel to a passthrough host
    /// contains a protocol other than TLS. Also: a request asks to upgrade to a protocol other than
    /// WebSocket.
    ProtocolNotAllowed = "protocol_not_allowed", 403, Policy;
    /// A blocked API call.
    ApiBlocked = "api_blocked", 403, Policy;
    /// A write outside the allowlist of writes, a push to a ref that no push may write, a signed
    /// push, or a push with push options.
    WriteNotAllowed = "write_not_allowed", 403, Policy;
    /// A repository outside the container's list, or a request that names no repository.
    RepoNotAuthorized = "repo_not_authorized", 403, Policy;
    /// A push deletes a ref, such as a branch or a tag.
    BranchDeletionBlocked = "branch_deletion_blocked", 403, Policy;
    /// A bot pushes to a ref that begins with none of `git.bot_branch_prefixes`.
    BotBranchRestricted = "bot_branch_restricted", 403, Policy;
    /// A push, or an LFS file, is over its limit.
    PushTooLarge = "push_too_large", 413, Policy;
    /// A body exceeds a limit on bytes, JSON values or refs. The limits apply to bodies that the
    /// proxy must judge, and to bodies of requests to the proxy's own endpoints.
    BodyTooLargeToInspect = "body_too_large_to_inspect", 413, Policy;
    /// The memory for buffered bodies is used up, or no thread is free to parse a body.
    InspectionBusy = "inspection_busy", 503, Policy;
    /// A buffered request body was not complete in time.
    BodyTimeout = "body_timeout", 408, Client;
    /// A content encoding that cannot be inspected, or a media type that an endpoint of the proxy
    /// does not accept.
    UnsupportedEncoding = "unsupported_encoding", 415, Policy;
    /// The request is malformed or ambiguous.
    MalformedRequest = "malformed_request", 400, Client;
    /// A secret could not be read, or a token could not be fetched or refreshed.
    CredentialUnavailable = "credential_unavailable", 502, Us;
    /// A placeholder in a request to which no secret is added.
    CredentialMisuse = "credential_misuse", 403, Policy;
    /// The upstream could not be resolved or connected to, closed the connection early, or sent a
    /// response that cannot be used.
    UpstreamUnreachable = "upstream_unreachable", 502, Upstream;
    /// The upstream took too long.
    UpstreamTimeout = "upstream_timeout", 504, Upstream;
    /// The TLS handshake with the upstream failed, the proxy rejected its certificate, or the
    /// upstream does not speak the HTTP version that the request needs.
    UpstreamTls = "upstream_tls", 502, Upstream;
    /// The container's abort latch denies the message, or a policy denied the message and set the
    /// latch.
    PolicyDenied = "policy_denied", 403, Policy;
    /// An MCP message is denied. The denial does not set the abort latch, so it does not affect
    /// other messages. One of:
    /// - A policy denied the message.
    /// - The message needs approval, and no person approved it.
    /// - The container's security level forbids the message.
    /// - The definition of the tool changed.
    /// - The security level or the abort latch changed before the message was sent once more.
    PolicyDeniedContinue = "policy_denied_continue", 403, Policy;
    /// An MCP server responded with an error that is reserved for the proxy's own denials.
    PolicyBackendReservedMisuse = "policy_backend_reserved_misuse", 502, Upstream;
    /// A policy could not be evaluated, or not in time.
    PolicyEvaluatorError = "policy_evaluator_error", 500, Us;
    /// No MCP server that is mounted for the container has a tool, prompt or resource of this name.
    ToolNotFound = "tool_not_found", 404, Client;
    /// The MCP server cannot be started or reached, has ended, or is busy.
    ToolUnavailable = "tool_unavailable", 503, Upstream;
    /// The MCP server did not respond within its `timeout`.
    ToolTimeout = "tool_timeout", 504, Upstream;
    /// This version does not implement the requested function.
    NotImplemented = "not_implemented", 501, Us;
    /// The appliance failed.
    InternalError = "internal_error", 500, Us;
}

/// A response in the client's own protocol, for clients that would discard the denial's status and
/// JSON. Audit and metrics still record the denial's status, except for [`Denial::answered`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The media type of `body`.
    pub content_type: &'static str,
    /// The body, in the client's protocol.
    pub body: Bytes,
    /// Limit on the bytes of the request's body that the engine reads and discards, for clients
    /// that read no response before they have sent the whole body.
    pub drain_bytes: u64,
}

/// The stage at which a request to an upstream failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The DNS look-up.
    Resolve,
    /// The TCP connection.
    Connect,
    /// The TLS handshake.
    Tls,
    /// Waiting for the response, or reading it.
    Response,
}

impl Stage {
    /// The `step` of a denial's details.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Resolve => "resolve",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Response => "response",
        }
    }
}

/// A refusal, for machines (code, details) and people (sentence). One pointer wide, so that a
/// [`Verdict`] fits into a register.
#[derive(Clone)]
pub struct Denial(Box<Inner>);

#[derive(Clone)]
struct Inner {
    code: Code,
    sentence: Cow<'static, str>,
    details: Map<String, Value>,
    /// In seconds.
    retry_after: Option<u64>,
    addon: &'static str,
    rule: Option<String>,
    hint: Option<String>,
    answer: Option<Answer>,
    refuses: bool,
    stage: Option<Stage>,
}

impl Denial {
    /// A denial with its code and the sentence for the person or agent who reads it.
    #[must_use]
    pub fn new(code: Code, sentence: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            code,
            sentence: sentence.into(),
            details: Map::new(),
            retry_after: None,
            addon: "",
            rule: None,
            hint: None,
            answer: None,
            refuses: true,
            stage: None,
        }))
    }

    /// An addon's own response, which ends the flow without a request to an upstream and does not
    /// count as a refusal. A renderer that does not handle [`Answer`] sends an internal error
    /// instead.
    #[must_use]
    pub fn answered(sentence: impl Into<Cow<'static, str>>, answer: Answer) -> Self {
        let mut denial = Self::new(Code::InternalError, sentence);
        denial.0.refuses = false;
        denial.answered_with(answer)
    }

    /// An internal error, without details for the client.
    #[must_use]
    pub fn internal() -> Self {
        Self::new(Code::InternalError, "Internal error")
    }

    /// The internal error of a hook, a judge or a computation that panicked.
    pub(crate) fn panicked() -> Self {
        Self::internal().rule("panic")
    }

    /// A flow without a live lease. Names the client's address, under which the operator can
    /// register a container.
    #[must_use]
    pub fn unknown_source(source: Option<&Source>) -> Self {
        let denial = Self::new(Code::UnknownSource, "Unknown source IP");
        match source {
            Some(Source::Address(address)) => denial.with("client", address.to_string()).hint(
                format!("register the address: unified-proxy container add ID --ip {address}"),
            ),
            _ => denial.hint("register the container: unified-proxy container add"),
        }
    }

    /// A malformed or ambiguous request.
    #[must_use]
    pub fn malformed(what: impl fmt::Display) -> Self {
        Self::new(Code::MalformedRequest, format!("Malformed request: {what}"))
    }

    /// Adds a typed detail to the JSON body.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.details.insert(key.to_owned(), value.into());
        self
    }

    /// Names the stage at which the upstream failed, as the detail `step`.
    #[must_use]
    pub fn at(mut self, stage: Stage) -> Self {
        self.0.stage = Some(stage);
        self.with("step", stage.as_str())
    }

    /// Sets the seconds until a retry can succeed, rounded up and at least 1, in the body and in
    /// `Retry-After`.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let seconds = seconds.max(1);
        self.0.retry_after = Some(seconds);
        self.with("retry_after", seconds)
    }

    /// Names the rule or allowlist entry that decided, for the audit and for `explain`.
    #[must_use]
    pub fn rule(mut self, rule: impl Into<String>) -> Self {
        self.0.rule = Some(rule.into());
        self
    }

    /// Sets advice that only `explain` shows: the smallest edit of the configuration, or a command,
    /// that would change the verdict.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Replaces the sentence.
    #[must_use]
    pub fn saying(mut self, sentence: impl Into<Cow<'static, str>>) -> Self {
        self.0.sentence = sentence.into();
        self
    }

    /// Replaces the sentence and the details that are texts, for example to redact them.
    #[must_use]
    pub fn reworded(mut self, reword: impl Fn(&str) -> String) -> Self {
        self.0.sentence = reword(&self.0.sentence).into();
        for detail in self.0.details.values_mut() {
            if let Value::String(text) = detail {
                *text = reword(text);
            }
        }
        self
    }

    /// Sets the response that replaces the denial's status and JSON.
    #[must_use]
    pub fn answered_with(mut self, answer: Answer) -> Self {
        self.0.answer = Some(answer);
        self
    }

    /// Names the addon, or the part of the engine, that denied, unless one is named already. The
    /// chain calls this for addons.
    #[must_use]
    pub fn by(mut self, addon: &'static str) -> Self {
        if self.0.addon.is_empty() {
            self.0.addon = addon;
        }
        self
    }

    /// The stable code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// The sentence for the person or agent who reads the denial.
    pub fn sentence(&self) -> &str {
        &self.0.sentence
    }

    /// The addon, or the part of the engine, that denied; empty until [`Denial::by`] names it.
    pub fn addon(&self) -> &'static str {
        self.0.addon
    }

    /// The rule or allowlist entry that decided; `None` if the denial names none.
    pub fn rule_name(&self) -> Option<&str> {
        self.0.rule.as_deref()
    }

    /// The advice that [`Denial::hint`] set, if any.
    pub fn edit(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// The stage at which the upstream failed; `None` for other denials.
    pub fn stage(&self) -> Option<Stage> {
        self.0.stage
    }

    /// The detail of this key; `None` if it is missing or not a string.
    pub fn detail(&self, key: &str) -> Option<&str> {
        self.0.details.get(key)?.as_str()
    }

    /// Whether the flow was refused or failed; false for an addon's own response.
    pub fn refuses(&self) -> bool {
        self.0.refuses
    }

    /// The response that replaces the denial's status and JSON, if there is one.
    pub fn answer(&self) -> Option<&Answer> {
        self.0.answer.as_ref()
    }

    /// Whole seconds until a retry can succeed; `None` if unknown.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.0.retry_after
    }

    /// The JSON object on the wire: `error`, `code`, then the details.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("error".into(), Value::String(self.0.sentence.to_string()));
        object.insert("code".into(), Value::String(self.0.code.as_str().into()));
        object.extend(self.0.details.clone());
        Value::Object(object)
    }
}

impl fmt::Debug for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Denial({}: {})", self.0.code.as_str(), self.0.sentence)
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.sentence)
    }
}

impl std::error::Error for Denial {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_whole_seconds_rounded_up_and_never_zero() {
        let wait = |ms| {
            Denial::new(Code::RateLimited, "Rate limit exceeded")
                .retry_after(Duration::from_millis(ms))
                .retry_after_seconds()
        };
        assert_eq!(wait(0), Some(1));
        assert_eq!(wait(1000), Some(1));
        assert_eq!(wait(1001), Some(2));
    }

    #[test]
    fn the_first_addon_that_denied_stays_named() {
        let denial = Denial::internal().by("policy").by("git");
        assert_eq!(denial.addon(), "policy");
    }
}
