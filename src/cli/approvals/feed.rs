//! The questions of all servers as their state changes.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::servers::{Servers, pending};
use crate::admin::Approval;
use crate::cli::Target;
use crate::cli::client::Client;
use crate::cli::exit::{Failure, code};

/// How often servers are looked for that were started meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// Updates that wait for their reader. Then the streams wait, and the servers say what was missed.
const MAX_UPDATES: usize = 16;

/// What a server says.
pub(super) enum Update {
    /// All open questions, at the beginning and after missed changes.
    Listed(Arc<Client>, Vec<Approval>),
    /// A question that was asked, or whose state has changed.
    Changed(Arc<Client>, Box<Approval>),
    /// The server has ended.
    Gone(Arc<Client>),
    /// The watch cannot go on.
    Failed(Failure),
}

/// Follows every server of the target, also those that start later.
pub(super) fn follow(target: Target) -> mpsc::Receiver<Update> {
    let (updates, receiver) = mpsc::channel(MAX_UPDATES);
    tokio::spawn(async move {
        let mut followed: HashSet<PathBuf> = HashSet::new();
        let mut tasks = JoinSet::new();
        loop {
            let servers = Servers::of(&target);
            if servers.are_named() {
                let failure = match servers.clients() {
                    [client] => one(Arc::clone(client), &updates).await,
                    _ => return,
                };
                // Fails if the reader has gone.
                let _ = updates.send(Update::Failed(failure)).await;
                return;
            }
            for client in servers.clients() {
                if followed.insert(client.socket().to_owned()) {
                    let (client, updates) = (Arc::clone(client), updates.clone());
                    tasks.spawn(async move {
                        one(Arc::clone(&client), &updates).await;
                        let socket = client.socket().to_owned();
                        // Fails if the reader has gone.
                        let _ = updates.send(Update::Gone(client)).await;
                        socket
                    });
                }
            }
            sleep(LOOK_INTERVAL).await;
            while let Some(ended) = tasks.try_join_next() {
                if let Ok(socket) = ended {
                    followed.remove(&socket);
                }
            }
            if updates.is_closed() {
                return;
            }
        }
    });
    receiver
}

/// Follows one server until its stream ends, and returns the reason.
async fn one(client: Arc<Client>, updates: &mpsc::Sender<Update>) -> Failure {
    match stream(&client, updates).await {
        Ok(()) => Failure::new(code::UNAVAILABLE, "the server closed the stream"),
        Err(failure) => failure,
    }
}

async fn stream(client: &Arc<Client>, updates: &mpsc::Sender<Update>) -> Result<(), Failure> {
    // Opened before the questions are listed, so that none is missed in between.
    let mut events = client.approval_events().await?;
    let listed = async || {
        let open = pending(client).await?;
        Ok::<_, Failure>(Update::Listed(Arc::clone(client), open))
    };
    let mut update = listed().await?;
    loop {
        if updates.send(update).await.is_err() {
            return Ok(());
        }
        update = loop {
            let Some(event) = events.next().await else {
                return Ok(());
            };
            if event.kind == "missed" {
                break listed().await?;
            }
            // An event of a newer server may not be a question.
            if let Ok(question) = serde_json::from_slice::<Approval>(&event.data) {
                break Update::Changed(Arc::clone(client), Box::new(question));
            }
        };
    }
}
