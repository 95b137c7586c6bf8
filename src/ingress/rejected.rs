//! Recognises clients that reject the proxy's certificate, by the way in which they end the
//! handshake.

use std::io;
use std::time::Duration;

use addons::contract::{Code, Denial, names};
use rustls::{AlertDescription, Error};

/// A client that verifies the certificate only after the handshake (Node.js, GnuTLS), and rejects
/// it, closes the connection within this time.
pub const REJECTION_WINDOW: Duration = Duration::from_secs(1);

/// Returns the denial for a failed handshake. If the client sent an alert about the certificate or
/// closed the connection, the denial says that the client rejected the certificate. In all other
/// cases it says that the request is malformed.
pub fn why(error: &io::Error) -> Denial {
    match alert(error) {
        Some(alert) => certificate_rejected(alert),
        None if is_close(error) => certificate_rejected("closed in the handshake"),
        None => {
            let sentence = format!("Malformed request: the TLS handshake failed: {error}");
            Denial::new(Code::MalformedRequest, sentence).by(names::PROXY)
        }
    }
}

/// The denial for a client that closed right after the handshake, without a request.
pub fn after_handshake() -> Denial {
    certificate_rejected("closed after the handshake")
}

/// Returns the denial for a rejected certificate. The audit records `how` as its rule.
fn certificate_rejected(how: &'static str) -> Denial {
    let sentence = "The client rejected the certificate: it does not trust the proxy's CA";
    Denial::new(Code::ClientRejectedCertificate, sentence)
        .rule(how)
        .by(names::PROXY)
}

/// The name of an alert about the certificate; `None` for another error.
fn alert(error: &io::Error) -> Option<&'static str> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    let Error::AlertReceived(alert) = error else {
        return None;
    };
    Some(match alert {
        AlertDescription::UnknownCA => "unknown_ca",
        AlertDescription::BadCertificate => "bad_certificate",
        AlertDescription::CertificateUnknown => "certificate_unknown",
        AlertDescription::CertificateExpired => "certificate_expired",
        AlertDescription::CertificateRevoked => "certificate_revoked",
        AlertDescription::UnsupportedCertificate => "unsupported_certificate",
        _ => return None,
    })
}

fn is_close(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(
        error.kind(),
        UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(error: io::Error) -> (Code, Option<String>) {
        let denial = why(&error);
        (denial.code(), denial.rule_name().map(str::to_owned))
    }

    #[test]
    fn only_a_certificate_alert_or_a_close_counts_as_a_rejected_certificate() {
        let alert = |alert| io::Error::new(io::ErrorKind::InvalidData, Error::AlertReceived(alert));
        let rejected = |how: &str| (Code::ClientRejectedCertificate, Some(how.to_owned()));
        let unknown_ca = outcome(alert(AlertDescription::UnknownCA));
        assert_eq!(unknown_ca, rejected("unknown_ca"));
        let closed = outcome(io::ErrorKind::UnexpectedEof.into());
        assert_eq!(closed, rejected("closed in the handshake"));
        let malformed = (Code::MalformedRequest, None);
        assert_eq!(outcome(alert(AlertDescription::ProtocolVersion)), malformed);
        let no_overlap = Error::PeerIncompatible(rustls::PeerIncompatible::NoCipherSuitesInCommon);
        let no_overlap = io::Error::new(io::ErrorKind::InvalidData, no_overlap);
        assert_eq!(outcome(no_overlap), malformed);
    }
}
