//! Parses the paths of the REST API.

/// The object of a request, read from its path, in lower case.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target<'a> {
    /// `/graphql`
    Graphql,
    /// `/repos/OWNER/REPO/…`
    Repo {
        owner: &'a str,
        name: &'a str,
        rest: Vec<&'a str>,
    },
    /// `/repositories/ID/…`
    RepoById { id: u64, rest: Vec<&'a str> },
    /// Any other path, which names no repository; without a slash at either end.
    NoRepo(&'a str),
}

/// Paths without a repository that may be read: the profile of the token's user, the rate limit,
/// and public data.
const READABLE: [&str; 11] = [
    "",
    "codes_of_conduct",
    "emojis",
    "gitignore/templates",
    "licenses",
    "meta",
    "octocat",
    "rate_limit",
    "user",
    "versions",
    "zen",
];

/// Parses a path in lower case, without the prefix of its API.
pub(super) fn read(path: &str) -> Target<'_> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let path = path.strip_suffix('/').unwrap_or(path);
    let segments: Vec<&str> = path.split('/').collect();
    match segments.as_slice() {
        ["graphql"] => Target::Graphql,
        ["repos", owner, name, rest @ ..] => Target::Repo {
            owner,
            name,
            rest: rest.to_vec(),
        },
        ["repositories", id, rest @ ..] => match number(id) {
            Some(id) => Target::RepoById {
                id,
                rest: rest.to_vec(),
            },
            None => Target::NoRepo(path),
        },
        _ => Target::NoRepo(path),
    }
}

fn number(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain)
}

/// Whether a path without a repository, as in [`Target::NoRepo`], may be read.
pub(super) fn is_readable(path: &str) -> bool {
    READABLE.contains(&path)
}
