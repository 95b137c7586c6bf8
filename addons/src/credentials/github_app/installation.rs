//! Builds requests to GitHub's API about an installation of an App, and parses the responses.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use zeroize::Zeroizing;

use crate::contract::{Container, Host, Repo};
use crate::credentials::secret::bearer_value;
use crate::credentials::wiped::wipe;

/// GitHub's limit on the repositories of one token.
const MAX_REPOS: usize = 500;

/// An installation of a GitHub App, and the permissions of its tokens. It holds no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// The id of the App, or its client id.
    pub app_id: String,
    /// The id of the installation.
    pub installation_id: String,
    /// The host of the API.
    pub api: Host,
    /// The prefix of the API's paths: empty, or `/api/v3`.
    pub prefix: &'static str,
    /// The permissions of every token. A permission that is not named here is not granted.
    pub permissions: BTreeMap<String, String>,
}

/// A token and its expiry.
pub(super) struct Minted {
    pub secret: Zeroizing<String>,
    pub expires: OffsetDateTime,
}

impl Installation {
    /// Builds the request for the owner of the installation. Needed if the container's repositories
    /// have several owners: a token request names repositories without their owner, so it may name
    /// only those of the installation's owner.
    pub(super) fn owner_request(&self, jwt: &str) -> Result<Request<Bytes>, String> {
        self.request(Method::GET, "", jwt, Bytes::new())
    }

    /// Parses the owner's login from the response to [`Self::owner_request`].
    pub(super) fn owner(&self, status: StatusCode, body: &[u8]) -> Result<String, String> {
        let response = read(status, body)?;
        let login = response.0.pointer("/account/login").and_then(Value::as_str);
        let login = login.ok_or("GitHub's answer does not name the owner of the installation")?;
        Ok(login.to_owned())
    }

    /// Builds the request for a token for exactly these repositories, which must have one owner.
    pub(super) fn token_request(
        &self,
        jwt: &str,
        repos: &[&Repo],
    ) -> Result<Request<Bytes>, String> {
        let mut names: Vec<&str> = repos.iter().map(|repo| parts(repo).1).collect();
        names.sort_unstable();
        names.dedup();
        // For a request without names, GitHub would make a token for all repositories of the
        // installation.
        if names.is_empty() {
            return Err("no repository of the container belongs to the installation".to_owned());
        }
        if names.len() > MAX_REPOS {
            return Err(format!(
                "the container has {} repositories of the installation, and GitHub accepts at most {MAX_REPOS} for one token",
                names.len()
            ));
        }
        let body = json!({ "repositories": names, "permissions": self.permissions });
        let body = Bytes::from(body.to_string());
        self.request(Method::POST, "/access_tokens", jwt, body)
    }

    /// Parses the response to [`Self::token_request`]. Refuses a token that is not limited to
    /// repositories of the container.
    pub(super) fn minted(
        &self,
        container: &Container,
        status: StatusCode,
        body: &[u8],
    ) -> Result<Minted, String> {
        let response = read(status, body)?;
        let text = |key| response.0.get(key).and_then(Value::as_str);
        let reached = response.0.get("repositories").and_then(Value::as_array);
        let is_own = |repo: &Value| {
            let name = repo.get("full_name").and_then(Value::as_str);
            name.is_some_and(|name| container.repos.iter().any(|own| own.is(name)))
        };
        // A response without a list may hold a token for all repositories of the installation.
        let within = reached.is_some_and(|repos| !repos.is_empty() && repos.iter().all(is_own));
        if !within || text("repository_selection") != Some("selected") {
            return Err(
                "GitHub's answer does not limit the token to the container's repositories; the token is not used"
                    .to_owned(),
            );
        }
        let secret = text("token").ok_or("GitHub's answer holds no token")?;
        let expires = text("expires_at").and_then(|at| OffsetDateTime::parse(at, &Rfc3339).ok());
        Ok(Minted {
            secret: Zeroizing::new(secret.to_owned()),
            expires: expires.ok_or("GitHub's answer holds no expiry of the token")?,
        })
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        jwt: &str,
        body: Bytes,
    ) -> Result<Request<Bytes>, String> {
        let unusable = |_| "installation_id has characters that a URL must not contain".to_owned();
        let (api, prefix, id) = (&self.api, self.prefix, &self.installation_id);
        Request::builder()
            .method(method)
            .uri(format!(
                "https://{api}{prefix}/app/installations/{id}{path}"
            ))
            .header(AUTHORIZATION, bearer_value(jwt)?)
            .header(ACCEPT, "application/vnd.github+json")
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, "unified-proxy")
            .header("x-github-api-version", "2022-11-28")
            .body(body)
            .map_err(unusable)
    }
}

