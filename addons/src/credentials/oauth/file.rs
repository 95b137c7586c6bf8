//! Token files: the fields that are used, and the update after a refresh.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use zeroize::Zeroizing;

use super::super::wiped::wipe;
use super::{Login, Provider};

/// The claim of OpenAI's tokens that holds the account.
const OPENAI_CLAIM: &str = "https://api.openai.com/auth";

/// A token file with all of its fields. Wiped when dropped. It has no `Debug` on purpose.
pub struct TokenFile(Value);

/// The fields of a token file that are used. It has no `Debug` on purpose.
#[derive(Clone, PartialEq, Eq)]
pub struct Tokens {
    /// Sent to the API.
    pub access: Option<Zeroizing<String>>,
    /// Sent to the token endpoint.
    pub refresh: Option<Zeroizing<String>>,
    /// When the access token expires, if the file or the token's claims say so.
    pub expires: Option<OffsetDateTime>,
    /// The account id, for providers that require it in a request header.
    pub account: Option<String>,
}

/// JSON keys of the token fields in one provider's file format.
struct Keys {
    access: &'static str,
    refresh: &'static str,
    expires: Option<&'static str>,
    /// Units of the expiry per second: 1, or 1000 for milliseconds.
    per_second: i64,
}

impl Login {
    const fn keys(&self) -> Keys {
        let (access, refresh, expires, per_second) = match self.provider {
            Provider::Codex => ("access_token", "refresh_token", None, 1),
            Provider::Gemini => ("access_token", "refresh_token", Some("expiry_date"), 1000),
            Provider::OpenCode => ("access", "refresh", Some("expires"), 1000),
            Provider::Claude => ("accessToken", "refreshToken", Some("expiresAt"), 1000),
            Provider::Generic => ("access_token", "refresh_token", Some("expires_at"), 1),
        };
        Keys {
            access,
            refresh,
            expires,
            per_second,
        }
    }

