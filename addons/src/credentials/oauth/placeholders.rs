//! Token files and answers of login endpoints, with placeholders instead of tokens, in the formats
//! of the providers. Containers never get the files and answers with a login's real tokens.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use super::{Login, Provider};
use crate::contract::Host;
use crate::credentials::placeholder;

/// The expiry of placeholders, as Unix time in seconds: the year 2100. A tool does not send an
/// expired token, so a placeholder must not expire.
const NEVER: i64 = 4_102_444_800;
/// `expires_in` of token and `tokeninfo` answers, in seconds. After that time, tools refresh again
/// and get the same answer.
const AN_HOUR: i64 = 3600;
const GOOGLE_SCOPES: &str = "https://www.googleapis.com/auth/cloud-platform https://www.googleapis.com/auth/userinfo.email https://www.googleapis.com/auth/userinfo.profile openid";
/// The scopes of a subscription. Without `user:inference`, Claude Code does not accept the file as
/// a login.
const CLAUDE_SCOPES: [&str; 5] = [
    "user:profile",
    "user:inference",
    "user:sessions:claude_code",
    "user:mcp_servers",
    "user:file_upload",
];

/// A login endpoint whose requests the proxy answers with placeholders instead of forwarding them.
pub struct PlaceholderAnswer {
    pub host: (Host, u16),
    pub path: String,
    pub methods: &'static [Method],
    pub endpoint: LoginEndpoint,
}

/// The data that the tool requests.
#[derive(Clone, Copy, Debug)]
pub enum LoginEndpoint {
    /// New tokens.
    Tokens,
    /// The claims of an access token: Google's `tokeninfo`.
    TokenInfo,
    /// The user's profile: Google's `userinfo`.
    UserInfo,
}

impl Login {
    /// The endpoints whose requests the proxy answers with placeholders.
    pub(in crate::credentials) fn placeholder_answers(&self) -> Vec<PlaceholderAnswer> {
        let answer = |host, path: &str, methods, endpoint| PlaceholderAnswer {
            host,
            path: path.to_owned(),
            methods,
            endpoint,
        };
        let mut answers = vec![answer(
            self.token_url.host(),
            &self.token_url.path,
            &[Method::POST],
            LoginEndpoint::Tokens,
        )];
        if self.provider == Provider::Gemini {
            answers.push(answer(
                self.token_url.host(),
                "/tokeninfo",
                &[Method::GET, Method::POST],
                LoginEndpoint::TokenInfo,
            ));
            if let Ok(host) = Host::parse("www.googleapis.com") {
                let path = "/oauth2/v2/userinfo";
                let endpoint = LoginEndpoint::UserInfo;
                answers.push(answer((host, 443), path, &[Method::GET], endpoint));
            }
        }
        answers
    }

    /// The JSON body of the answer from `endpoint` for the credential `name`. `account` is the
    /// account id in the login's token file. The JWTs of a token answer name the account, or a
    /// placeholder if `account` is `None`.
    pub(in crate::credentials) fn answer(
        &self,
        endpoint: LoginEndpoint,
        name: &str,
        account: Option<&str>,
    ) -> Bytes {
        let answer = match endpoint {
            LoginEndpoint::Tokens => self.provider.token_answer(name, account),
            LoginEndpoint::TokenInfo => token_info(&self.client_id),
            LoginEndpoint::UserInfo => user_info(),
        };
        Bytes::from(answer.to_string())
    }
}

impl Provider {
    /// The file that a container mounts in place of the tool's token file, for the credential
    /// `name`. `entry` is the key of the login in a format with several logins. `account` is the
    /// login's real account id, since Codex compares it with the accounts that the API lists;
    /// `None` to use a placeholder. The id alone grants no access.
    #[must_use]
    pub fn placeholder_file(self, name: &str, entry: &str, account: Option<&str>) -> Value {
        let mark = placeholder(name);
        let account = account.unwrap_or(&mark);
        let (jwt, access) = (jwt(&mark, account), self.access(&mark, account));
        match self {
            Self::Codex => json!({
                "OPENAI_API_KEY": null,
                "tokens": {
                    "id_token": jwt, "access_token": access, "refresh_token": mark,
                    "account_id": account,
                },
                "last_refresh": "2100-01-01T00:00:00Z",
            }),
            Self::Gemini => json!({
                "access_token": access, "refresh_token": format!("1//{mark}"), "id_token": jwt,
                "scope": GOOGLE_SCOPES, "token_type": "Bearer", "expiry_date": NEVER * 1000,
            }),
            Self::OpenCode => json!({
                entry: {
                    "type": "oauth", "refresh": mark, "access": access,
                    "expires": NEVER * 1000, "accountId": account,
                },
            }),
            Self::Claude => json!({
                "claudeAiOauth": {
                    "accessToken": access, "refreshToken": format!("sk-ant-ort01-{mark}"),
                    "expiresAt": NEVER * 1000, "scopes": CLAUDE_SCOPES,
                    "subscriptionType": null, "rateLimitTier": null,
                },
            }),
            Self::Generic => json!({
                "access_token": access, "refresh_token": mark, "token_type": "Bearer",
                "expires_at": NEVER,
            }),
        }
    }

    fn token_answer(self, name: &str, account: Option<&str>) -> Value {
        let mark = placeholder(name);
        let account = account.unwrap_or(&mark);
        let access = self.access(&mark, account);
        match self {
            Self::Codex | Self::OpenCode => json!({
                "access_token": access, "refresh_token": mark, "id_token": jwt(&mark, account),
                "token_type": "Bearer", "expires_in": AN_HOUR,
            }),
            // Google sends a refresh token only at the login, so this answer has none.
            Self::Gemini => json!({
                "access_token": access, "id_token": jwt(&mark, account), "scope": GOOGLE_SCOPES,
                "token_type": "Bearer", "expires_in": AN_HOUR,
            }),
            Self::Claude => json!({
                "access_token": access, "refresh_token": format!("sk-ant-ort01-{mark}"),
                "scope": CLAUDE_SCOPES.join(" "), "token_type": "Bearer", "expires_in": AN_HOUR,
            }),
            Self::Generic => json!({
                "access_token": access, "refresh_token": mark, "token_type": "Bearer",
                "expires_in": AN_HOUR,
            }),
        }
    }

    fn access(self, mark: &str, account: &str) -> String {
        match self {
            Self::Codex | Self::OpenCode => jwt(mark, account),
            Self::Gemini => format!("ya29.{mark}"),
            Self::Claude => format!("sk-ant-oat01-{mark}"),
            Self::Generic => mark.to_owned(),
        }
    }
}

/// An unsigned JWT with the placeholder in place of the signature. Tools read the account from its
/// claims as well.
fn jwt(mark: &str, account: &str) -> String {
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = part(json!({ "alg": "none", "typ": "JWT" }));
    let claims = part(json!({
        "sub": mark, "email": "sandbox@example.com", "exp": NEVER,
        "https://api.openai.com/auth": {
            "chatgpt_plan_type": "pro", "chatgpt_user_id": mark, "chatgpt_account_id": account,
        },
    }));
    format!("{header}.{claims}.{mark}")
}

fn token_info(client_id: &str) -> Value {
    json!({
        "azp": client_id, "aud": client_id, "sub": "0", "scope": GOOGLE_SCOPES,
        "exp": NEVER.to_string(), "expires_in": AN_HOUR.to_string(),
        "email": "sandbox@example.com", "email_verified": "true", "access_type": "offline",
    })
}

fn user_info() -> Value {
    json!({ "id": "0", "email": "sandbox@example.com", "verified_email": true, "name": "Sandbox" })
}
