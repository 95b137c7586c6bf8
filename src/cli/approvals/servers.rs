//! The servers that `approvals` asks.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use crate::admin::Approval;
use crate::approvals::bounds::{MAX_PAGE, MAX_PENDING};
use crate::cli::client::Client;
use crate::cli::exit::{Failure, code, warn};
use crate::cli::{SOCKET, SOCKET_VARIABLE, Target, dev_state, run};

/// Pages of closed questions in which a shortened id is looked up: the newest 1,000 questions.
const PAGES: usize = 10;
/// Pages of open questions: more than a server can have. What pretends to be one may have no end.
const PENDING_PAGES: usize = MAX_PENDING / MAX_PAGE + 2;
/// Digits of a whole id.
const DIGITS: usize = 32;

/// Servers to ask, one after the other.
pub(super) struct Servers {
    clients: Vec<Arc<Client>>,
    /// Whether the user named the server, so that it is a failure if it cannot be reached.
    are_named: bool,
}

/// A server's answer.
pub(super) struct Found<T> {
    pub(super) client: Arc<Client>,
    pub(super) item: T,
}

impl Servers {
    /// The server with the named socket. Without one: the configured server, the server of `dev` in
    /// the working directory, and the appliance of each run of this user.
    pub(super) fn of(target: &Target) -> Self {
        if target.socket.is_some() {
            return Self {
                clients: vec![Arc::new(target.client())],
                are_named: true,
            };
        }
        let configured = std::env::var_os(SOCKET_VARIABLE).map_or(SOCKET.into(), PathBuf::from);
        let dev = dev_state().map(|state| state.join("api.sock"));
        let sockets = [configured].into_iter().chain(dev);
        let mut seen = HashSet::new();
        // A missing socket has no canonical path.
        let sockets = sockets.chain(run::sockets_of_runs()).filter(|socket| {
            let found = socket.canonicalize();
            found.is_ok_and(|found| seen.insert(found))
        });
        let clients = sockets.map(|socket| Arc::new(Client::new(socket, "found on this machine")));
        Self {
            clients: clients.collect(),
            are_named: false,
        }
    }

    pub(super) fn are_named(&self) -> bool {
        self.are_named
    }

    pub(super) fn clients(&self) -> &[Arc<Client>] {
        &self.clients
    }

    /// Asks every server. Skips those that do not answer, unless none does. One that answers with an
    /// error may have another version; it is named in a warning.
    pub(super) async fn each<T>(
        &self,
        ask: impl AsyncFn(&Client) -> Result<T, Failure>,
    ) -> Result<Vec<Found<T>>, Failure> {
        let mut answers = Vec::new();
        let mut failed = None;
        for client in &self.clients {
            match ask(client).await {
                Ok(item) => answers.push(Found {
                    client: Arc::clone(client),
                    item,
                }),
                Err(failure) => {
                    if failure.code() != code::UNAVAILABLE && self.clients.len() > 1 {
                        let socket = client.socket().display();
                        warn(format_args!("{socket}: {}", failure.message()));
                    }
                    failed = Some(failure);
                }
            }
        }
        match failed {
            Some(failure) if answers.is_empty() => Err(failure),
            None if answers.is_empty() => Err(Failure::new(
                code::UNAVAILABLE,
                "no server of this user runs: start one (unified-proxy serve, dev or run), or name \
                 its socket with --socket PATH",
            )),
            _ => Ok(answers),
        }
    }

    /// All open questions, the oldest first.
    pub(super) async fn pending(&self) -> Result<Vec<Found<Approval>>, Failure> {
        let answers = self.each(pending).await?;
        let mut all = flattened(answers);
        all.sort_by(|a, b| a.item.created_at.cmp(&b.item.created_at));
        Ok(all)
    }

    /// The question with this id, which may be shortened: its first digits. Open questions come
    /// first: of the others, only those of the newest thousand are found by a shortened id.
    pub(super) async fn question(&self, id: &str) -> Result<Found<Approval>, Failure> {
        let begins = |found: &Found<Approval>| found.item.id.starts_with(id);
        let whole = id.len() == DIGITS;
        let mut found = match whole {
            true => Vec::new(),
            false => self.pending().await?,
        };
        found.retain(begins);
        if found.is_empty() {
            let answers = match whole {
                true => self.each(async |client| known(client, id).await).await?,
                false => self.each(newest).await?,
            };
            found = flattened(answers);
            found.retain(begins);
        }
        only("question", id, found, |question| &question.id)
    }
}

/// The one item that was found by a shortened id.
pub(super) fn only<T>(
    what: &str,
    id: &str,
    mut found: Vec<Found<T>>,
    id_of: impl Fn(&T) -> &String,
) -> Result<Found<T>, Failure> {
    match (found.pop(), found.len()) {
        (Some(item), 0) => Ok(item),
        (Some(last), _) => {
            let ids = found.iter().chain([&last]).map(|found| id_of(&found.item));
            let ids = crate::admin::listed(&ids.collect::<Vec<_>>());
            Err(Failure::usage(format_args!(
                "the ids of several {what}s begin with {id}, give more digits: {ids}"
            )))
        }
        (None, _) => Err(Failure::usage(format_args!(
            "there is no {what} whose id begins with {id}: see `unified-proxy approvals list` and \
             `unified-proxy approvals grants`"
        ))),
    }
}

pub(super) fn flattened<T>(answers: Vec<Found<Vec<T>>>) -> Vec<Found<T>> {
    let all = answers.into_iter().flat_map(|Found { client, item }| {
        let of_server = move |item| Found {
            client: Arc::clone(&client),
            item,
        };
        item.into_iter().map(of_server)
    });
    all.collect()
}

/// The question with a whole id, if the server has it.
async fn known(client: &Client, id: &str) -> Result<Vec<Approval>, Failure> {
    match client.approval(id).await {
        Ok(question) => Ok(vec![question]),
        Err(failure) if failure.code() == code::USAGE => Ok(Vec::new()),
        Err(failure) => Err(failure),
    }
}

/// All open questions of a server, the oldest first.
pub(super) async fn pending(client: &Client) -> Result<Vec<Approval>, Failure> {
    let mut all = pages(client, Some("pending"), PENDING_PAGES).await?;
    all.reverse();
    Ok(all)
}

async fn newest(client: &Client) -> Result<Vec<Approval>, Failure> {
    pages(client, None, PAGES).await
}

async fn pages(
    client: &Client,
    state: Option<&str>,
    most: usize,
) -> Result<Vec<Approval>, Failure> {
    let mut all: Vec<Approval> = Vec::new();
    for _ in 0..most {
        let before = all.last().map(|last| last.id.clone());
        let page = client.approvals(state, before.as_deref()).await?.approvals;
        if page.is_empty() {
            break;
        }
        all.extend(page);
    }
    Ok(all)
}