/// The owners of a container's repositories, each once.
pub(super) fn owners(container: &Container) -> Vec<&str> {
    let mut owners: Vec<&str> = Vec::new();
    for owner in container.repos.iter().map(|repo| parts(repo).0) {
        if !owners.iter().any(|known| known.eq_ignore_ascii_case(owner)) {
            owners.push(owner);
        }
    }
    owners
}

pub(super) fn repos_of<'c>(container: &'c Container, owner: &str) -> Vec<&'c Repo> {
    let of_owner = |repo: &&Repo| parts(repo).0.eq_ignore_ascii_case(owner);
    container.repos.iter().filter(of_owner).collect()
}

fn parts(repo: &Repo) -> (&str, &str) {
    repo.name.split_once('/').unwrap_or(("", &repo.name))
}

/// The JSON of a response that may hold a token. Wiped when dropped. It has no `Debug` on purpose.
struct ResponseJson(Value);

impl Drop for ResponseJson {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

fn read(status: StatusCode, body: &[u8]) -> Result<ResponseJson, String> {
    if !status.is_success() {
        return Err(format!(
            "GitHub answered {}{}",
            status.as_u16(),
            advice(status)
        ));
    }
    let response = serde_json::from_slice(body).map(ResponseJson);
    response.map_err(|_| "GitHub's answer is not JSON".to_owned())
}

fn advice(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => ": check app_id, the private key and the clock",
        403 | 404 => ": check installation_id, and that the App is still installed",
        422 => ": the App lacks a permission, or is not installed for a repository",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::registration;

    #[test]
    fn repositories_are_grouped_by_owner_without_regard_to_case() {
        let mut registration = registration("web");
        let repo = |name: &str| Repo {
            name: name.into(),
            max_receive_pack_bytes: None,
        };
        registration.repos = ["acme/web", "Acme/api", "other/web"].map(repo).into();
        let container = Container::new(registration);
        assert_eq!(owners(&container), ["acme", "other"]);
        let names = |owner| {
            let repos = repos_of(&container, owner);
            repos.iter().map(|repo| &*repo.name).collect::<Vec<_>>()
        };
        assert_eq!(names("ACME"), ["acme/web", "Acme/api"]);
        assert_eq!(names("other"), ["other/web"]);
    }

    #[test]
    fn a_token_that_is_not_limited_to_the_containers_repositories_is_refused() {
        let installation = Installation {
            app_id: "1".to_owned(),
            installation_id: "2".to_owned(),
            api: Host::parse("api.github.com").unwrap(),
            prefix: "",
            permissions: BTreeMap::new(),
        };
        let mut registration = registration("web");
        registration.repos = vec![Repo {
            name: "acme/web".into(),
            max_receive_pack_bytes: None,
        }];
        let container = Container::new(registration);
        let own = json!([{ "full_name": "Acme/Web" }]);
        let mut good = json!({
            "token": "ghs_1", "expires_at": "2100-01-01T00:00:00Z",
            "repository_selection": "selected", "repositories": own,
        });
        let minted = |answer: &Value| {
            let body = answer.to_string();
            installation.minted(&container, StatusCode::CREATED, body.as_bytes())
        };
        assert!(minted(&good).is_ok());
        for (key, other) in [
            ("repositories", Value::Null),
            ("repositories", json!([])),
            ("repositories", json!([{ "id": 1 }])),
            (
                "repositories",
                json!([{ "full_name": "acme/web" }, { "id": 1 }]),
            ),
            ("repositories", json!([{ "full_name": "acme/api" }])),
            ("repository_selection", Value::Null),
            ("repository_selection", json!("all")),
        ] {
            let kept = std::mem::replace(&mut good[key], other);
            assert!(minted(&good).is_err(), "{good}");
            good[key] = kept;
        }
    }
}
