//! Verifies the hash chain of the audit log.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde_json::Value;
use thiserror::Error;

use super::audit_chain::{Digits, GENESIS, hash, rotated};
use super::audit_head::AuditHead;
use super::lost::{self, Lost};

/// The most records of lost lines that [`Verified`] lists.
const GAPS: usize = 10;

/// The contents of a log whose hash chain is intact.
#[derive(Debug, Default)]
pub struct Verified {
    /// The number of lines.
    pub lines: u64,
    /// The number of lines that stand for several flows.
    pub folded: u64,
    /// The number of flows that folded lines stand for.
    pub folded_flows: u64,
    /// The number of lost lines, by the records of lost lines in the log.
    pub lost: u64,
    /// The number of records of lost lines.
    pub gaps: u64,
    /// The newest 10 records of lost lines, oldest first.
    pub newest_gaps: VecDeque<Gap>,
    /// Lost lines that the log has no record of yet.
    pub unrecorded: Option<Lost>,
}

/// A record of lost lines.
#[derive(Debug, PartialEq, Eq)]
pub struct Gap {
    pub count: u64,
    pub since: String,
    pub until: String,
}

impl Verified {
    fn count(&mut self, line: &Value) {
        self.lines += 1;
        let text = |key| line.get(key).and_then(Value::as_str).unwrap_or_default();
        let count = line.get("count").and_then(Value::as_u64).unwrap_or(1);
        if text("kind") == lost::KIND {
            self.lost = self.lost.saturating_add(count);
            self.gaps += 1;
            if self.newest_gaps.len() == GAPS {
                self.newest_gaps.pop_front();
            }
            self.newest_gaps.push_back(Gap {
                count,
                since: text("since").to_owned(),
                until: text("until").to_owned(),
            });
        } else if count > 1 {
            self.folded += 1;
            self.folded_flows = self.folded_flows.saturating_add(count);
        }
    }
}

/// Why the log cannot be trusted.
#[derive(Debug, Error)]
pub enum AuditBroken {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "{path}:{line}: this line does not follow from the one before: something was changed or cut here"
    )]
    Broken { path: PathBuf, line: usize },
    #[error("{path}: lines are missing from its end")]
    Cut { path: PathBuf },
}

/// Verifies the whole chain, oldest file first. Also checks that the chain contains the line whose
/// hash is in the head. Rotation deletes the oldest files, so if there are rotated files, the
/// `prev` of the oldest line is not checked.
pub fn verify(path: &Path) -> Result<Verified, AuditBroken> {
    let is_there = |number: &usize| rotated(path, *number).exists();
    let oldest = (1..).take_while(is_there).last().unwrap_or(0);
    let files = (1..=oldest)
        .rev()
        .map(|number| rotated(path, number))
        .chain([path.to_owned()]);
    let head = AuditHead::read(path);
    let mut chain = HashChain {
        previous: (oldest == 0).then_some(GENESIS),
        end: head.map(|head| head.last).filter(|last| *last != GENESIS),
        verified: Verified {
            unrecorded: head.and_then(|head| head.lost),
            ..Verified::default()
        },
    };
    for file in files {
        chain.follow(file)?;
    }
    match chain.end {
        None => Ok(chain.verified),
        Some(_) => Err(AuditBroken::Cut {
            path: path.to_owned(),
        }),
    }
}

/// The chain up to a line.
struct HashChain {
    /// The hash of the last verified line; `None` before the oldest line if there are rotated
    /// files.
    previous: Option<Digits>,
    /// The hash of the log's last line, from the head; `None` once that line was found.
    end: Option<Digits>,
    verified: Verified,
}

impl HashChain {
    fn follow(&mut self, file: PathBuf) -> Result<(), AuditBroken> {
        let failed = |source| AuditBroken::Io {
            path: file.clone(),
            source,
        };
        let reader = BufReader::new(File::open(&file).map_err(failed)?);
        for (at, line) in reader.split(b'\n').enumerate() {
            if !self.takes(&line.map_err(failed)?) {
                let line = at + 1;
                return Err(AuditBroken::Broken { path: file, line });
            }
        }
        Ok(())
    }

    /// Adds the next line to the chain. Returns `false` if its `prev` is not the previous hash.
    fn takes(&mut self, line: &[u8]) -> bool {
        let read: Value = serde_json::from_slice(line).unwrap_or_default();
        let claimed = read.get("prev").and_then(Value::as_str);
        let follows = match (&self.previous, claimed) {
            (Some(previous), Some(claimed)) => previous == claimed.as_bytes(),
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if follows {
            let current = hash(line);
            self.end = self.end.filter(|end| *end != current);
            self.previous = Some(current);
            self.verified.count(&read);
        }
        follows
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use testkit::each_row;

    use super::super::audit_file::AuditFile;
    use super::super::audit_file::tests::{config, lost, written};
    use super::*;

    #[test]
    fn a_changed_line_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        written(&config, 0..5);
        let text = fs::read_to_string(&config.path)
            .unwrap()
            .replace("\"n\":2", "\"n\":9");
        fs::write(&config.path, text).unwrap();
        let error = verify(&config.path).unwrap_err();
        assert!(
            matches!(error, AuditBroken::Broken { line: 4, .. }),
            "{error}"
        );
    }

    #[test]
    fn lines_cut_from_the_middle_or_the_end_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        written(&config, 0..5);
        let text = fs::read_to_string(&config.path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        fs::write(
            &config.path,
            [lines[0], lines[2], lines[3], lines[4]].join("\n"),
        )
        .unwrap();
        assert!(matches!(
            verify(&config.path),
            Err(AuditBroken::Broken { line: 2, .. })
        ));
        fs::write(&config.path, lines[..4].join("\n")).unwrap();
        assert!(matches!(verify(&config.path), Err(AuditBroken::Cut { .. })));
        fs::write(&config.path, "").unwrap();
        assert!(matches!(verify(&config.path), Err(AuditBroken::Cut { .. })));
    }

    #[test]
    fn folded_lines_and_records_of_lost_lines_are_counted_and_a_changed_record_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let mut log = AuditFile::open(config.clone()).unwrap();
        log.append(br#"{"kind":"http","count":40}"#).unwrap();
        log.append(br#"{"kind":"http"}"#).unwrap();
        for count in 1..=12 {
            log.append(&lost(count).record()).unwrap();
        }
        log.append(br#"{"kind":"dns","count":2}"#).unwrap();
        log.flush(None).unwrap();
        let found = verify(&config.path).unwrap();
        assert_eq!((found.lines, found.folded, found.folded_flows), (15, 2, 42));
        assert_eq!((found.lost, found.gaps), (78, 12));
        let counts: Vec<_> = found.newest_gaps.iter().map(|gap| gap.count).collect();
        assert_eq!(counts, Vec::from_iter(3..=12));
        let text = fs::read_to_string(&config.path).unwrap();
        let lines: Vec<_> = text.split_inclusive('\n').collect();
        each_row(
            [
                text.replace("\"count\":12,", "\"count\":11,"),
                [&lines[..13], &lines[14..]].concat().concat(),
            ],
            |tampered| {
                fs::write(&config.path, tampered).unwrap();
                let error = verify(&config.path).unwrap_err();
                assert!(matches!(error, AuditBroken::Broken { .. }), "{error}");
            },
        );
    }

    #[test]
    fn a_log_whose_head_a_full_disk_left_empty_is_not_taken_for_a_cut_log() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        written(&config, 0..3);
        fs::write(config.path.with_added_extension("head"), "").unwrap();
        assert_eq!(verify(&config.path).unwrap().lines, 3);
    }
}
