//! A Git LFS server: the batch API, locks, and a file store on another host. The store accepts only
//! requests with a token from an action of the batch API.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::routes::{Body, full, text, with_header};

/// Host of the file store.
pub const FILES: &str = "files.example.com";

/// The uploaded files, the tokens of all actions, and the locked paths.
#[derive(Default)]
pub struct Store {
    files: Mutex<HashMap<String, Bytes>>,
    tokens: Mutex<HashSet<String>>,
    locks: Mutex<Vec<String>>,
}

impl Store {
    /// The size of an uploaded file in bytes; `None` if the file was not uploaded.
    pub fn size_of(&self, oid: &str) -> Option<usize> {
        self.files.lock().get(oid).map(Bytes::len)
    }

    /// The number of uploaded files.
    pub fn count(&self) -> usize {
        self.files.lock().len()
    }

    /// The response to a request below `/lfs-store/`, or below `/info/lfs/` of a repository.
    pub(super) fn respond(&self, parts: &Parts, body: &Bytes) -> Response<Body> {
        let path = parts.uri.path();
        if let Some(oid) = path.strip_prefix("/lfs-store/") {
            return self.file(parts, oid, body);
        }
        let (repository, call) = path.split_once("/info/lfs/").unwrap();
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let (status, json) = match (&parts.method, call) {
            (&Method::POST, "objects/batch") => (200, self.batch(repository, &body)),
            (&Method::POST, "verify") => (self.verify(parts, &body), json!({})),
            (&Method::POST, "locks/verify") => (200, json!({ "ours": [], "theirs": [] })),
            (&Method::POST, "locks") => {
                let path = body["path"].as_str().unwrap_or_default().to_owned();
                self.locks.lock().push(path.clone());
                (201, json!({ "lock": lock(&path) }))
            }
            (&Method::POST, _) => {
                let unlocked = self.locks.lock().pop().unwrap_or_default();
                (200, json!({ "lock": lock(&unlocked) }))
            }
            _ => {
                let locks = self.locks.lock();
                let locks: Vec<Value> = locks.iter().map(|path| lock(path)).collect();
                (200, json!({ "locks": locks }))
            }
        };
        let response = text(status.try_into().unwrap(), &json.to_string());
        let json = "application/vnd.git-lfs+json";
        with_header(response, "content-type", json)
    }

    fn batch(&self, repository: &str, call: &Value) -> Value {
        let upload = call["operation"] == "upload";
        let objects = call["objects"].as_array().into_iter().flatten();
        let objects = objects.map(|object| {
            let oid = object["oid"].as_str().unwrap_or_default();
            let mut entry = json!({ "oid": oid, "size": object["size"], "authenticated": true });
            let stored = format!("https://{FILES}/lfs-store/{oid}?signed=1");
            match (upload, self.size_of(oid)) {
                (true, None) => {
                    let verify = format!("https://git.example.com{repository}/info/lfs/verify");
                    entry["actions"] =
                        json!({ "upload": self.action(&stored), "verify": self.action(&verify) });
                }
                (false, Some(_)) => {
                    entry["actions"] = json!({ "download": self.action(&stored) });
                }
                (true, Some(_)) => {}
                (false, None) => entry["error"] = json!({ "code": 404, "message": "no such file" }),
            }
            entry
        });
        let objects: Vec<Value> = objects.collect();
        json!({ "transfer": "basic", "objects": objects })
    }

    fn action(&self, href: &str) -> Value {
        let mut tokens = self.tokens.lock();
        let token = format!("RemoteAuth secret-{}", tokens.len());
        tokens.insert(token.clone());
        json!({ "href": href, "header": { "Authorization": token }, "expires_in": 3600 })
    }

    fn let_in(&self, parts: &Parts) -> bool {
        let field = parts.headers.get("authorization");
        let field = field.and_then(|value| value.to_str().ok());
        field.is_some_and(|token| self.tokens.lock().contains(token))
    }

    fn verify(&self, parts: &Parts, file: &Value) -> u16 {
        let size = self.size_of(file["oid"].as_str().unwrap_or_default());
        match size {
            _ if !self.let_in(parts) => 403,
            Some(size) if file["size"] == size => 200,
            _ => 422,
        }
    }

    fn file(&self, parts: &Parts, oid: &str, body: &Bytes) -> Response<Body> {
        if !self.let_in(parts) {
            return text(StatusCode::FORBIDDEN, "no token of an action");
        }
        if parts.method == Method::PUT {
            self.files.lock().insert(oid.to_owned(), body.clone());
            return text(StatusCode::OK, "");
        }
        match self.files.lock().get(oid) {
            Some(file) => Response::new(full(file.to_vec())),
            None => text(StatusCode::NOT_FOUND, "no such file"),
        }
    }
}

fn lock(path: &str) -> Value {
    let owner = json!({ "name": "ann" });
    json!({ "id": "17", "path": path, "locked_at": "2026-01-01T00:00:00Z", "owner": owner })
}
