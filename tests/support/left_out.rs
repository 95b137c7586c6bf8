//! What a test did not try, and why: runners hide what tests that pass print, so `scripts/test`
//! collects it and `.ci/run` compares it with what may be left out.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// Adds a line to the summary of a group, `target/GROUP/summary`.
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

/// Says that something of a test was not tried.
pub fn left_out(group: &str, name: &str, why: &str) {
    summarize(group, name, &Err(why.to_owned()));
}
