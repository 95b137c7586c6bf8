//! `container add|rm|reset|list|show`: manages the registered containers of a server.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use addons::contract::{AuthMode, ContainerId};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::exit::Failure;
use super::{Output, examples, parse_id};
use crate::admin::{ContainerEntry, ContainerList, Done, RegistrationBody};
use crate::registry::RepoEntry;

/// Subcommands of `container`.
#[derive(Debug, Subcommand)]
pub enum ContainerCommand {
    /// Register a container, replacing a lease with the same id or address
    #[command(after_help = examples::CONTAINER_ADD)]
    Add(Box<Add>),
    /// Unregister a container; its connections end
    Rm(Rm),
    /// Lower a container's security level to Public, and lift the block of a deny_abort
    Reset(One),
    /// List the registered containers
    List(Output),
    /// Show one container
    Show(One),
}

/// A registered container.
#[derive(Args, Debug)]
pub struct One {
    /// The container's id
    #[arg(value_parser = parse_id)]
    id: ContainerId,
    #[command(flatten)]
    output: Output,
}

/// The container to unregister.
#[derive(Args, Debug)]
pub struct Rm {
    #[command(flatten)]
    one: One,
    /// Keep the container's security level and the block of a deny_abort for its next lease, as
    /// after an expiry
    #[arg(long)]
    keep_level: bool,
}

/// The container to register.
#[derive(Args, Debug)]
pub struct Add {
    /// The container's id: 1 to 128 of A-Z a-z 0-9 _ . -
    #[arg(value_parser = parse_id)]
    id: ContainerId,
    /// The source address of the container's flows
    #[arg(
        long,
        required_unless_present = "listener",
        conflicts_with = "listener"
    )]
    ip: Option<IpAddr>,
    /// Identify the container by a Unix socket that is opened for it, instead of an address
    #[arg(long, value_parser = ["unix"])]
    listener: Option<String>,
    /// A repository that the container may use; may be repeated
    #[arg(long = "repo", value_name = "OWNER/NAME")]
    repos: Vec<String>,
    /// Who pushes: user or bot
    #[arg(long, value_name = "MODE", value_parser = ["user", "bot"], default_value = AuthMode::User.as_str())]
    auth_mode: String,
    /// When the lease ends: an RFC 3339 time, or a duration from now such as 90m, 8h or 7d
    /// [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = parse_expiry)]
    expires: Option<OffsetDateTime>,
    /// A host pattern to which the allowlist is narrowed; may be repeated
    #[arg(long = "allow-domain", value_name = "PATTERN")]
    allow_domains: Vec<String>,
    #[command(flatten)]
    output: Output,
}

fn parse_expiry(text: &str) -> Result<OffsetDateTime, String> {
    if let Ok(at) = OffsetDateTime::parse(text, &Rfc3339) {
        return Ok(at);
    }
    let from_now = || {
        let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let seconds = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 60 * 60,
            "d" => 24 * 60 * 60,
            _ => return None,
        };
        let seconds = u64::from_str(number).ok()?.checked_mul(seconds)?;
        let later = time::Duration::try_from(Duration::from_secs(seconds)).ok()?;
        OffsetDateTime::now_utc().checked_add(later)
    };
    from_now().ok_or_else(|| {
        "must be an RFC 3339 time such as 2030-01-01T00:00:00Z, or a duration from now such as \
         90m, 8h or 7d"
            .to_owned()
    })
}

impl ContainerCommand {
    pub(super) async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Add(add) => add.run().await,
            Self::Rm(Rm {
                one: One { id, output },
                keep_level,
            }) => {
                let client = output.target.client();
                let done = client.unregister(id.as_str(), keep_level).await?;
                output.print(&done, lines)
            }
            Self::Reset(One { id, output }) => {
                let done = output.target.client().reset(id.as_str()).await?;
                output.print(&done, lines)
            }
            Self::List(output) => output.print(&output.target.client().containers().await?, table),
            Self::Show(One { id, output }) => {
                let container = output.target.client().container(id.as_str()).await?;
                output.print(&container, details)
            }
        }
    }
}

