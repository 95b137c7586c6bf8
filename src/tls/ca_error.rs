//! The errors of the interception CA.

use std::path::{Path, PathBuf};

use thiserror::Error;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Why the CA cannot be used or rotated. Each message says what to do, except those of rcgen and
/// rustls.
#[derive(Debug, Error)]
pub enum CaError {
    /// A file or folder cannot be read or written.
    #[error("{path}: {source}; make it readable and writable for this user")]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    /// The key or the certificate is missing.
    #[error(
        "{missing} is missing, but {present} exists; restore {missing} from a backup, or move {present} away {effect}"
    )]
    Half {
        missing: PathBuf,
        present: PathBuf,
        effect: &'static str,
    },
    /// A file is malformed, or key and certificate do not match.
    #[error("{path}: {why}; restore it from a backup, or move key and certificate away {effect}")]
    Broken {
        path: PathBuf,
        why: String,
        effect: &'static str,
    },
    /// The system clock is before the certificate's `notBefore`.
    #[error(
        "the system clock says {}, but the CA is valid only from {}; set the clock",
        rfc3339(*now), rfc3339(*not_before)
    )]
    NotYetValid {
        now: OffsetDateTime,
        not_before: OffsetDateTime,
    },
    /// The certificate has expired.
    #[error(
        "the CA expired at {}; run `unified-proxy ca rotate` and let sandboxes trust the new one",
        rfc3339(*not_after)
    )]
    Expired { not_after: OffsetDateTime },
    /// A rotation is already under way.
    #[error(
        "a rotation is under way: the new CA signs from {} on; rotate again after that",
        rfc3339(*from)
    )]
    RotationPending { from: OffsetDateTime },
    /// rcgen failed.
    #[error("cannot make a certificate: {0}")]
    Rcgen(#[from] rcgen::Error),
    /// rustls refused the key of the leaves, or the settings that all hosts share.
    #[error("cannot set up TLS for intercepted hosts: {0}")]
    Rustls(#[from] rustls::Error),
}

impl CaError {
    /// Makes the error of an operation on a file or folder.
    pub(super) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

/// Formats a time for a person, in whole seconds.
pub fn rfc3339(at: OffsetDateTime) -> String {
    let seconds = at.truncate_to_second();
    seconds.format(&Rfc3339).unwrap_or_else(|_| at.to_string())
}

#[cfg(test)]
mod tests {
    use testkit::each_row;
    use time::macros::datetime;

    use super::*;

    #[test]
    fn dates_in_errors_are_rfc_3339_in_whole_seconds() {
        let at = datetime!(2030-01-02 03:04:05.678_901 UTC);
        each_row(
            [
                CaError::NotYetValid {
                    now: at,
                    not_before: at,
                },
                CaError::Expired { not_after: at },
                CaError::RotationPending { from: at },
            ],
            |error| {
                let text = error.to_string();
                assert!(text.contains(" 2030-01-02T03:04:05Z"), "{text}");
            },
        );
    }
}
