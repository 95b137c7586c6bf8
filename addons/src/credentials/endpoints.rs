//! Answers requests of command-line tools about their login (token refresh, token info, user info)
//! with placeholders, without contacting an upstream.

use std::sync::Arc;

use super::oauth::PlaceholderAnswer;
use super::{Credential, CredentialKind};
use crate::contract::{Answer, Denial, Flow, Request, Scheme};

/// Limit on the bytes of a request's body that the engine reads and discards before the answer.
const MAX_REQUEST_BODY: u64 = 1 << 20;

/// The endpoints whose requests the addon answers, each with its credential.
#[derive(Default)]
pub(super) struct Endpoints(Vec<(Arc<Credential>, PlaceholderAnswer)>);

impl Endpoints {
    /// Adds the endpoints of a credential's login, if it has one.
    pub(super) fn add(&mut self, credential: &Arc<Credential>) {
        if let CredentialKind::Token {
            login: Some(login), ..
        } = &credential.kind
        {
            let answers = login.placeholder_answers();
            let of_this = answers
                .into_iter()
                .map(|answer| (Arc::clone(credential), answer));
            self.0.extend(of_this);
        }
    }

    /// Returns the placeholder answer if host, port, method and path equal those of an endpoint,
    /// the scheme is HTTPS, and the container may use the credential; otherwise `None`. The path is
    /// compared byte for byte, in the form that would otherwise be sent upstream.
    pub(super) fn answer(&self, flow: &mut Flow, request: &Request) -> Option<Denial> {
        let container = flow.known_container()?;
        let (credential, answer) = self.0.iter().find(|(credential, answer)| {
            answer.host.0 == *flow.host()
                && answer.host.1 == flow.port()
                && answer.path == request.path.sent()
                && answer.methods.contains(&request.method)
                && credential.is_for_container(container)
        })?;
        if flow.scheme() != Scheme::Https {
            return None;
        }
        let CredentialKind::Token {
            source,
            login: Some(login),
            ..
        } = &credential.kind
        else {
            return None;
        };
        let name = &credential.name;
        flow.note(|| {
            format!("answered with placeholders of credential {name}; no request is sent upstream")
        });
        let sentence = format!("Answered with placeholders of credential {name}");
        let answer = Answer {
            status: 200,
            content_type: "application/json",
            body: login.answer(answer.endpoint, name, source.account().as_deref()),
            drain_bytes: MAX_REQUEST_BODY,
        };
        Some(Denial::answered(sentence, answer))
    }
}
