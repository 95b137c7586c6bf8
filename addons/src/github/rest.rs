//! Judges requests to the REST API.

use std::sync::Arc;

use http::Method;

use super::NAME;
use super::body::Judge;
use super::denials::{self, PR_MERGE_BLOCKED, RELEASE_BLOCKED};
use super::mentions::Mentions;
use super::patterns::Patterns;
use super::target;
use super::writes::{self, Write};
use crate::contract::{Buffered, Code, Container, Denial, Request, Verdict};
use crate::forges::ForgeBodyJudge;

/// Limit on the bytes of a write's body. GitHub's own limit is lower.
const MAX_BODY: usize = 1 << 20;

pub(super) struct Rest {
    pub(super) blocked: Patterns,
    pub(super) allowed: Patterns,
    /// Whether a write that is not listed is denied.
    pub(super) writes_are_an_allowlist: bool,
    /// Whether repositories outside the container's list may be read, without a credential.
    pub(super) public_reads: bool,
    /// Accounts that a judged body must not mention or assign.
    pub(super) mentions: Arc<Mentions>,
}

/// The credential of a permitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// The container's credential.
    Own,
    /// No credential: the request reads public data.
    Public,
}

/// A repository, and the segments after it in the path, in lower case.
pub(super) struct RepoPath<'a> {
    pub(super) owner: &'a str,
    pub(super) name: &'a str,
    pub(super) rest: &'a [&'a str],
}

impl RepoPath<'_> {
    /// Returns the path that is compared with the patterns.
    fn path(&self) -> String {
        let mut path = format!("/repos/{}/{}", self.owner, self.name);
        for segment in self.rest {
            path.push('/');
            path.push_str(segment);
        }
        path
    }

    /// Whether the path compares with a branch of another repository, as
    /// `compare/main...other:branch` does.
    fn compares_with_another(&self) -> bool {
        let ["compare", sides @ ..] = self.rest else {
            return false;
        };
        let sides = sides.join("/").replace("%3a", ":");
        sides.split("..").any(|side| {
            let side = side.trim_start_matches('.');
            match side.split(':').collect::<Vec<_>>().as_slice() {
                [] | [_] => false,
                [owner, _] => *owner != self.owner,
                [owner, name, _] => (*owner, *name) != (self.owner, self.name),
                _ => true,
            }
        })
    }
}

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

impl Rest {
    /// Judges a request that names a repository. The body of a write that is allowed by default is
    /// judged once it has been read.
    pub(super) fn judge(
        &self,
        repo: &RepoPath<'_>,
        request: &mut Request,
        container: &Arc<Container>,
    ) -> Result<Access, Denial> {
        let path = repo.path();
        self.check_blocked(request, &path)?;
        let access = self.permit_repo(repo.owner, repo.name, &request.method, container)?;
        if access == Access::Own && repo.compares_with_another() {
            return Err(denials::no_repo(
                "the path compares with a branch of another repository",
            ));
        }
        if is_read(&request.method) {
            return Ok(access);
        }
        if let Some(write) = writes::find(&request.method, repo.rest) {
            return self
                .judge_body(request, write, repo, container)
                .map(|()| access);
        }
        if self.allowed.find(&request.method, &path).is_some() || !self.writes_are_an_allowlist {
            return Ok(access);
        }
        Err(match blocked_sentence(&request.method, repo.rest) {
            Some(sentence) => api_blocked(sentence, "the allowlist of writes"),
            None => write_denied(request, container),
        })
    }

    /// Judges a request for a file or an archive of a repository, `/OWNER/REPO/…`, which may only
    /// be read.
    pub(super) fn judge_file(
        &self,
        path: &str,
        request: &Request,
        container: &Container,
    ) -> Result<Access, Denial> {
        let mut segments = path.split('/').skip(1);
        let (Some(owner), Some(name)) = (segments.next(), segments.next()) else {
            return Err(denials::no_repo(format!("{path} names no repository")));
        };
        let access = self.permit_repo(owner, name, &request.method, container)?;
        if is_read(&request.method) {
            Ok(access)
        } else {
            Err(denials::write(&what(request), container))
        }
    }

