//! Routes requests, and checks whether they are permitted.

use std::sync::Arc;

use http::header::ORIGIN;
use http::{HeaderMap, Method, Request, StatusCode};
use hyper::body::Incoming;

use super::body::{BODY_BYTES_MAX, BodyBudget, FILE_BODY_BYTES_MAX};
use super::operations::{Kind, Operation, Operations, parse, perform};
use super::reply::{Refusal, Reply, health, lines, overloaded, unauthorized, wrong_verb};
use crate::access::Access;
use crate::bash::{BashRequest, COMMANDS_MAX, Commands, Refused};
use crate::connection::{Connection, Stream};
use crate::{files, search};

/// The state that the requests of all connections share.
pub struct Service {
    pub access: Access,
    pub bodies: BodyBudget,
    pub operations: Operations,
    pub commands: Commands,
}

/// The handler of a path, except `/health`.
enum Route {
    Bash,
    File(Operation, Kind),
}

impl Route {
    /// The route of a path, and the most bytes of a body there; `None` for an unknown path.
    fn find(path: &str) -> Option<(Self, usize)> {
        let file = |operation: Operation, limit| Some((Self::File(operation, Kind::File), limit));
        let search =
            |operation: Operation| Some((Self::File(operation, Kind::Search), BODY_BYTES_MAX));
        match path {
            "/bash" => Some((Self::Bash, BODY_BYTES_MAX)),
            "/read" => file(|w, b, k| perform(files::read, w, b, k), BODY_BYTES_MAX),
            "/write" => file(
                |w, b, k| perform(files::write, w, b, k),
                FILE_BODY_BYTES_MAX,
            ),
            "/edit" => file(|w, b, k| perform(files::edit, w, b, k), FILE_BODY_BYTES_MAX),
            "/ls" => file(|w, b, k| perform(files::ls, w, b, k), BODY_BYTES_MAX),
            "/find" => search(|w, b, k| perform(search::find, w, b, k)),
            "/grep" => search(|w, b, k| perform(search::grep, w, b, k)),
            _ => None,
        }
    }
}

impl Service {
    /// Returns the response to one request of `client`.
    pub async fn respond(
        &self,
        request: Request<Incoming>,
        client: Arc<Stream>,
        connection: Arc<Connection>,
    ) -> Reply {
        let outcome = self.try_respond(request, client, connection).await;
        outcome.unwrap_or_else(Reply::from)
    }

    async fn try_respond(
        &self,
        request: Request<Incoming>,
        client: Arc<Stream>,
        connection: Arc<Connection>,
    ) -> Result<Reply, Refusal> {
        let (head, body) = request.into_parts();
        let path = head.uri.path();
        if path == "/health" {
            return match head.method {
                Method::GET => Ok(health()),
                _ => Err(wrong_verb(path, "GET")),
            };
        }
        self.access.check(&head.headers).map_err(unauthorized)?;
        let receiving = connection.receiving();
        refuse_browser(&head.headers)?;
        let Some((route, limit)) = Route::find(path) else {
            return Err(Refusal::new(StatusCode::NOT_FOUND, "there is no such path"));
        };
        if head.method != Method::POST {
            return Err(wrong_verb(path, "POST"));
        }
        let body = self.bodies.read(body, limit).await?;
        let busy = connection.busy();
        drop(receiving);
        match route {
            Route::File(operation, kind) => {
                self.operations.run(operation, kind, body, &client).await
            }
            Route::Bash => {
                let request: BashRequest = parse(&body.bytes)?;
                let started = self.commands.start(request, client, busy);
                started.map(lines).map_err(|refused| match refused {
                    Refused::Busy => overloaded(&format!("{COMMANDS_MAX} commands already run")),
                    Refused::Failed(error) => Refusal::failed(error),
                })
            }
        }
    }
}

/// Refuses requests with the header `Origin`: a web page in a browser can send requests to loopback
/// addresses, but its POST requests always have this header.
fn refuse_browser(headers: &HeaderMap) -> Result<(), Refusal> {
    if headers.contains_key(ORIGIN) {
        let error = "requests of web pages are refused: the header Origin is present";
        return Err(Refusal::new(StatusCode::FORBIDDEN, error));
    }
    Ok(())
}
