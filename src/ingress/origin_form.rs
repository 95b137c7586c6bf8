//! Answers requests in origin form on the listener of a container or of an MCP server, except
//! requests for the MCP gateway. Only DNS over HTTPS (RFC 8484) is served, in clear text, since a
//! Unix socket crosses no network.

use std::sync::Arc;

use addons::contract::{Code, Denial};
use addons::identity::claimed_id;
use futures_util::future::BoxFuture;
use http::header::{ALLOW, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response};
use hyper::body::Incoming;

use super::connection::Connection;
use crate::dns::{self, DnsClient};
use crate::http::{OriginRequest, Reply};

const DNS_MESSAGE: &str = "application/dns-message";

/// The longest DNS message in bytes: the length prefix over TCP has two bytes (RFC 1035, section
/// 4.2.2).
const MAX_DNS_MESSAGE: usize = 65_535;

/// Answers a request in origin form: DNS over HTTPS, or a denial.
pub fn answer(
    connection: &Connection,
    request: Request<Incoming>,
) -> BoxFuture<'static, Response<Reply>> {
    let questions = Arc::clone(&connection.engine.questions);
    let idle = Arc::clone(&connection.idle);
    let dns_client = DnsClient {
        client: connection.client.clone(),
        principal: connection.principal.clone(),
        claimed_id: claimed_id(request.headers()),
    };
    let mut request = OriginRequest::begin(Arc::clone(&connection.session), request);
    Box::pin(async move {
        // While the future waits, the connection's task checks that the client is still connected.
        let answered = idle.held(route(&questions, &mut request, dns_client));
        match answered.await {
            Ok(message) => request.answer(DNS_MESSAGE, message),
            Err(denial) => {
                let mut response = request.deny(denial.clone());
                if denial.code() == Code::MethodNotAllowed {
                    let allow = HeaderValue::from_static("POST");
                    response.headers_mut().insert(ALLOW, allow);
                }
                response
            }
        }
    })
}

/// Answers a request by its path. Returns the body of the response.
async fn route(
    questions: &dns::Service,
    request: &mut OriginRequest,
    dns_client: DnsClient,
) -> Result<Vec<u8>, Denial> {
    request.check()?;
    match request.head.uri.path() {
        "/dns-query" => dns_query(questions, request, dns_client).await,
        _ => Err(Denial::malformed(
            "in origin form this listener takes POST /dns-query and /mcp; a proxy takes requests in absolute form, or CONNECT",
        )),
    }
}

async fn dns_query(
    questions: &dns::Service,
    request: &mut OriginRequest,
    dns_client: DnsClient,
) -> Result<Vec<u8>, Denial> {
    if request.head.method != Method::POST {
        let sentence = format!("Method not allowed: {} /dns-query", request.head.method);
        return Err(Denial::new(Code::MethodNotAllowed, sentence));
    }
    if !is_dns_message(request) {
        let sentence = format!("Content-Type must be {DNS_MESSAGE}, without a Content-Encoding");
        return Err(Denial::new(Code::UnsupportedEncoding, sentence));
    }
    let message = request.body(MAX_DNS_MESSAGE, "dns_message_bytes").await?;
    questions.answer(&message, dns_client).await
}

fn is_dns_message(request: &OriginRequest) -> bool {
    let headers = &request.head.headers;
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let named = types.next().and_then(|value| value.to_str().ok());
    // Parameters are ignored: the type defines none (RFC 8484, section 6).
    let essence = named.and_then(|named| named.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case(DNS_MESSAGE))
        && types.next().is_none()
        && !headers.contains_key(CONTENT_ENCODING)
}
