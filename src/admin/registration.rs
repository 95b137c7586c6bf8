//! Parses the body of a registration. An error in a field names the field.

use std::collections::HashSet;
use std::fmt::Display;
use std::net::IpAddr;

use addons::contract::{
    AuthMode, ContainerId, HostPattern, Repo, Source, TOKEN_AGENT, fold_address,
};
use serde_json::{Map, Value};
use thiserror::Error;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime, UtcOffset};

use super::json;
use crate::registry::NewRegistration;

/// The lifetime of a registration without `expires_at`.
const DEFAULT_LIFETIME: Duration = Duration::hours(24);
/// The highest push limit of a repository, in bytes.
const MAX_RECEIVE_PACK_BYTES: u64 = 524_288_000;
/// Limit on the length of the name of an owner or a repository, in bytes.
const MAX_REPO_PART: usize = 100;

const FIELDS: [&str; 7] = [
    "container_ip",
    "container_id",
    "repos",
    "auth_mode",
    "expires_at",
    "allowed_domains",
    "listener",
];

/// The reason why the body of a registration is invalid.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FieldError {
    #[error("Missing required fields: {}", python_list(.0))]
    Missing(Vec<String>),
    #[error("Unknown fields: {}", python_list(.0))]
    Unknown(Vec<String>),
    #[error("Invalid {field}: {problem}")]
    Invalid { field: String, problem: String },
    #[error("Invalid body: {0}")]
    Body(String),
}

/// Formats names as a Python list, as the former Python proxy did, since clients compare the text.
fn python_list(names: &[String]) -> String {
    format!("['{}']", names.join("', '"))
}

fn invalid(field: impl Display, problem: impl Display) -> FieldError {
    FieldError::Invalid {
        field: field.to_string(),
        problem: problem.to_string(),
    }
}

/// Parses a registration. Its expiry must be after `now`; without `expires_at`, the expiry is 24
/// hours after `now`.
pub fn parse_registration(body: &[u8], now: OffsetDateTime) -> Result<NewRegistration, FieldError> {
    let body = match json::parse(body).map_err(FieldError::Body)? {
        Value::Object(body) => body,
        _ => return Err(FieldError::Body("must be a JSON object".to_owned())),
    };
    let source_field = match body.contains_key("listener") {
        true => "listener",
        false => "container_ip",
    };
    let required = [source_field, "container_id", "repos"];
    let missing = required.iter().filter(|field| !body.contains_key(**field));
    let missing: Vec<String> = missing.map(ToString::to_string).collect();
    if !missing.is_empty() {
        return Err(FieldError::Missing(missing));
    }
    refuse_unknown(&body, &FIELDS, "")?;
    let id = required_text(&body, "container_id")?;
    let id = ContainerId::parse(id).ok_or_else(|| {
        invalid(
            "container_id",
            "must be 1 to 128 characters of A-Z a-z 0-9 _ . -",
        )
    })?;
    if id.as_str() == TOKEN_AGENT {
        let problem =
            "is the built-in container of callers with the token tokens.agent in mcp.yaml";
        return Err(invalid("container_id", problem));
    }
    Ok(NewRegistration {
        source: source(&body, &id)?,
        repos: repos(&body)?,
        auth_mode: auth_mode(&body)?,
        allowed_domains: allowed_domains(&body)?,
        expires_at: expires_at(&body, now)?,
        id,
    })
}

fn refuse_unknown(
    object: &Map<String, Value>,
    known: &[&str],
    prefix: &str,
) -> Result<(), FieldError> {
    let unknown = object.keys().filter(|key| !known.contains(&key.as_str()));
    let unknown: Vec<String> = unknown.map(|key| format!("{prefix}{key}")).collect();
    match unknown.is_empty() {
        true => Ok(()),
        false => Err(FieldError::Unknown(unknown)),
    }
}

fn required_text<'a>(body: &'a Map<String, Value>, field: &str) -> Result<&'a str, FieldError> {
    text(body, field)?.ok_or_else(|| FieldError::Missing(vec![field.to_owned()]))
}

