//! Parses paths on git hosts: the repository, and the operation.

use http::Method;

use super::operation::Operation;
use crate::contract::{Code, Denial, Request};

/// The paths of git's services, relative to the repository's path.
const SERVICES: [&str; 3] = ["info/refs", "git-upload-pack", "git-receive-pack"];

const LFS: &str = "info/lfs/";

/// A repository, and the path within it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RepoPath<'a> {
    /// `OWNER/REPO` as the client wrote it, without `.git`. For a nested repository, a longer text
    /// that may contain `.git`.
    pub repo: String,
    /// The path after its first two segments, without the leading slash.
    pub rest: &'a str,
}

/// The kind of a request to a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Git(Operation),
    /// An LFS batch call, whose response has the URLs of large files.
    LfsBatch,
    /// The upload of a large file to the git host itself.
    LfsUpload,
}

impl Call {
    pub fn operation(self) -> Operation {
        match self {
            Self::Git(operation) => operation,
            Self::LfsBatch | Self::LfsUpload => Operation::Lfs,
        }
    }

    /// Whether the call may be a read: true also for an LFS batch, whose body decides whether the
    /// batch is a read. All other LFS calls count as writes.
    pub fn may_read(self) -> bool {
        use Operation::{Fetch, Page, Refs};
        let reads = Self::Git(Refs { push: false });
        self == reads || matches!(self, Self::Git(Fetch | Page) | Self::LfsBatch)
    }
}

/// Returns the repository that a path in normal form names; `None` if it lacks an owner or a name.
pub(super) fn repository(path: &str) -> Option<RepoPath<'_>> {
    let path = path.strip_prefix('/')?;
    let (owner, after) = path.split_once('/')?;
    let (name, rest) = after.split_once('/').unwrap_or((after, ""));
    if owner.is_empty() || name.is_empty() {
        return None;
    }
    let repo = match nested_repo(rest) {
        // A host with nested groups would look for a repository with this longer name.
        Some(inner) => format!("{owner}/{name}/{inner}"),
        None => format!("{owner}/{}", without_suffix(name)),
    };
    Some(RepoPath { repo, rest })
}

/// Returns the part of `rest` that belongs to a nested repository's name, as a host with nested
/// groups would read it; `None` if there is no such part. The name ends before a service or before
/// `/info/lfs/`. Without either of these, all of `rest` is the name if a segment ends in `.git`.
fn nested_repo(rest: &str) -> Option<&str> {
    if let Some((inner, _)) = rest.split_once("/info/lfs/") {
        return Some(inner);
    }
    for service in SERVICES {
        let inner = rest.strip_suffix(service);
        if let Some(inner) = inner.and_then(|inner| inner.strip_suffix('/')) {
            return Some(inner);
        }
    }
    let mut segments = rest.split('/');
    let named = segments.any(|segment| without_suffix(segment) != segment);
    named.then_some(rest)
}

fn without_suffix(name: &str) -> &str {
    let end = name.len().saturating_sub(".git".len());
    match name.split_at_checked(end) {
        Some((base, suffix)) if suffix.eq_ignore_ascii_case(".git") => base,
        _ => name,
    }
}

/// Classifies a request by its method and by `rest`, the path in the repository. Accepts GET and
/// HEAD, unless they open a WebSocket, and the POST and PUT requests of git and git-lfs. Denies any
/// other request as a write, and an unknown query of `info/refs` as malformed.
pub(super) fn call(request: &Request, rest: &str) -> Result<Call, Denial> {
    let reads = matches!(request.method, Method::GET | Method::HEAD) && !request.websocket;
    let posts = request.method == Method::POST;
    if let Some(lfs) = rest.strip_prefix(LFS) {
        return lfs_call(request, lfs, reads);
    }
    let operation = match rest {
        "info/refs" if reads => match request.query.as_deref() {
            None | Some("") => Operation::Page,
            Some("service=git-upload-pack") => Operation::Refs { push: false },
            Some("service=git-receive-pack") => Operation::Refs { push: true },
            Some(_) => return Err(Denial::malformed("info/refs takes one service of git")),
        },
        "git-upload-pack" if posts => Operation::Fetch,
        "git-receive-pack" if posts => Operation::Push,
        _ if reads => Operation::Page,
        _ => return Err(write_denied(request)),
    };
    Ok(Call::Git(operation))
}

fn lfs_call(request: &Request, path: &str, reads: bool) -> Result<Call, Denial> {
    let unlocks = || {
        let id = path
            .strip_prefix("locks/")
            .and_then(|p| p.strip_suffix("/unlock"));
        id.is_some_and(|id| !id.is_empty() && !id.contains('/'))
    };
    match (&request.method, path) {
        (&Method::POST, "objects/batch") => Ok(Call::LfsBatch),
        (&Method::POST, "locks" | "locks/verify" | "verify") => Ok(Call::Git(Operation::Lfs)),
        (&Method::POST, _) if unlocks() => Ok(Call::Git(Operation::Lfs)),
        (&Method::PUT, path) if path.starts_with("objects/") => Ok(Call::LfsUpload),
        _ if reads => Ok(Call::Git(Operation::Lfs)),
        _ => Err(write_denied(request)),
    }
}

