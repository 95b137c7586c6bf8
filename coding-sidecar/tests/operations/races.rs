//! Changes of files by other threads during an operation.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags};
use serde_json::json;

use crate::fixture::{Fixture, ONLY_OUTSIDE, SECRET};

/// The fewest operations of a race that ends before [`RACE`].
const TRIES: u64 = 6_000;
/// The fewest exchanges of a race that ends before [`RACE`]. On a busy machine, the thread that
/// makes them may get few turns.
const EXCHANGES: u64 = 1_500;
/// The time after which a race ends in any case.
const RACE: Duration = Duration::from_secs(30);

/// Exchanges pairs of names atomically, one pair after the other.
struct Exchanger {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Exchanger {
    fn start(pairs: Vec<(PathBuf, PathBuf)>) -> Self {
        let (stop, count) = <(Arc<AtomicBool>, Arc<AtomicU64>)>::default();
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&count));
        let thread = thread::spawn(move || {
            for (a, b) in pairs.iter().cycle() {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                rustix::fs::renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
                thread::yield_now();
            }
        });
        Self {
            stop,
            count,
            thread: Some(thread),
        }
    }

    /// The number of exchanges so far.
    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Ends the exchanges and returns their number.
    fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.count()
    }
}

#[test]
fn a_file_or_folder_that_is_swapped_for_a_link_never_leads_outside() {
    let fixture = Fixture::in_memory();
    fixture.put("file", "inside");
    fixture.put("folder/secret", "inside");
    fixture.put("tree/folder/secret", "inside");
    symlink("../outside/secret", fixture.at("file-link")).unwrap();
    symlink("../outside", fixture.at("folder-link")).unwrap();
    symlink("../../outside", fixture.at("tree/link")).unwrap();
    let pairs = [
        ("file", "file-link"),
        ("folder", "folder-link"),
        ("tree/folder", "tree/link"),
    ];
    let exchanger = Exchanger::start(pairs.map(|(a, b)| (fixture.at(a), fixture.at(b))).into());

    let end = Instant::now() + RACE;
    let (mut tries, mut inside, mut refused) = (0_u64, 0_u64, 0_u64);
    while (tries < TRIES || exchanger.count() < EXCHANGES) && Instant::now() < end {
        for _ in 0..20 {
            for path in ["file", "folder/secret", "tree/folder/secret"] {
                tries += 1;
                match fixture.read(json!({"path": path})) {
                    Ok(result) => {
                        assert!(!format!("{result:?}").contains(SECRET), "{result:?}");
                        inside += 1;
                    }
                    Err(failure) => {
                        assert!(!failure.to_string().contains(SECRET));
                        refused += 1;
                    }
                }
            }
            for path in ["tree", "tree/folder", "folder", "."] {
                tries += 3;
                list_all(&fixture, path);
            }
        }
        for path in [
            "file",
            "folder/secret",
            "tree/folder/secret",
            "tree/folder/new",
        ] {
            for (operation, result) in fixture.everything(path) {
                tries += 1;
                let shown = result.unwrap_or_else(|failure| failure.to_string());
                assert!(!shown.contains(SECRET), "{operation} {path}: {shown}");
            }
        }
        assert!(fixture.outside_is_untouched());
    }
    let exchanges = exchanger.stop();
    println!("{tries} tries, {inside} inside, {refused} refused, {exchanges} exchanges");
    assert!(tries > 1000 && exchanges > 1000);
    // Some operations found the file or folder, and some found the link.
    assert!(inside > 100 && refused > 100);
}

/// Lists and searches a tree; asserts that no result shows anything outside. Ignores failures.
fn list_all(fixture: &Fixture, path: &str) {
    if let Ok(grep) = fixture.grep(json!({"path": path, "pattern": "."})) {
        assert!(!grep.content.contains(SECRET), "{grep:?}");
    }
    if let Ok(find) = fixture.find(json!({"path": path, "pattern": "*"})) {
        let outside = |file: &String| file.ends_with(ONLY_OUTSIDE);
        assert!(!find.files.iter().any(outside), "{find:?}");
    }
    if let Ok(ls) = fixture.ls(json!({"path": path})) {
        assert!(!ls.output.contains(ONLY_OUTSIDE), "{ls:?}");
    }
}