fn text<'a>(body: &'a Map<String, Value>, field: &str) -> Result<Option<&'a str>, FieldError> {
    match body.get(field) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(invalid(field, "must be a string")),
    }
}

fn list<'a>(body: &'a Map<String, Value>, field: &str) -> Result<Option<&'a [Value]>, FieldError> {
    match body.get(field) {
        None => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items)),
        Some(_) => Err(invalid(field, "must be a list")),
    }
}

fn source(body: &Map<String, Value>, id: &ContainerId) -> Result<Source, FieldError> {
    match text(body, "listener")? {
        Some("unix") if body.contains_key("container_ip") => {
            Err(invalid("listener", "cannot be combined with container_ip"))
        }
        Some("unix") => Ok(Source::Listener(id.clone())),
        Some(_) => Err(invalid("listener", "must be \"unix\"")),
        None => {
            let address: Option<IpAddr> = required_text(body, "container_ip")?.parse().ok();
            let address = address
                .map(fold_address)
                .ok_or_else(|| invalid("container_ip", "must be an IPv4 or IPv6 address"))?;
            let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
            if address.is_unspecified() || address.is_multicast() || broadcast {
                return Err(invalid(
                    "container_ip",
                    "must be a unicast address of one container",
                ));
            }
            Ok(Source::Address(address))
        }
    }
}

fn repos(body: &Map<String, Value>) -> Result<Vec<Repo>, FieldError> {
    let items = list(body, "repos")?.unwrap_or_default();
    let mut repos: Vec<Repo> = Vec::with_capacity(items.len());
    let mut seen = HashSet::new();
    for (index, item) in items.iter().enumerate() {
        let repo = repo(item, index)?;
        if !seen.insert(repo.name.to_ascii_lowercase()) {
            return Err(invalid(format_args!("repos[{index}]"), "is listed twice"));
        }
        repos.push(repo);
    }
    Ok(repos)
}

fn repo(item: &Value, index: usize) -> Result<Repo, FieldError> {
    let field = format!("repos[{index}]");
    let (name, max_receive_pack_bytes) = match item {
        Value::String(name) => (name.as_str(), None),
        Value::Object(object) => {
            refuse_unknown(
                object,
                &["name", "max_receive_pack_bytes"],
                &format!("{field}."),
            )?;
            let name =
                text(object, "name").map_err(|_| invalid(&field, "name must be a string"))?;
            let name = name.ok_or_else(|| invalid(&field, "name is missing"))?;
            let limit = object.get("max_receive_pack_bytes").map(|limit| {
                let bytes = limit
                    .as_u64()
                    .filter(|bytes| *bytes <= MAX_RECEIVE_PACK_BYTES);
                bytes.ok_or_else(|| {
                    let field = format!("{field}.max_receive_pack_bytes");
                    let most = MAX_RECEIVE_PACK_BYTES;
                    invalid(field, format_args!("must be a whole number up to {most}"))
                })
            });
            (name, limit.transpose()?)
        }
        _ => return Err(invalid(field, "must be \"owner/name\" or an object")),
    };
    repo_name(name).map_err(|problem| invalid(field, problem))?;
    Ok(Repo {
        name: name.into(),
        max_receive_pack_bytes,
    })
}

/// Checks that a text is `owner/name`. The error is a predicate ("must be …") whose subject the
/// caller adds.
pub fn repo_name(text: &str) -> Result<(), &'static str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    let is_part = |part: &str| {
        (1..=MAX_REPO_PART).contains(&part.len())
            && part.bytes().all(fits)
            && !matches!(part, "." | "..")
    };
    let is_name = text.split_once('/').is_some_and(|(owner, name)| {
        is_part(owner) && is_part(name) && !name.to_ascii_lowercase().ends_with(".git")
    });
    match is_name {
        true => Ok(()),
        false => Err("must be owner/name, of A-Z a-z 0-9 _ . -, without .git"),
    }
}

fn auth_mode(body: &Map<String, Value>) -> Result<AuthMode, FieldError> {
    match text(body, "auth_mode")? {
        None => Ok(AuthMode::User),
        Some(mode) => {
            AuthMode::parse(mode).ok_or_else(|| invalid("auth_mode", "must be \"user\" or \"bot\""))
        }
    }
}

