//! find and grep on random trees, compared with the system's tools.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use proptest::prelude::*;
use serde_json::json;

use crate::again;
use crate::fixture::Fixture;

#[derive(Debug, Clone)]
struct Tree {
    files: Vec<(String, String)>,
    ignores: Vec<(String, String)>,
    links: Vec<(String, String)>,
}

fn folder() -> impl Strategy<Value = String> {
    prop::collection::vec("[ab]|build|src", 0..4).prop_map(|names| names.join("/"))
}

fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() {
        name.to_owned()
    } else {
        format!("{folder}/{name}")
    }
}

fn tree() -> impl Strategy<Value = Tree> {
    let name = "[cd]{1,2}|x\\.log|y\\.txt|\\.env|\\.h\\.log";
    let text = prop::collection::vec("[ef]{0,3}|needle|Needle [0-9]", 0..6)
        .prop_map(|lines| lines.join("\n"));
    let files = prop::collection::vec((folder(), name, text), 0..24);
    let rule = "!?(\\*\\.log|build/|/src|c\\*|a/b|\\*\\*/d|src/\\*\\*|\\.env|\\*|!x|b/\\*\\.txt|[cd]{2}|y\\.\\?xt)";
    let rules = prop::collection::vec(rule, 0..4).prop_map(|rules| rules.join("\n"));
    let ignores = prop::collection::vec((folder(), rules), 0..4);
    let links = prop::collection::vec((folder(), "link[0-9]", folder()), 0..3);
    (files, ignores, links).prop_map(|(files, ignores, links)| Tree {
        files: files
            .into_iter()
            .map(|(at, name, text)| (join(&at, &name), text))
            .collect(),
        ignores: ignores
            .into_iter()
            .map(|(at, rules)| (join(&at, ".gitignore"), rules))
            .collect(),
        links: links
            .into_iter()
            .map(|(at, name, to)| (join(&at, &name), to))
            .collect(),
    })
}

/// Creates the tree; skips an entry that cannot be created, for example below a file.
fn make(fixture: &Fixture, tree: &Tree, ignores: bool) {
    let ignores = if ignores { &tree.ignores[..] } else { &[] };
    for (path, text) in tree.files.iter().chain(ignores) {
        let at = fixture.at(path);
        if fs::create_dir_all(at.parent().unwrap()).is_ok() {
            let _ = fs::write(at, text);
        }
    }
    for (path, to) in &tree.links {
        let at = fixture.at(path);
        if fs::create_dir_all(at.parent().unwrap()).is_ok() {
            let _ = symlink(fixture.at(to), at);
        }
    }
}

/// The lines that a program prints in the root; `None` if it is not installed.
fn lines(fixture: &Fixture, program: &str, arguments: &[&str]) -> Option<BTreeSet<String>> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(&fixture.root)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("LC_ALL", "C")
        .output()
        .ok()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let failed = output.status.code().is_none_or(|code| code >= 2)
        && !stderr.contains("No files were searched");
    assert!(!failed, "{program}: {stderr}");
    let output = String::from_utf8(output.stdout).unwrap();
    let lines = output.lines();
    Some(
        lines
            .map(|line| line.trim_start_matches("./").to_owned())
            .collect(),
    )
}

fn found(fixture: &Fixture) -> BTreeSet<String> {
    let result = fixture.find(json!({"pattern": "*"})).unwrap();
    assert!(!result.truncated && result.skipped.is_none());
    let count = result.files.len();
    let files: BTreeSet<_> = result.files.into_iter().collect();
    assert_eq!(files.len(), count);
    files
}

/// Matches as `grep -n` prints them.
fn grepped(fixture: &Fixture) -> BTreeSet<String> {
    let result =
        fixture.grep(json!({"pattern": "needle [0-4]|^f+$", "ignoreCase": true, "limit": 2000}));
    let result = result.unwrap();
    assert_eq!(result.details, None);
    let lines = result.content.lines();
    lines.map(|line| line.replacen(": ", ":", 1)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn find_and_grep_agree_with_the_tools_of_the_system(tree in tree()) {
        let fixture = Fixture::new();
        make(&fixture, &tree, false);
        let expected = lines(&fixture, "find", &[".", "!", "-type", "d"]).unwrap();
        prop_assert_eq!(found(&fixture), expected);
        let expected = lines(&fixture, "grep", &["-rniE", "needle [0-4]|^f+$", "."]).unwrap();
        prop_assert_eq!(grepped(&fixture), expected);
    }

    #[test]
    fn find_and_grep_agree_with_git_and_ripgrep_on_ignored_files(tree in tree()) {
        let fixture = Fixture::new();
        make(&fixture, &tree, true);
        if let Some(expected) = lines(&fixture, "rg", &["--files", "--hidden", "--no-require-git", "--no-ignore-global"]) {
            // ripgrep does not list symbolic links.
            let files = found(&fixture);
            let files = files.into_iter().filter(|file| !fixture.at(file).is_symlink());
            prop_assert_eq!(files.collect::<BTreeSet<_>>(), expected);
            let arguments = ["-n", "-i", "--hidden", "--no-require-git", "--no-ignore-global", "--no-heading", "needle [0-4]|^f+$"];
            prop_assert_eq!(grepped(&fixture), lines(&fixture, "rg", &arguments).unwrap());
        } else {
            again::note("ripgrep is not installed: find and grep were compared with git alone");
        }
        if lines(&fixture, "git", &["init", "-q"]).is_some() {
            let arguments = ["ls-files", "-co", "--exclude-standard"];
            prop_assert_eq!(found(&fixture), lines(&fixture, "git", &arguments).unwrap());
            let expected: BTreeSet<_> = lines(&fixture, "git", &["grep", "-niE", "--untracked", "--exclude-standard", "needle [0-4]|^f+$"]).unwrap();
            prop_assert_eq!(grepped(&fixture), expected);
        }
    }
}
