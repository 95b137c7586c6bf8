//! A denied push, answered as git understands it.

use bytes::Bytes;

use super::commands::Commands;
use super::pkt_line;
use crate::contract::{Answer, Denial};

/// The streams of a multiplexed answer: the report, and what git shows after `remote:`.
const REPORT: u8 = 1;
const REMOTE: u8 = 2;

/// The denial, answered with the sentence for every ref where the client wants a report; as it
/// was where it does not. `advice` is shown line by line to those who can see it.
pub(super) fn report(
    denial: Denial,
    commands: &Commands,
    advice: &[&str],
    drain_bytes: u64,
) -> Denial {
    if !commands.capabilities.report {
        return denial;
    }
    let mut report = Vec::new();
    pkt_line::write(&mut report, b"unpack ok\n");
    for command in &commands.list {
        let mut line = b"ng ".to_vec();
        line.extend_from_slice(&command.name);
        line.push(b' ');
        line.extend_from_slice(denial.sentence().as_bytes());
        line.push(b'\n');
        pkt_line::write(&mut report, &line);
    }
    report.extend_from_slice(b"0000");
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
    denial.answered_with(Answer {
        status: 200,
        content_type: "application/x-git-receive-pack-result",
        body: Bytes::from(body),
        drain_bytes,
    })
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
        report(denial, &commands, &["Try this"], 7)
            .answer()
            .cloned()
    }

    #[test]
    fn every_ref_is_told_the_sentence() {
        let answer = answer("report-status").unwrap();
        let body = "000eunpack ok\n0017ng refs/heads/a No\n0017ng refs/heads/b No\n0000";
        assert_eq!(answer.body, body);
        assert_eq!((answer.status, answer.drain_bytes), (200, 7));
        assert_eq!(answer.content_type, "application/x-git-receive-pack-result");
    }

    #[test]
    fn a_multiplexed_report_comes_after_the_advice() {
        let answer = answer("report-status-v2 side-band-64k").unwrap();
        let body = "000e\x02Try this\n0045\x01000eunpack ok\n\
                    0017ng refs/heads/a No\n0017ng refs/heads/b No\n00000000";
        assert_eq!(answer.body, body);
    }

    #[test]
    fn a_frame_is_never_longer_than_the_side_band_allows() {
        let mut out = Vec::new();
        multiplex(&mut out, REPORT, &[b'x'; 2500], 1000);
        assert_eq!(out.len(), 2500 + 3 * 5);
        assert!(out.starts_with(b"03e8\x01x"));
    }

    #[test]
    fn who_asks_for_no_report_gets_the_plain_denial() {
        assert_eq!(answer("atomic side-band-64k"), None);
    }
}