#[test]
fn a_folder_that_is_moved_while_dot_dot_is_resolved_never_leads_outside() {
    let fixture = Fixture::in_memory();
    fixture.put("a/b/c/file", "inside");
    fs::create_dir(fixture.at("d")).unwrap();
    let exchanger = Exchanger::start(vec![(fixture.at("a/b"), fixture.at("d"))]);
    let end = Instant::now() + Duration::from_secs(2);
    let mut tries = 0_u64;
    while Instant::now() < end {
        // Three levels up from a/b/c is the root, but three levels up from d/c is outside.
        for path in [
            "a/b/c/../../../outside/secret",
            "d/c/../../../outside/secret",
        ] {
            let result = fixture.read(json!({"path": path}));
            assert!(result.is_err(), "{result:?}");
            tries += 1;
        }
    }
    let exchanges = exchanger.stop();
    println!("{tries} tries, {exchanges} exchanges");
    assert!(tries > 1000 && exchanges > 100);
}

#[test]
fn a_reader_sees_the_old_or_the_new_file_and_nothing_between() {
    let fixture = Fixture::in_memory();
    let contents = ["a".repeat(300_000), "b".repeat(200_000)];
    fixture.write("file", &contents[0]).unwrap();
    let stop = AtomicBool::new(false);
    let seen = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let read = fs::read_to_string(fixture.at("file")).unwrap();
                    assert!(contents.contains(&read), "{} bytes", read.len());
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for number in 0..300 {
            fixture.write("file", &contents[number % 2]).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(seen.load(Ordering::Relaxed) > 10);
    let left: Vec<_> = fs::read_dir(&fixture.root).unwrap().collect();
    assert_eq!(left.len(), 1, "temporary files are left: {left:?}");
}

#[test]
fn edits_of_one_file_at_the_same_time_are_all_kept() {
    let fixture = Fixture::in_memory();
    let lines: String = (0..64)
        .map(|number| format!("line-{number}-old\n"))
        .collect();
    fixture.put("folder/file", lines);
    symlink("folder/file", fixture.at("link")).unwrap();
    symlink("folder", fixture.at("other")).unwrap();
    thread::scope(|scope| {
        for thread in 0..8 {
            let fixture = &fixture;
            scope.spawn(move || {
                for number in (thread..64).step_by(8) {
                    // All three paths lead to the same file.
                    let path = ["folder/file", "link", "other/../folder/file"][number % 3];
                    let line = format!("line-{number}-");
                    let result = fixture.edit(path, &format!("{line}old"), &format!("{line}new"));
                    result.unwrap();
                }
            });
        }
    });
    let expected: String = (0..64)
        .map(|number| format!("line-{number}-new\n"))
        .collect();
    assert_eq!(fixture.text("folder/file").unwrap(), expected);
}

#[test]
fn a_change_by_a_command_during_an_edit_fails_the_edit() {
    let fixture = Fixture::in_memory();
    let stop = AtomicBool::new(false);
    let rest = "line\n".repeat(100_000);
    let path = fixture.put("file", format!("count 0\nold\n{rest}"));
    let (mut done, mut changed) = (0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let temporary = fixture.at("other");
            for count in 1_u64.. {
                fs::write(&temporary, format!("count {count}\nold\n{rest}")).unwrap();
                fs::rename(&temporary, &path).unwrap();
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let end = Instant::now() + RACE;
        while (done == 0 || changed < 10) && Instant::now() < end {
            match fixture.edit("file", "old", "new") {
                Ok(_) => done += 1,
                Err(failure) => {
                    let failure = failure.to_string();
                    if failure.contains("changed while it was edited") {
                        changed += 1;
                    } else {
                        // The file was not replaced since the last successful edit.
                        assert!(failure.contains("does not occur"), "{failure}");
                    }
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{done} edits done, {changed} refused");
    assert!(done > 0 && changed >= 10);
}
