//! Kills, full disks and damaged files: nothing that was decided is lost, nothing is used twice.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use testkit::each_row;

use super::*;

/// Environment variable. If it is set, this test program is the child process of a test, and the
/// value is the ledger's directory.
const CHILD: &str = "APPROVALS_TEST_CHILD";

fn child_directory() -> Option<std::path::PathBuf> {
    std::env::var_os(CHILD).map(Into::into)
}

/// Asks, decides and uses, one call after the other, until the process is killed or the disk is
/// full. Prints each step after it is done.
fn work(directory: &Path, arguments: usize) {
    let mut store = SqliteApprovals::new(directory.join(FILE_NAME));
    store.open().unwrap();
    let mut now = start();
    // Another container in each process, since the clock begins again.
    let container = format!("c{}", std::process::id());
    let mut steps = || -> Result<(), Refused> {
        for number in 0_usize.. {
            now += Duration::from_secs(10);
            let sandbox = Sandbox::new(&container);
            let text = format!("[{number},\"{}\"]", "x".repeat(arguments));
            let arguments = RawValue::from_string(text).unwrap();
            let topic = sandbox.topic(QuestionKind::Tool, "delete");
            let question = Question::new(topic, Some(&arguments)).unwrap();
            let Asked::Open(id) = store.ask(&question, TTL, now)? else {
                panic!("not open");
            };
            println!("step asked {id} {}", sandbox.lease);
            if number % 3 == 0 {
                store.deny(id, &because("bob", "no"), now)?;
                println!("step denied {id} {}", sandbox.lease);
                continue;
            }
            store.approve(id, None, &by("ann"), now)?;
            println!("step approved {id} {}", sandbox.lease);
            let Some(grant) = store.grant_of(id, now)? else {
                panic!("no grant");
            };
            assert!(store.use_grant(grant.id, sandbox.lease, now)?);
            println!("step used {id} {}", sandbox.lease);
        }
        Ok(())
    };
    if let Err(error) = steps() {
        println!("step failed {error}");
    }
}

/// Starts this test again as a child process, through a shell that runs `setup` first.
fn child(test: &str, directory: &Path, setup: &str) -> std::process::Child {
    let script = format!("{setup} exec \"$0\" --exact {test} --nocapture");
    let mut command = Command::new("sh");
    command.arg("-c").arg(script);
    let command = command.arg(std::env::current_exe().unwrap());
    let command = command.env(CHILD, directory).stdout(Stdio::piped());
    command.spawn().unwrap()
}

/// The last step that each question is known to have reached, with its lease.
type Reached = HashMap<ApprovalId, (String, LeaseId)>;

/// Adds a printed line. Returns `false` for a line that is not a step.
fn note(line: &str, reached: &mut Reached) -> bool {
    let Some((_, step)) = line.split_once("step ") else {
        return false;
    };
    let words: Vec<&str> = step.split(' ').collect();
    if let [what, id, lease] = words[..]
        && let (Some(id), Some(lease)) = (ApprovalId::parse(id), LeaseId::parse(lease))
    {
        reached.insert(id, (what.to_owned(), lease));
    }
    true
}

/// Checks that every step that was reported is in the file, and that no grant can be used twice.
fn check(directory: &Path, reached: &Reached) {
    let mut store = SqliteApprovals::new(directory.join(FILE_NAME));
    store.open().unwrap();
    let now = start();
    for (id, (step, lease)) in reached {
        let record = store.get(*id, now).unwrap().expect("the question is kept");
        let states: &[State] = match &**step {
            // The next step may have been made before it was reported, and an earlier check may
            // have used the grant.
            "asked" => &[State::Pending, State::Denied, State::Approved, State::Used],
            "denied" => &[State::Denied],
            "approved" => &[State::Approved, State::Used],
            _ => &[State::Used],
        };
        assert!(states.contains(&record.state), "{step}: {:?}", record.state);
        assert_eq!(
            record.decision.is_some(),
            record.state != State::Pending,
            "no effect without a decision"
        );
        let grant = store.grant_of(*id, now).unwrap();
        assert_eq!(grant.is_some(), record.state == State::Approved);
        if let Some(grant) = grant {
            assert!(store.use_grant(grant.id, *lease, now).unwrap());
            assert!(!store.use_grant(grant.id, *lease, now).unwrap());
        }
    }
}

