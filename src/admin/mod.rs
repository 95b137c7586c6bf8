//! The admin API: HTTP over a Unix socket, whose clients are identified by their user id
//! (`SO_PEERCRED`).
//!
//! A family of routes is one file: its handlers, the types of its requests and responses, which the
//! client of the command line uses too, and its errors. `router` and `status::Document` list the
//! handlers; [`ControlPlane`] has the operations of the server that they call.

mod act;
mod approvals;
mod containers;
mod error;
mod grants;
mod json;
mod listed;
mod mcp;
mod named_tool;
mod people;
mod policy;
mod registration;
mod sandbox;
mod schema;
mod socket;
mod status;
mod write_limit;

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{BoxFuture, Container};
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderMap, header};
use axum::routing::{delete, get, post};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

pub use act::OperatorAct;
pub use approvals::{Approval, ApprovalList, ApproveBody, DenyBody, policy_set};
pub use containers::{ContainerList, Done};
pub use error::ErrorBody;
pub use grants::{EVERY, GrantBody, GrantEntry, GrantList};
pub use listed::{listed, not_registered};
pub use mcp::{AcceptanceBody, Accepted, DefinitionBody, OperatorRequest};
pub use named_tool::NamedTool;
pub use policy::PolicyBody;
pub use registration::{FieldError, parse_registration, repo_name};
pub use sandbox::{ActiveCredential, SandboxSettings};
pub use schema::{ContainerEntry, RegistrationBody};
pub use socket::{bind, probe};
pub use status::{
    Check, ExplainRequest, ExplainStep, Explanation, HEALTHY, Health, HealthBody, StepVerdict,
};

use error::ApiError;
use people::PeopleDecisions;
use socket::{Peer, Peers};
use write_limit::WriteLimit;

use crate::approvals::{Learner, Ledger};
use crate::mcp::policy::PolicyKeeper;
use crate::mcp::{AcceptError, Decisions, Digests, Outcome, People};
use crate::registry::Registry;
use crate::telemetry::FlowLog;

/// Limit on the size of a request body, in bytes.
const MAX_BODY_BYTES: usize = 1024 * 1024;
/// How long open requests may take to finish, counted from the shutdown. Then they are aborted.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The parts of the server that the handlers use.
pub struct AdminState {
    pub registry: Arc<Registry>,
    /// The ids of users that may connect, besides root and the server's own user.
    pub admin_uids: Vec<u32>,
    pub metrics: prometheus::Registry,
    pub flows: Arc<FlowLog>,
    /// The questions that operators decide, and the grants.
    pub approvals: Arc<Ledger>,
    /// Approves hosts for every container.
    pub learner: Arc<Learner>,
    /// The policy that people set.
    pub policies: Arc<PolicyKeeper>,
    /// Answers the MCP requests of people, who decide through this API.
    pub people: Arc<People>,
    pub control: Arc<dyn ControlPlane>,
}

/// The operations of the server that the handlers call.
pub trait ControlPlane: Send + Sync {
    fn health(&self) -> Health;
    /// Reloads the configuration. If the files are invalid, returns all of their errors.
    fn reload(&self) -> Result<(), Vec<String>>;
    /// The settings that a sandbox needs to use this proxy.
    fn sandbox(&self) -> SandboxSettings;
    /// Explains the verdict on a request or a tool call. The error says why there is no verdict.
    fn explain(&self, question: ExplainRequest) -> BoxFuture<'_, Result<Explanation, String>>;
    /// Sends an MCP request on behalf of a container.
    fn mcp(&self, request: OperatorRequest) -> BoxFuture<'_, Outcome>;
    /// Starts the MCP servers of a container whose lease begins. Returns at once.
    fn lease_began(&self, container: &Arc<Container>);
    /// Writes an operator's act to the audit log.
    fn audit(&self, act: OperatorAct);
    /// The digests of a tool's definition. Blocks while the file of accepted definitions is written.
    /// Fails if the tool is unknown, or the file cannot be read.
    fn definition(&self, tool: NamedTool) -> Result<Digests, AcceptError>;
    /// Accepts the changed definition of a tool, so that clients see the tool again, and returns
    /// the definition's digest. `digest` is the one that the operator saw; `None` accepts the
    /// definition that the server listed most recently. Fails if the tool is unknown, if its
    /// definition has not changed or has another digest, or if the file of accepted definitions
    /// cannot be read or written. Blocks until the acceptance is on disk.
    fn accept_definition(
        &self,
        tool: NamedTool,
        digest: Option<String>,
    ) -> Result<String, AcceptError>;
}

