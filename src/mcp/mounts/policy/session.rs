//! A session with a policy server.

use std::sync::Arc;

use addons::contract::{BoxFuture, CallPermit, Container, RpcError};
use addons::json::Members;
use addons::mcp::PolicyServer;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::super::error::{internal, invalid_params, method_not_found};
use super::super::{Described, Events, MountError, MountSession, Outcome};
use super::results::{contents, failed, members_of, resource_not_found, structured, text_argument};
use super::{PolicyDesk, definitions, turn};
use crate::mcp::error::{SERVER_ERROR, protocol_error, raw};
use crate::mcp::policy::NotSet;

/// A session with one policy server, which answers for the container of each call.
pub struct PolicySession {
    desk: Arc<PolicyDesk>,
    server: PolicyServer,
    described: Described,
    ended: CancellationToken,
}

impl PolicySession {
    pub fn new(
        desk: &Arc<PolicyDesk>,
        server: PolicyServer,
        described: Described,
        ended: CancellationToken,
    ) -> Self {
        Self {
            desk: Arc::clone(desk),
            server,
            described,
            ended,
        }
    }

    async fn answer(&self, permit: &CallPermit) -> Outcome {
        let file_name = self.desk.file_name();
        let listed = |key: &str, entries| raw(json!({ key: entries })).ok_or_else(internal);
        match &**permit.method() {
            "tools/list" => listed("tools", definitions::tools(self.server, false)),
            "resources/list" => {
                let resources = definitions::resources(self.server, file_name);
                listed("resources", resources)
            }
            "resources/templates/list" => listed("resourceTemplates", Vec::new()),
            "resources/read" => self.read(permit, file_name),
            "tools/call" => {
                let container = permit.container().ok_or_else(internal)?;
                self.call(container, permit).await
            }
            _ => Err(method_not_found()),
        }
    }

    fn read(&self, permit: &CallPermit, file_name: &str) -> Outcome {
        let members = params(permit)?;
        let uri = members.text("uri");
        let uri = uri.ok_or_else(|| invalid_params("uri is missing"))?;
        let is_reader = matches!(self.server, PolicyServer::Reader { .. });
        if !is_reader || *uri != definitions::policy_uri(file_name) {
            return Err(resource_not_found(&uri));
        }
        match self.desk.policy() {
            Ok(text) => contents(&uri, "text/plain", &text),
            Err(why) => {
                // The cause may name files of the host.
                tracing::warn!(why, "an agent cannot read the policy");
                let sentence = "The policy cannot be shown now";
                Err(protocol_error(SERVER_ERROR, sentence))
            }
        }
    }

    async fn call(&self, container: &Arc<Container>, permit: &CallPermit) -> Outcome {
        let members = params(permit)?;
        let name = members.text("name").unwrap_or_default();
        let arguments = members.get("arguments").map(str::to_owned);
        let arguments = arguments.map(RawValue::from_string).transpose();
        let arguments = arguments.map_err(|_| internal())?;
        let arguments = arguments.as_deref();
        match (self.server, &*name) {
            (PolicyServer::Reader { decides: true }, "decide") => {
                let arguments = members_of(arguments, &["name", "arguments"])?;
                let tool = text_argument(&arguments, "name")?;
                self.desk
                    .decide(Arc::clone(container), tool, &arguments)
                    .await
            }
            (PolicyServer::Proposer, "propose_policy") => {
                let arguments = members_of(arguments, &["source"])?;
                let source = text_argument(&arguments, "source")?;
                self.propose(container, &source).await
            }
            (PolicyServer::Loop, "yield_turn") => {
                members_of(arguments, &[])?;
                self.yield_turn(container).await
            }
            _ => Err(invalid_params("Unknown tool")),
        }
    }

    async fn propose(&self, container: &Container, source: &str) -> Outcome {
        match self.desk.keeper.propose(container, source).await {
            Ok(id) => {
                let digest = addons::json::sha256_hex(source);
                tracing::info!(container = %container.id, approval = %id, digest, "an agent proposed a policy");
                structured(&json!({ "id": id.to_string() }))
            }
            Err(why) => {
                // The others may name files of the host.
                let shown = match &why {
                    NotSet::NoText(_) => "the policy in force cannot be shown to a person now",
                    NotSet::Refused(_) | NotSet::Broken => "no person can be asked now",
                    why => &why.to_string(),
                };
                tracing::info!(container = %container.id, %why, "a proposed policy is refused");
                failed(&format!("The policy was not proposed: {shown}"))
            }
        }
    }

    /// Waits at most `approvals.wait`.
    async fn yield_turn(&self, container: &Container) -> Outcome {
        let Some(_permit) = turn::permit(container) else {
            return failed("too many calls of loop_yield_turn wait already");
        };
        let snapshot = self.desk.keeper.current();
        let limit = snapshot.config.addons.mcp.waits.of(None);
        let deciding = turn::next_decision(&self.desk.ledger, container);
        let waiting = timeout(limit, deciding);
        match self.desk.stopping.run_until_cancelled(waiting).await {
            Some(Ok(Err(_))) => failed("the ledger of approvals cannot be read"),
            Some(Ok(Ok(())) | Err(_)) | None => structured(&json!({ "ok": true })),
        }
    }
}

impl PolicyDesk {
    /// The result of the tool `decide`.
    pub async fn decide(
        &self,
        container: Arc<Container>,
        tool: String,
        members: &Members<'_>,
    ) -> Outcome {
        let arguments = members.get("arguments").map(str::to_owned);
        let arguments = arguments.map(RawValue::from_string).transpose();
        let arguments = arguments.map_err(|_| internal())?;
        match self.advise(container, tool, arguments).await {
            Ok(advice) => structured(&json!({
                "decision": advice.decision.as_str(),
                "rationale": advice.rationale,
            })),
            Err(why) => failed(&why),
        }
    }
}

fn params(permit: &CallPermit) -> Result<Members<'_>, RpcError> {
    let no_object = || invalid_params("params is not an object");
    let params = permit.params().ok_or_else(no_object)?;
    Members::read(params).map_err(|_| no_object())
}

impl MountSession for PolicySession {
    fn described(&self) -> &Described {
        &self.described
    }

    fn request<'a>(
        &'a self,
        permit: CallPermit,
        _events: Events,
    ) -> BoxFuture<'a, Result<Outcome, MountError>> {
        Box::pin(async move {
            tokio::select! {
                biased;
                outcome = self.answer(&permit) => Ok(outcome),
                () = self.ended.cancelled() => Err(MountError::Died { exit: None }),
            }
        })
    }

    /// Drops the notification: the servers take none.
    fn notify<'a>(&'a self, _permit: CallPermit) -> BoxFuture<'a, Result<(), MountError>> {
        Box::pin(async { Ok(()) })
    }

    fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    fn is_built_in(&self) -> bool {
        true
    }
}
