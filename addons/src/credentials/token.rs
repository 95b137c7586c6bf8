//! Tokens that expire, and the trait of their sources.

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue};

use super::forms::Forms;
use super::scrub::Scrubber;
use super::secret::{basic_value, bearer_value, checked, user_and_password};
use crate::contract::{BoxFuture, Container};

/// The user name with which git hosts accept a token as a password.
const TOKEN_USER: &str = "x-access-token";

/// An access token, prepared to be sent. It has no `Debug` on purpose.
pub struct Token {
    bearer: HeaderValue,
    basic: HeaderValue,
    extra_fields: Vec<(HeaderName, HeaderValue)>,
    scrubber: Arc<Scrubber>,
}

/// How a token is put into a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenForm {
    /// As `Authorization: Bearer`.
    Bearer,
    /// As the password of the user `x-access-token` in `Authorization: Basic`, for git over HTTPS.
    Basic,
}

/// A token, or the reason why none can be fetched. The reason never quotes a token.
pub type Fetched = Result<Arc<Token>, String>;

/// Gets tokens and replaces them before they expire.
pub trait TokenSource: Send + Sync {
    /// Whether the source has tokens for this container.
    fn is_for(&self, _container: &Container) -> bool {
        true
    }

    /// The token to send now; `None` if [`TokenSource::fetch`] must be called first. Never waits.
    /// Starts to replace a token that is about to expire.
    fn current(&self, container: &Arc<Container>) -> Option<Arc<Token>>;

    /// Fetches a token. Concurrent calls for one container share one fetch. Dropping the future
    /// does not cancel the fetch.
    fn fetch<'a>(&'a self, container: &'a Arc<Container>) -> BoxFuture<'a, Fetched>;

    /// Whether a token is there or can probably be fetched; the error says why not. Fetches and
    /// replaces no token.
    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The account of the token, if the login names one. Not a secret: clients compare it with the
    /// account that the host reports.
    fn account(&self) -> Option<String> {
        None
    }

    /// Records that the host answered 401 to this token, so that the source replaces the token. A
    /// source may keep a token that it obtained recently: otherwise a host that answers every
    /// request with a 401 would make the source flood the token endpoint.
    fn refused(&self, container: &Container, token: &Arc<Token>);
}

impl Token {
    /// Prepares a token. `replaced` are earlier tokens that may still be valid. In responses,
    /// `[REDACTED:name]` replaces the token and the earlier ones. Fails if the token is empty, too
    /// long or has bytes that a header value must not contain.
    pub fn new<'a>(
        name: &str,
        secret: &'a str,
        replaced: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, String> {
        let secret = checked(secret)?;
        let mut forms = Forms::default();
        for secret in std::iter::once(secret).chain(replaced) {
            forms.add_secret(secret.as_bytes(), name);
            forms.add_base64(user_and_password(TOKEN_USER, secret).as_bytes(), name);
        }
        Ok(Self {
            bearer: bearer_value(secret)?,
            basic: basic_value(TOKEN_USER, secret)?,
            extra_fields: Vec::new(),
            scrubber: Arc::new(Scrubber::new(forms)?),
        })
    }

    /// Adds a field that is sent with the token, such as its account.
    pub fn with_field(mut self, name: HeaderName, value: &str) -> Result<Self, String> {
        let value = HeaderValue::from_str(value);
        let value =
            value.map_err(|_| format!("{name} has bytes that a header must not contain"))?;
        self.extra_fields.push((name, value));
        Ok(self)
    }

    /// The fields that are sent: `Authorization` in this form, and those of [`Token::with_field`].
    pub(super) fn fields(
        &self,
        form: TokenForm,
    ) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        let authorization = match form {
            TokenForm::Bearer => &self.bearer,
            TokenForm::Basic => &self.basic,
        };
        let extra_fields = self.extra_fields.iter().map(|(name, value)| (name, value));
        std::iter::once((&AUTHORIZATION, authorization)).chain(extra_fields)
    }

    pub(super) fn scrubber(&self) -> &Arc<Scrubber> {
        &self.scrubber
    }
}
