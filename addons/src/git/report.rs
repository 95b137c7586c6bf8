//! Renders a denied push as git's own report.

use bytes::Bytes;

use super::commands::{Command, Commands};
use super::pkt_line;
use crate::contract::{Answer, Buffered, Denial};

/// The side bands of a multiplexed response: the report, and lines that git shows after `remote:`.
const REPORT: u8 = 1;
const REMOTE: u8 = 2;

/// A report has at most this many times the bytes of the commands, or [`FREE_BYTES`] if that is
/// more. A small request must not cause a large response.
const MAX_FACTOR: usize = 3;
const FREE_BYTES: usize = 64 * 1024;

/// The bytes to which the line of each ref is cut if the full lines would exceed the limit. A
/// command is at least 87 bytes long, with its two ids, so short lines stay within [`MAX_FACTOR`].
const SHORT_LINE: usize = 120;

/// The longest name in a short line, in bytes. If a name is cut, git warns of a status for an
/// unknown ref.
const SHORT_NAME: usize = 80;

/// Bytes of a line besides name and sentence: header, `ng`, two spaces, line feed.
const AROUND: usize = pkt_line::HEADER + 5;

/// Limit on the bytes of a denied push that the proxy reads and discards. Git reads no response
/// before it has sent the whole push. The limit equals the largest push limit that a registration
/// may set.
const DRAIN_BYTES: u64 = 500 * 1024 * 1024;

/// Renders the denial as a report with the denial's sentence for every ref. Clients with a side
/// band show the lines of `advice`. `request` holds the commands. Its length bounds the length of
/// the report, and its memory budget also holds the report. Returns the denial unchanged if the
/// client requested no report, or if the budget is used up.
pub(super) fn report(
    denial: Denial,
    commands: &Commands,
    advice: &[&str],
    request: &Buffered,
) -> Denial {
    if !commands.capabilities.report {
        return denial;
    }
    let most = FREE_BYTES.max(MAX_FACTOR * request.bytes().len());
    let full_line = |command: &Command| command.name.len() + denial.sentence().len() + AROUND;
    let full: usize = commands.list.iter().map(full_line).sum();
    let longest = if full > most { SHORT_LINE } else { usize::MAX };
    let report = lines(commands, denial.sentence(), longest);
    let body = match commands.capabilities.side_band {
        None => report,
        Some(longest) => {
            let mut out = Vec::new();
            for line in advice {
                multiplex(&mut out, REMOTE, format!("{line}\n").as_bytes(), longest);
            }
            multiplex(&mut out, REPORT, &report, longest);
            out.extend_from_slice(b"0000");
            out
        }
    };
    // The report counts against the budget until it is sent, since a client may read it slowly.
    match request.hold(Bytes::from(body.into_boxed_slice())) {
        Ok(body) => denial.answered_with(Answer {
            status: 200,
            content_type: "application/x-git-receive-pack-result",
            body,
            drain_bytes: DRAIN_BYTES,
        }),
        Err(_busy) => denial,
    }
}

/// The status of every ref, in lines of at most `longest` bytes.
fn lines(commands: &Commands, sentence: &str, longest: usize) -> Vec<u8> {
    let mut report = Vec::new();
    pkt_line::write(&mut report, b"unpack ok\n");
    for command in &commands.list {
        let mut line = b"ng ".to_vec();
        let name = match command.name.get(..SHORT_NAME) {
            Some(beginning) if longest == SHORT_LINE => beginning,
            _ => &command.name,
        };
        line.extend_from_slice(name);
        line.push(b' ');
        let room = longest.saturating_sub(name.len() + AROUND);
        let end = sentence.floor_char_boundary(room);
        line.extend_from_slice(sentence.get(..end).unwrap_or_default().as_bytes());
        line.push(b'\n');
        pkt_line::write(&mut report, &line);
    }
    report.extend_from_slice(b"0000");
    report
}

