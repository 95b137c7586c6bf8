//! Records in a file which parts of a test ran, and why others did not: test runners hide the
//! output of tests that pass. `scripts/test` prints the file, and `.ci/run` compares the parts that
//! did not run with a list of those that need not run.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// Prints a line and adds it to the summary of a group, `target/GROUP/summary`.
pub fn summarize(group: &str, name: &str, result: &Result<(), String>) {
    let said = match result {
        Ok(()) => format!("ran: {name}"),
        Err(why) => format!("not run: {name}: {why}"),
    };
    println!("{said}");
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name(group);
    fs::create_dir_all(&dir).unwrap();
    let mut summary = File::options();
    let summary = summary.append(true).create(true).open(dir.join("summary"));
    writeln!(summary.unwrap(), "{said}").unwrap();
}

/// Adds a line to the summary: `name` was not run, because of `why`.
pub fn left_out(group: &str, name: &str, why: &str) {
    summarize(group, name, &Err(why.to_owned()));
}
