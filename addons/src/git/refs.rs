//! Checks the names of refs by git's own rules.

/// The namespaces that a push may write; bot mode restricts them further. A push to another
/// namespace can have side effects: in `refs/for/` it opens reviews, in `refs/replace/` it changes
/// the history that git shows.
pub(super) const NAMESPACES: [&str; 3] = ["refs/heads/", "refs/tags/", "refs/notes/"];

/// Whether git accepts the name (`git check-ref-format --allow-onelevel`).
pub(super) fn is_well_formed(name: &[u8]) -> bool {
    let allowed = |byte: &u8| {
        !matches!(
            byte,
            0..=0x20 | 0x7f | b'~' | b'^' | b':' | b'?' | b'*' | b'[' | b'\\'
        )
    };
    let has = |pair: &[u8; 2]| name.windows(2).any(|two| two == pair);
    name.iter().all(allowed)
        && !has(b"..")
        && !has(b"@{")
        && name != b"@"
        && !name.ends_with(b".")
        && name.split(|byte| *byte == b'/').all(is_component)
}

fn is_component(part: &[u8]) -> bool {
    !part.is_empty() && !part.starts_with(b".") && !part.ends_with(b".lock")
}

/// Whether the name is in a namespace that a push may write.
pub(super) fn is_writable(name: &[u8]) -> bool {
    NAMESPACES
        .iter()
        .any(|namespace| name.starts_with(namespace.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;
    use testkit::each_row;

    use super::*;

    const NAMES: [(&str, bool); 26] = [
        ("refs/heads/main", true),
        ("refs/heads/sandbox/a.b-c_d@e", true),
        ("refs/heads/é", true),
        ("refs/heads/@", true),
        ("refs/heads/-", true),
        ("refs/heads/a.lock.b", true),
        ("HEAD", true),
        ("", false),
        ("@", false),
        ("/refs/heads/a", false),
        ("refs/heads/a/", false),
        ("refs//heads/a", false),
        ("refs/heads/sandbox/../main", false),
        ("refs/heads/./main", false),
        ("refs/heads/.hidden", false),
        ("refs/heads/a.", false),
        ("refs/heads/a.lock", false),
        ("refs/heads/a.lock/b", false),
        ("refs/heads/a b", false),
        ("refs/heads/a\tb", false),
        ("refs/heads/a\x7f", false),
        ("refs/heads/a~1", false),
        ("refs/heads/a:b", false),
        ("refs/heads/a@{1}", false),
        ("refs/heads/[a]?*", false),
        ("refs/heads/a\\b", false),
    ];

    #[test]
    fn names_are_judged_by_gits_own_rules() {
        each_row(NAMES, |(name, fits)| {
            assert_eq!(is_well_formed(name.as_bytes()), fits, "{name:?}");
        });
    }

    fn git_takes(name: &str) -> bool {
        let mut git = Command::new("git");
        git.args(["check-ref-format", "--allow-onelevel", name]);
        git.status().unwrap().success()
    }

    #[test]
    fn git_agrees_on_the_examples() {
        each_row(NAMES, |(name, fits)| {
            assert_eq!(git_takes(name), fits, "{name:?}");
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn git_agrees_on_any_name(name in "[a-z./@{~^:lock-]{0,12}") {
            let name = format!("refs/{name}");
            prop_assert_eq!(is_well_formed(name.as_bytes()), git_takes(&name));
        }
    }
}
