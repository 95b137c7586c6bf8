//! Git LFS with its real client: large files in pushes and clones, and locks.

use serde_json::json;

use crate::git::{Forge, HOST};
use crate::support::{FILES, Ran, SOON, Setup, eventually};

const MB: usize = 1 << 20;

/// Options for `git clone`. `git lfs install` would write these settings into the user's git
/// configuration.
const FILTERS: [&str; 6] = [
    "-c",
    "filter.lfs.process=git-lfs filter-process",
    "-c",
    "filter.lfs.smudge=git-lfs smudge -- %f",
    "-c",
    "filter.lfs.required=true",
];

/// Allows the host of the file store.
fn with_files(setup: &mut Setup) {
    let origin = setup.proxy["upstream"]["hosts"]["git.example.com"].clone();
    setup.host(FILES, origin.as_str().unwrap());
}

/// Commits a file of `size` bytes that Git LFS tracks, without pushing; returns its object id.
fn commit_large(forge: &Forge, size: usize) -> String {
    forge.work(&["lfs", "install", "--local"]).ok();
    forge.work(&["lfs", "track", "*.bin"]).ok();
    std::fs::write(forge.proxy.path("work/large.bin"), vec![7; size]).unwrap();
    forge.work(&["add", ".gitattributes", "large.bin"]).ok();
    forge
        .work(&["commit", "--quiet", "-m", "Add a large file"])
        .ok();
    let listed = forge.work(&["lfs", "ls-files", "--long"]).ok();
    listed.split(' ').next().unwrap().to_owned()
}

fn clone(forge: &Forge, at: &str) -> Ran {
    let url = format!("{HOST}/acme/web.git");
    forge.git(&[&FILTERS[..], &["clone", "--quiet", &url, at]].concat())
}

/// Commits a file of 3 MiB and pushes it, with `more` as options of git. Asserts that git exits
/// with 1 and that neither commit nor file is at the origin; returns git's standard error.
#[track_caller]
fn failed_push(forge: &Forge, more: &[&str]) -> String {
    commit_large(forge, 3 * MB);
    let ran = forge.work(&[more, &["push", "origin", "main"]].concat());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(
        forge.at_origin("main"),
        None,
        "the commit was pushed without its file"
    );
    assert_eq!(forge.origin.large_files().count(), 0);
    ran.stderr
}

#[test]
fn a_large_file_is_pushed_and_cloned() {
    let forge = Forge::with(with_files, json!({}));
    let oid = commit_large(&forge, 3 * MB);
    forge.work(&["push", "--quiet", "origin", "main"]).ok();
    assert_eq!(forge.at_origin("main"), forge.head());
    assert_eq!(forge.origin.large_files().size_of(&oid), Some(3 * MB));
    clone(&forge, "copy").ok();
    let cloned = std::fs::read(forge.proxy.path("copy/large.bin")).unwrap();
    assert_eq!(cloned, vec![7; 3 * MB]);
    // The store requires a token for each action. The proxy adds the token; the client never gets
    // it.
    eventually(
        "upload, verification and download are audited with the credential git-lfs",
        SOON,
        || {
            let audit = forge.proxy.audit();
            let redeemed = audit.iter().filter(|line| line["credential"] == "git-lfs");
            redeemed.count() == 3
        },
    );
}

#[test]
fn a_file_over_the_limit_is_denied_and_git_lfs_shows_why() {
    let limit = |setup: &mut Setup| {
        with_files(setup);
        let git = &mut setup.policy.as_mut().unwrap()["git"];
        git["push_limits"] = json!({ "warning_bytes": MB, "hard_limit_bytes": 2 * MB });
    };
    let forge = Forge::with(limit, json!({}));
    let said = failed_push(&forge, &[]);
    let shown =
        "batch response: Push size exceeds limit: a file of 3 MB, where at most 2 MB may be sent";
    assert!(said.contains(shown), "{said}");
    forge.proxy.audited(json!({
        "code": "push_too_large", "status": 413, "addon": "git",
        "rule": "git.push_limits.hard_limit_bytes", "path": "/acme/web.git/info/lfs/objects/batch",
    }));
    // A limit of the repository replaces that of the policy.
    let repos = json!([{ "name": "acme/web", "max_receive_pack_bytes": 5 * MB }]);
    let forge = Forge::with(limit, json!({ "repos": repos }));
    commit_large(&forge, 3 * MB);
    forge.work(&["push", "--quiet", "origin", "main"]).ok();
}

#[test]
fn the_files_of_another_repository_are_denied_and_git_lfs_shows_why() {
    let forge = Forge::with(with_files, json!({}));
    let other = format!("lfs.url={HOST}/acme/other.git/info/lfs");
    let said = failed_push(&forge, &["-c", &other]);
    assert!(
        said.contains("batch response: Repo not authorized"),
        "{said}"
    );
    assert!(
        forge
            .origin
            .seen()
            .iter()
            .all(|seen| !seen.target.contains("other"))
    );
}

#[test]
fn git_lfs_shows_the_host_of_a_store_that_is_not_allowed() {
    let forge = Forge::start();
    let said = failed_push(&forge, &[]);
    assert!(
        said.contains(&format!("Domain not allowed: {FILES}")),
        "{said}"
    );
}

#[test]
fn files_are_locked_and_unlocked() {
    let forge = Forge::with(with_files, json!({}));
    commit_large(&forge, MB);
    forge.work(&["push", "--quiet", "origin", "main"]).ok();
    let lfs = |arguments: &[&str]| forge.work(&[&["lfs"], arguments].concat()).ok();
    assert_eq!(lfs(&["lock", "large.bin"]), "Locked large.bin\n");
    assert!(lfs(&["locks"]).starts_with("large.bin"));
    assert_eq!(lfs(&["unlock", "large.bin"]), "Unlocked large.bin\n");
    assert_eq!(lfs(&["locks"]), "");
}
