//! `audit verify`: checks the hash chain of the audit log, and prints how many lines were folded or
//! lost.

use std::path::Path;

use super::exit::{Failure, print, printable};
use super::{ConfigDir, load};
use crate::telemetry::{Verified, verify_audit};

/// Verifies the audit log of the server on this machine. Fails if the hash chain is broken, but not
/// because of lines that the server reports as lost.
pub fn verify(dir: &ConfigDir) -> Result<(), Failure> {
    let path = load(dir)?.proxy.audit.path;
    let verified = verify_audit(&path).map_err(Failure::internal)?;
    print(report(&path, &verified))
}

fn report(path: &Path, log: &Verified) -> String {
    let mut lines = vec![format!(
        "{}: {}, hash chain intact",
        path.display(),
        lines_of(log.lines)
    )];
    if log.folded > 0 {
        let (folded, flows) = (lines_of(log.folded), grouped(log.folded_flows));
        lines.push(format!("folded: {folded}, for {flows} flows"));
    }
    if log.gaps > 0 {
        lines.push(format!("lost: {}", lines_of(log.lost)));
        let more = log.gaps.saturating_sub(log.newest_gaps.len() as u64);
        if more > 0 {
            lines.push(format!("  in {} earlier gaps and in these:", grouped(more)));
        }
        for gap in &log.newest_gaps {
            let [since, until] = [&gap.since, &gap.until].map(|at| printable(at));
            lines.push(format!("  {}, {since} to {until}", lines_of(gap.count)));
        }
    }
    if let Some(lost) = log.unrecorded {
        let [since, until] = lost.period();
        lines.push(format!(
            "lost and not recorded in the log yet: {}, {since} to {until}",
            lines_of(lost.count)
        ));
    }
    lines.join("\n")
}

fn lines_of(count: u64) -> String {
    let noun = if count == 1 { "line" } else { "lines" };
    format!("{} {noun}", grouped(count))
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;
    use crate::telemetry::{Gap, Lost};

    #[test]
    fn a_report_counts_folded_and_lost_lines() {
        let gap = |count, until: &str| Gap {
            count,
            since: "2030-01-01T12:00:00.000Z".into(),
            until: until.into(),
        };
        let whole = Verified {
            lines: 18_204,
            ..Verified::default()
        };
        let lossy = Verified {
            lines: 1_000_000,
            folded: 312,
            folded_flows: 45_120,
            lost: 1019,
            gaps: 12,
            newest_gaps: [gap(1018, "2030-01-01T12:00:07.000Z"), gap(1, "\u{1b}[2J")].into(),
            unrecorded: Some(Lost {
                count: 6,
                since: 0,
                until: 1500,
            }),
        };
        each_row(
            [
                (whole, "a.jsonl: 18 204 lines, hash chain intact"),
                (
                    lossy,
                    "a.jsonl: 1 000 000 lines, hash chain intact\n\
                 folded: 312 lines, for 45 120 flows\n\
                 lost: 1 019 lines\n  \
                   in 10 earlier gaps and in these:\n  \
                   1 018 lines, 2030-01-01T12:00:00.000Z to 2030-01-01T12:00:07.000Z\n  \
                   1 line, 2030-01-01T12:00:00.000Z to \\u{1b}[2J\n\
                 lost and not recorded in the log yet: 6 lines, \
                 1970-01-01T00:00:00.000Z to 1970-01-01T00:00:01.500Z",
                ),
            ],
            |(log, expected)| {
                assert_eq!(report(Path::new("a.jsonl"), &log), expected);
            },
        );
    }

    #[test]
    fn numbers_are_grouped_by_three_digits() {
        each_row(
            [
                (0, "0"),
                (999, "999"),
                (1000, "1 000"),
                (18_204, "18 204"),
                (1_234_567, "1 234 567"),
            ],
            |(number, text)| {
                assert_eq!(grouped(number), text);
            },
        );
    }
}
