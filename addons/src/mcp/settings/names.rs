//! Names of servers.

use std::sync::Arc;

use crate::contract::{CLAUDE_CODE, INTERCEPTOR};
use crate::json::sha256_hex;

/// Names that are reserved for servers of the gateway itself. So is each name that begins with one
/// of them and `_`.
const RESERVED: [&str; 5] = ["policy", "loop", CLAUDE_CODE, INTERCEPTOR, "token-agent"];
/// The longest name of a server in bytes. The name is the prefix of exposed names of at most 64
/// bytes, so it must leave room for the names of tools.
const MAX_NAME: usize = 48;
/// Number of hexadecimal digits of a hash in a name.
const HASH_DIGITS: usize = 8;

/// Returns the name under which a server is mounted. It is the name as written, if that has only
/// characters of `A-Za-z0-9_-`. Otherwise, `-` replaces each other character. If the name is too long
/// or not ASCII, it also ends in a hash, since names that differ could become equal.
pub(super) fn server_name(written: &str) -> Result<Arc<str>, String> {
    if written.is_empty() {
        return Err("a server's name must not be empty".to_owned());
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let mut name = written.replace(|c| !fits(c), "-");
    if name.len() > MAX_NAME || !written.is_ascii() {
        let kept = MAX_NAME - HASH_DIGITS - 1;
        let hash = sha256_hex(written);
        name = format!("{name:.kept$}-{hash:.HASH_DIGITS$}");
    }
    match RESERVED.iter().find(|reserved| begins(reserved, &name)) {
        Some(reserved) => Err(format!(
            "{reserved}, and each name that begins with {reserved}_, is reserved for servers of the \
             gateway itself: choose another name"
        )),
        None => Ok(name.into()),
    }
}

/// What is wrong with two servers of these names in one file; `None` if nothing is. Policies match
/// `SERVER_TOOL`, which must not be the name of tools of two servers.
pub(super) fn conflict(one: &str, other: &str) -> Option<String> {
    let is_ambiguous = begins(one, other) || begins(other, one);
    is_ambiguous.then(|| {
        format!(
            "{one} and {other} are equal but for case, or one of them followed by _ begins the \
             other: policies could not distinguish their tools, SERVER_TOOL: choose another name"
        )
    })
}

/// Whether a name is equal to another one, or begins with it and `_`, regardless of case.
fn begins(beginning: &str, name: &str) -> bool {
    let start = name.get(..beginning.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(beginning))
        && matches!(name.as_bytes().get(beginning.len()), None | Some(b'_'))
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn a_name_with_other_characters_is_mapped_to_one_without() {
        let long = "x".repeat(48);
        each_row(
            [
                ("brave_search", "brave_search"),
                ("GitHub", "GitHub"),
                ("MCP_DOCKER", "MCP_DOCKER"),
                ("-", "-"),
                ("_a", "_a"),
                (long.as_str(), &*long),
                ("My Server", "My-Server"),
                ("@scope/server", "-scope-server"),
                ("github.com/example/servers", "github-com-example-servers"),
                ("a:b\n", "a-b-"),
                ("policies", "policies"),
                ("loop-1", "loop-1"),
            ],
            |(written, name)| assert_eq!(server_name(written).as_deref(), Ok(name)),
        );
        let mapped = ["天気", "地図", &format!("{long}a"), &format!("{long}b")];
        let mapped = mapped.map(|written| server_name(written).unwrap());
        for (at, name) in mapped.iter().enumerate() {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
            assert!(name.len() <= MAX_NAME && name.bytes().all(fits), "{name}");
            assert!(!mapped[..at].contains(name), "{name}");
        }
    }

    #[test]
    fn names_of_the_gateways_own_servers_are_reserved() {
        each_row(
            [
                "policy",
                "policy_reader",
                "Policy_x",
                "LOOP",
                "loop_",
                "claude-code",
                "claude code",
                "Claude-Code_Bash",
                "interceptor",
                "Interceptor_x",
                "token-agent",
                "",
            ],
            |written| assert!(server_name(written).is_err(), "{written}"),
        );
    }

    #[test]
    fn names_whose_tools_could_not_be_distinguished_conflict() {
        each_row(
            [
                ("kb", "kb", true),
                ("kb", "KB", true),
                ("kb", "kb_x", true),
                ("KB", "kb_x_y", true),
                ("kb", "kb_", true),
                ("kb", "kbx", false),
                ("kb", "kb-x", false),
                ("kb_x", "kb_y", false),
                ("kb-x", "kb_x", false),
            ],
            |(one, other, expected)| {
                for (one, other) in [(one, other), (other, one)] {
                    assert_eq!(conflict(one, other).is_some(), expected, "{one} {other}");
                }
            },
        );
    }
}
