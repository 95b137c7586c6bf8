//! Files that the command may write although the host executes or obeys them. They are compared at
//! the end and listed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use super::protected::{git, repository};
use crate::fixture::{NOBODY, Person, is_root};
use crate::support::Ran;

/// The listed lines in the order of their paths, which are relative to the working directory.
fn listed(person: &Person, ran: &Ran) -> Vec<String> {
    let work = format!("  {}/", person.work().display());
    let lines = ran.stderr.lines();
    let lines = lines.filter_map(|line| line.strip_prefix(&work));
    let mut lines: Vec<_> = lines.map(str::to_owned).collect();
    lines.sort_by(|one, other| Path::new(one).cmp(Path::new(other)));
    lines
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
        "shared-settings",
    ] {
        person.write(work.join(name), "before\n");
    }
    person.directory(".config");
    person.write(".gitconfig", "[include]\npath = shared\n");
    for (link, to) in [
        (".zshrc", "project/zshrc"),
        (".config/nvim", "../project/nvim"),
        ("shared", "project/shared-settings"),
    ] {
        symlink(to, person.home().join(link)).unwrap();
    }
    let script = "for file in scripts/*.* scripts/bin/mine zshrc nvim/init.lua tools/ls shared-settings; do echo x >> $file; done; \
        echo x > nvim/new.lua; echo x > tools/cat";
    let expected = [
        "nvim/init.lua (changed)",
        "nvim/new.lua",
        "scripts/bin/mine (changed)",
        "scripts/check.sh (changed)",
        "scripts/push.py (changed)",
        "shared-settings (changed)",
        "tools/cat",
        "tools/ls (changed)",
        "zshrc (changed)",
    ];
    assert_eq!(listed(&person, &person.sh(&[], script)), expected);
}

/// git waits for the writer of a FIFO, and its program on the host would never end.
#[test]
fn an_index_that_cannot_be_read_is_listed_and_the_run_ends() {
    let Some(person) = Person::new() else { return };
    repository(&person, "project");
    repository(&person, "project/nested");
    let ran = person.sh(&[], "rm .git/index; mkfifo .git/index");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(listed(&person, &ran), [".git/index (changed)"], "{ran:?}");
    // The next run starts.
    assert_eq!(person.sh(&[], "true").code, Some(0));
}

#[test]
fn programs_of_path_that_are_missing_or_behind_links_are_listed() {
    let Some(mut person) = Person::new() else {
        return;
    };
    let (work, home) = (person.work(), person.home());
    let path = format!(
        "/usr/bin:/bin:{}/node_modules/.bin:bin/later:{}/.local/bin",
        work.display(),
        home.display()
    );
    person.env.push(("PATH".to_owned(), path));
    person.directory(".local/bin");
    for name in ["mine", "unbuilt"] {
        symlink(
            work.join("build").join(name),
            home.join(".local/bin").join(name),
        )
        .unwrap();
    }
    person.write("project/build/mine", "before\n");
    let script = "mkdir -p node_modules/.bin bin/later; \
        for file in node_modules/.bin/ls bin/later/cat build/mine build/unbuilt build/other; do echo x > $file; done";
    let expected = [
        "bin/later",
        "build/mine (changed)",
        "build/unbuilt",
        "node_modules/.bin",
    ];
    assert_eq!(listed(&person, &person.sh(&[], script)), expected);
}

#[test]
fn a_checkout_writes_files_of_environment_loaders_and_they_are_listed() {
    let Some(person) = Person::new() else { return };
    let work = repository(&person, "project");
    let files = [".env", ".tool-versions", "flake.lock", "sub/.tool-versions"];
    person.write(work.join(".envrc"), "dotenv\nuse flake\n");
    for (branch, text) in [("other", "other\n"), ("main", "main\n")] {
        git(&person, &work, &["checkout", "-q", "-B", branch]);
        for name in files {
            person.write(work.join(name), text);
        }
        git(&person, &work, &["add", "-A"]);
        git(&person, &work, &["commit", "-q", "-m", branch]);
    }
    let script = "git checkout -q other && git status --short && cat .env .tool-versions flake.lock sub/.tool-versions";
    let ran = person.sh(&[], script);
    assert_eq!(ran.stdout, "other\n".repeat(4), "{ran:?}");
    let expected = files.map(|name| format!("{name} (changed)"));
    assert_eq!(listed(&person, &ran), expected, "{ran:?}");
}

