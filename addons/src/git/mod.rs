//! Guards git over HTTP: the repositories, the refs, and the size of pushes.

mod commands;
mod discovery;
mod lfs;
mod metrics;
mod operation;
mod paths;
mod pkt_line;
mod push;
mod refs;
mod report;
mod settings;
mod size;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderValue};

use crate::contract::{
    Addon, ApiCall, AuthMode, Code, Container, Denial, Flow, Order, Outcome, Request, Response,
    Step, Verdict, names,
};
use crate::forges::{send_anonymously, with_message};
pub use discovery::as_git_shows;
pub use lfs::{CREDENTIAL as LFS_CREDENTIAL, Reachable};
pub use metrics::GitMetrics;
use operation::Operation;
use paths::{Call, RepoPath};
use push::{JudgePush, MAX_COMMANDS, PushRules};
pub use settings::GitSettings;
use size::Limit;

/// The addon. It judges every request to a git host, except those to an API on the same host. On
/// every host, it replaces the placeholders of LFS transfers by their tokens.
pub struct Git {
    settings: GitSettings,
    reachable: Arc<Reachable>,
    metrics: Arc<GitMetrics>,
}

/// Marks the flow of a push, with its repository.
struct Pushing(String);

impl Git {
    /// Builds the addon. `reachable` decides whether a container may transfer LFS files from and to
    /// a host and port.
    #[must_use]
    pub fn new(settings: GitSettings, reachable: Arc<Reachable>, metrics: Arc<GitMetrics>) -> Self {
        Self {
            settings,
            reachable,
            metrics,
        }
    }

    fn judge(&self, flow: &mut Flow, request: &mut Request) -> Verdict {
        if let Some(why) = request.path.ambiguity() {
            return Err(Denial::malformed(why));
        }
        request.path.send_normal();
        let path = request.path.normal().to_owned();
        let repo_path = paths::repository(&path).ok_or_else(|| unnamed(&path))?;
        let wanted = paths::call(request, repo_path.rest);
        if let Ok(call) = &wanted {
            flow.put_slot(call.operation());
        }
        let container = Arc::clone(flow.container()?);
        if !container.repos.iter().any(|own| own.is(&repo_path.repo)) {
            return match wanted {
                Ok(call) if self.settings.public_reads && call.may_read() => {
                    flow.note(|| format!("{} is read without a credential", repo_path.repo));
                    send_anonymously(flow, request);
                    match call {
                        Call::LfsBatch => lfs::judge_call(flow, request, None),
                        _ => Ok(()),
                    }
                }
                _ => Err(not_authorized(&repo_path, &container)),
            };
        }
        let limit = self.limit(&container, &repo_path.repo);
        match wanted? {
            Call::Git(Operation::Push) => self.push(flow, request, &container, repo_path, limit),
            Call::Git(_) => Ok(()),
            Call::LfsBatch => lfs::judge_call(flow, request, Some(limit)),
            Call::LfsUpload => upload(request, limit),
        }
    }

    fn push(
        &self,
        flow: &mut Flow,
        request: &mut Request,
        container: &Container,
        repo_path: RepoPath<'_>,
        limit: Limit,
    ) -> Verdict {
        // The engine buffers an encoded body whole to decode it, but a pack must stream.
        if has_encoding(&request.headers) {
            let sentence = "Unsupported encoding: a push must not be compressed as a whole";
            return Err(Denial::new(Code::UnsupportedEncoding, sentence).rule("push commands"));
        }
        let rules = PushRules {
            repo: repo_path.repo.clone(),
            ref_prefixes: (container.auth_mode == AuthMode::Bot)
                .then(|| Arc::clone(&self.settings.bot_branch_prefixes)),
            allow_deletion: self.settings.allow_branch_deletion,
            limit,
            report: self.settings.report_push_denials,
        };
        let announced = request.content_length;
        // Git's report depends on the capabilities in the first command, so with `report` the size
        // is judged after the commands.
        let at_once = !rules.report;
        if let Some(size) = announced.filter(|size| at_once && *size > rules.limit.bytes) {
            return Err(rules.limit.too_large(size));
        }
        flow.note(|| {
            let most = size::human(rules.limit.bytes);
            format!(
                "push to {}, at most {most}: each ref is judged when it is pushed",
                repo_path.repo
            )
        });
        flow.put_slot(Pushing(repo_path.repo));
        request.judge_body(MAX_COMMANDS, JudgePush::new(rules, announced));
        Ok(())
    }