#[test]
fn a_kill_at_any_step_loses_no_decision_and_repeats_no_use() {
    if let Some(directory) = child_directory() {
        return work(&directory, 10);
    }
    let directory = tempfile::tempdir().unwrap();
    let name = "approvals::durability::a_kill_at_any_step_loses_no_decision_and_repeats_no_use";
    let mut reached = Reached::new();
    for round in 0..6 {
        let mut child = child(name, directory.path(), "");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut steps = 0;
        // Lines that the process printed before it was killed count, too.
        for line in lines.map_while(Result::ok) {
            steps += usize::from(note(&line, &mut reached));
            if steps == 10 + round {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        check(directory.path(), &reached);
    }
    assert!(reached.len() >= 18);
}

#[test]
fn a_full_disk_denies_and_loses_no_decision() {
    if let Some(directory) = child_directory() {
        return work(&directory, 20 << 10);
    }
    let directory = tempfile::tempdir().unwrap();
    let name = "approvals::durability::a_full_disk_denies_and_loses_no_decision";
    // No file may be larger than 256 KiB; a longer write fails.
    let child = child(name, directory.path(), "trap '' XFSZ; ulimit -f 512;");
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && printed.contains("step failed"),
        "{printed}"
    );
    let mut reached = Reached::new();
    for line in printed.lines() {
        note(line, &mut reached);
    }
    assert!(reached.len() >= 5, "{printed}");
    check(directory.path(), &reached);
}

/// Damages the file of a ledger.
type Damage = fn(&Path);

#[test]
fn a_damaged_file_is_not_touched_and_works_again_after_it_was_restored() {
    let damages: [(&str, Damage); 5] = [
        ("overwritten", |file| {
            fs::write(file, "no database ".repeat(500)).unwrap()
        }),
        ("emptied", |file| fs::write(file, b"").unwrap()),
        ("deleted", |file| fs::remove_file(file).unwrap()),
        ("replaced", |file| {
            fs::remove_file(file).unwrap();
            let other = rusqlite::Connection::open(file).unwrap();
            other.execute_batch("CREATE TABLE t (c)").unwrap();
        }),
        ("newer", |file| {
            let conn = rusqlite::Connection::open(file).unwrap();
            conn.execute_batch("PRAGMA user_version = 99").unwrap();
        }),
    ];
    each_row(damages, |(damage, inflict)| {
        for is_running in [true, false] {
            let mut store = Store::new();
            let sandbox = Sandbox::new("c1");
            let id = store.opened(&sandbox.call(1));
            store.deny(id, "no").unwrap();
            let approved = store.opened(&sandbox.call(2));
            store.approve(approved, None).unwrap();
            let file = store.directory.path().join(FILE_NAME);
            let intact = fs::read(&file).unwrap();
            if !is_running {
                store.store = SqliteApprovals::new(file.clone());
            }
            inflict(&file);
            let damaged = fs::read(&file).ok();
            if is_running && damage == "newer" {
                // Nobody migrates the file of a running server.
                continue;
            }
            // A start makes a new ledger if there is none.
            let makes_new = ["emptied", "deleted"].contains(&damage) && !is_running;
            if !is_running {
                assert_eq!(store.store.open().is_ok(), makes_new, "{damage}");
            }
            if makes_new {
                continue;
            }
            let now = store.now;
            assert!(
                store.store.ask(&sandbox.call(1), TTL, now).is_err(),
                "{damage}"
            );
            assert!(
                store.store.ask(&sandbox.call(3), TTL, now).is_err(),
                "{damage}"
            );
            assert!(store.approve(approved, None).is_err(), "{damage}");
            assert_eq!(fs::read(&file).ok(), damaged, "{damage}: untouched");
            fs::write(&file, &intact).unwrap();
            assert_eq!(store.state(id), State::Denied, "{damage}");
            let grant = store.granted(&sandbox.call(2));
            assert!(store.uses(grant, &sandbox));
        }
    });
}

/// Adds a row that violates its table's constraint: a check of the file finds it, and no operation
/// does.
fn add_what_only_a_check_finds(file: &Path) {
    let conn = rusqlite::Connection::open(file).unwrap();
    conn.execute_batch(
        "CREATE TABLE other (c); INSERT INTO other VALUES (NULL);
         PRAGMA writable_schema = ON;
         UPDATE sqlite_schema SET sql = 'CREATE TABLE other (c NOT NULL)' WHERE name = 'other';",
    )
    .unwrap();
}

#[test]
fn errors_that_damage_cannot_cause_do_not_make_the_ledger_read_its_whole_file() {
    let mut store = Store::new();
    let sandbox = Sandbox::new("c1");
    let id = store.opened(&sandbox.call(1));
    let file = store.directory.path().join(FILE_NAME);
    add_what_only_a_check_finds(&file);
    let aside = store.directory.path().join("aside");
    for _ in 0..3 {
        // The connection is closed, since a directory cannot be opened.
        fs::rename(&file, &aside).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(store.store.get(id, store.now).is_err());
        fs::remove_dir(&file).unwrap();
        fs::rename(&aside, &file).unwrap();
        assert_eq!(store.state(id), State::Pending, "works without a check");
    }
    // Another file is checked, and found damaged as often as it is asked.
    fs::copy(&file, &aside).unwrap();
    fs::rename(&aside, &file).unwrap();
    for _ in 0..3 {
        let error = store.store.get(id, store.now).unwrap_err();
        assert!(error.to_string().contains("damaged"), "{error}");
    }
    // So is this file after a restart.
    let mut again = SqliteApprovals::new(file);
    for _ in 0..3 {
        let error = again.open().unwrap_err();
        assert!(error.to_string().contains("damaged"), "{error}");
    }
}

#[test]
fn only_the_owner_can_read_the_file() {
    let store = Store::new();
    let file = store.directory.path().join(FILE_NAME);
    let mode = fs::metadata(file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
