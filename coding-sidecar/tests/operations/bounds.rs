//! Bounds of operations on memory, time and descriptors.

use std::fs::{self, File};
use std::io::Write;
use std::time::{Duration, Instant};

use coding_sidecar::files::ReadResult;
use coding_sidecar::work::Work;
use serde_json::json;
use testkit::each_row;

use crate::fixture::{Fixture, message};

/// The peak of this process's resident memory, in KiB. nextest runs each test in its own process,
/// so this is the peak of one test.
fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The number of lines of 64 bytes in a mebibyte.
const LINES: u64 = 16 * 1024;

/// Writes a file of `mebibytes` MiB: numbered lines, whose numbers restart with each mebibyte.
fn large_file(fixture: &Fixture, mebibytes: u64) {
    let numbered: String = (0..LINES).map(|number| format!("{number:063}\n")).collect();
    let mut file = File::create(fixture.at("large")).unwrap();
    for _ in 0..mebibytes {
        file.write_all(numbered.as_bytes()).unwrap();
    }
}

#[test]
fn a_huge_file_is_read_and_searched_without_being_held_in_memory() {
    let fixture = Fixture::new();
    large_file(&fixture, 128);
    let lines = 128 * LINES;
    let before = peak_kib();
    let request = json!({"path": "large", "offset": lines - 1, "limit": 1});
    let result = serde_json::to_value(fixture.read(request).unwrap()).unwrap();
    assert_eq!(result["content"], format!("{:063}\n", LINES - 2));
    assert_eq!(result["totalLines"], lines);
    assert_eq!(result["hasMore"], true);
    fixture.read(json!({"path": "large"})).unwrap();
    let found = fixture
        .grep(json!({"pattern": "016383", "limit": 2000}))
        .unwrap();
    assert_eq!(found.content.lines().count(), 128);
    assert!(message(fixture.edit("large", "a", "b")).contains("larger than"));
    let grown = peak_kib() - before;
    println!("128 MiB file: {grown} KiB more");
    assert!(grown < 8 * 1024, "{grown} KiB");
}

#[test]
fn a_line_of_64_mib_is_not_held_in_memory() {
    let fixture = Fixture::new();
    let mut file = File::create(fixture.at("line")).unwrap();
    for _ in 0..64 {
        file.write_all(&vec![b'x'; 1024 * 1024]).unwrap();
    }
    fixture.put("other", "x\n");
    let before = peak_kib();
    let ReadResult::Text {
        truncation,
        total_lines,
        ..
    } = fixture.read(json!({"path": "line"})).unwrap()
    else {
        panic!("no text")
    };
    assert_eq!(total_lines, 1);
    assert!(truncation.unwrap().first_line_exceeds_limit);
    let found = fixture.grep(json!({"pattern": "x"})).unwrap();
    assert_eq!(found.content, "other:1: x\n");
    let skipped = found.details.unwrap().skipped.unwrap();
    let why = "not searched: line: the rest, from a line of more than ";
    assert!(skipped.starts_with(why), "{skipped}");
    let grown = peak_kib() - before;
    println!("64 MiB line: {grown} KiB more");
    assert!(grown < 16 * 1024, "{grown} KiB");
}

#[test]
fn a_folder_of_many_entries_is_listed_and_walked_in_bounded_memory() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.at("many")).unwrap();
    let one = fixture.put("one", "x\n");
    for number in 0..20_000 {
        // Hard links are quicker to make than files.
        fs::hard_link(
            &one,
            fixture.at(format!("many/{number:05}-{}", "n".repeat(200))),
        )
        .unwrap();
    }
    let before = peak_kib();
    let listed = fixture.ls(json!({"path": "many", "limit": 10})).unwrap();
    assert!(listed.output.starts_with("00000-"));
    assert_eq!(listed.truncation.unwrap().total_lines, 20_000);
    let found = fixture.find(json!({"pattern": "19999-*"})).unwrap();
    assert_eq!(found.files.len(), 1);
    let grown = peak_kib() - before;
    println!("20,000 entries with names of 206 bytes: {grown} KiB more");
    assert!(grown < 10 * 1024, "{grown} KiB");
}

#[test]
fn a_file_that_takes_too_long_is_refused_with_advice_to_use_bash() {
    let fixture = Fixture::new();
    let path = fixture.put("huge", "x\n".repeat(8192));
    // Extends the file to 1 TiB with a hole. The requested line is before the hole.
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(1 << 40).unwrap();
    let request = json!({"path": "huge", "offset": 2, "limit": 1});
    let request = serde_json::from_value(request).unwrap();
    let work = Work::new(Instant::now() + Duration::from_millis(200));
    let failure = message(coding_sidecar::files::read(
        &fixture.workspace,
        request,
        &work,
    ));
    let why =
        "huge: too large to count its lines within the time limit; read a part of it with bash";
    assert!(failure.starts_with(why), "{failure}");
}

