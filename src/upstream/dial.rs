//! The only code that opens TCP connections to upstreams.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use addons::contract::{Code, Denial, Host, Permit, Stage, names};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{sleep, timeout};

use super::socket::{SocketBudget, SocketPermit, UpstreamSocket};

/// Time after the start of an attempt until the next address is tried in parallel (RFC 8305,
/// section 5).
const STAGGER: Duration = Duration::from_millis(250);

/// The most addresses tried for one connection; further ones are ignored, so that a DNS answer
/// cannot make the proxy send SYNs to hundreds of hosts.
const MAX_ATTEMPTS: usize = 16;

/// Connects to the first permitted address that accepts, within `limit`.
///
/// Tries the first `MAX_ATTEMPTS` addresses in their order. Starts the next attempt as soon as an
/// attempt fails or `STAGGER` has passed. Each attempt takes a socket permit of the principal.
pub async fn dial(
    permit: &Permit,
    limit: Duration,
    sockets: &SocketBudget,
) -> Result<(UpstreamSocket, SocketAddr), Denial> {
    match timeout(limit, race(permit, sockets)).await {
        Ok(Ok(connected)) => Ok(connected),
        Ok(Err(error)) => Err(failed(permit.host(), &error)),
        Err(_elapsed) => Err(timed_out(permit.host())),
    }
}

async fn race(permit: &Permit, sockets: &SocketBudget) -> io::Result<(UpstreamSocket, SocketAddr)> {
    let mut untried = permit.addresses().iter().take(MAX_ATTEMPTS);
    let mut attempts = FuturesUnordered::new();
    let mut first_error = None;
    loop {
        if let Some(address) = untried.next() {
            attempts.push(attempt(*address, sockets.take(permit.principal())));
        } else if attempts.is_empty() {
            return Err(first_error.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()));
        }
        tokio::select! {
            Some(result) = attempts.next() => match result {
                Ok(connected) => return Ok(connected),
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            },
            () = sleep(STAGGER), if untried.len() > 0 => {}
        }
    }
}

async fn attempt(
    address: SocketAddr,
    permit: Option<SocketPermit>,
) -> io::Result<(UpstreamSocket, SocketAddr)> {
    let permit = permit.ok_or(io::ErrorKind::QuotaExceeded)?;
    let socket = UpstreamSocket::connect(address, permit).await?;
    Ok((socket, address))
}

fn failed(host: &Host, error: &io::Error) -> Denial {
    if crate::runtime::exhausted(error) {
        return Denial::internal().rule("sockets").by(names::DIAL);
    }
    if error.kind() == io::ErrorKind::QuotaExceeded {
        let sentence = "Too many connections to upstreams";
        return Denial::new(Code::TooManyConnections, sentence)
            .rule("open files")
            .by(names::DIAL);
    }
    if error.kind() == io::ErrorKind::TimedOut {
        return timed_out(host);
    }
    let sentence = format!("Cannot connect to {host}: {}", error.kind());
    Denial::new(Code::UpstreamUnreachable, sentence)
        .at(Stage::Connect)
        .by(names::DIAL)
}

fn timed_out(host: &Host) -> Denial {
    let sentence = format!("Cannot connect to {host}: timed out");
    Denial::new(Code::UpstreamTimeout, sentence)
        .at(Stage::Connect)
        .by(names::DIAL)
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn exhausted_resources_are_internal_errors_and_failed_connections_upstream_errors() {
        let host = Host::parse("far.example").unwrap();
        each_row([24, 23, 105, 12], |errno| {
            let denial = failed(&host, &io::Error::from_raw_os_error(errno));
            assert_eq!(denial.code(), Code::InternalError, "errno {errno}");
        });
        each_row(
            [
                (111, Code::UpstreamUnreachable),
                (101, Code::UpstreamUnreachable),
                (110, Code::UpstreamTimeout),
            ],
            |(errno, code)| {
                let denial = failed(&host, &io::Error::from_raw_os_error(errno));
                assert_eq!(denial.code(), code, "errno {errno}");
            },
        );
    }
}
