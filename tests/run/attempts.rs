//! Tables of attempts that a Python script makes inside a sandbox. The script prints the result of
//! each attempt.

use serde::Deserialize;
use testkit::each_row;

use crate::fixture::Person;
use crate::support::Ran;

/// Python code that precedes every script.
const PRELUDE: &str = include_str!("attempts.py");

#[derive(Debug, Deserialize)]
pub struct Attempt {
    pub name: String,
    /// Whether the result is the required one.
    pub held: bool,
    pub said: String,
}

/// The command line of a script and its arguments.
pub fn python(script: &str, arguments: &[&str]) -> Vec<String> {
    let source = format!("{PRELUDE}\n{script}\nfinish()\n");
    let fixed = ["python3", "-I", "-c", &source];
    fixed
        .iter()
        .chain(arguments)
        .map(|text| (*text).to_owned())
        .collect()
}

/// Runs a script in a sandbox, and asserts that it made at least `least` attempts and that each has
/// the required result.
#[track_caller]
pub fn check(person: &Person, flags: &[&str], script: &str, arguments: &[&str], least: usize) {
    let command = python(script, arguments);
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    check_rows(rows(&person.run(flags, &command)), least);
}

/// Asserts that there are at least `least` attempts and that each has the required result.
#[track_caller]
pub fn check_rows(rows: Vec<Attempt>, least: usize) {
    assert!(rows.len() >= least, "{} attempts: {rows:?}", rows.len());
    each_row(rows, |row| assert!(row.held, "{}: {}", row.name, row.said));
}

/// The attempts that a script printed; panics unless the script ran to its end.
#[track_caller]
pub fn rows(ran: &Ran) -> Vec<Attempt> {
    let mut lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines.pop(), Some("finished"), "{ran:?}");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let rows = lines.iter().map(|line| serde_json::from_str(line));
    rows.map(|row| row.unwrap_or_else(|error| panic!("{error} in {ran:?}")))
        .collect()
}
