//! DNS over HTTPS: questions in the body of an HTTP request (RFC 8484).

use std::future::pending;
use std::time::Duration;

use addons::contract::{Code, Denial, Principal, names};
use hickory_resolver::net::xfer::Protocol;

use super::DnsClient;
use super::message::Packet;
use super::service::{Admission, Service};

/// The `Retry-After` for a client over its budget, which is a number of questions per second.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Service {
    /// Judges a message and returns the DNS response; a denial by the chain is a DNS response too.
    /// Fails without a DNS response if the body is not a message with one question, or if the
    /// client is over its budget. Dropping the future ends the question as an aborted flow.
    pub async fn answer(&self, message: &[u8], dns_client: DnsClient) -> Result<Vec<u8>, Denial> {
        if !Packet::new(message).is_some_and(Packet::has_question) {
            let what = "the body is not a DNS message with one question";
            return Err(Denial::malformed(what).by(names::DNS));
        }
        let principal = dns_client.principal.clone();
        // As over TCP, the response need not fit into a datagram.
        match self.admit(message, dns_client, Protocol::Tcp) {
            // The packet is a query, so silence can only mean that the budget is used up.
            Admission::Silence => Err(over_budget(principal.as_ref())),
            Admission::Refusal(answer) => Ok(answer),
            Admission::Question(question) => {
                // There is no need to watch for a disconnect here: when the client disconnects, the
                // caller drops this future.
                question
                    .answer(pending())
                    .await
                    .ok_or_else(Denial::internal)
            }
        }
    }
}

fn over_budget(principal: Option<&Principal>) -> Denial {
    let denial = Denial::new(Code::RateLimited, "Rate limit exceeded");
    let denial = match principal.and_then(Principal::lease) {
        Some(lease) => denial.with("container_id", lease.id.as_str()),
        None => denial,
    };
    denial
        .with("upstream", "none")
        .rule("questions_per_second")
        .retry_after(RETRY_AFTER)
        .by(names::DNS)
}
