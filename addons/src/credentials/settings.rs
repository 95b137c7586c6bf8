//! The entries of `credentials.yaml`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use http::HeaderName;
use zeroize::Zeroizing;

use super::github_app::AppSettings;
use super::oauth::OauthSettings;
use crate::contract::{ContainerId, Host, Origin, SecretFiles, SecretSource};

/// An entry whose secret is not empty.
#[derive(Clone, Debug)]
pub struct CredentialSettings {
    /// Stands in the place of an echo, in the audit and in metrics.
    pub name: String,
    /// The hosts and ports it is for.
    pub hosts: Vec<(Host, u16)>,
    /// How the secret is put into a request.
    pub kind: KindSettings,
    /// Fields that a client could bring a key of its own in.
    pub remove_headers: Vec<HeaderName>,
    /// The same for query parameters.
    pub remove_query: Vec<String>,
    /// The same for cookies.
    pub remove_cookies: Vec<String>,
    /// The containers it is for; `None` for all.
    pub containers: Option<Vec<ContainerId>>,
    /// The repositories it is for; `None` for whatever repositories a container has.
    pub repos: Option<Vec<String>>,
    /// Where it was written.
    pub origin: Origin,
}

/// How a secret is put into a request.
#[derive(Clone, Debug)]
pub enum KindSettings {
    /// As the whole value of fields.
    SetHeaders(Vec<(HeaderName, SecretSetting)>),
    /// As `Authorization: Basic`.
    Basic {
        /// Not a secret.
        username: String,
        /// The secret.
        password: SecretSetting,
    },
    /// As `Authorization: Bearer`.
    Bearer(SecretSetting),
    /// As a token that an App mints for each lease.
    GithubApp(AppSettings),
    /// As the access token of a login.
    Oauth(OauthSettings),
}

/// Where a secret comes from. Its `Debug` never shows a value.
#[derive(Clone, PartialEq, Eq)]
pub enum SecretSetting {
    /// Given in the file, or by a variable.
    Value(Zeroizing<String>),
    /// Read from a file, again when it changes.
    File(PathBuf),
}

impl SecretSetting {
    pub(super) fn source(&self, files: &dyn SecretFiles) -> Arc<dyn SecretSource> {
        match self {
            Self::Value(value) => Arc::new(Fixed(Arc::new(value.clone()))),
            Self::File(path) => files.source(path),
        }
    }
}

impl fmt::Debug for SecretSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(_) => f.write_str("Value(…)"),
            Self::File(path) => write!(f, "File({})", path.display()),
        }
    }
}

struct Fixed(Arc<Zeroizing<String>>);

impl SecretSource for Fixed {
    fn read(&self) -> Result<Arc<Zeroizing<String>>, String> {
        Ok(Arc::clone(&self.0))
    }

    fn version(&self) -> u64 {
        0
    }
}
