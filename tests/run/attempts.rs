//! Tables of attempts: a script in Python makes them inside a sandbox and says what became of each.

use serde::Deserialize;
use testkit::each_row;

use crate::fixture::Person;
use crate::support::Ran;

/// What every script begins with.
const PRELUDE: &str = include_str!("attempts.py");

/// What became of an attempt.
#[derive(Debug, Deserialize)]
pub struct Attempt {
    pub name: String,
    /// Whether it went as it must.
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

/// Runs a script inside and checks every attempt of it. `least`: how many there must be.
#[track_caller]
pub fn check(person: &Person, flags: &[&str], script: &str, arguments: &[&str], least: usize) {
    let command = python(script, arguments);
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    check_rows(rows(&person.run(flags, &command)), least);
}

/// Checks every attempt.
#[track_caller]
pub fn check_rows(rows: Vec<Attempt>, least: usize) {
    assert!(rows.len() >= least, "{} attempts: {rows:?}", rows.len());
    each_row(rows, |row| assert!(row.held, "{}: {}", row.name, row.said));
}

/// What a script printed, once it came to its end.
#[track_caller]
pub fn rows(ran: &Ran) -> Vec<Attempt> {
    let mut lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines.pop(), Some("finished"), "{ran:?}");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let rows = lines.iter().map(|line| serde_json::from_str(line));
    rows.map(|row| row.unwrap_or_else(|error| panic!("{error} in {ran:?}")))
        .collect()
}
