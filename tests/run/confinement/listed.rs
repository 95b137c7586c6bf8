//! Files that the command may write although the host executes or obeys them. They are compared at
//! the end and listed.

use super::protected::{git, repository};
use crate::fixture::Person;
use crate::support::Ran;

/// The listed lines, with paths relative to the working directory.
fn listed(person: &Person, ran: &Ran) -> Vec<String> {
    let work = format!("  {}/", person.work().display());
    let lines = ran.stderr.lines();
    lines
        .filter_map(|line| line.strip_prefix(&work))
        .map(str::to_owned)
        .collect()
}

#[test]
fn new_files_that_the_host_would_execute_or_obey_are_listed_whatever_tool_they_are_for() {
    let Some(person) = Person::new() else { return };
    repository(&person, "project");
    person.directory("project/sub");
    person.write("project/sub/.envrc", "dotenv_if_exists app.env\n");
    let made = [
        ".Rprofile",
        ".config/mise",
        ".devenv.local",
        ".env",
        ".git/rebase-merge",
        ".git/remotes",
        ".git/some-future-directory",
        ".hg/hgrc",
        ".jj/repo/config.toml",
        ".kiro/settings/mcp.json",
        ".npmrc",
        ".roo/mcp.json",
        ".some-future-agent",
        ".yarnrc",
        "AGENTS.md",
        "app.code-workspace",
        "flake.nix",
        "lefthook-local.yml",
        "mise.local.toml",
        "rust-toolchain.toml",
        "sub/.claude",
        "sub/.vscode",
        "sub/app.env",
        "sub/deep/.envrc",
        "sub/deep/.nested-tool.json",
        "sub/deep/repo/.git",
    ];
    let script = "set -e; mkdir -p sub/.claude .config/mise .git/rebase-merge .git/some-future-directory .git/remotes \
        .hg .jj/repo .kiro/settings .roo .some-future-agent/a/b sub/.vscode sub/deep target node_modules/x .pytest_cache; \
        for file in .Rprofile .devenv.local .env sub/deep/.envrc .npmrc .yarnrc AGENTS.md app.code-workspace flake.nix \
        lefthook-local.yml mise.local.toml rust-toolchain.toml sub/.claude/settings.json .config/mise/config.toml \
        .git/rebase-merge/git-rebase-todo .git/some-future-directory/x .git/remotes/origin .hg/hgrc .jj/repo/config.toml \
        .kiro/settings/mcp.json .roo/mcp.json .some-future-agent/a/b/x sub/.vscode/tasks.json sub/app.env \
        sub/deep/.nested-tool.json target/.fingerprint node_modules/x/.npmrc .pytest_cache/x .gitignore plain; \
        do echo x > $file; done; git init -q sub/deep/repo; git -c user.name=B -c user.email=b@example.com commit -q --allow-empty -m x";
    let ran = person.sh(&[], script);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(listed(&person, &ran), made, "{ran:?}");
    // A run does not list files that existed at its start.
    assert_eq!(person.sh(&[], "true").stderr, "");
}

#[test]
fn changed_and_removed_settings_are_listed_and_rewritten_ones_are_not() {
    let Some(person) = Person::new() else { return };
    repository(&person, "project");
    for name in [
        ".env",
        ".github/workflows/ci.yml",
        ".github/workflows/other.yml",
        ".npmrc",
        ".tool/settings.json",
        "CLAUDE.md",
        "flake.nix",
        "plain",
    ] {
        person.write(person.work().join(name), "before\n");
    }
    for number in 0..9 {
        person.write(format!("project/.many/{number}"), "before\n");
    }
    let script = "echo x >> .env; echo x > .github/workflows/ci.yml; rm .npmrc; chmod +x .tool/settings.json; \
        cp -p CLAUDE.md c; echo more >> CLAUDE.md; mv c CLAUDE.md; touch .github/workflows/other.yml; \
        touch -r plain date; echo BEFORE > flake.nix; touch -r date flake.nix; \
        for n in 0 1 2 3 4 5 6; do echo x > .many/$n; done; echo x > plain; git config -l >/dev/null";
    let expected = [
        ".env (changed)",
        ".github/workflows/ci.yml (changed)",
        ".many (7 files)",
        ".npmrc (removed)",
        ".tool/settings.json (changed)",
        "flake.nix (changed)",
    ];
    // Also with `--quiet`, and although the command fails.
    let ran = person.sh(&["--quiet"], &format!("{script}; exit 3"));
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert_eq!(listed(&person, &ran), expected, "{ran:?}");
}