    /// Reads the tokens of a file. Fails if the file has no object for the tokens, or if the object
    /// has neither an access token nor a refresh token.
    pub fn tokens(&self, file: &TokenFile) -> Result<Tokens, String> {
        let keys = self.keys();
        let fields = self.fields(file)?;
        let text = |key| fields.get(key).and_then(Value::as_str);
        let secret = |key| text(key).filter(|text| !text.is_empty());
        let secret = |key| secret(key).map(|text| Zeroizing::new(text.to_owned()));
        let (access, refresh) = (secret(keys.access), secret(keys.refresh));
        if access.is_none() && refresh.is_none() {
            return Err("it holds no token: log in with the tool again".to_owned());
        }
        let stored = keys.expires.and_then(|key| fields.get(key)?.as_f64());
        let stored = stored.map(|units| units as i64 / keys.per_second);
        let seconds = stored.or_else(|| claims(access.as_ref()?)?.get("exp")?.as_i64());
        let account = text("account_id").or_else(|| text("accountId"));
        let account = account.map(str::to_owned).or_else(|| {
            let of_claim = |key| {
                let claims = claims(text(key)?)?;
                let account = claims.get(OPENAI_CLAIM)?.get("chatgpt_account_id")?;
                account.as_str().map(str::to_owned)
            };
            of_claim("id_token").or_else(|| of_claim(keys.access))
        });
        Ok(Tokens {
            access,
            refresh,
            expires: seconds.and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok()),
            account: account.filter(|_| self.account_field().is_some()),
        })
    }

    /// Returns the file after a refresh:
    /// - The access token and its expiry come from the response. If neither the response nor the
    ///   token tells the expiry, the file has none.
    /// - The refresh token comes from the response if the response has one.
    /// - `id_token`, `scope` and `token_type` come from the response if the file has the field
    ///   already or is Gemini's.
    /// - A Codex file gets `last_refresh`.
    /// - All other fields are kept.
    ///
    /// `None` if the response has no access token, or if the file has no object for the tokens.
    pub(super) fn updated(
        &self,
        file: &TokenFile,
        response: &TokenFile,
        now: OffsetDateTime,
    ) -> Option<TokenFile> {
        let keys = self.keys();
        let mut updated = TokenFile(file.0.clone());
        let response = response.0.as_object()?;
        let access = response.get("access_token")?.as_str()?;
        if access.is_empty() {
            return None;
        }
        let fields = self.fields_mut(&mut updated)?;
        put(fields, keys.access, access.into());
        let rotated = response.get("refresh_token").and_then(Value::as_str);
        if let Some(refresh) = rotated.filter(|refresh| !refresh.is_empty()) {
            put(fields, keys.refresh, refresh.into());
        }
        for key in ["id_token", "scope", "token_type"] {
            let is_kept = fields.contains_key(key) || self.provider == Provider::Gemini;
            if let Some(value) = response.get(key).filter(|_| is_kept) {
                put(fields, key, value.clone());
            }
        }
        if let Some(key) = keys.expires {
            let lasts = response.get("expires_in").and_then(Value::as_i64);
            let until = lasts.map(|seconds| now.unix_timestamp().saturating_add(seconds));
            let until = until.or_else(|| claims(access)?.get("exp")?.as_i64());
            match until {
                Some(until) => {
                    let units = until.saturating_mul(keys.per_second);
                    put(fields, key, units.into());
                }
                // The expiry in the file is that of the old token, so it is removed.
                None => drop(fields.shift_remove(key)),
            }
        }
        if self.provider == Provider::Codex
            && let (Some(root), Ok(now)) = (updated.0.as_object_mut(), now.format(&Rfc3339))
        {
            root.insert("last_refresh".to_owned(), now.into());
        }
        Some(updated)
    }

    fn fields<'f>(&self, file: &'f TokenFile) -> Result<&'f Map<String, Value>, String> {
        let Some(key) = self.inner_key() else {
            let wrong = || "it is not a JSON object: log in with the tool again".to_owned();
            return file.0.as_object().ok_or_else(wrong);
        };
        let inner = file.0.get(key).and_then(Value::as_object);
        inner.ok_or_else(|| format!("it has no object {key}: log in with the tool again"))
    }

    fn fields_mut<'f>(&self, file: &'f mut TokenFile) -> Option<&'f mut Map<String, Value>> {
        let found = match self.inner_key() {
            Some(key) => file.0.get_mut(key)?,
            None => &mut file.0,
        };
        found.as_object_mut()
    }

    fn inner_key(&self) -> Option<&str> {
        match self.provider {
            Provider::Codex => Some("tokens"),
            Provider::OpenCode => Some(&self.entry),
            Provider::Claude => Some("claudeAiOauth"),
            Provider::Gemini | Provider::Generic => None,
        }
    }
}

impl TokenFile {
    /// Reads a file's text. An error does not quote it.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let value = serde_json::from_slice(text);
        value
            .map(Self)
            .map_err(|error| format!("it is not valid JSON: error in line {}", error.line()))
    }

    pub(super) fn of(fields: Map<String, Value>) -> Self {
        Self(Value::Object(fields))
    }

    /// The fields as JSON in one line.
    pub(super) fn line(&self) -> Zeroizing<String> {
        Zeroizing::new(self.0.to_string())
    }

    /// The text to write to the file.
    #[must_use]
    pub fn text(&self) -> Zeroizing<String> {
        Zeroizing::new(format!("{:#}\n", self.0))
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// Sets a field, and wipes its old value.
fn put(fields: &mut Map<String, Value>, key: &str, value: Value) {
    if let Some(mut before) = fields.insert(key.to_owned(), value) {
        wipe(&mut before);
    }
}

/// The claims of a JWT, unverified: the token is our own, and the claims only schedule its refresh
/// and name its account.
fn claims(token: &str) -> Option<Value> {
    let payload = token.split('.').nth(1)?;
    let payload = URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?;
    serde_json::from_slice(&payload).ok()
}
