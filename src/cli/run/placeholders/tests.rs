use super::super::obeyed::NO_SETTINGS;
use super::*;
use crate::sandbox::Entry;

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn run(shown: &Path, state: &Path, missing: &[(&Path, Option<&str>)]) -> Placeholders {
    let mut run = Placeholders::record(vec![shown.to_owned()], state).unwrap();
    let missing = missing.iter().map(|(path, text)| Missing {
        path: path.to_path_buf(),
        text: text.map(str::to_owned),
    });
    assert!(run.make(missing.collect()).unwrap().is_empty());
    run
}

#[test]
fn the_last_run_that_shows_a_placeholder_removes_it() {
    let (work, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let inner = work.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let (envrc, common) = (inner.join(".envrc"), inner.join("commondir"));
    let missing = [(&*envrc, None), (&*common, Some(".\n"))];
    let outer = run(work.path(), state.path(), &missing);
    let within = run(&inner, state.path(), &missing);
    drop(outer);
    assert_eq!(names(&inner), [".envrc", "commondir"]);
    drop(within);
    assert!(names(&inner).is_empty());
    let inside = run(&inner, state.path(), &missing);
    let above = run(work.path(), state.path(), &[]);
    drop(inside);
    assert_eq!(names(&inner), [".envrc", "commondir"]);
    drop(above);
    assert!(names(&inner).is_empty());
    assert_eq!(names(&state.path().join("placeholders")), ["order"]);
}

#[test]
fn placeholders_in_the_work_tree_are_excluded_and_an_empty_directory_of_opencode_is_covered() {
    let work = tempfile::tempdir().unwrap();
    let at = |name: &str| work.path().join(name);
    for directory in [".git/info", ".opencode", ".claude", "my *hooks"] {
        fs::create_dir_all(at(directory)).unwrap();
    }
    for (file, text) in [
        (".git/info/exclude", "*.log"),
        (".git/config", ""),
        (".claude/settings.json", ""),
        ("opencode.json", NO_SETTINGS),
        ("opencode.jsonc", "{ \"own\": 1 }\n"),
    ] {
        fs::write(at(file), text).unwrap();
    }
    let protected = [
        ".git/config",
        ".claude",
        ".opencode",
        "my *hooks",
        "opencode.json",
        "opencode.jsonc",
    ];
    let text = "*.log\n/.opencode\n/my\\ \\*hooks\n/opencode.json\n".to_owned();
    let expected = [
        Entry::Replace {
            at: at(".git/info/exclude"),
            text,
        },
        Entry::Scratch {
            at: at(".opencode"),
            mode: 0o700,
        },
    ];
    let found = covers(
        &protected.map(at).into(),
        &[at(".git")].into(),
        &[work.path().to_owned()],
    );
    assert_eq!(found, expected);
}

#[test]
fn a_changed_placeholder_is_kept() {
    let (work, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (directory, file) = (work.path().join(".vscode"), work.path().join("commondir"));
    let missing = [(&*directory, None), (&*file, Some(""))];
    let run = run(work.path(), state.path(), &missing);
    fs::write(directory.join("settings.json"), "{}").unwrap();
    fs::write(&file, "../elsewhere").unwrap();
    drop(run);
    assert_eq!(names(work.path()), [".vscode", "commondir"]);
}

#[test]
fn removing_a_placeholder_with_a_newline_in_its_name_removes_no_other_directory() {
    let (work, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let other = work.path().join("other");
    fs::create_dir(&other).unwrap();
    let odd = work.path().join(format!(
        "x\n{}\n",
        other.display().to_string().replace('/', "_")
    ));
    drop(run(work.path(), state.path(), &[(&odd, None)]));
    assert_eq!(names(work.path()), ["other"]);
}

#[test]
fn placeholders_of_a_killed_run_are_removed_by_the_next_run() {
    let (work, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let idea = work.path().join(".idea");
    let killed = run(work.path(), state.path(), &[(&idea, None)]);
    // A kill only releases the lock.
    killed.file.unlock().unwrap();
    std::mem::forget(killed);
    assert_eq!(names(work.path()), [".idea"]);
    drop(run(work.path(), state.path(), &[]));
    assert!(names(work.path()).is_empty());
}

#[test]
fn a_link_in_the_path_is_not_followed() {
    let (work, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let elsewhere = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), work.path().join("sub")).unwrap();
    let mut run = Placeholders::record(vec![work.path().to_owned()], state.path()).unwrap();
    let missing = Missing {
        path: work.path().join("sub/.git"),
        text: None,
    };
    assert!(run.make(vec![missing]).is_err());
    assert!(names(elsewhere.path()).is_empty());
}