#[test]
fn work_ends_at_its_deadline_and_when_it_is_cancelled() {
    let fixture = Fixture::new();
    large_file(&fixture, 32);
    for number in 0..2000 {
        fixture.put(&format!("d{}/{number}", number % 50), "x\n");
    }
    let run = |work: &Work, operation: &str| {
        let workspace = &fixture.workspace;
        match operation {
            "read" => {
                let request = serde_json::from_value(json!({"path": "large"})).unwrap();
                coding_sidecar::files::read(workspace, request, work).map(|_| ())
            }
            "find" => {
                let request = serde_json::from_value(json!({"pattern": "none"})).unwrap();
                coding_sidecar::search::find(workspace, request, work).map(|_| ())
            }
            "ls" => {
                let request = serde_json::from_value(json!({})).unwrap();
                coding_sidecar::files::ls(workspace, request, work).map(|_| ())
            }
            _ => {
                let request = serde_json::from_value(json!({"pattern": "none"})).unwrap();
                coding_sidecar::search::grep(workspace, request, work).map(|_| ())
            }
        }
    };
    each_row(["read", "find", "ls", "grep"], |operation| {
        let passed = Work::new(Instant::now());
        let failure = message(run(&passed, operation));
        assert!(failure.contains("longer than its time limit"), "{failure}");
        let cancelled = crate::fixture::work();
        cancelled.cancel();
        assert_eq!(
            message(run(&cancelled, operation)),
            "the operation was cancelled"
        );
    });
    // Another thread cancels a search that is under way.
    let work = crate::fixture::work();
    std::thread::scope(|scope| {
        let grep = scope.spawn(|| {
            loop {
                if let Err(failure) = run(&work, "grep") {
                    return failure;
                }
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        work.cancel();
        let cancelled = Instant::now();
        let failure = grep.join().unwrap();
        assert_eq!(failure.to_string(), "the operation was cancelled");
        assert!(cancelled.elapsed() < Duration::from_secs(2));
    });
}

#[test]
fn folders_beyond_the_bound_on_depth_are_reported() {
    let fixture = Fixture::new();
    fixture.write(&("d/".repeat(400) + "deep"), "x\n").unwrap();
    fixture.put("flat", "x\n");
    let found = fixture.find(json!({"pattern": "*"})).unwrap();
    assert_eq!(found.files, ["flat"]);
    assert!(
        found
            .skipped
            .unwrap()
            .ends_with("too many folders deep; search it by its path")
    );
    let path = "d/".repeat(300);
    let found = fixture
        .find(json!({"pattern": "deep", "path": path}))
        .unwrap();
    assert_eq!(found.files, ["d/".repeat(400) + "deep"]);
}

#[test]
fn many_searches_at_once_need_few_descriptors() {
    let fixture = Fixture::new();
    for number in 0..600 {
        fixture.put(&format!("{number}/file"), "x\n");
    }
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    let mut most = 0;
    std::thread::scope(|scope| {
        let searches: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| fixture.grep(json!({"pattern": "none"})).unwrap()))
            .collect();
        while searches.iter().any(|search| !search.is_finished()) {
            most = most.max(open());
        }
        for search in searches {
            assert_eq!(search.join().unwrap().details, None);
        }
    });
    println!("eight searches: {most} descriptors");
    // Eight searches of up to eight threads; each thread has up to eight folders and one file open.
    assert!(most < 8 * 8 * 12, "{most}");
}

#[test]
fn the_length_of_lines_and_the_size_of_patterns_are_bounded() {
    let fixture = Fixture::new();
    fixture.put("below", "ab".repeat(128 * 1024 - 1));
    fixture.put("above", "ab".repeat(128 * 1024 + 1));
    let found = fixture.grep(json!({"pattern": "^aba"})).unwrap();
    assert!(found.content.starts_with("below:1: aba"), "{found:?}");
    assert_eq!(found.content.lines().count(), 1);
    let skipped = found.details.unwrap().skipped.unwrap();
    assert!(skipped.starts_with("not searched: above: "), "{skipped}");
    let refused = message(fixture.grep(json!({"pattern": "a[ab]{100000}c"})));
    let why = "exceeds size limit of 1048576";
    assert!(refused.contains(why), "{refused}");
}