fn write_denied(request: &Request) -> Denial {
    let sentence = format!(
        "Write not allowed: {} {}",
        request.method,
        request.path.normal()
    );
    Denial::new(Code::WriteNotAllowed, sentence)
        .with("allowed", "git push over smart HTTP")
        .rule("git paths")
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;
    use crate::fixtures;

    #[test]
    fn a_path_names_its_repository_with_and_without_the_git_suffix() {
        each_row(
            [
                ("/acme/web", "acme/web", ""),
                ("/acme/web/", "acme/web", ""),
                ("/acme/web.git", "acme/web", ""),
                ("/acme/web.git/info/refs", "acme/web", "info/refs"),
                ("/acme/web/info/refs", "acme/web", "info/refs"),
                ("/acme/web.GIT/HEAD", "acme/web", "HEAD"),
                ("/acme/web.git.git/HEAD", "acme/web.git", "HEAD"),
                ("/acme/.git/HEAD", "acme/", "HEAD"),
                (
                    "/acme/web/blob/main/objects/x",
                    "acme/web",
                    "blob/main/objects/x",
                ),
                ("/acme/web/info/lfs/locks", "acme/web", "info/lfs/locks"),
            ],
            |(path, repo, rest)| {
                let named = repository(path).map(|named| (named.repo, named.rest));
                assert_eq!(named, Some((repo.to_owned(), rest)), "{path}");
            },
        );
        each_row(["", "/", "/acme", "/acme/", "//web", "acme/web"], |path| {
            assert_eq!(repository(path), None, "{path}");
        });
    }

    #[test]
    fn a_nested_repository_differs_from_its_parent() {
        each_row(
            [
                "/acme/web/secret.git/info/refs",
                "/acme/web/secret/info/refs",
                "/acme/web/secret/git-upload-pack",
                "/acme/web/secret/git-receive-pack",
                "/acme/web/secret/info/lfs/objects/batch",
                "/acme/web/secret.git/HEAD",
                "/acme/web/secret.git/objects/ab/cdef",
            ],
            |path| {
                let named = repository(path).unwrap();
                assert!(named.repo.starts_with("acme/web/secret"), "{named:?}");
            },
        );
    }

    fn wanted(method: &str, target: &str) -> Result<Call, Code> {
        let mut request = fixtures::request(target, &[]);
        request.method = Method::from_bytes(method.as_bytes()).unwrap();
        let rest = repository(request.path.normal()).unwrap().rest.to_owned();
        call(&request, &rest).map_err(|denial| denial.code())
    }

    #[test]
    fn a_request_is_classified_by_its_method_and_its_path_in_the_repository() {
        use Operation::*;
        let git = |operation| Ok(Call::Git(operation));
        each_row(
            [
                ("GET", "", git(Page)),
                ("HEAD", "/releases", git(Page)),
                ("GET", "/HEAD", git(Page)),
                ("GET", "/objects/info/packs", git(Page)),
                ("GET", "/info/refs", git(Page)),
                (
                    "GET",
                    "/info/refs?service=git-upload-pack",
                    git(Refs { push: false }),
                ),
                (
                    "GET",
                    "/info/refs?service=git-receive-pack",
                    git(Refs { push: true }),
                ),
                ("POST", "/git-upload-pack", git(Fetch)),
                ("POST", "/git-receive-pack", git(Push)),
                ("POST", "/info/lfs/objects/batch", Ok(Call::LfsBatch)),
                ("PUT", "/info/lfs/objects/ab/12", Ok(Call::LfsUpload)),
                ("POST", "/info/lfs/locks", git(Lfs)),
                ("GET", "/info/lfs/locks?path=a", git(Lfs)),
                ("POST", "/info/lfs/locks/verify", git(Lfs)),
                ("POST", "/info/lfs/locks/17/unlock", git(Lfs)),
            ],
            |(method, path, expected)| {
                let target = format!("/acme/web{path}");
                assert_eq!(wanted(method, &target), expected, "{method} {path}");
            },
        );
    }

    #[test]
    fn requests_that_neither_read_nor_belong_to_git_or_git_lfs_are_denied_as_writes() {
        each_row(
            [
                ("PUT", "/objects/ab/cdef"),
                ("PUT", "/info/refs"),
                ("POST", "/info/refs?service=git-receive-pack"),
                ("PROPFIND", "/"),
                ("MKCOL", "/refs/heads/x"),
                ("LOCK", "/refs/heads/main"),
                ("MOVE", "/objects/x"),
                ("DELETE", "/refs/heads/main"),
                ("POST", "/pulls"),
                ("POST", "/git-receive-pack/"),
                ("POST", "/GIT-RECEIVE-PACK"),
                ("PUT", "/git-receive-pack"),
                ("PATCH", "/git-upload-pack"),
                ("DELETE", "/info/lfs/objects/ab"),
                ("POST", "/info/lfs/locks/1/2/unlock"),
                ("OPTIONS", "/"),
            ],
            |(method, path)| {
                let target = format!("/acme/web{path}");
                let denied = Err(Code::WriteNotAllowed);
                assert_eq!(wanted(method, &target), denied, "{method} {path}");
            },
        );
    }

    #[test]
    fn a_query_of_info_refs_other_than_one_known_service_is_malformed() {
        each_row(
            [
                "service=git-upload-pack&service=git-receive-pack",
                "service=git%2Dreceive-pack",
                "service=git-upload-archive",
                "x=y",
            ],
            |query| {
                let target = format!("/acme/web/info/refs?{query}");
                assert_eq!(wanted("GET", &target), Err(Code::MalformedRequest));
            },
        );
    }
}
