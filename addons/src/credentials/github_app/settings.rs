//! The `github_app` key of an entry in `credentials.yaml`.

use super::Installation;
use crate::credentials::SecretSetting;

/// A GitHub App installation that mints a token for each lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppSettings {
    /// What is asked for tokens.
    pub installation: Installation,
    /// The App's RSA key in PEM.
    pub private_key: SecretSetting,
}