#[test]
fn new_repositories_are_listed_and_bare_ones_too() {
    let Some(person) = Person::new() else { return };
    let script = "mkdir -p new/deep node_modules/x; git init -q new/deep/repo; git init -q --bare bare; \
        git init -q node_modules/x; echo x > new/.envrc; mkdir new/.vscode; echo x > new/plain";
    let ran = person.sh(&[], script);
    let expected = [
        "bare",
        "new/.envrc",
        "new/.vscode",
        "new/deep/repo/.git",
        "node_modules/x/.git",
    ];
    assert_eq!(listed(&person, &ran), expected, "{ran:?}");
}

/// `git status` executes `core.fsmonitor` of each repository that the index names.
#[test]
fn an_index_entry_that_makes_git_enter_a_repository_is_listed() {
    let Some(person) = Person::new() else { return };
    let work = repository(&person, "project");
    for name in ["known", "planted"] {
        let nested = repository(&person, &format!("project/{name}"));
        git(&person, &nested, &["config", "core.fsmonitor", "true"]);
    }
    git(&person, &work, &["add", "known"]);
    let script = "id=$(git -C planted rev-parse HEAD); git update-index --add --cacheinfo 160000,$id,planted; \
        git update-index --split-index; git update-index --index-version 4";
    let ran = person.sh(&[], script);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let line = "planted (git status now executes what its settings name)";
    assert_eq!(listed(&person, &ran), [line], "{ran:?}");
    assert_eq!(person.sh(&[], "true").stderr, "");
}

#[test]
fn files_that_hooks_links_in_the_home_directory_and_path_lead_to_are_listed() {
    let Some(mut person) = Person::new() else {
        return;
    };
    let path = format!(
        "/usr/bin:/bin:{}/tools:scripts/bin",
        person.work().display()
    );
    person.env.push(("PATH".to_owned(), path));
    let work = repository(&person, "project");
    person.write(
        "project/.git/hooks/pre-commit",
        "#!/bin/sh\nexec scripts/check.sh\n",
    );
    person.write(
        "project/lefthook.yml",
        "pre-push:\n  run: python3 scripts/push.py\n",
    );
    for name in [
        "scripts/check.sh",
        "scripts/push.py",
        "scripts/other.sh",
        "scripts/bin/mine",
        "tools/ls",
        "zshrc",
        "nvim/init.lua",
    ] {
        person.write(work.join(name), "before\n");
    }
    person.directory(".config");
    for (link, to) in [
        (".zshrc", "project/zshrc"),
        (".config/nvim", "../project/nvim"),
    ] {
        std::os::unix::fs::symlink(to, person.home().join(link)).unwrap();
    }
    let script = "for file in scripts/*.* scripts/bin/mine zshrc nvim/init.lua tools/ls; do echo x >> $file; done; \
        echo x > nvim/new.lua; echo x > tools/cat";
    let expected = [
        "nvim/init.lua (changed)",
        "nvim/new.lua",
        "scripts/bin/mine (changed)",
        "scripts/check.sh (changed)",
        "scripts/push.py (changed)",
        "tools/cat",
        "tools/ls (changed)",
        "zshrc (changed)",
    ];
    assert_eq!(listed(&person, &person.sh(&[], script)), expected);
}
