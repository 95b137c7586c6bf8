//! Compares the results of the conformance suite with and without the gateway. Each difference
//! needs a line in `expected-differences.txt`. No line excuses a scored scenario that does not pass
//! with the gateway.

use crate::suite::{Check, Checks};

const FILE: &str = include_str!("expected-differences.txt");
const SUCCESS: &str = "SUCCESS";
const FAILURE: &str = "FAILURE";
/// The statuses of a check with which its scenario passes. `SKIPPED`: the check does not apply.
/// `WARNING`: a recommendation is not followed.
const PASSING: [&str; 3] = [SUCCESS, "SKIPPED", "WARNING"];
/// Stands in place of the check in a line for a scenario that is not run.
const NOT_TRIED: &str = "not tried";

/// The two parties that the gateway connects.
#[derive(Clone, Copy, Debug)]
pub enum Leg {
    /// The suite and a server that is mounted over HTTP. The server supports both protocol eras:
    /// with a handshake (2025-11-25) and without one (2026-07-28).
    Http,
    /// The suite and the same server on stdio.
    Stdio,
    /// The suite of 2026-07-28, and a server without that revision.
    Legacy,
    /// The suite of 2025-11-25, and a server without that revision.
    Modern,
    /// A client and the suite.
    Client,
}

impl Leg {
    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// The expected differences of one leg and one revision.
pub struct Expected {
    leg: String,
    revision: String,
    lines: Vec<Line>,
    /// The scored scenarios. Each of them must pass with the gateway too.
    scored: Vec<String>,
}

/// A line of the file. Its columns are leg, revision, scenario, check and reason.
struct Line {
    text: &'static str,
    scenario: &'static str,
    check: &'static str,
    matched: bool,
}

impl Expected {
    pub fn of(leg: Leg, revision: &str, scored: Vec<String>) -> Self {
        Self::read(FILE, leg, revision, scored)
    }

    fn read(file: &'static str, leg: Leg, revision: &str, scored: Vec<String>) -> Self {
        let leg = leg.name();
        let lines = file
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let lines: Vec<_> = lines
            .filter_map(|text| {
                let columns: Vec<_> = text.split('|').map(str::trim).collect();
                let [of_leg, of_revision, scenario, check, reason] = columns[..] else {
                    panic!("expected-differences.txt: not five columns: {text}");
                };
                assert!(
                    !reason.is_empty(),
                    "expected-differences.txt: no reason: {text}"
                );
                let applies = of_leg == leg && matches(of_revision, revision);
                applies.then_some(Line {
                    text,
                    scenario,
                    check,
                    matched: false,
                })
            })
            .collect();
        Self {
            lines,
            leg,
            revision: revision.to_owned(),
            scored,
        }
    }

    /// Whether a scenario is not run at all.
    pub fn leaves_out(&mut self, scenario: &str) -> bool {
        self.covers(scenario, NOT_TRIED)
    }

    /// The differences that no line expects, as lines with the statuses in place of the reason. In
    /// scored scenarios, also the expected differences with which the scenario does not pass.
    pub fn unexpected(&mut self, bare: &Checks, through: &Checks) -> Vec<String> {
        let mut found = differences(bare, through);
        found.retain(|(check, _)| {
            let expected = self.covers(&check.0, &check.1);
            !expected || (self.scored.contains(&check.0) && !passes(through.get(check)))
        });
        let start = format!("{} | {}", self.leg, self.revision);
        let lines = found
            .iter()
            .map(|((scenario, check), why)| format!("{start} | {scenario} | {check} | {why}"));
        lines.collect()
    }

    /// The lines whose difference no longer exists.
    pub fn stale(&self) -> Vec<&'static str> {
        let stale = self.lines.iter().filter(|line| !line.matched);
        stale.map(|line| line.text).collect()
    }

    fn covers(&mut self, scenario: &str, check: &str) -> bool {
        let mut covered = false;
        for line in &mut self.lines {
            if matches(line.scenario, scenario) && matches(line.check, check) {
                line.matched = true;
                covered = true;
            }
        }
        covered
    }
}

/// Whether a name equals a pattern, or begins with it if the pattern ends with `*`.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    }
}

/// Whether a check succeeded every time.
pub fn succeeds(statuses: &[String]) -> bool {
    statuses.iter().all(|status| status == SUCCESS)
}

/// Whether a scenario with these statuses of a check passes. It does not if the check was not made.
fn passes(statuses: Option<&Vec<String>>) -> bool {
    let passing = |status: &String| PASSING.contains(&status.as_str());
    statuses.is_some_and(|statuses| statuses.iter().all(passing))
}