#[test]
fn changed_files_that_an_environment_loader_loads_are_listed() {
    let Some(person) = Person::new() else { return };
    person.write(
        "project/.envrc",
        "dotenv\nuse flake\nsource_env_if_exists ./env/base.sh\n. env/more.sh\nPATH_add bin\n",
    );
    person.write("project/sub/mise.toml", "[env]\n_.file = 'app.env'\n");
    // direnv also loads the nearest `.envrc` above the working directory.
    person.write(".envrc", "source project/env/outer.sh\n");
    let files = [
        ".env",
        "bin/tool",
        "env/base.sh",
        "env/more.sh",
        "env/outer.sh",
        "flake.lock",
        "flake.nix",
        "sub/app.env",
    ];
    for name in files {
        person.write(person.work().join(name), "here\n");
    }
    let script = format!("for file in {}; do echo x > $file; done", files.join(" "));
    let expected = files.map(|name| format!("{name} (changed)"));
    assert_eq!(listed(&person, &person.sh(&[], &script)), expected);
}

#[test]
fn nothing_is_listed_in_a_directory_that_cannot_be_written_to() {
    let Some(person) = Person::new() else { return };
    let closed = person.directory("closed");
    let mode = |mode| fs::set_permissions(&closed, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o555);
    for with_repository in [false, true] {
        if with_repository {
            mode(0o755);
            repository(&person, "closed");
            mode(0o555);
        }
        let ran = Ran::of(person.command(&[], &["touch", "new"]).current_dir(&closed));
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(!ran.stderr.contains("closed/"), "{ran:?}");
        if is_root() {
            // A read-only file system.
            mode(0o755);
            let run = person.command(&[], &["touch", "new"]);
            let mount = "mount --bind . .; mount -o remount,ro,bind .; cd \"$PWD\"; exec \"$@\"";
            let mut unshare = Command::new("unshare");
            unshare.args(["--mount", "sh", "-ec", mount, "sh"]);
            unshare
                .arg(run.get_program())
                .args(run.get_args())
                .env_clear();
            let variables = run
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?)));
            let ran = Ran::of(unshare.envs(variables).current_dir(&closed));
            assert_eq!(ran.code, Some(1), "{ran:?}");
            assert!(!ran.stderr.contains("closed/"), "{ran:?}");
            mode(0o555);
        }
    }
}

#[test]
fn files_of_another_user_that_were_there_are_not_listed() {
    let Some(person) = Person::new().filter(|_| is_root()) else {
        return;
    };
    let shared = person.base().join("shared");
    for (name, text) in [
        ("theirs/.git/HEAD", "ref: refs/heads/main\n"),
        ("theirs/.git/config", ""),
        ("theirs/.git/objects/x", ""),
        ("theirs/.git/refs/x", ""),
        ("theirs/.envrc", "x"),
        ("theirs/.vscode/tasks.json", "{}"),
        ("theirs/sub/.mcp.json", "{}"),
        ("closed/.git/HEAD", "ref: refs/heads/main\n"),
        ("closed/.envrc", "x"),
    ] {
        let path = shared.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let private = fs::Permissions::from_mode(0o700);
    fs::set_permissions(shared.join("closed"), private).unwrap();
    // As in /tmp.
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    for owner in [0, NOBODY - 1] {
        chown(shared.join("theirs"), Some(owner), Some(owner)).unwrap();
        for (directory, expected) in [("shared", vec!["new/.envrc"]), ("shared/theirs", vec![])] {
            let script = "mkdir new && echo x >new/.envrc; true";
            let mut command = person.command(&[], &["sh", "-c", script]);
            let ran = Ran::of(command.current_dir(person.base().join(directory)));
            let below = format!("  {}/", person.base().join(directory).display());
            let lines: Vec<_> = ran
                .stderr
                .lines()
                .filter_map(|line| line.strip_prefix(&below))
                .collect();
            assert_eq!(lines, expected, "{ran:?}");
            let _ = fs::remove_dir_all(shared.join("new"));
        }
    }
}