fn multiplex(out: &mut Vec<u8>, stream: u8, bytes: &[u8], longest: usize) {
    for piece in bytes.chunks(longest - pkt_line::HEADER - 1) {
        let mut line = Vec::with_capacity(piece.len() + 1);
        line.push(stream);
        line.extend_from_slice(piece);
        pkt_line::write(out, &line);
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;
    use crate::contract::Code;

    const ID: &str = "0123456789abcdef0123456789abcdef01234567";

    fn answer(capabilities: &str) -> Option<Answer> {
        let mut commands = Commands::default();
        for line in [
            format!("{ID} {ID} refs/heads/a\0{capabilities}"),
            format!("{ID} {ID} refs/heads/b"),
        ] {
            commands.read(line.as_bytes()).unwrap();
        }
        let denial = Denial::new(Code::BranchDeletionBlocked, "No");
        report(
            denial,
            &commands,
            &["Try this"],
            &Buffered::unlimited(Bytes::new()),
        )
        .answer()
        .cloned()
    }

    #[test]
    fn a_report_gives_the_sentence_of_the_denial_for_every_ref() {
        let answer = answer("report-status").unwrap();
        let body = "000eunpack ok\n0017ng refs/heads/a No\n0017ng refs/heads/b No\n0000";
        assert_eq!(answer.body, body);
        assert_eq!((answer.status, answer.drain_bytes), (200, DRAIN_BYTES));
        assert_eq!(answer.content_type, "application/x-git-receive-pack-result");
    }

    #[test]
    fn with_a_side_band_the_advice_precedes_the_report() {
        let answer = answer("report-status-v2 side-band-64k").unwrap();
        let body = "000e\x02Try this\n0045\x01000eunpack ok\n\
                    0017ng refs/heads/a No\n0017ng refs/heads/b No\n00000000";
        assert_eq!(answer.body, body);
    }

    fn body_of(commands: &Commands, sentence: &str, request: usize) -> Vec<u8> {
        let denial = Denial::new(Code::BranchDeletionBlocked, sentence.to_owned());
        let request = Buffered::unlimited(vec![0; request].into());
        let denial = report(denial, commands, &[], &request);
        denial.answer().unwrap().body.to_vec()
    }

    fn push_of(refs: usize, name_length: usize) -> (Commands, usize) {
        let mut commands = Commands::default();
        let mut request = 0;
        for number in 0..refs {
            let name = format!("refs/heads/{number:0>width$}", width = name_length - 11);
            let line = format!("{ID} {ID} {name}\0report-status side-band-64k");
            let line = line.get(
                ..if number == 0 {
                    line.len()
                } else {
                    82 + name_length
                },
            );
            commands.read(line.unwrap().as_bytes()).unwrap();
            request += pkt_line::HEADER + line.unwrap().len();
        }
        (commands, request)
    }

    #[test]
    fn a_report_is_at_most_three_times_the_commands_or_64_kib() {
        each_row(
            [
                (10_000, 20, 200),
                (10_000, 20, 5000),
                (1000, 1024, 1200),
                (600, 100, 200),
                (1, 1024, 1200),
            ],
            |(refs, name, sentence)| {
                let (commands, request) = push_of(refs, name);
                let report = body_of(&commands, &"x".repeat(sentence), request);
                let most = FREE_BYTES.max(MAX_FACTOR * request);
                assert!(report.len() <= most, "{refs} of {name}: {}", report.len());
                let told = report.windows(3).filter(|bytes| bytes == b"ng ").count();
                assert_eq!(told, refs, "every ref must have a line");
            },
        );
    }

    #[test]
    fn a_short_line_keeps_the_name_and_cuts_the_sentence_between_characters() {
        let (commands, request) = push_of(2000, 20);
        let report = body_of(&commands, &"é".repeat(500), request);
        let first = String::from_utf8(report[4 + 1 + 14..][..120].to_vec()).unwrap();
        assert!(
            first.starts_with("0077ng refs/heads/000000000 ééé"),
            "{first}"
        );
    }

    #[test]
    fn a_frame_is_never_longer_than_the_side_band_allows() {
        let mut out = Vec::new();
        multiplex(&mut out, REPORT, &[b'x'; 2500], 1000);
        assert_eq!(out.len(), 2500 + 3 * 5);
        assert!(out.starts_with(b"03e8\x01x"));
    }

    #[test]
    fn a_client_that_requests_no_report_gets_the_plain_denial() {
        assert_eq!(answer("atomic side-band-64k"), None);
    }
}
