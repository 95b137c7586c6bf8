//! Authorizes clients by a bearer token.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use subtle::ConstantTimeEq as _;

/// The environment variable with the token. It is removed from the environment of commands.
pub const TOKEN_VARIABLE: &str = "SIDECAR_AUTH_TOKEN";

/// The secret that clients send. It has neither `Debug` nor `Display`, so that it cannot be logged.
pub struct Token(Box<[u8]>);

impl Token {
    /// Makes a token. Returns `None` if `text` is empty or has a character that is not visible
    /// ASCII.
    pub fn new(text: &str) -> Option<Self> {
        let visible = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        visible.then(|| Self(text.as_bytes().into()))
    }

    /// Whether `presented` is the token. The time of the comparison depends only on the lengths.
    fn is(&self, presented: &[u8]) -> bool {
        self.0.ct_eq(presented).into()
    }
}

/// Decides which requests are served.
pub struct Access {
    token: Option<Token>,
    required: bool,
}

impl Access {
    /// Accepts requests with `token`. If `required` is false, also accepts requests without any
    /// token.
    pub fn new(token: Option<Token>, required: bool) -> Self {
        Self { token, required }
    }

    /// Checks the header `Authorization`.
    ///
    /// # Errors
    ///
    /// A sentence for the client, if the request must be refused.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), String> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (first, second) = (values.next(), values.next());
        match (first, second, &self.token) {
            (None, _, _) if !self.required => Ok(()),
            (None, _, _) => {
                Err("this sidecar requires a token: send `Authorization: Bearer TOKEN`".to_owned())
            }
            (Some(_), Some(_), _) => {
                Err("the request has more than one Authorization header".to_owned())
            }
            // The client expects that tokens are checked: a clear refusal is better than a
            // deployment that only seems protected.
            (Some(_), None, None) => Err(format!(
                "a token was sent, but {TOKEN_VARIABLE} is not set on the sidecar"
            )),
            (Some(value), None, Some(token)) => match bearer(value.as_bytes()) {
                None => Err("send the token as `Authorization: Bearer TOKEN`".to_owned()),
                Some(presented) if token.is(presented) => Ok(()),
                Some(_) => Err(format!(
                    "the token is not the one that {TOKEN_VARIABLE} holds on the sidecar"
                )),
            },
        }
    }
}

/// The token in the value of `Authorization` (RFC 6750, section 2.1); `None` for a scheme other
/// than `Bearer`. The scheme is compared case-insensitively.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(b"bearer ".len())?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use testkit::each_row;

    use super::*;

    #[test]
    fn a_request_is_served_according_to_its_token_and_whether_one_is_required() {
        const NONE: &[&str] = &[];
        // Token of the sidecar, required, headers, served.
        let rows = [
            (None, false, NONE, true),
            (None, false, &["Bearer s3cret"], false),
            (Some("s3cret"), false, NONE, true),
            (Some("s3cret"), false, &["Bearer s3cret"], true),
            (Some("s3cret"), false, &["Bearer wrong"], false),
            (Some("s3cret"), true, NONE, false),
            (Some("s3cret"), true, &["Bearer s3cret"], true),
            (Some("s3cret"), true, &["bEARER  s3cret"], true),
            (Some("s3cret"), true, &["Bearer s3cre"], false),
            (Some("s3cret"), true, &["Bearer s3crets"], false),
            (Some("s3cret"), true, &["Bearer S3CRET"], false),
            (Some("s3cret"), true, &["Bearer "], false),
            (Some("s3cret"), true, &["Bearer"], false),
            (Some("s3cret"), true, &[""], false),
            (Some("s3cret"), true, &["s3cret"], false),
            (Some("s3cret"), true, &["Basic s3cret"], false),
            (Some("s3cret"), true, &["Bearer s3cret, Bearer x"], false),
            (
                Some("s3cret"),
                true,
                &["Bearer s3cret", "Bearer s3cret"],
                false,
            ),
            (
                Some("s3cret"),
                true,
                &["Bearer s3cret", "Bearer wrong"],
                false,
            ),
        ];
        each_row(rows, |(token, required, values, served)| {
            let access = Access::new(token.and_then(Token::new), required);
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, HeaderValue::from_static(value));
            }
            let verdict = access.check(&headers);
            assert_eq!(verdict.is_ok(), served, "{verdict:?}");
            if let Err(sentence) = verdict {
                assert!(!sentence.contains("s3cret"), "{sentence}");
            }
        });
    }
}
