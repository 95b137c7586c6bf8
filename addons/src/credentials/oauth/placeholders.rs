//! What a sandbox sees in the place of a login: the same shapes, and nothing in them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use super::{Login, Provider};
use crate::contract::Host;
use crate::credentials::placeholder;

/// The year 2100: tools look at the expiry before they send a token.
const NEVER: i64 = 4_102_444_800;
/// What answers to a refresh promise; tools come back for another one, and get the same.
const AN_HOUR: i64 = 3600;
const GOOGLE_SCOPES: &str = "https://www.googleapis.com/auth/cloud-platform https://www.googleapis.com/auth/userinfo.email https://www.googleapis.com/auth/userinfo.profile openid";

/// A question of a tool about its login that is answered in the upstream's place.
pub struct PlaceholderAnswer {
    pub host: (Host, u16),
    pub path: String,
    pub methods: &'static [Method],
    pub body: Bytes,
}

impl Login {
    /// The questions that are answered with placeholders, exact paths all of them.
    pub(in crate::credentials) fn placeholder_answers(&self, name: &str) -> Vec<PlaceholderAnswer> {
        let answer = |host, path: &str, methods, body: Value| PlaceholderAnswer {
            host,
            path: path.to_owned(),
            methods,
            body: Bytes::from(body.to_string()),
        };
        let tokens = self.token_answer(name);
        let mut answers = vec![answer(
            self.token_url.host(),
            &self.token_url.path,
            &[Method::POST],
            tokens,
        )];
        if self.provider == Provider::Gemini {
            let (info, user) = (token_info(&self.client_id), user_info());
            let asked = &[Method::GET, Method::POST];
            answers.push(answer(self.token_url.host(), "/tokeninfo", asked, info));
            if let Ok(host) = Host::parse("www.googleapis.com") {
                let path = "/oauth2/v2/userinfo";
                answers.push(answer((host, 443), path, &[Method::GET], user));
            }
        }
        answers
    }

    /// The file that a sandbox mounts where the tool keeps its tokens.
    #[must_use]
    pub fn placeholder_file(&self, name: &str) -> Value {
        let mark = placeholder(name);
        let (jwt, access) = (jwt(&mark), self.access(&mark));
        match self.provider {
            Provider::Codex => json!({
                "OPENAI_API_KEY": null,
                "tokens": {
                    "id_token": jwt, "access_token": access, "refresh_token": mark,
                    "account_id": mark,
                },
                "last_refresh": "2100-01-01T00:00:00Z",
            }),
            Provider::Gemini => json!({
                "access_token": access, "refresh_token": format!("1//{mark}"), "id_token": jwt,
                "scope": GOOGLE_SCOPES, "token_type": "Bearer", "expiry_date": NEVER * 1000,
            }),
            Provider::OpenCode => json!({
                &self.entry: {
                    "type": "oauth", "refresh": mark, "access": access,
                    "expires": NEVER * 1000, "accountId": mark,
                },
            }),
            Provider::Generic => json!({
                "access_token": access, "refresh_token": mark, "token_type": "Bearer",
                "expires_at": NEVER,
            }),
        }
    }

    fn token_answer(&self, name: &str) -> Value {
        let mark = placeholder(name);
        let access = self.access(&mark);
        match self.provider {
            Provider::Codex | Provider::OpenCode => json!({
                "access_token": access, "refresh_token": mark, "id_token": jwt(&mark),
                "token_type": "Bearer", "expires_in": AN_HOUR,
            }),
            // Google gives a refresh token at the login alone.
            Provider::Gemini => json!({
                "access_token": access, "id_token": jwt(&mark), "scope": GOOGLE_SCOPES,
                "token_type": "Bearer", "expires_in": AN_HOUR,
            }),
            Provider::Generic => json!({
                "access_token": access, "refresh_token": mark, "token_type": "Bearer",
                "expires_in": AN_HOUR,
            }),
        }
    }

    fn access(&self, mark: &str) -> String {
        match self.provider {
            Provider::Codex | Provider::OpenCode => jwt(mark),
            Provider::Gemini => format!("ya29.{mark}"),
            Provider::Generic => mark.to_owned(),
        }
    }
}

/// A JWT that no key ever signed: the placeholder stands where the signature would.
fn jwt(mark: &str) -> String {
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = part(json!({ "alg": "none", "typ": "JWT" }));
    let claims = part(json!({
        "sub": mark, "email": "sandbox@example.com", "exp": NEVER,
        "https://api.openai.com/auth": {
            "chatgpt_plan_type": "pro", "chatgpt_user_id": mark, "chatgpt_account_id": mark,
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
