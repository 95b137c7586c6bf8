//! Kinds of credentials that are understood but not yet put to use.
//!
//! Their shape is checked like any other. Then they are refused: an entry that looks active and
//! injects nothing would be found out in production.

use super::decode::{At, Fields};

const PROVIDERS: [(&str, bool); 4] = [
    ("codex", false),
    ("gemini", false),
    ("opencode", false),
    ("generic", true),
];

const ACCESS: [(&str, ()); 3] = [("read", ()), ("write", ()), ("admin", ())];

/// Checks a `github_app` and refuses it.
pub fn github_app(at: &At<'_>) {
    at.mapping(|fields| {
        for key in ["app_id", "installation_id"] {
            fields.need(key).and_then(|at| at.text());
        }
        if let Some(at) = fields.need("private_key") {
            secret(&at);
        }
        if let Some(permissions) = fields.find("permissions").and_then(|at| at.entries()) {
            for (_, access) in permissions {
                access.one_of(&ACCESS);
            }
        }
    });
    at.refuse("GitHub App credentials cannot be used by this version: use basic and bearer");
}

/// Checks an `oauth` and refuses it.
pub fn oauth(at: &At<'_>) {
    at.mapping(|fields| {
        fields.need("token_file").and_then(|at| at.text());
        let provider = fields.need("provider");
        if let Some(true) = provider.and_then(|at| at.one_of(&PROVIDERS)) {
            generic(fields);
        }
    });
    at.refuse("OAuth credentials cannot be used by this version: use set_headers or bearer");
}

/// What the other providers know by themselves.
fn generic(fields: &mut Fields<'_>) {
    fields.need("token_url").and_then(|at| {
        at.parse(|text| match text.strip_prefix("https://") {
            Some(rest) if !rest.is_empty() => Ok(()),
            _ => Err("must be an https:// URL"),
        })
    });
    fields.need("client_id").and_then(|at| at.text());
    if let Some(at) = fields.find("client_secret") {
        secret(&at);
    }
    fields.list("scopes", |at| at.text());
}

fn secret(at: &At<'_>) {
    if at.is_mapping() {
        at.mapping(|fields| fields.need("file").and_then(|at| at.text()));
    } else {
        at.text();
    }
}