    /// Returns the repository and the bytes of a push that passed and was larger than
    /// `git.push_limits.warning_bytes`; `None` for any other flow.
    fn large_push<'f>(&self, flow: &'f Flow, outcome: &Outcome) -> Option<(&'f str, u64)> {
        let Pushing(repo) = flow.find_slot()?;
        let bytes = flow.counters.bytes_in.load(Ordering::Relaxed);
        let passed = outcome.denial.is_none() && !outcome.aborted;
        (passed && bytes > self.settings.warning_bytes).then_some((repo, bytes))
    }

    fn limit(&self, container: &Container, repo: &str) -> Limit {
        let registered = container.repos.iter().find(|own| own.is(repo));
        match registered.and_then(|own| own.max_receive_pack_bytes) {
            Some(bytes) => Limit {
                bytes,
                rule: format!("max_receive_pack_bytes of {repo}"),
            },
            None => Limit {
                bytes: self.settings.hard_limit_bytes,
                rule: "git.push_limits.hard_limit_bytes".to_owned(),
            },
        }
    }
}

/// Judges the upload of an LFS file to the git host itself.
fn upload(request: &Request, limit: Limit) -> Verdict {
    match request.content_length {
        Some(size) if size <= limit.bytes => Ok(()),
        Some(size) => Err(limit.too_large(size)),
        None => Err(Denial::malformed("an LFS upload needs a Content-Length")),
    }
}

/// Whether a body has a `Content-Encoding` other than `identity`.
fn has_encoding(headers: &HeaderMap) -> bool {
    let encoded = |value: &HeaderValue| !value.as_bytes().eq_ignore_ascii_case(b"identity");
    headers.get_all(CONTENT_ENCODING).iter().any(encoded)
}

fn unnamed(path: &str) -> Denial {
    let sentence = format!("Repo not authorized: {path} names no repository");
    Denial::new(Code::RepoNotAuthorized, sentence).rule("git paths")
}

fn not_authorized(repo_path: &RepoPath<'_>, container: &Container) -> Denial {
    let (repo, id) = (&repo_path.repo, &container.id);
    Denial::new(Code::RepoNotAuthorized, "Repo not authorized")
        .with("repo", repo.as_str())
        .rule(format!("repos of container {id}"))
        .hint(format!(
            "register container {id} with \"{repo}\" in its repos"
        ))
}

impl Addon for Git {
    fn name(&self) -> &'static str {
        names::GIT
    }

    fn order(&self) -> Order {
        Order {
            after: &[names::IDENTITY, names::POLICY],
            before: &[names::CREDENTIALS],
        }
    }

    fn request<'a>(&'a self, flow: &'a mut Flow, request: &'a mut Request) -> Step<'a> {
        // On every host, since LFS files may be stored anywhere.
        lfs::redeem(flow, request);
        let is_api = flow.find_slot::<ApiCall>().is_some();
        if is_api || !self.settings.hosts.contains(flow.host()) {
            return Step::PASS;
        }
        let is_lfs = request.path.normal().contains("/info/lfs/");
        let verdict = self.judge(flow, request);
        match verdict {
            Err(denial) if is_lfs => Err(with_message(denial)).into(),
            verdict => verdict.into(),
        }
    }

    fn response<'a>(&'a self, flow: &'a mut Flow, response: &'a mut Response) -> Step<'a> {
        lfs::judge_answer(flow, response, &self.reachable).into()
    }

    fn finished(&self, flow: &Flow, outcome: &Outcome) {
        if let Some(operation) = flow.find_slot::<Operation>() {
            flow.effect(|| self.metrics.count(*operation, outcome));
        }
        if let Some(container) = flow.known_container()
            && let Some((repo, bytes)) = self.large_push(flow, outcome)
        {
            tracing::warn!(container = %container.id, repo, bytes, "a large push passed");
        }
    }
}

#[cfg(test)]
mod tests;