    fn permit_repo(
        &self,
        owner: &str,
        name: &str,
        method: &Method,
        container: &Container,
    ) -> Result<Access, Denial> {
        match denials::permit_repo(&format!("{owner}/{name}"), container) {
            Ok(()) => Ok(Access::Own),
            Err(_) if self.public_reads && is_read(method) => Ok(Access::Public),
            Err(denial) => Err(denial),
        }
    }

    /// Judges a request that names no repository; `path` is that of `Target::NoRepo`. Only listed
    /// reads pass, and requests that match a configured pattern.
    pub(super) fn judge_without_repo(
        &self,
        path: &str,
        request: &Request,
        container: &Container,
    ) -> Verdict {
        let is_listed = target::is_readable(path);
        let path = format!("/{path}");
        self.check_blocked(request, &path)?;
        let method = match request.method {
            Method::HEAD => &Method::GET,
            ref method => method,
        };
        if is_read(method) && is_listed || self.allowed.find(method, &path).is_some() {
            return Ok(());
        }
        if is_read(method) {
            let what = format!("{method} {path} names no repository");
            return Err(denials::no_repo(what));
        }
        Err(write_denied(request, container))
    }

    fn check_blocked(&self, request: &Request, path: &str) -> Verdict {
        let Some(pattern) = self.blocked.guard(&request.method, path) else {
            return Ok(());
        };
        let segments: Vec<&str> = path.split('/').skip(4).collect();
        let sentence = match blocked_sentence(&request.method, &segments) {
            Some(sentence) => sentence.to_owned(),
            None => format!("API blocked: {} {path}", request.method),
        };
        Err(api_blocked(sentence, pattern)
            .hint("remove the pattern from policy.blocked_api_patterns in policy.yaml"))
    }

    fn judge_body(
        &self,
        request: &mut Request,
        write: &'static Write,
        repo: &RepoPath<'_>,
        container: &Arc<Container>,
    ) -> Verdict {
        if request.query.is_some() {
            return Err(Denial::malformed(
                "a write must have its parameters in the body: a query string is not judged",
            ));
        }
        let (what, owner) = (what(request), repo.owner.to_owned());
        let (mentions, container) = (Arc::clone(&self.mentions), Arc::clone(container));
        let judge_text = move |body: &Buffered| {
            let sent = body.bytes().clone();
            if sent.is_empty() {
                return Ok(sent);
            }
            let value = body.json()?;
            let (owner, mentions) = (owner.as_str(), &*mentions);
            let judge = Judge { owner, mentions };
            match judge.objection(&value, &write.body) {
                None => Ok(sent),
                Some(objected) => Err(denials::body(&what, &objected, &container)),
            }
        };
        super::send_as_json(request);
        let judge = move |body: Buffered| async move { body.inspect(judge_text).await };
        request.judge_body(MAX_BODY, ForgeBodyJudge { addon: NAME, judge });
        Ok(())
    }
}

fn write_denied(request: &Request, container: &Container) -> Denial {
    let denial = denials::write(&what(request), container);
    let method = &request.method;
    denial.hint(format!(
        "add a pattern for it to policy.allowed_api_patterns.{method} in policy.yaml"
    ))
}

fn what(request: &Request) -> String {
    format!("{} {}", request.method, request.path.normal())
}

fn api_blocked(sentence: impl Into<std::borrow::Cow<'static, str>>, rule: &str) -> Denial {
    Denial::new(Code::ApiBlocked, sentence)
        .with("rule", rule)
        .rule(rule)
}

/// Returns the sentence of the denial for a merge or a new release, which a person should make in
/// GitHub's UI; `None` for any other request.
fn blocked_sentence(method: &Method, rest: &[&str]) -> Option<&'static str> {
    match rest {
        ["pulls", _, "merge"] if !is_read(method) => Some(PR_MERGE_BLOCKED),
        ["releases"] if *method == Method::POST => Some(RELEASE_BLOCKED),
        _ => None,
    }
}
