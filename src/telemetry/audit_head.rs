//! The head file beside the audit log: the hash of the log's last line, and lost lines.
//!
//! The file is overwritten in place and its length never changes, so that it can be written on a
//! full disk.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::audit_chain::{Digits, GENESIS};
use super::lost::Lost;

/// The content of the head file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditHead {
    /// The hash of the last line that was written, so that lines cut from the log's end are
    /// detected.
    pub last: Digits,
    /// Lost lines that the log has no record of yet.
    pub lost: Option<Lost>,
}

impl AuditHead {
    /// Reads the head of a log; `None` if it is missing or unreadable, or if a full disk left it
    /// empty.
    pub fn read(log: &Path) -> Option<Self> {
        let text = fs::read(path_of(log)).ok()?;
        if text.is_empty() {
            return None;
        }
        // If the head is too short, `last` has only NUL bytes, so it equals no line's hash.
        let (last, rest) = text.split_first_chunk().unwrap_or((&[0; _], &[]));
        Some(Self {
            last: *last,
            lost: read_lost(rest),
        })
    }

    /// Writes the head of a log.
    pub fn write(&self, log: &Path) -> io::Result<()> {
        let lost = self.lost.unwrap_or_default();
        let mut text = self.last.to_vec();
        writeln!(
            text,
            " {:020} {:020} {:020}",
            lost.count, lost.since, lost.until
        )?;
        OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path_of(log))?
            .write_all(&text)
    }

    /// Stores lost lines in the head while the log cannot be written.
    pub fn note_lost(log: &Path, lost: Lost) -> io::Result<()> {
        let last = Self::read(log).map_or(GENESIS, |head| head.last);
        let lost = Some(lost);
        Self { last, lost }.write(log)
    }
}

/// The path of a log's head: `audit.jsonl.head` for `audit.jsonl`.
fn path_of(log: &Path) -> PathBuf {
    log.with_added_extension("head")
}

fn read_lost(text: &[u8]) -> Option<Lost> {
    let mut numbers = str::from_utf8(text).ok()?.split_whitespace();
    let mut number = || numbers.next()?.parse().ok();
    let (count, since, until) = (number()?, number()?, number()?);
    let lost = Lost {
        count,
        since,
        until,
    };
    (count > 0).then_some(lost)
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written_and_keeps_its_length() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("audit.jsonl");
        assert_eq!(AuditHead::read(&log), None);
        let lost = |count| Lost {
            count,
            since: 1,
            until: u64::MAX,
        };
        AuditHead::note_lost(&log, lost(u64::MAX)).unwrap();
        let head = AuditHead::read(&log).unwrap();
        assert_eq!((head.last, head.lost), (GENESIS, Some(lost(u64::MAX))));
        for lost in [None, Some(lost(18)), None] {
            let head = AuditHead {
                last: [b'a'; 64],
                lost,
            };
            head.write(&log).unwrap();
            assert_eq!(AuditHead::read(&log), Some(head));
            let length = fs::metadata(path_of(&log)).unwrap().len();
            assert_eq!(length, 128);
        }
        AuditHead::note_lost(&log, lost(3)).unwrap();
        assert_eq!(AuditHead::read(&log).unwrap().last, [b'a'; 64]);
    }

    #[test]
    fn a_damaged_head_has_no_lost_lines_and_a_short_one_matches_no_hash() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("audit.jsonl");
        let digits = str::from_utf8(&GENESIS).unwrap();
        each_row(
            [
                (digits.to_owned(), true),
                (format!("{digits} x y z"), true),
                ("0000".to_owned(), false),
                ("\u{e9}".repeat(100), false),
            ],
            |(text, is_genesis)| {
                fs::write(path_of(&log), &text).unwrap();
                let head = AuditHead::read(&log).unwrap();
                assert_eq!(
                    (head.last == GENESIS, head.lost),
                    (is_genesis, None),
                    "{text}"
                );
            },
        );
        fs::write(path_of(&log), "").unwrap();
        assert_eq!(AuditHead::read(&log), None);
    }
}
