//! `approvals`: shows what waits for a person, and decides.

mod definition;
mod exec;
mod explained;
mod feed;
mod indented;
mod learned;
mod servers;
mod show;
mod watch;

use addons::contract::ContainerId;
use addons::contract::settings::duration;
use clap::{Args, Subcommand};
use serde::Serialize;
use time::OffsetDateTime;

use super::client::Client;
use super::exit::{Failure, print, printable};
use super::{Output, examples, parse_id};
use crate::admin::{
    Approval, ApprovalList, ApproveBody, DenyBody, EVERY, GrantBody, GrantEntry, GrantList,
};
use crate::runtime::printable_json;
use servers::{Found, Servers, flattened, only};

/// Names the container of a grant for everyone.
const EVERY_CONTAINER: &str = "every container";
/// The port of a grant that names none.
const HTTPS: u16 = 443;

/// What waits for a person, and the answers.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Approvals {
    #[command(subcommand)]
    command: Option<ApprovalsCommand>,
    #[command(flatten)]
    list: List,
}

/// Subcommands of `approvals`.
#[derive(Debug, Subcommand)]
pub enum ApprovalsCommand {
    /// List the questions that wait for a decision (the default)
    List(List),
    /// Show a question with its arguments
    Show(One),
    /// Approve a question
    #[command(after_help = examples::APPROVALS_APPROVE)]
    Approve(Approve),
    /// Deny a question; equal questions get the same answer for as long as it had to be decided
    Deny(Deny),
    /// Let the questions that a denial answers be asked again
    Forget(One),
    /// List the grants in force, also those for every container
    Grants(Output),
    /// List what is approved for every container
    Learned(learned::LearnedOptions),
    /// Permit a host and port to a container, without a question
    #[command(after_help = examples::APPROVALS_GRANT)]
    Grant(Grant),
    /// End a grant, also one for every container; tunnels that rely on it end within 5 seconds
    Revoke(One),
}

/// The open questions.
#[derive(Args, Debug)]
pub struct List {
    /// Show questions as they are asked; on a terminal, one at a time, to be answered
    #[arg(long)]
    watch: bool,
    /// Start a program for each new question, by a shell, with the question as JSON on its standard
    /// input
    #[arg(long, value_name = "PROGRAM", requires = "watch")]
    exec: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// A question or a grant.
#[derive(Args, Debug)]
pub struct One {
    /// Its id, or the first digits of it
    #[arg(value_parser = parse_digits)]
    id: String,
    #[command(flatten)]
    output: Output,
}

/// The approval of a question.
#[derive(Args, Debug)]
pub struct Approve {
    #[command(flatten)]
    one: One,
    #[command(flatten)]
    scope: ScopeOptions,
    /// For every container, in learned.yaml; for questions about hosts
    #[arg(long, conflicts_with_all = ["time", "lease"])]
    always: bool,
    /// Words for the record
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,
}

/// How long an approval or a grant holds.
#[derive(Args, Debug)]
pub struct ScopeOptions {
    /// For a time from 1s to 24h, such as 10m
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    time: Option<String>,
    /// Until the lease of the container ends
    #[arg(long, conflicts_with = "time")]
    lease: bool,
}

/// The denial of a question.
#[derive(Args, Debug)]
pub struct Deny {
    #[command(flatten)]
    one: One,
    /// Words for the agent, which gets them with the denial
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,
}

/// A grant without a question.
#[derive(Args, Debug)]
pub struct Grant {
    /// The container's id
    #[arg(value_parser = parse_id)]
    container: ContainerId,
    /// The host, and the port if it is not 443
    #[arg(value_name = "HOST[:PORT]", value_parser = parse_host)]
    host: (String, u16),
    #[command(flatten)]
    scope: ScopeOptions,
    #[command(flatten)]
    output: Output,
}

fn parse_digits(text: &str) -> Result<String, String> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
    // With fewer digits, another question may match after the one that was read has ended.
    match (4..=32).contains(&text.len()) && text.bytes().all(is_digit) {
        true => Ok(text.to_owned()),
        false => Err("an id has 32 hexadecimal digits, of which the first 4 suffice".to_owned()),
    }
}

fn parse_time(text: &str) -> Result<String, &'static str> {
    duration(text).map(|_| text.to_owned())
}

fn parse_host(text: &str) -> Result<(String, u16), String> {
    match text.rsplit_once(':') {
        None => Ok((text.to_owned(), HTTPS)),
        Some((host, port)) => match port.parse() {
            Ok(port) if port != 0 => Ok((host.to_owned(), port)),
            _ => Err("must be HOST or HOST:PORT, such as api.example.com:8443".to_owned()),
        },
    }
}

impl Approvals {
    pub(super) async fn run(self) -> Result<(), Failure> {
        match self.command.unwrap_or(ApprovalsCommand::List(self.list)) {
            ApprovalsCommand::List(list) => list.run().await,
            ApprovalsCommand::Show(one) => one.show().await,
            ApprovalsCommand::Approve(approve) => approve.run().await,
            ApprovalsCommand::Deny(deny) => deny.run().await,
            ApprovalsCommand::Forget(one) => one.forget().await,
            ApprovalsCommand::Grants(output) => grants(&output).await,
            ApprovalsCommand::Learned(learned) => learned.run().await,
            ApprovalsCommand::Grant(grant) => grant.run().await,
            ApprovalsCommand::Revoke(one) => one.revoke().await,
        }
    }
}

