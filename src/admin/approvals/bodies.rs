//! The JSON forms of questions and decisions.

use std::fmt;
use std::time::Duration;

use addons::contract::QuestionKind;
use addons::contract::settings::duration;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use utoipa::ToSchema;

use crate::admin::error::ApiError;
use crate::approvals::{Learner, Record, Scope};

/// A question. What a container chose is as the container sent it: `subject`, `arguments`, and
/// `reason` if a policy repeats it.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Approval {
    /// 32 hexadecimal digits.
    pub id: String,
    /// `tool`, `request`, `host`, `definition` or `policy`.
    pub kind: String,
    /// `pending`, `approved`, `used`, `denied`, `expired` or `ended`.
    pub state: String,
    pub container_id: String,
    pub lease: String,
    /// `SERVER/TOOL`, `HOST:PORT`, or method, host, port and path of a request.
    pub subject: String,
    /// In canonical form (RFC 8785): the arguments of a tool call; for a definition or a policy, the
    /// `old` one (null if it is not kept) and the `new` one. Null if there are none, or if those of a decided question
    /// made room for another question's.
    #[schema(value_type = Option<Object>)]
    pub arguments: Option<Box<RawValue>>,
    /// The rule or policy that asks.
    pub rule: Option<String>,
    /// The reason that it gives.
    pub reason: Option<String>,
    /// The container's security level, up to which an approval holds.
    pub level: String,
    /// RFC 3339, as all times.
    pub created_at: String,
    /// When the question expires if nobody decides.
    pub expires_at: String,
    /// How often it was asked.
    pub attempts: u64,
    /// The callers that wait for the decision now.
    pub waiting: usize,
    /// What an approval can cover: of `once`, `for`, `lease` and `always`.
    pub scopes: Vec<String>,
    /// Who decided: the name and id of a user, or the subject of a token.
    pub decided_by: Option<String>,
    pub decided_at: Option<String>,
    /// The words of the person who decided.
    pub comment: Option<String>,
}

/// Questions.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct ApprovalList {
    pub approvals: Vec<Approval>,
}

/// What an approval covers.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApproveBody {
    /// `once`, `lease` or `always`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// Instead of a scope, a time from `1s` to `24h`, such as `10m`.
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// The person's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// The words of a denial.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DenyBody {
    /// The person's words, which the agent gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

impl Approval {
    /// The JSON form of a question at a server with this learner.
    pub(in crate::admin) fn of(record: &Record, learner: &Learner) -> Self {
        let topic = &record.topic;
        let decision = record.decision.as_ref();
        let arguments = record.arguments.clone().map(RawValue::from_string);
        let decided_at = record.closed_at.filter(|_| decision.is_some());
        // For everyone, the server puts hosts, definitions and policies in force.
        let for_everyone = match topic.kind {
            QuestionKind::Host => learner.is_on(),
            kind => matches!(kind, QuestionKind::Definition | QuestionKind::Policy),
        };
        let scopes = Scope::names(topic.kind).iter();
        let scopes = scopes.filter(|&&name| for_everyone || name != Scope::Always.as_str());
        Self {
            id: record.id.to_string(),
            kind: topic.kind.as_str().to_owned(),
            state: record.state.as_str().to_owned(),
            container_id: topic.container.to_string(),
            lease: topic.lease.to_string(),
            subject: Subject(topic.server.as_deref(), &topic.subject).to_string(),
            // Cannot fail: the ledger keeps canonical JSON.
            arguments: arguments.and_then(Result::ok),
            rule: topic.rule.as_deref().map(Into::into),
            reason: topic.reason.as_deref().map(Into::into),
            level: topic.level.as_str().to_owned(),
            created_at: rfc3339(record.created_at),
            expires_at: rfc3339(record.expires_at),
            attempts: record.attempts,
            waiting: record.waiting,
            scopes: scopes.map(|&name| name.to_owned()).collect(),
            decided_by: decision.map(|decision| decision.by.clone()),
            decided_at: decided_at.map(rfc3339),
            comment: decision.and_then(|decision| decision.comment.as_deref().map(Into::into)),
        }
    }
}

/// What a question or a grant is about: the server, if there is one, and the subject. A server's name
/// has no slash.
pub(in crate::admin) struct Subject<'a>(pub Option<&'a str>, pub &'a str);

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self(Some(server), subject) => write!(f, "{server}/{subject}"),
            Self(None, subject) => f.write_str(subject),
        }
    }
}

/// The scope that an operator named; `None` for the default.
pub(in crate::admin) fn requested_scope(
    scope: Option<&str>,
    time: Option<&str>,
) -> Result<Option<Scope>, ApiError> {
    let scope = match (scope, time) {
        (None, None) => return Ok(None),
        (None, Some(time)) => Scope::For(period(time)?),
        (Some("once"), None) => Scope::Once,
        (Some("lease"), None) => Scope::Lease,
        (Some("always"), None) => Scope::Always,
        (Some(_), None) => {
            let text = "scope: must be once, lease or always; a time is in `for`";
            return Err(ApiError::Invalid(text.to_owned()));
        }
        (Some(_), Some(_)) => {
            let text = "`scope` and `for` exclude each other";
            return Err(ApiError::Invalid(text.to_owned()));
        }
    };
    Ok(Some(scope))
}

fn period(text: &str) -> Result<Duration, ApiError> {
    duration(text).map_err(|error| ApiError::Invalid(format!("for: {error}")))
}

/// Formats a time of the ledger.
pub(in crate::admin) fn rfc3339(at: OffsetDateTime) -> String {
    // Cannot fail: the years of the ledger's times have four digits.
    at.format(&Rfc3339).unwrap_or_default()
}
