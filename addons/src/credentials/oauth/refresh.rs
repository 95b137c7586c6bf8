//! Builds refresh requests, and parses the token endpoint's responses.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{Request, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::super::wiped::Wiped;
use super::{Login, Provider, TokenFile};

/// Why a refresh yielded no tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Whether every further refresh would be refused until a new login.
    pub permanent: bool,
    /// The reason for the operator; it holds no token.
    pub why: String,
}

/// Error codes about the refresh token itself, from RFC 6749 and from providers. Any other error is
/// transient, or goes away when the configuration or the network is corrected.
const LOST: [&str; 4] = [
    "invalid_grant",
    "refresh_token_expired",
    "refresh_token_reused",
    "refresh_token_invalidated",
];

impl Login {
    /// Builds the request to the token endpoint. An error does not quote a token.
    pub fn refresh_request(
        &self,
        refresh: &str,
        client_secret: Option<&str>,
    ) -> Result<Request<Bytes>, String> {
        let scope = self.scopes.join(" ");
        let mut fields = vec![
            ("client_id", self.client_id.as_str()),
            ("grant_type", "refresh_token"),
            ("refresh_token", refresh),
        ];
        fields.extend(client_secret.map(|secret| ("client_secret", secret)));
        fields.extend((!scope.is_empty()).then_some(("scope", scope.as_str())));
        let (content_type, body) = match self.provider {
            Provider::Codex | Provider::Claude => ("application/json", as_json(&fields)),
            _ => ("application/x-www-form-urlencoded", as_form(&fields)),
        };
        Request::post(self.token_url.to_string())
            .header(CONTENT_TYPE, content_type)
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, "unified-proxy")
            .body(Bytes::from_owner(Wiped(body)))
            .map_err(|_| "the token request cannot be built".to_owned())
    }

    /// The file updated with the tokens of the endpoint's response, or the reason why the response
    /// has no tokens.
    pub fn refreshed(
        &self,
        file: &TokenFile,
        status: StatusCode,
        body: &[u8],
        now: OffsetDateTime,
    ) -> Result<TokenFile, Refusal> {
        let response = TokenFile::parse(body).ok();
        if status.is_success() {
            let updated = response.and_then(|response| self.updated(file, &response, now));
            return updated.ok_or_else(|| Refusal {
                permanent: false,
                why: "the token endpoint's answer holds no access token".to_owned(),
            });
        }
        let code = response.as_ref().and_then(error_code);
        let by_client = (400..404).contains(&status.as_u16());
        let permanent = by_client && code.is_some_and(|code| LOST.contains(&code));
        let advice = match code {
            _ if permanent => ": log in with the tool again",
            Some("invalid_client" | "unauthorized_client") => {
                ": check client_id and client_secret in credentials.yaml"
            }
            Some("invalid_scope") => ": check scopes in credentials.yaml",
            Some("temporarily_unavailable" | "server_error" | "slow_down") => "",
            _ if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS => {
                ": check token_url in credentials.yaml, and the network path to it"
            }
            _ => "",
        };
        let said = code.map(|code| format!(" ({code})")).unwrap_or_default();
        let status = status.as_u16();
        Err(Refusal {
            permanent,
            why: format!("the token endpoint answered {status}{said}{advice}"),
        })
    }
}

/// The code in `error`, or in `error.code`. Anything but a short word is ignored, since the code is
/// logged.
fn error_code(response: &TokenFile) -> Option<&str> {
    let error = response.get("error")?;
    let code = error.as_str().or_else(|| error.get("code")?.as_str())?;
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    (code.len() <= 64 && code.bytes().all(is_word)).then_some(code)
}

fn as_json(fields: &[(&str, &str)]) -> Zeroizing<String> {
    let object: Map<String, Value> = fields
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).into()))
        .collect();
    // Wiped like a token file, since one of the fields is the refresh token.
    TokenFile::of(object).line()
}

fn as_form(fields: &[(&str, &str)]) -> Zeroizing<String> {
    let mut form = Zeroizing::new(String::new());
    for (key, value) in fields {
        if !form.is_empty() {
            form.push('&');
        }
        form.push_str(key);
        form.push('=');
        form.extend(utf8_percent_encode(value, NON_ALPHANUMERIC));
    }
    form
}