impl List {
    async fn run(self) -> Result<(), Failure> {
        if self.watch {
            return watch::run(self.output.target, self.output.json, self.exec).await;
        }
        let found = Servers::of(&self.output.target).pending().await?;
        let approvals = found.into_iter().map(|found| found.item).collect();
        self.output.show(&ApprovalList { approvals }, |list| {
            show::questions(&list.approvals.iter().collect::<Vec<_>>(), now())
        })
    }
}

impl One {
    async fn find(&self) -> Result<Found<Approval>, Failure> {
        let servers = Servers::of(&self.output.target);
        servers.question(&self.id).await
    }

    async fn show(self) -> Result<(), Failure> {
        let question = self.find().await?.item;
        self.output
            .show(&question, |question| show::details(question, now()))
    }

    async fn forget(self) -> Result<(), Failure> {
        let Found { client, item } = self.find().await?;
        let question = client.forget(&item.id).await?;
        self.output.show(&question, |question| {
            let subject = printable(&question.subject);
            format!("forgotten: {subject} can be asked again")
        })
    }

    async fn revoke(self) -> Result<(), Failure> {
        let servers = Servers::of(&self.output.target);
        let mut found = all_grants(&servers).await?;
        found.retain(|grant| grant.item.id.starts_with(&self.id));
        let Found { client, item } = only("grant", &self.id, found, |grant| &grant.id)?;
        let grant = client.revoke(&item.id).await?;
        self.output.show(&grant, |grant| {
            let subject = printable(&grant.subject);
            let container = match grant.container_id.as_str() {
                EVERY => EVERY_CONTAINER.to_owned(),
                container => printable(container),
            };
            format!("revoked: {subject} for {container}")
        })
    }
}

impl ScopeOptions {
    fn named(&self) -> Option<String> {
        self.lease.then(|| "lease".to_owned())
    }
}

impl Approve {
    async fn run(self) -> Result<(), Failure> {
        let Found { client, item } = self.one.find().await?;
        let always = self.always.then(|| "always".to_owned());
        let body = ApproveBody {
            scope: always.or_else(|| self.scope.named()),
            time: self.scope.time,
            comment: self.comment,
        };
        let question = client.approve(&item.id, &body).await?;
        let always = self.always;
        self.one.output.show(&question, |question| match always {
            true => {
                let [state, subject] =
                    [&question.state, &question.subject].map(|text| printable(text));
                format!("{state}: {subject} for {EVERY_CONTAINER}")
            }
            false => decided(question),
        })
    }
}

impl Deny {
    async fn run(self) -> Result<(), Failure> {
        let Found { client, item } = self.one.find().await?;
        let body = DenyBody {
            comment: self.comment,
        };
        let question = client.deny(&item.id, &body).await?;
        self.one.output.show(&question, decided)
    }
}

impl Grant {
    async fn run(self) -> Result<(), Failure> {
        let servers = Servers::of(&self.output.target);
        let id = self.container.to_string();
        let mut found = flattened(
            servers
                .each(async |client| Ok(client.containers().await?.containers))
                .await?,
        );
        found.retain(|found| found.item.registration.container_id == id);
        let client = match &*found {
            [only] => &only.client,
            [] => {
                return Err(Failure::usage(format_args!(
                    "no container {id} is registered: see `unified-proxy container list`"
                )));
            }
            several => {
                let sockets = several.iter().map(|found| found.client.socket().display());
                return Err(Failure::usage(format_args!(
                    "several servers have a container {id}, choose one with --socket: {}",
                    crate::admin::listed(&sockets.collect::<Vec<_>>())
                )));
            }
        };
        let (host, port) = self.host;
        let body = GrantBody {
            container: id,
            host,
            port,
            scope: self.scope.named(),
            time: self.scope.time,
        };
        let grant = client.grant(&body).await?;
        self.output.show(&grant, |grant| {
            let GrantEntry { id, subject, .. } = grant;
            let end = match &grant.expires_at {
                Some(at) => printable(at),
                None => "the lease ends".to_owned(),
            };
            format!(
                "granted {} to {} until {end}: grant {}",
                printable(subject),
                body.container,
                printable(id)
            )
        })
    }
}

async fn all_grants(servers: &Servers) -> Result<Vec<Found<GrantEntry>>, Failure> {
    let of_server = async |client: &Client| Ok(client.grants().await?.grants);
    Ok(flattened(servers.each(of_server).await?))
}

async fn grants(output: &Output) -> Result<(), Failure> {
    let found = all_grants(&Servers::of(&output.target)).await?;
    let grants = found.into_iter().map(|found| found.item).collect();
    output.show(&GrantList { grants }, |list| {
        show::grants(&list.grants.iter().collect::<Vec<_>>(), now())
    })
}

fn decided(question: &Approval) -> String {
    let texts = [&question.state, &question.subject, &question.container_id];
    let [state, subject, container] = texts.map(|text| printable(text));
    format!("{state}: {subject} for {container}")
}

fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

/// A value as JSON of one line that cannot control a terminal.
fn json<T: Serialize>(value: &T) -> Result<String, Failure> {
    let json = serde_json::to_string(value).map_err(Failure::internal)?;
    Ok(printable_json(&json).into_owned())
}

impl Output {
    /// Prints a value of which a container chose a part.
    fn show<T: Serialize>(
        &self,
        value: &T,
        lines: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        match self.json {
            true => print(json(value)?),
            false => print(lines(value)),
        }
    }
}
