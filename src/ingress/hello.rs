//! Reads a TLS ClientHello from bytes that arrive in pieces.

use rustls::server::{Accepted, Acceptor};
use thiserror::Error;

/// The bytes are not a valid ClientHello.
#[derive(Debug, Error)]
#[error("invalid ClientHello: {reason}")]
pub struct NoHello {
    reason: String,
    /// The TLS record with the alert to send; empty if the error has no alert.
    pub alert: Vec<u8>,
}

/// Parses a ClientHello. The result does not depend on how the bytes were cut.
#[derive(Default)]
pub struct HelloReader {
    acceptor: Acceptor,
    read: usize,
}

impl HelloReader {
    /// Parses the bytes that are new since the previous call; `bytes` must hold all bytes since the
    /// start. Returns `None` if more bytes are needed.
    pub fn read(&mut self, bytes: &[u8]) -> Result<Option<Accepted>, NoHello> {
        let invalid = |reason, alert| NoHello { reason, alert };
        let mut rest = bytes.get(self.read..).unwrap_or_default();
        while !rest.is_empty() {
            let read = self.acceptor.read_tls(&mut rest);
            let count = read.map_err(|error| invalid(error.to_string(), Vec::new()))?;
            self.read += count;
            match self.acceptor.accept() {
                Ok(Some(accepted)) => return Ok(Some(accepted)),
                Ok(None) if count > 0 => {}
                Ok(None) => {
                    let reason = format!("incomplete after {} bytes", self.read);
                    return Err(invalid(reason, Vec::new()));
                }
                Err((error, mut alert)) => {
                    let mut record = Vec::new();
                    // Writing to memory does not fail.
                    let _ = alert.write_all(&mut record);
                    return Err(invalid(error.to_string(), record));
                }
            }
        }
        Ok(None)
    }

    /// The number of bytes consumed so far. These may include bytes after the ClientHello, which
    /// the [`Accepted`] keeps.
    #[must_use]
    pub fn length(&self) -> usize {
        self.read
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};
    use testkit::each_row;

    use super::*;

    fn client_hello(name: &'static str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = name.try_into().unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_client_hello_is_read_from_pieces_of_any_size() {
        let hello = client_hello("api.example.com");
        each_row([1, 2, 5, 100, hello.len()], |size| {
            let mut reader = HelloReader::default();
            let ends = (size..hello.len()).step_by(size).chain([hello.len()]);
            let found = ends
                .filter_map(|end| reader.read(&hello[..end]).unwrap())
                .next();
            let accepted = found.expect("a whole ClientHello");
            assert_eq!(
                accepted.client_hello().server_name(),
                Some("api.example.com")
            );
            assert_eq!(reader.length(), hello.len());
        });
    }

    proptest! {
        #[test]
        fn malformed_hellos_never_panic(
            at in 0..200_usize,
            bytes: Vec<u8>,
            size in 1..300_usize,
        ) {
            let mut hello = client_hello("api.example.com");
            let at = at.min(hello.len());
            hello.splice(at..(at + bytes.len()).min(hello.len()), bytes);
            let mut reader = HelloReader::default();
            for end in (size..hello.len()).step_by(size).chain([hello.len()]) {
                match reader.read(&hello[..end]) {
                    Ok(None) => {}
                    Ok(Some(_)) | Err(_) => break,
                }
            }
            prop_assert!(reader.length() <= hello.len());
        }
    }
}
