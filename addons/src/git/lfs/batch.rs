//! Judges the batch call of a client: its operation and the sizes of its files.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::contract::{Buffered, Code, Denial, Verdict};
use crate::git::size::{self, Limit};

/// A batch call as the protocol defines it. The body is serialized from this type, so the server
/// gets no unknown members. This also removes a known name in another letter case, which some
/// servers would read as the known name.
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

/// Judges the body of a call, and returns the body to send. `upload_limit` is the size limit of a
/// file; `None` if uploads are denied, because the repository is not in the container's list.
pub(super) fn rewrite_body(body: &Buffered, upload_limit: Option<&Limit>) -> Result<Bytes, Denial> {
    let batch: Batch = body.decode()?;
    permit(&batch, upload_limit)?;
    super::serialize(&batch, body)
}

fn permit(batch: &Batch, upload_limit: Option<&Limit>) -> Verdict {
    match batch.operation.as_str() {
        "download" => return Ok(()),
        "upload" => {}
        _ => return Err(Denial::malformed("an LFS batch is an upload or a download")),
    }
    let not_authorized =
        || Denial::new(Code::RepoNotAuthorized, "Repo not authorized").rule("LFS batch");
    let limit = upload_limit.ok_or_else(not_authorized)?;
    for object in batch.objects.iter().flatten() {
        let size = object.size;
        let size = size.ok_or_else(|| Denial::malformed("an LFS object has no size"))?;
        if size > limit.bytes {
            return Err(too_large(size, limit));
        }
    }
    Ok(())
}

fn too_large(size: u64, limit: &Limit) -> Denial {
    let denial = limit.too_large(size);
    let (size, most) = (size::human(size), size::human(limit.bytes));
    let sentence = denial.sentence();
    let message = format!("{sentence}: a file of {size}, where at most {most} may be sent");
    denial.with("message", message)
}
