//! Injection into requests, and scrubbing of responses.

mod requests;
mod responses;

use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use parking_lot::Mutex;
use zeroize::Zeroizing;

use super::*;
use crate::contract::{BodyOut, Code, Kind, OwnedFlow};
use crate::fixtures::{code, container, flow_of, headers, request, verdict};

const SECRET: &str = "sk-ant/Api03+x9_Q==";

/// A secret that a test may change or make unreadable.
struct Source(Mutex<Result<String, String>>);

impl SecretSource for Source {
    fn read(&self) -> Result<Arc<Zeroizing<String>>, String> {
        let secret = self.0.lock().clone();
        secret.map(|secret| Arc::new(Zeroizing::new(secret)))
    }

    fn version(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.0.lock().hash(&mut hasher);
        hasher.finish()
    }
}

fn source(secret: &str) -> Arc<Source> {
    Arc::new(Source(Mutex::new(Ok(secret.to_owned()))))
}

fn credential(name: &str, host: &str, kind: CredentialKind) -> Credential {
    Credential {
        name: name.into(),
        hosts: vec![(Host::parse(host).unwrap(), 443)],
        kind,
        remove_headers: Vec::new(),
        remove_query: Vec::new(),
        remove_cookies: Vec::new(),
        containers: None,
        repos: None,
    }
}

/// A credential that sets the field `x-key` at api.example.com.
fn key(name: &str, secret: &str) -> Credential {
    let name_of_field = HeaderName::from_static("x-key");
    let kind = CredentialKind::SetHeaders(vec![(name_of_field, source(secret))]);
    credential(name, "api.example.com", kind)
}

fn basic(secret: &str) -> Credential {
    let kind = CredentialKind::Basic {
        username: "x-access-token".to_owned(),
        password: source(secret),
    };
    credential("git", "api.example.com", kind)
}

fn flow() -> OwnedFlow {
    flow_of(&container("web"), Kind::Http, "api.example.com")
}

/// Sends a response through the addon. Returns the body that the client gets.
fn respond(
    addon: &Credentials,
    flow: &mut Flow,
    fields: &[(&str, &str)],
    chunks: &[&[u8]],
) -> Result<Vec<u8>, Code> {
    let mut response = Response::new(StatusCode::OK, headers(fields));
    let passed = verdict(addon.response(flow, &mut response));
    passed.map_err(|denial| denial.code())?;
    let mut filters = response.take_filters();
    let mut out = BodyOut::default();
    let Some(filter) = filters.first_mut() else {
        return Ok(chunks.concat());
    };
    for chunk in chunks {
        let passed = filter.chunk(Bytes::copy_from_slice(chunk), &mut out);
        passed.map_err(|denial| denial.code())?;
    }
    let ended = filter.end(&mut out, None);
    ended.map_err(|denial| denial.code())?;
    Ok(out.drain().flatten().collect())
}

/// The addon with this credential, and a flow whose request it has judged.
fn guarded(credential: Credential) -> (Credentials, OwnedFlow) {
    let addon = Credentials::new(vec![credential]);
    let mut flow = flow();
    assert_eq!(code(addon.request(&mut flow, &mut request("/", &[]))), None);
    (addon, flow)
}
