//! POST to `/mcp` in a modern revision.

use std::sync::Arc;

use addons::contract::{Code, Denial};
use http::StatusCode;

use super::super::super::caller::Caller;
use super::super::super::error::method_not_found;
use super::super::super::message::{Message, text};
use super::super::answer::HttpResponse;
use super::super::refusal::{bad_request, refuse_with};
use super::super::visit::Visit;
use super::params::ModernParams;
use super::request::{Request, json_response};
use super::run::{Running, run};
use super::suspended::is_ours;
use super::{discover, envelope, listen, param_headers, retry};

/// Methods of legacy revisions that the modern era does not have.
const REMOVED: [&str; 5] = [
    "initialize",
    "ping",
    "logging/setLevel",
    "resources/subscribe",
    "resources/unsubscribe",
];

/// Answers a message; `is_long` as in [`Request`].
pub async fn post(
    visit: &Visit<'_>,
    message: Message,
    is_long: bool,
) -> Result<HttpResponse, Denial> {
    match message {
        Message::Request { id, method, params } => {
            let request = Request {
                id,
                method,
                params,
                is_long,
            };
            request.answer(visit).await
        }
        // Over HTTP, this revision expects no notifications from clients: closing the response
        // stream cancels a request. Notifications are accepted and dropped.
        Message::Notification { .. } => Ok(HttpResponse::empty(StatusCode::ACCEPTED)),
        Message::Response { id, .. } => {
            let sentence = "clients send no responses in this revision";
            Err(bad_request(id.as_ref(), sentence))
        }
    }
}

impl Request {
    async fn answer(self, visit: &Visit<'_>) -> Result<HttpResponse, Denial> {
        let read = ModernParams::read(self.params.as_deref());
        let described = envelope::read(visit.headers(), &self.method, &read);
        let caller = visit.caller(described.map_err(|error| self.refuse(error))?);
        match &*self.method {
            "server/discover" => {
                let outcome = discover::answer(visit, caller, self.params.clone()).await;
                Ok(json_response(visit, &self.id, &outcome))
            }
            "subscriptions/listen" => listen::open(visit, self, caller).await,
            removed if REMOVED.contains(&removed) => {
                let (status, code) = (StatusCode::NOT_FOUND, Code::NotImplemented);
                let error = method_not_found(removed);
                Err(refuse_with(code, status, Some(&self.id), error))
            }
            _ => self.forward(visit, &read, caller).await,
        }
    }

    async fn forward(
        &self,
        visit: &Visit<'_>,
        read: &ModernParams<'_>,
        caller: Arc<Caller>,
    ) -> Result<HttpResponse, Denial> {
        let state = read.request_state.and_then(text);
        if let Some(state) = state.filter(|state| is_ours(state)) {
            return retry::resume(visit, self, (read, caller), &state).await;
        }
        let tool = match &*self.method {
            "tools/call" => param_headers::check(visit, self, read, &caller).await?,
            _ => None,
        };
        let binding = self.binding(visit, &caller).await?;
        let running = Running::begin(visit, self, read, (caller, tool), binding);
        Ok(run(visit, running).await)
    }
}
