//! Guards the APIs of GitHub and of GitHub Enterprise servers.
//!
//! By default, a request must stay in the repositories of the container's list, or read one of a
//! few paths without a repository. A write must also be on an allowlist. The limit to the
//! container's list matters most with a personal token as the credential: such a token has access
//! to all repositories of its owner.

mod body;
mod content;
mod denials;
mod forge;
mod graphql;
mod mentions;
mod patterns;
mod rest;
mod settings;
mod target;
mod writes;

use std::sync::Arc;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method};
use percent_encoding::percent_decode_str;

use crate::contract::{
    Addon, ApiCall, Buffered, Denial, Flow, Host, HostMap, Lookup, Order, Request, Step, Verdict,
    names,
};
use crate::forges::{ForgeBodyJudge, send_anonymously, with_message};
pub use forge::Forge;
use forge::Requester;
pub use graphql::Mutations;
pub use mentions::Mentions;
pub use patterns::Patterns;
use rest::{Access, RepoPath, Rest};
pub use settings::GithubSettings;
use target::Target;

const NAME: &str = names::GITHUB;

/// The hosts of gists, which belong to no repository.
const GISTS: [&str; 2] = ["gist.github.com", "gist.githubusercontent.com"];

/// The service at a host.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Service {
    /// Web pages and git, which other addons judge, and the API below `/api`.
    Web,
    Api,
    /// Uploads of release assets. This host serves no look-ups: they go to the forge's API at the
    /// host `api`, below `prefix`.
    Uploads {
        api: Host,
        prefix: &'static str,
    },
    /// Raw files and archives, below `/OWNER/REPO/`.
    Files,
    Gists,
}

/// The addon. It judges requests to a forge's APIs, raw files, archives and gists, but not to its
/// web pages and git.
pub struct Github {
    services: HostMap<Service>,
    rest: Rest,
    mutations: Arc<Mutations>,
    mentions: Arc<Mentions>,
    forge: Arc<Forge>,
}

impl Github {
    /// Builds the addon. `forge` resolves repository numbers and node ids.
    #[must_use]
    pub fn new(settings: GithubSettings, forge: Arc<Forge>) -> Self {
        let mut services = HostMap::default();
        for hosts in settings.hosts {
            let gists = Host::parse(&format!("gist.{}", hosts.host)).ok();
            let (api, prefix) = match &hosts.api {
                Some(api) => (api.clone(), ""),
                None => (hosts.host.clone(), "/api"),
            };
            for (host, service) in [
                (gists, Service::Gists),
                (hosts.raw, Service::Files),
                (hosts.codeload, Service::Files),
                (Some(hosts.host), Service::Web),
                (hosts.uploads, Service::Uploads { api, prefix }),
                (hosts.api, Service::Api),
            ] {
                services.extend(host.map(|host| (host, service)));
            }
        }
        let gists = GISTS.map(|host| Host::Name(host.into()));
        services.extend(gists.map(|host| (host, Service::Gists)));
        let mentions = Arc::new(settings.mentions);
        Self {
            services,
            rest: Rest {
                blocked: settings.blocked,
                allowed: settings.allowed,
                writes_are_an_allowlist: settings.writes_are_an_allowlist,
                public_reads: settings.public_reads,
                mentions: Arc::clone(&mentions),
            },
            mutations: Arc::new(settings.mutations),
            mentions,
            forge,
        }
    }