impl Add {
    async fn run(self) -> Result<(), Failure> {
        let expires_at = self.expires.map(|at| at.format(&Rfc3339)).transpose();
        let expires_at = expires_at.map_err(Failure::usage)?;
        let body = RegistrationBody {
            container_ip: self.ip.map(|ip| ip.to_string()),
            listener: self.listener,
            container_id: self.id.to_string(),
            repos: self.repos.into_iter().map(RepoEntry::Name).collect(),
            auth_mode: Some(self.auth_mode),
            expires_at,
            allowed_domains: Some(self.allow_domains).filter(|domains| !domains.is_empty()),
        };
        let done = self.output.target.client().register(&body).await?;
        self.output.print(&done, lines)
    }
}

/// Formats a change: what was done with the container, the leases that a registration replaced, and
/// its socket.
fn lines(done: &Done) -> String {
    let id = &done.container_id;
    let mut lines = vec![format!("{} {id}", done.status)];
    for other in &done.replaced {
        lines.push(match other == id {
            true => format!("replaced the earlier lease of {id}: its connections end"),
            false => {
                format!("replaced the lease of {other}, which had this address: {other} is unregistered, its connections end")
            }
        });
    }
    lines.extend(done.socket.iter().map(|socket| format!("socket {socket}")));
    lines.join("\n")
}

const COLUMNS: [&str; 5] = ["ID", "ADDRESS", "MODE", "EXPIRES", "REPOS"];

fn table(list: &ContainerList) -> String {
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    for container in &list.containers {
        let of = &container.registration;
        let address = of.listener.as_ref().or(of.container_ip.as_ref());
        let [address, mode, expires] =
            [address, of.auth_mode.as_ref(), of.expires_at.as_ref()].map(|cell| text(&json!(cell)));
        let repos = text(&json!(of.repos));
        rows.push([of.container_id.clone(), address, mode, expires, repos]);
    }
    super::table::table(&rows)
}

fn details(container: &ContainerEntry) -> String {
    let container = json!(container);
    let fields = container.as_object().into_iter().flatten();
    let lines = fields.map(|(name, value)| format!("{name:<20}{}", text(value)));
    lines.collect::<Vec<_>>().join("\n")
}

/// Formats a JSON value for a person.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(","),
        Value::Object(fields) => match (fields.get("name"), fields.get("max_receive_pack_bytes")) {
            (Some(name), Some(limit)) => format!("{}({limit} bytes)", text(name)),
            _ => value.to_string(),
        },
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn an_expiry_is_absolute_or_relative_to_now() {
        assert_eq!(
            parse_expiry("2100-01-01T00:00:00Z")
                .unwrap()
                .unix_timestamp(),
            4_102_444_800
        );
        let in_a_week = parse_expiry("7d").unwrap() - OffsetDateTime::now_utc();
        assert_eq!(in_a_week.whole_seconds().div_euclid(3600), 7 * 24 - 1);
        each_row(
            [
                "",
                "7",
                "d",
                "7w",
                "-7d",
                "99999999999999999999d",
                "9999999999999d",
                "7é",
            ],
            |text| {
                assert!(parse_expiry(text).is_err(), "{text}");
            },
        );
    }

    #[test]
    fn a_registration_lists_the_leases_that_it_replaced() {
        let mut done = Done {
            status: "registered".into(),
            container_id: "c2".into(),
            socket: None,
            replaced: Vec::new(),
        };
        assert_eq!(lines(&done), "registered c2");
        done.replaced = vec!["c2".into(), "c1".into()];
        done.socket = Some("/run/s".into());
        assert_eq!(
            lines(&done),
            "registered c2\n\
             replaced the earlier lease of c2: its connections end\n\
             replaced the lease of c1, which had this address: c1 is unregistered, its connections end\n\
             socket /run/s"
        );
    }

    #[test]
    fn containers_are_listed_as_a_table() {
        let repos = json!(["o/n", {"name": "o/m", "max_receive_pack_bytes": 7}]);
        let list = json!({"containers": [
            {"container_id": "c1", "container_ip": "10.0.0.5", "auth_mode": "bot",
             "expires_at": "2100-01-01T00:00:00Z", "repos": repos, "created_at": "",
             "security_level": "Public"},
            {"container_id": "second", "listener": "unix", "auth_mode": "user",
             "expires_at": "2100-01-01T00:00:00Z", "repos": [], "created_at": "",
             "security_level": "Public"},
        ]});
        assert_eq!(
            table(&serde_json::from_value(list).unwrap()),
            "ID      ADDRESS   MODE  EXPIRES               REPOS\n\
             c1      10.0.0.5  bot   2100-01-01T00:00:00Z  o/n,o/m(7 bytes)\n\
             second  unix      user  2100-01-01T00:00:00Z  -"
        );
    }
}