/// The state of every handler.
struct Api {
    state: AdminState,
    writes: WriteLimit,
    shutdown: CancellationToken,
}

/// Serves the API until the shutdown. Open requests then get `DRAIN_TIMEOUT` to finish.
pub async fn serve(listener: UnixListener, state: AdminState, shutdown: CancellationToken) {
    let peers = Peers::new(listener, &state.admin_uids);
    let api = Arc::new(Api {
        state,
        writes: WriteLimit::default(),
        shutdown: shutdown.clone(),
    });
    let decisions: Arc<dyn Decisions> = Arc::new(PeopleDecisions(Arc::clone(&api)));
    api.state.people.decide_with(Arc::downgrade(&decisions));
    let service = router(api).into_make_service_with_connect_info::<Peer>();
    let server =
        axum::serve(peers, service).with_graceful_shutdown(shutdown.clone().cancelled_owned());
    let overdue = async {
        shutdown.cancelled().await;
        tokio::time::sleep(DRAIN_TIMEOUT).await;
    };
    tokio::select! {
        served = server => {
            if let Err(error) = served {
                tracing::error!(%error, "the admin API stopped");
            }
        }
        () = overdue => tracing::warn!("open requests to the admin API were aborted by the shutdown"),
    }
}

fn router(api: Arc<Api>) -> Router {
    let one = get(containers::show).delete(containers::unregister);
    Router::new()
        .route(
            "/internal/containers",
            get(containers::list).post(containers::register),
        )
        .route("/internal/containers/{id}", one)
        .route("/internal/containers/{id}/reset", post(containers::reset))
        .route("/internal/containers/{id}/mcp", post(mcp::request))
        .route("/internal/mcp", post(people::request))
        .route(
            "/internal/mcp/policy",
            get(policy::show).delete(policy::reset),
        )
        .route(
            "/internal/mcp/definitions/{server}/{tool}",
            get(mcp::definition),
        )
        .route(
            "/internal/mcp/definitions/{server}/{tool}/accept",
            post(mcp::accept),
        )
        .route("/internal/approvals", get(approvals::list))
        .route("/internal/approvals/{id}", get(approvals::show))
        .route("/internal/approvals/{id}/approve", post(approvals::approve))
        .route("/internal/approvals/{id}/deny", post(approvals::deny))
        .route("/internal/approvals/{id}/forget", post(approvals::forget))
        .route("/internal/grants", get(grants::list).post(grants::add))
        .route("/internal/grants/{id}", delete(grants::revoke))
        .route("/internal/health", get(status::health))
        .route("/internal/metrics", get(status::metrics))
        .route("/internal/flows", get(status::flows))
        .route("/internal/sandbox", get(sandbox::sandbox))
        .route("/internal/reload", post(status::reload))
        .route("/internal/explain", post(status::explain))
        .route("/internal/openapi.json", get(status::openapi))
        .fallback(async || ApiError::UnknownPath)
        .method_not_allowed_fallback(async || ApiError::WrongMethod)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(api)
}

/// Whether a client asks for a live stream instead of a list.
fn wants_events(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT);
    let accept = accept.and_then(|accept| std::str::from_utf8(accept.as_bytes()).ok());
    accept.is_some_and(|accept| accept.contains("text/event-stream"))
}
