//! Removes the client's own credentials from requests: the header fields in which services accept
//! keys, the fields that an entry sets, and the fields, query parameters and cookies that the
//! entry lists for removal.

use http::HeaderValue;
use http::header::COOKIE;
use percent_encoding::percent_decode_str;

use super::Credential;
use crate::contract::Request;
use crate::header_names::{folds_to, remove_fields};

/// Header fields in which services accept keys. They are removed from requests to every host that
/// has a credential.
const KEY_FIELDS: [&str; 16] = [
    "authorization",
    "proxy-authorization",
    "x-api-key",
    "x-apikey",
    "api-key",
    "apikey",
    "x-goog-api-key",
    "x-auth-token",
    "x-auth-key",
    "x-access-token",
    "access-token",
    "private-token",
    "job-token",
    "deploy-token",
    "x-github-token",
    "x-amz-security-token",
];

/// Fields, parameters and cookies that are removed from requests to one host.
#[derive(Default)]
pub(super) struct ClientCredentials {
    /// Names in lower case, with `-` for `_`.
    headers: Vec<Box<str>>,
    query: Vec<Box<str>>,
    cookies: Vec<Box<str>>,
}

impl ClientCredentials {
    /// Adds the fields that a credential sets, and the fields, parameters and cookies that its
    /// entry lists for removal.
    pub(super) fn add(&mut self, credential: &Credential) {
        let set = credential.kind.sources().map(|(name, _)| name);
        let set = set.chain(credential.kind.extra_fields());
        for name in set.chain(&credential.remove_headers) {
            self.headers.push(name.as_str().replace('_', "-").into());
        }
        let boxed = |name: &String| Box::from(name.as_str());
        self.query.extend(credential.remove_query.iter().map(boxed));
        self.cookies
            .extend(credential.remove_cookies.iter().map(boxed));
    }

    pub(super) fn remove_from(&self, request: &mut Request) {
        remove_fields(&mut request.headers, |name| {
            let mut names = KEY_FIELDS
                .iter()
                .copied()
                .chain(self.headers.iter().map(|n| &**n));
            names.any(|removed| folds_to(name, removed))
        });
        if !self.query.is_empty() {
            self.clean_query(request);
        }
        if !self.cookies.is_empty() {
            self.clean_cookies(request);
        }
    }

    fn clean_query(&self, request: &mut Request) {
        let Some(query) = request.query.as_deref() else {
            return;
        };
        // Some servers also separate parameters at semicolons.
        let kept: String = query
            .split_inclusive(['&', ';'])
            .filter(|parameter| {
                let name = parameter.split(['=', '&', ';']).next();
                !is_one_of(&self.query, name.unwrap_or_default())
            })
            .collect();
        if kept.len() < query.len() {
            let kept = kept.trim_end_matches(['&', ';']);
            request.query = (!kept.is_empty()).then(|| kept.into());
        }
    }

    fn clean_cookies(&self, request: &mut Request) {
        let clean = |value: &HeaderValue| {
            // A value that is not visible ASCII is dropped, since its cookies cannot be parsed.
            let text = value.to_str().ok()?;
            let kept: Vec<_> = text
                .split(';')
                .map(str::trim)
                .filter(|cookie| {
                    let name = cookie.split('=').next().unwrap_or_default();
                    !is_one_of(&self.cookies, name.trim())
                })
                .collect();
            HeaderValue::from_str(&kept.join("; "))
                .ok()
                .filter(|value| !value.is_empty())
        };
        let values: Vec<_> = request
            .headers
            .get_all(COOKIE)
            .iter()
            .filter_map(clean)
            .collect();
        request.headers.remove(COOKIE);
        for value in values {
            request.headers.append(COOKIE, value);
        }
    }
}

/// Whether `names` has this name, compared percent-decoded and without regard to case: servers
/// decode names, and some ignore their case.
fn is_one_of(names: &[Box<str>], name: &str) -> bool {
    let name = name.replace('+', " ");
    let name = percent_decode_str(&name).decode_utf8_lossy();
    names.iter().any(|other| other.eq_ignore_ascii_case(&name))
}
