//! The writes that are allowed without being asked for, below `/repos/OWNER/REPO/`.

use http::Method;

/// `#` stands for a number, `*` for any segment. What is not here is not allowed.
const ALLOWED: &[(&str, &[&str])] = &[
    (
        "POST",
        &[
            "comments/#/reactions",
            "issues",
            "issues/#/assignees",
            "issues/#/comments",
            "issues/#/labels",
            "issues/#/reactions",
            "issues/comments/#/reactions",
            "labels",
            "pulls",
            "pulls/#/comments",
            "pulls/#/comments/#/replies",
            "pulls/#/requested_reviewers",
            "pulls/#/reviews",
            "pulls/#/reviews/#/events",
            "pulls/comments/#/reactions",
        ],
    ),
    ("PUT", &["issues/#/labels", "pulls/#/reviews/#"]),
    (
        "PATCH",
        &[
            "issues/#",
            "issues/comments/#",
            "labels/*",
            "pulls/#",
            "pulls/comments/#",
        ],
    ),
    (
        "DELETE",
        &[
            "comments/#/reactions/#",
            "issues/#/assignees",
            "issues/#/labels",
            "issues/#/labels/*",
            "issues/#/reactions/#",
            "issues/comments/#",
            "issues/comments/#/reactions/#",
            "labels/*",
            "pulls/#/requested_reviewers",
            "pulls/#/reviews/#",
            "pulls/comments/#",
            "pulls/comments/#/reactions/#",
        ],
    ),
];

/// Whether a write is allowed; `rest` is in lower case.
pub(super) fn is_allowed(method: &Method, rest: &[&str]) -> bool {
    let of_method = ALLOWED
        .iter()
        .filter(|(listed, _)| *listed == method.as_str());
    let mut templates = of_method.flat_map(|(_, templates)| *templates);
    templates.any(|template| {
        let mut segments = rest.iter();
        let fits = template
            .split('/')
            .all(|part| segments.next().is_some_and(|segment| fits(part, segment)));
        fits && segments.next().is_none()
    })
}

fn fits(part: &str, segment: &str) -> bool {
    match part {
        "#" => !segment.is_empty() && segment.bytes().all(|byte| byte.is_ascii_digit()),
        "*" => !segment.is_empty(),
        literal => literal == segment,
    }
}
