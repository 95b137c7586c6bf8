//! Injects each credential into the requests that its entry describes, and into no others.

use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT_ENCODING, Entry};
use http::{HeaderName, HeaderValue, Method};
use parking_lot::{MappedRwLockReadGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use smallvec::SmallVec;

use super::clean::ClientCredentials;
use super::secret::{Fields, Prepared};
use super::token::Token;
use super::{Credential, CredentialKind, Guarded, placeholder};
use crate::contract::{
    Anonymous, Code, Container, Denial, Flow, Host, Path, Request, Scheme, Step, Verdict,
};
use crate::header_names::{folds_to, remove_fields};

/// Limit on a request's wait for a token. Longer than the limits of the sources (GitHub 25 s; the
/// lock of a token file 30 s, then a token endpoint 20 s), so that the source fails first and the
/// denial names the cause.
const TOKEN_LIMIT: Duration = Duration::from_secs(60);

/// The credentials of one host, for any of its ports.
#[derive(Default)]
pub(super) struct HostCredentials {
    credentials: Vec<Arc<Credential>>,
    client_credentials: ClientCredentials,
    prepared: RwLock<Option<Prepared>>,
}

/// The credentials for one request, seldom more than one.
type Chosen<'a> = SmallVec<[&'a Arc<Credential>; 2]>;

/// The token of each chosen credential; `None` for a credential without tokens, and in a dry run.
type Tokens = SmallVec<[Option<Arc<Token>>; 2]>;

impl HostCredentials {
    pub(super) fn add(&mut self, credential: &Arc<Credential>) {
        let known = self
            .credentials
            .iter()
            .any(|other| Arc::ptr_eq(other, credential));
        if !known {
            self.client_credentials.add(credential);
            self.credentials.push(Arc::clone(credential));
        }
    }

    /// Removes the client's own credentials from a request, adds the configured credentials whose
    /// entries match the request, and puts the scrubbers for its response into a slot. Waits only
    /// if a token must be fetched first.
    pub(super) fn guard<'a>(&'a self, flow: &'a mut Flow, request: &'a mut Request) -> Step<'a> {
        let container = match flow.container() {
            Ok(container) => container,
            Err(denial) => return Err(denial).into(),
        };
        let chosen = self.chosen(flow, request, container);
        let current = |credential: &Credential| match &credential.kind {
            CredentialKind::Token { source, .. } => {
                let token = flow.effect(|| source.current(container));
                token.flatten().map(Some)
            }
            _ => Some(None),
        };
        let ready: Option<Tokens> = chosen.iter().map(|c| current(c)).collect();
        match ready {
            Some(tokens) => self.apply(flow, request, &chosen, &tokens).into(),
            None => {
                let container = Arc::clone(container);
                let is_dry_run = flow.is_dry_run();
                Step::wait_up_to(TOKEN_LIMIT, async move {
                    let tokens = fetch(&chosen, &container, is_dry_run).await?;
                    self.apply(flow, request, &chosen, &tokens)
                })
            }
        }
    }

    /// The credentials whose entries match the request. Of the kinds that always set
    /// `Authorization` (all except `set_headers`), only the first credential is chosen.
    fn chosen(&self, flow: &Flow, request: &Request, container: &Container) -> Chosen<'_> {
        let anonymous = flow.find_slot::<Anonymous>().is_some();
        let is_for = |credential: &Credential| {
            !anonymous
                && flow.scheme() == Scheme::Https
                && credential.is_for(flow.host(), flow.port(), container, &request.path)
        };
        let mut authorized = false;
        let mut chosen = Chosen::new();
        for credential in self.credentials.iter().filter(|c| is_for(c)) {
            let authorizes = !matches!(credential.kind, CredentialKind::SetHeaders(_));
            if !(authorizes && authorized) {
                chosen.push(credential);
            }
            authorized |= authorizes;
        }
        chosen
    }

    fn apply(
        &self,
        flow: &mut Flow,
        request: &mut Request,
        chosen: &[&Arc<Credential>],
        tokens: &[Option<Arc<Token>>],
    ) -> Verdict {
        if chosen.is_empty() {
            placeholder::refuse(flow, request)?;
        }
        self.client_credentials.remove_from(request);
        // Secrets cannot be found in an encoded body, and decoding costs time.
        let identity = HeaderValue::from_static("identity");
        request.headers.insert(ACCEPT_ENCODING, identity);
        let prepared = self.prepared()?;
        let mut guarded = Guarded {
            scrubbers: SmallVec::new(),
            injected: Vec::new(),
            is_head: request.method == Method::HEAD,
        };
        if prepared.has_secrets() {
            guarded.scrubbers.push(Arc::clone(&prepared.scrubber));
        }
        for (credential, token) in chosen.iter().zip(tokens) {
            let name = &credential.name;
            flow.note(|| format!("credential {name} would be added"));
            let added = match (&credential.kind, token) {
                (CredentialKind::Token { form, source, .. }, Some(token)) => {
                    guarded.scrubbers.push(Arc::clone(token.scrubber()));
                    let injected = (Arc::clone(source), Arc::clone(token));
                    guarded.injected.push(injected);
                    add(flow, request, token.fields(*form))
                }
                (CredentialKind::Token { .. }, None) => false,
                _ => {
                    let fields = self.fields(credential, &prepared)?.as_ref();
                    let fields = fields.map_err(|why| unavailable(name, why))?;
                    add(
                        flow,
                        request,
                        fields.iter().map(|(name, value)| (name, value)),
                    )
                }
            };
            if added {
                flow.add_credential(name);
            }
        }
        if !guarded.scrubbers.is_empty() {
            // Secrets cannot be found in messages that an extension compresses.
            remove_fields(&mut request.headers, |name| {
                folds_to(name, "sec-websocket-extensions")
            });
        }
        flow.put_slot(guarded);
        Ok(())
    }

    fn fields<'p>(
        &self,
        credential: &Arc<Credential>,
        prepared: &'p Prepared,
    ) -> Result<&'p Fields, Denial> {
        let mut of_all = self.credentials.iter().zip(&prepared.fields);
        let found = of_all.find(|(other, _)| Arc::ptr_eq(other, credential));
        found.map(|(_, fields)| fields).ok_or_else(Denial::internal)
    }

    /// The prepared credentials; prepares them again if a source changed. The returned guard must
    /// not be held across an await.
    fn prepared(&self) -> Result<MappedRwLockReadGuard<'_, Prepared>, Denial> {
        if let Ok(current) = RwLockReadGuard::try_map(self.prepared.read(), |prepared| {
            let prepared = prepared.as_ref();
            prepared.filter(|prepared| prepared.is_current(&self.credentials))
        }) {
            return Ok(current);
        }
        let first_name = self.credentials.first().map_or("", |first| &first.name);
        let read =
            Prepared::read(&self.credentials).map_err(|why| unavailable(first_name, &why))?;
        let mut place = self.prepared.write();
        *place = Some(read);
        RwLockReadGuard::try_map(RwLockWriteGuard::downgrade(place), Option::as_ref)
            .map_err(|_missing| Denial::internal())
    }
}