fn allowed_domains(body: &Map<String, Value>) -> Result<Option<Vec<HostPattern>>, FieldError> {
    let Some(items) = list(body, "allowed_domains")? else {
        return Ok(None);
    };
    let parse = |(index, item): (usize, &Value)| {
        let field = format!("allowed_domains[{index}]");
        match item {
            Value::String(text) => HostPattern::parse(text).map_err(|error| invalid(field, error)),
            _ => Err(invalid(field, "must be a string")),
        }
    };
    items
        .iter()
        .enumerate()
        .map(parse)
        .collect::<Result<_, _>>()
        .map(Some)
}

fn expires_at(
    body: &Map<String, Value>,
    now: OffsetDateTime,
) -> Result<OffsetDateTime, FieldError> {
    let Some(text) = text(body, "expires_at")? else {
        return Ok(now + DEFAULT_LIFETIME);
    };
    // With a negative offset, the last hours of 9999 are in the year 10000 in UTC.
    // `checked_to_offset` fails for them, since `OffsetDateTime` ends with 9999.
    let at = OffsetDateTime::parse(text, &Rfc3339)
        .ok()
        .and_then(|at| at.checked_to_offset(UtcOffset::UTC))
        .ok_or_else(|| {
            invalid(
                "expires_at",
                "must be an RFC 3339 time such as 2030-01-01T00:00:00Z",
            )
        })?;
    match at > now {
        true => Ok(at),
        false => Err(invalid("expires_at", "is in the past")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;
    use testkit::each_row;
    use time::macros::datetime;

    use super::*;
    use crate::admin::RegistrationBody;

    const NOW: OffsetDateTime = datetime!(2030-01-01 00:00 UTC);

    fn parse(body: &Value) -> Result<NewRegistration, String> {
        let body = serde_json::to_vec(body).unwrap();
        parse_registration(&body, NOW).map_err(|error| error.to_string())
    }

    /// The body of a valid registration, with some fields replaced or added.
    fn with(changes: Value) -> Value {
        let mut body = json!({"container_ip": "10.0.0.5", "container_id": "c1", "repos": []});
        for (field, value) in changes.as_object().unwrap() {
            body[field] = value.clone();
        }
        body
    }

    #[test]
    fn missing_fields_are_listed_in_order() {
        each_row(
            [
                (json!({}), "['container_ip', 'container_id', 'repos']"),
                (json!({"container_id": "c1"}), "['container_ip', 'repos']"),
                (
                    json!({"container_ip": "10.0.0.5", "repos": []}),
                    "['container_id']",
                ),
                (
                    json!({"listener": "unix", "container_id": "c1"}),
                    "['repos']",
                ),
            ],
            |(body, error)| {
                assert_eq!(
                    parse(&body).unwrap_err(),
                    format!("Missing required fields: {error}")
                );
            },
        );
    }

    #[test]
    fn the_error_names_the_invalid_field() {
        each_row(
            [
                (json!({"container_ip": 7}), "container_ip"),
                (json!({"container_ip": "10.0.0.256"}), "container_ip"),
                (json!({"container_ip": "010.0.0.1"}), "container_ip"),
                (json!({"container_ip": "fe80::1%eth0"}), "container_ip"),
                (json!({"container_ip": "0.0.0.0"}), "container_ip"),
                (json!({"container_ip": "ff02::1"}), "container_ip"),
                (json!({"container_id": null}), "container_id"),
                (json!({"container_id": ""}), "container_id"),
                (json!({"container_id": "a/b"}), "container_id"),
                (json!({"container_id": "x".repeat(129)}), "container_id"),
                (json!({"repos": "o/n"}), "repos"),
                (json!({"repos": [7]}), "repos[0]"),
                (json!({"repos": ["o/n", "name"]}), "repos[1]"),
                (json!({"repos": ["o/n/x"]}), "repos[0]"),
                (json!({"repos": ["o/.."]}), "repos[0]"),
                (json!({"repos": ["o/n.git"]}), "repos[0]"),
                (json!({"repos": ["o/n", "O/N"]}), "repos[1]"),
                (json!({"repos": [{}]}), "repos[0]"),
                (json!({"repos": [{"name": "o/n", "x": 1}]}), "repos[0].x"),
                (
                    json!({"repos": [{"name": "o/n", "max_receive_pack_bytes": 524_288_001}]}),
                    "repos[0].max_receive_pack_bytes",
                ),
                (
                    json!({"repos": [{"name": "o/n", "max_receive_pack_bytes": -1}]}),
                    "repos[0].max_receive_pack_bytes",
                ),
                (json!({"auth_mode": "root"}), "auth_mode"),
                (json!({"auth_mode": null}), "auth_mode"),
                (json!({"expires_at": 1}), "expires_at"),
                (json!({"expires_at": "tomorrow"}), "expires_at"),
                (json!({"expires_at": "2029-12-31T23:59:59Z"}), "expires_at"),
                (
                    json!({"expires_at": "9999-12-31T23:59:59-12:00"}),
                    "expires_at",
                ),
                (json!({"allowed_domains": "github.com"}), "allowed_domains"),
                (json!({"allowed_domains": ["*.com"]}), "allowed_domains[0]"),
                (json!({"listener": "unix"}), "listener"),
                (json!({"listener": "tcp"}), "listener"),
                (json!({"colour": "red"}), "colour"),
            ],
            |(changes, field)| {
                let error = parse(&with(changes.clone())).unwrap_err();
                assert!(error.contains(field), "{changes}: {error}");
            },
        );
    }

    #[test]
    fn the_fields_of_a_registration_are_read() {
        let body = with(json!({
            "container_ip": "::ffff:10.0.0.5",
            "repos": ["o/n", {"name": "o/m", "max_receive_pack_bytes": 524_288_000}],
            "auth_mode": "bot",
            "expires_at": "2030-01-01T02:00:00+01:00",
            "allowed_domains": ["GitHub.com", "*.example.com"],
        }));
        let new = parse(&body).unwrap();
        assert_eq!(new.source, Source::Address([10, 0, 0, 5].into()));
        assert_eq!(new.auth_mode, AuthMode::Bot);
        assert_eq!(new.expires_at, datetime!(2030-01-01 01:00 UTC));
        assert_eq!(new.repos[1].max_receive_pack_bytes, Some(524_288_000));
        let domains: Vec<String> = new
            .allowed_domains
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(domains, ["github.com", "*.example.com"]);
    }

    #[test]
    fn absent_fields_have_defaults_and_a_listener_needs_no_address() {
        let new = parse(&with(json!({}))).unwrap();
        assert_eq!(new.auth_mode, AuthMode::User);
        assert_eq!(new.expires_at, NOW + Duration::hours(24));
        assert_eq!(new.allowed_domains, None);
        let own = json!({"listener": "unix", "container_id": "c1", "repos": []});
        let id = ContainerId::parse("c1").unwrap();
        assert_eq!(parse(&own).unwrap().source, Source::Listener(id));
    }

    #[test]
    fn the_documented_body_has_exactly_the_fields_that_are_read() {
        let body = RegistrationBody {
            container_ip: Some("10.0.0.5".into()),
            listener: Some("unix".into()),
            auth_mode: Some("user".into()),
            expires_at: Some("2030-01-02T00:00:00Z".into()),
            allowed_domains: Some(vec![]),
            ..RegistrationBody::default()
        };
        let body = serde_json::to_value(body).unwrap();
        let fields: HashSet<&str> = body
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        assert_eq!(fields, HashSet::from(FIELDS));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,20}".prop_map(Value::from),
            "[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:00:00[+-][0-2][0-9]:00".prop_map(Value::from),
            "[a-z0-9.:*/-]{0,20}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 20, 5, |inner| {
            let key = prop_oneof![Just("name".to_owned()), "[a-z_]{0,10}"];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::hash_map(key, inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_body_makes_the_parser_panic(body: Vec<u8>) {
            let _ = parse_registration(&body, NOW);
        }

        #[test]
        fn no_value_of_a_field_makes_the_parser_panic(field in prop::sample::select(&FIELDS[..]), value in any_json()) {
            let _ = parse(&with(json!({field: value})));
        }
    }
}
