//! Compares the sidecar's grep with ripgrep on a tree of 200 MB, and measures small reads per
//! second. `scripts/sidecar-bench` runs it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failed benchmark has no result to report"
)]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use coding_sidecar::files::read;
use coding_sidecar::search::grep;
use coding_sidecar::work::Work;
use coding_sidecar::workspace::Workspace;
use serde_json::json;

const FOLDERS: u64 = 500;
const FILES_IN_FOLDER: u64 = 20;
const FILE_BYTES: usize = 20_000;
/// Files that have one line with `needle`.
const NEEDLES: u64 = 50;
const RUNS: usize = 9;
const READS: u64 = 20_000;
/// Patterns with few matches, so that both programs search the whole tree.
const PATTERNS: [(&str, bool); 4] = [
    ("needle", false),
    ("absent-from-the-tree", false),
    ("n[e]+dle \\d+$", false),
    ("NEEDLE", true),
];

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path();
    println!(
        "{} files, {} MB",
        FOLDERS * FILES_IN_FOLDER,
        make(tree) / 1_000_000
    );
    let workspace = Workspace::open(tree, false).unwrap();
    for (pattern, ignore_case) in PATTERNS {
        compare(tree, &workspace, pattern, ignore_case);
    }
    count_reads(&workspace);
}

/// Compares the sidecar's grep with ripgrep. The runs alternate, so that other load on the machine
/// slows both programs alike.
fn compare(tree: &Path, workspace: &Workspace, pattern: &str, ignore_case: bool) {
    let (mut sidecar, mut ripgrep) = (Vec::new(), Vec::new());
    // The first run of each fills the page cache.
    for _ in 0..=RUNS {
        let (time, lines) = run_sidecar(workspace, pattern, ignore_case);
        sidecar.push(time);
        let (time, expected) = run_ripgrep(tree, pattern, ignore_case);
        ripgrep.push(time);
        assert_eq!(lines, expected, "lines that match {pattern}");
    }
    let (sidecar, ripgrep) = (median(sidecar), median(ripgrep));
    let ratio = sidecar.as_secs_f64() / ripgrep.as_secs_f64();
    println!(
        "grep {pattern:<22} sidecar {sidecar:>9.1?}  ripgrep {ripgrep:>9.1?}  ratio {ratio:.2}"
    );
}

fn run_sidecar(workspace: &Workspace, pattern: &str, ignore_case: bool) -> (Duration, usize) {
    let request = json!({"pattern": pattern, "ignoreCase": ignore_case});
    let request = serde_json::from_value(request).unwrap();
    let start = Instant::now();
    let result = grep(workspace, request, &work()).unwrap();
    (start.elapsed(), result.content.lines().count())
}

fn run_ripgrep(tree: &Path, pattern: &str, ignore_case: bool) -> (Duration, usize) {
    let mut command = Command::new("rg");
    command.args(["-n", "--hidden", "--no-require-git", "--no-config"]);
    if ignore_case {
        command.arg("-i");
    }
    let start = Instant::now();
    let output = command.arg(pattern).arg(tree).output().unwrap();
    (
        start.elapsed(),
        String::from_utf8_lossy(&output.stdout).lines().count(),
    )
}

fn count_reads(workspace: &Workspace) {
    let start = Instant::now();
    for number in 0..READS {
        let path = format!("folder-{}/small", number % FOLDERS);
        let request = serde_json::from_value(json!({"path": path})).unwrap();
        read(workspace, request, &work()).unwrap();
    }
    let each_second = READS as f64 / start.elapsed().as_secs_f64();
    println!("read of 1,001 bytes: {each_second:.0} a second on one thread");
}

fn work() -> Work {
    Work::new(Instant::now() + Duration::from_secs(60))
}

/// Returns the median of the runs after the first, which only fills the page cache.
fn median(mut times: Vec<Duration>) -> Duration {
    times.remove(0);
    times.sort();
    times[times.len() / 2]
}

/// Creates the tree. Returns the size of the `file-*.txt` files together, in bytes; the `small`
/// files are not counted.
fn make(tree: &Path) -> u64 {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut size = 0;
    let mut needles = 0;
    for folder in 0..FOLDERS {
        let at = tree.join(format!("folder-{folder}"));
        fs::create_dir(&at).unwrap();
        fs::write(at.join("small"), "small file\n".repeat(91)).unwrap();
        for file in 0..FILES_IN_FOLDER {
            let mut text = String::with_capacity(FILE_BYTES + 100);
            while text.len() < FILE_BYTES {
                for _ in 0..next(12) {
                    let length = 1 + next(9);
                    text.extend((0..length).map(|_| char::from(b'a' + next(26) as u8)));
                    text.push(' ');
                }
                text.push('\n');
            }
            if file == 7 && needles < NEEDLES {
                needles += 1;
                text.push_str("a needle 42\n");
            }
            size += text.len() as u64;
            fs::write(at.join(format!("file-{file}.txt")), text).unwrap();
        }
    }
    size
}