/// Fetches the token of each credential. In a dry run, which must not fetch, checks for each
/// credential whether there is a token.
pub(super) async fn fetch(
    chosen: &[&Arc<Credential>],
    container: &Arc<Container>,
    is_dry_run: bool,
) -> Result<Tokens, Denial> {
    let mut tokens = Tokens::with_capacity(chosen.len());
    for credential in chosen {
        tokens.push(match &credential.kind {
            CredentialKind::Token { source, .. } => {
                let fetched = match is_dry_run {
                    true => source.check().await.map(|()| None),
                    false => source.fetch(container).await.map(Some),
                };
                fetched.map_err(|why| unavailable(&credential.name, &why))?
            }
            _ => None,
        });
    }
    Ok(tokens)
}

/// Adds the fields that the request does not have yet. A dry run adds none. Returns whether the
/// request lacked at least one of the fields.
fn add<'f>(
    flow: &Flow,
    request: &mut Request,
    fields: impl Iterator<Item = (&'f HeaderName, &'f HeaderValue)>,
) -> bool {
    let mut added = false;
    for (name, value) in fields {
        let Entry::Vacant(place) = request.headers.entry(name) else {
            continue;
        };
        flow.effect(|| place.insert(value.clone()));
        added = true;
    }
    added
}

impl Credential {
    /// Whether requests of this container may get the credential.
    pub(super) fn is_for_container(&self, container: &Container) -> bool {
        let ids = self.containers.as_ref();
        let listed = ids.is_none_or(|ids| ids.contains(&container.id));
        listed
            && match &self.kind {
                CredentialKind::Token { source, .. } => source.is_for(container),
                _ => true,
            }
    }

    fn is_for(&self, host: &Host, port: u16, container: &Container, path: &Path) -> bool {
        let here = self.hosts.iter().any(|(h, p)| h == host && *p == port);
        let for_path = self.repos.as_ref().is_none_or(|repos| {
            let allowed = |repo: &&String| container.repos.iter().any(|own| own.is(repo));
            repos
                .iter()
                .filter(allowed)
                .any(|repo| names_repo(path, repo))
        });
        here && self.is_for_container(container) && for_path
    }
}

/// Whether the path begins with `/OWNER/NAME`, with or without `.git`, or with the API's
/// `/repos/OWNER/NAME`. An ambiguous path names no repository.
fn names_repo(path: &Path, repo: &str) -> bool {
    if path.ambiguity().is_some() {
        return false;
    }
    let path = path.normal();
    let path = path
        .strip_prefix("/repos/")
        .or_else(|| path.strip_prefix('/'));
    let Some((named, rest)) = path.and_then(|path| path.split_at_checked(repo.len())) else {
        return false;
    };
    let rest = rest.strip_prefix(".git").unwrap_or(rest);
    named.eq_ignore_ascii_case(repo) && (rest.is_empty() || rest.starts_with('/'))
}

/// The denial if a secret cannot be read or fetched. The client learns only the entry's name. The
/// hint has the reason; only `explain` shows hints. `explain` fetches no token, so it cannot show
/// why a fetch failed. The sources log failed token requests.
fn unavailable(name: &str, why: &str) -> Denial {
    let sentence = format!("Credential unavailable: {name}");
    Denial::new(Code::CredentialUnavailable, sentence)
        .rule(name)
        .hint(format!("the secret of {name} in credentials.yaml: {why}"))
}