/// The checks that succeed without the gateway, but with it do not succeed or are made less often.
/// Also the checks that are made only with the gateway, and fail.
pub fn differences(bare: &Checks, through: &Checks) -> Vec<(Check, String)> {
    let mut found = Vec::new();
    for (check, statuses) in bare.iter().filter(|(_, statuses)| succeeds(statuses)) {
        let with = through.get(check).map(Vec::as_slice).unwrap_or_default();
        if with.len() < statuses.len() || !succeeds(with) {
            found.push((
                check.clone(),
                format!("{statuses:?} bare, {with:?} through"),
            ));
        }
    }
    for (check, statuses) in through {
        if !bare.contains_key(check) && statuses.iter().any(|status| status == FAILURE) {
            found.push((
                check.clone(),
                format!("not made bare, {statuses:?} through"),
            ));
        }
    }
    found
}

fn checks(made: &[(&str, &str, &[&str])]) -> Checks {
    let made = made.iter().map(|(scenario, check, statuses)| {
        let statuses = statuses.iter().map(|&status| status.to_owned());
        (
            (String::from(*scenario), String::from(*check)),
            statuses.collect(),
        )
    });
    made.collect()
}

#[test]
fn a_check_that_succeeds_less_often_or_fails_only_through_the_gateway_is_a_difference() {
    let bare = checks(&[
        ("a", "same", &[SUCCESS]),
        ("a", "fails", &[SUCCESS]),
        ("a", "skipped", &[SUCCESS]),
        ("a", "missing", &[SUCCESS]),
        ("a", "once", &[SUCCESS, SUCCESS]),
        ("a", "fails anyway", &[FAILURE]),
    ]);
    let through = checks(&[
        ("a", "same", &[SUCCESS]),
        ("a", "fails", &[FAILURE]),
        ("a", "skipped", &["SKIPPED"]),
        ("a", "once", &[SUCCESS]),
        ("a", "fails anyway", &[FAILURE]),
        ("a", "timeout", &[FAILURE]),
    ]);
    let found = differences(&bare, &through);
    let mut names: Vec<_> = found.iter().map(|((_, check), _)| check.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["fails", "missing", "once", "skipped", "timeout"]);
}

#[test]
fn a_line_covers_its_difference_and_is_stale_without_one() {
    const FILE: &str = "# a comment\n\
        http | * | tasks-* | x/* | tasks are removed\n\
        http | 2026-07-28 | caching | y | gone\n\
        stdio | * | tasks-* | x/* | another leg\n\
        http | 2025-11-25 | ping | z | another revision\n\
        http | * | auth/* | not tried | no client\n";
    let mut expected = Expected::read(FILE, Leg::Http, "2026-07-28", Vec::new());
    let bare = checks(&[("tasks-a", "x/1", &[SUCCESS]), ("ping", "z", &[SUCCESS])]);
    let unexpected = expected.unexpected(&bare, &Checks::new());
    assert_eq!(unexpected.len(), 1, "{unexpected:?}");
    let start = "http | 2026-07-28 | ping | z | ";
    assert!(unexpected[0].starts_with(start), "{unexpected:?}");
    assert!(expected.leaves_out("auth/basic") && !expected.leaves_out("ping"));
    assert_eq!(expected.stale(), ["http | 2026-07-28 | caching | y | gone"]);
}

#[test]
fn a_line_does_not_excuse_a_scored_scenario_that_is_lost() {
    const FILE: &str = "http | * | a | * | a reason\nhttp | * | b | * | a reason\n";
    let expected = |scored: &[&str], status: &[&str]| {
        let scored = scored.iter().map(|&name| name.to_owned()).collect();
        let bare = checks(&[("a", "x", &[SUCCESS]), ("b", "y", &[SUCCESS])]);
        let through = checks(&[("a", "x", status), ("b", "y", &[FAILURE])]);
        let through = through.into_iter().filter(|(_, all)| !all.is_empty());
        let mut expected = Expected::read(FILE, Leg::Http, "2026-07-28", scored);
        expected.unexpected(&bare, &through.collect()).is_empty()
    };
    for status in [&["SKIPPED"], &["WARNING"]] {
        assert!(expected(&["a"], status), "{status:?}");
    }
    for status in [&[FAILURE][..], &["WARNING", FAILURE], &[]] {
        assert!(!expected(&["a"], status), "{status:?}");
        assert!(expected(&[], status), "{status:?}");
    }
}
