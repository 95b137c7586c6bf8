//! Renders the denial of git's first request so that git shows it.

use std::fmt::Write;

use http::Method;
use http::header::USER_AGENT;

use crate::contract::{Answer, Denial, Request};

/// Gives the 403 denial of git's `info/refs` request a plain-text body. Git shows this body after
/// `remote:` and discards a body of any other type. A request counts as git's if it has the
/// parameter `service` or git's user agent. Any other denial is returned unchanged, and so is a
/// denial that already has an answer.
#[must_use]
pub fn as_git_shows(denial: Denial, request: &Request) -> Denial {
    if denial.code().status() != 403 || denial.answer().is_some() || !is_discovery(request) {
        return denial;
    }
    let mut text = format!("{}\n", denial.sentence());
    if let Some(object) = denial.to_json().as_object() {
        for (key, value) in object.iter().filter(|(key, _)| *key != "error") {
            let _ = match value.as_str() {
                Some(value) => writeln!(text, "{key}: {value}"),
                None => writeln!(text, "{key}: {value}"),
            };
        }
    }
    denial.answered_with(Answer {
        status: 403,
        content_type: "text/plain",
        body: text.into(),
        drain_bytes: 0,
    })
}

fn is_discovery(request: &Request) -> bool {
    let is_git = || {
        let agent = request.headers.get(USER_AGENT);
        agent.is_some_and(|agent| agent.as_bytes().starts_with(b"git/"))
    };
    let names_service = || {
        let query = request.query.as_deref().unwrap_or_default();
        query.split('&').any(|pair| pair.starts_with("service="))
    };
    request.method == Method::GET
        && request.path.normal().ends_with("/info/refs")
        && (names_service() || is_git())
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;
    use crate::contract::Code;
    use crate::fixtures::request;

    fn shown(code: Code, target: &str, fields: &[(&str, &str)]) -> Option<Answer> {
        let denial = Denial::new(code, "Repo not authorized").with("repo", "acme/other");
        as_git_shows(denial, &request(target, fields))
            .answer()
            .cloned()
    }

    #[test]
    fn the_denial_of_gits_first_request_is_plain_text() {
        const REFS: &str = "/acme/other.git/info/refs";
        let asked = format!("{REFS}?service=git-upload-pack");
        let git = [("user-agent", "git/2.47.3")];
        each_row(
            [(asked.as_str(), &[][..]), (REFS, &git)],
            |(target, fields)| {
                let answer = shown(Code::RepoNotAuthorized, target, fields).unwrap();
                assert_eq!((answer.status, answer.content_type), (403, "text/plain"));
                let text = "Repo not authorized\ncode: repo_not_authorized\nrepo: acme/other\n";
                assert_eq!(answer.body, text);
            },
        );
        assert_eq!(shown(Code::RepoNotAuthorized, REFS, &[]), None);
        assert_eq!(
            shown(Code::RepoNotAuthorized, "/acme/other.git/HEAD", &git),
            None
        );
        assert_eq!(shown(Code::RateLimited, &asked, &git), None);
    }
}
