//! Judges the batch call of a client: its operation and the sizes of its files.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{as_its_client_shows, too_large};
use crate::contract::{
    BodyJudge, BoxFuture, Buffered, Code, Denial, Flow, Request, Verdict, names,
};

/// The rules for a batch call.
pub(in crate::git) struct BatchRules {
    /// Whether uploads are denied, because the repository is not in the container's list.
    pub only_downloads: bool,
    /// The largest file that may be uploaded, in bytes.
    pub limit: u64,
    /// The name of the setting with the limit.
    pub limit_rule: String,
}

/// Judges a batch call.
pub(super) struct BatchJudge(pub BatchRules);

/// A batch call as the protocol defines it. The body is serialized from this type, so that the
/// server gets neither unknown members nor members in another letter case, which some servers
/// match.
#[derive(Deserialize, Serialize)]
struct Batch {
    operation: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    transfers: Option<Vec<String>>,
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    reference: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    objects: Option<Vec<Object>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hash_algo: Option<String>,
}

#[derive(Deserialize, Serialize)]
struct Reference {
    name: String,
}

#[derive(Deserialize, Serialize)]
struct Object {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    oid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
}

impl BodyJudge<Request> for BatchJudge {
    fn addon(&self) -> &'static str {
        names::GIT
    }

    fn for_client(&self, denial: Denial) -> Denial {
        as_its_client_shows(denial)
    }

    fn judge<'a>(
        self: Box<Self>,
        _flow: &'a mut Flow,
        _head: &'a mut Request,
        body: Buffered,
    ) -> BoxFuture<'a, Result<Bytes, Denial>> {
        let rules = self.0;
        let judging = async move { body.read(move |body| judge(body, &rules)).await };
        Box::pin(async { judging.await.map_err(as_its_client_shows) })
    }
}

fn judge(body: &Buffered, rules: &BatchRules) -> Result<Bytes, Denial> {
    let batch: Batch = body.decode()?;
    permit(&batch, rules)?;
    // The budget must also cover the copy that is serialized from the parsed call.
    body.reserve(body.bytes().len())?;
    let written = serde_json::to_vec(&batch).map_err(|_| Denial::internal())?;
    Ok(written.into_boxed_slice().into())
}

fn permit(batch: &Batch, rules: &BatchRules) -> Verdict {
    match batch.operation.as_str() {
        "download" => return Ok(()),
        "upload" => {}
        _ => return Err(Denial::malformed("an LFS batch is an upload or a download")),
    }
    if rules.only_downloads {
        return Err(Denial::new(Code::RepoNotAuthorized, "Repo not authorized").rule("LFS batch"));
    }
    for object in batch.objects.iter().flatten() {
        let size = object.size;
        let size = size.ok_or_else(|| Denial::malformed("an LFS object has no size"))?;
        if size > rules.limit {
            return Err(too_large(size, rules));
        }
    }
    Ok(())
}
