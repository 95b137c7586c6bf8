//! The `oauth` key of an entry in `credentials.yaml`.

use std::path::PathBuf;

use super::Login;
use crate::credentials::SecretSetting;

/// A login that is kept in a token file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OauthSettings {
    /// How its tokens are stored and refreshed.
    pub login: Login,
    /// The file, which is rewritten after each refresh.
    pub token_file: PathBuf,
    /// Sent with each refresh, where the application has one.
    pub client_secret: Option<SecretSetting>,
}