    fn judge_api<'a>(
        &'a self,
        flow: &'a mut Flow,
        request: &'a mut Request,
        path: String,
        api: Host,
        prefix: &'static str,
    ) -> Result<Step<'a>, Denial> {
        let container = Arc::clone(flow.container()?);
        clean(request);
        let requester = Requester {
            container: Arc::clone(&container),
            api,
            port: flow.port(),
            prefix,
        };
        match target::read(&path) {
            Target::Graphql => self.judge_graphql(request, requester)?,
            Target::Repo { owner, name, rest } => {
                let rest = &rest;
                let repo = RepoPath { owner, name, rest };
                let access = self.rest.judge(&repo, request, &container)?;
                admit(flow, request, access);
            }
            Target::NoRepo(path) => self.rest.judge_without_repo(path, request, &container)?,
            Target::RepoById { id, rest } => {
                let rest: Vec<String> = rest.into_iter().map(str::to_owned).collect();
                let judging = self.judge_repo_by_id(flow, request, requester, id, rest);
                return Ok(Step::wait(async { judging.await.map_err(with_message) }));
            }
        }
        Ok(Step::PASS)
    }

    async fn judge_repo_by_id(
        &self,
        flow: &mut Flow,
        request: &mut Request,
        requester: Requester,
        id: u64,
        rest: Vec<String>,
    ) -> Verdict {
        let container = Arc::clone(&requester.container);
        let Some(look_up) = flow.effect(|| self.forge.repo_of_id(requester, id)) else {
            flow.note(|| format!("the forge would be asked which repository has the number {id}"));
            return Ok(());
        };
        // An unknown number and a repository that is not listed get the same denial, without a
        // name: the container must not learn which repositories the proxy's credential can read.
        let not_listed =
            || denials::no_repo(format!("the repository with the number {id} is not listed"));
        let repo = look_up.await?;
        let repo = repo.ok_or_else(not_listed)?.to_ascii_lowercase();
        let (owner, name) = repo.split_once('/').ok_or_else(not_listed)?;
        let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
        let rest = &rest;
        let judged = self
            .rest
            .judge(&RepoPath { owner, name, rest }, request, &container);
        let access = match judged {
            Err(_) if denials::permit_repo(&repo, &container).is_err() => return Err(not_listed()),
            judged => judged?,
        };
        admit(flow, request, access);
        Ok(())
    }

    fn judge_graphql(&self, request: &mut Request, requester: Requester) -> Verdict {
        if request.method != Method::POST || request.query.is_some() {
            let what = "send GraphQL in the body of a POST, without a query string";
            return Err(Denial::malformed(what));
        }
        let (mutations, mentions) = (Arc::clone(&self.mutations), Arc::clone(&self.mentions));
        let forge = Arc::clone(&self.forge);
        let judge = move |body: Buffered| async move {
            let (container, rules) = (Arc::clone(&requester.container), Arc::clone(&mentions));
            // On another thread: fragments can make a small query as expensive as a large one.
            let named_nodes = body
                .inspect_on_worker(move |body| graphql::judge(body, &mutations, &rules, &container))
                .await?;
            let ids = named_nodes.ids();
            if !ids.is_empty() {
                let nodes = forge.nodes(&requester, &ids).await?;
                named_nodes.judge(nodes, &mentions, &requester.container)?;
            }
            Ok(body.bytes().clone())
        };
        send_as_json(request);
        request.judge_body(graphql::MAX_BODY, ForgeBodyJudge { addon: NAME, judge });
        Ok(())
    }

    fn judge_request<'a>(
        &'a self,
        service: &Service,
        flow: &'a mut Flow,
        request: &'a mut Request,
    ) -> Result<Step<'a>, Denial> {
        if let Some(why) = request.path.ambiguity() {
            return Err(Denial::malformed(why));
        }
        request.path.send_normal();
        let path = request.path.normal().to_ascii_lowercase();
        let host = flow.host().clone();
        match (service, below_api(&path)) {
            (Service::Web, None) => Ok(Step::PASS),
            (Service::Web, Some(below)) => {
                flow.put_slot(ApiCall);
                self.judge_api(flow, request, below, host, "/api")
            }
            (Service::Api, below) => {
                let path = below.unwrap_or(path);
                self.judge_api(flow, request, path, host, "")
            }
            (Service::Uploads { api, prefix }, below) => {
                let path = below.unwrap_or(path);
                self.judge_api(flow, request, path, api.clone(), prefix)
            }
            (Service::Files, _) => {
                let access = self.rest.judge_file(&path, request, flow.container()?)?;
                admit(flow, request, access);
                Ok(Step::PASS)
            }
            (Service::Gists, _) => Err(denials::no_repo("a gist belongs to no repository")),
        }
    }
}

/// Returns the part of a path after `/api/v3` or `/api/uploads`, and `/graphql` for `/api/graphql`;
/// `None` for any other path.
fn below_api(path: &str) -> Option<String> {
    let below = path.strip_prefix("/api")?;
    if below.trim_end_matches('/') == "/graphql" {
        return Some("/graphql".to_owned());
    }
    ["/v3", "/uploads"].iter().find_map(|api| {
        let path = below.strip_prefix(api)?;
        (path.is_empty() || path.starts_with('/')).then(|| path.to_owned())
    })
}

/// Notes why a request is permitted. A public read is sent without a credential.
fn admit(flow: &mut Flow, request: &mut Request, access: Access) {
    match access {
        Access::Own => flow.note(|| "within the container's repositories and writes".to_owned()),
        Access::Public => {
            flow.note(|| "a public repository is read without a credential".to_owned());
            send_anonymously(flow, request);
        }
    }
}

/// Removes query parameters that override the method, and replaces a content type with which the
/// server would parse the body as a form. With either, the server could execute another request
/// than the one that is judged.
fn clean(request: &mut Request) {
    if let Some(query) = &request.query {
        let kept: Vec<&str> = query.split('&').filter(|pair| !overrides(pair)).collect();
        request.query = match kept.join("&") {
            kept if kept.is_empty() => None,
            kept => Some(kept.into()),
        };
    }
    if is_form(&request.headers) {
        send_as_json(request);
    }
}

/// Sets the content type, so that the server parses the body as the JSON that is judged.
fn send_as_json(request: &mut Request) {
    let json = HeaderValue::from_static("application/json; charset=utf-8");
    request.headers.insert(CONTENT_TYPE, json);
}

fn overrides(pair: &str) -> bool {
    let name = pair.split('=').next().unwrap_or_default();
    let name = percent_decode_str(name).decode_utf8_lossy();
    name.trim().to_ascii_lowercase().starts_with("_method")
}

fn is_form(headers: &HeaderMap) -> bool {
    headers.get_all(CONTENT_TYPE).iter().any(|value| {
        let value = value.as_bytes().to_ascii_lowercase();
        let has = |part: &[u8]| value.windows(part.len()).any(|window| window == part);
        has(b"x-www-form-urlencoded") || has(b"multipart/")
    })
}

impl Addon for Github {
    fn name(&self) -> &'static str {
        NAME
    }

    fn order(&self) -> Order {
        Order {
            after: &[names::IDENTITY, names::POLICY],
            before: &[names::MCP, names::GIT, names::CREDENTIALS],
        }
    }

    fn request<'a>(&'a self, flow: &'a mut Flow, request: &'a mut Request) -> Step<'a> {
        let Some(service) = self.services.get(flow.host()) else {
            return Step::PASS;
        };
        if flow.find_slot::<Lookup>().is_some() {
            // A look-up of this addon: no container sees the response. `ApiCall` makes the git
            // addon skip the request.
            flow.put_slot(ApiCall);
            return Step::PASS;
        }
        match self.judge_request(service, flow, request) {
            Ok(step) => step,
            Err(denial) => Err(with_message(denial)).into(),
        }
    }
}
