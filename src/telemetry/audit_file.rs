//! The audit log on disk: a hash chain of lines, in rotated files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::audit_chain::{Digits, GENESIS, hash, rotated};
use super::audit_head::AuditHead;
use super::lost::Lost;
use crate::config::AuditConfig;

/// Appended lines are gathered and written together once they have this many bytes, or at a flush.
const GATHERED: usize = 64 * 1024;

/// The log, open for appending.
pub struct AuditFile {
    config: AuditConfig,
    file: File,
    /// Lines that were appended and not yet written.
    gathered: Vec<u8>,
    /// The length of the file, including the gathered lines.
    length: u64,
    /// The hash of the last appended line; [`GENESIS`] before the first.
    previous: Digits,
}

impl AuditFile {
    /// Opens the log, or creates it, to continue its chain. Removes a last line that a crash cut
    /// off, and rotated files beyond a lowered `keep`.
    pub fn open(config: AuditConfig) -> io::Result<Self> {
        if let Some(directory) = config.path.parent() {
            fs::create_dir_all(directory)?;
        }
        remove_surplus(&config)?;
        let mut file = open_for_append(&config.path)?;
        let length = cut_half_line(&mut file)?;
        let last = newest_line(&config.path, &mut file, length)?;
        Ok(Self {
            config,
            file,
            gathered: Vec::new(),
            length,
            previous: last.map_or(GENESIS, |line| hash(&line)),
        })
    }

    /// Appends a JSON object as a line, with the hash of the previous line as its last member.
    /// Rotates first if the file has lines and this one would make it longer than `max_bytes`.
    pub fn append(&mut self, object: &[u8]) -> io::Result<()> {
        let start = self.gathered.len();
        let members = object.strip_suffix(b"}").unwrap_or(object);
        self.gathered.extend_from_slice(members);
        self.gathered.extend_from_slice(b",\"prev\":\"");
        self.gathered.extend_from_slice(&self.previous);
        self.gathered.extend_from_slice(b"\"}");
        self.previous = hash(self.gathered.get(start..).unwrap_or_default());
        self.gathered.push(b'\n');
        let size = (self.gathered.len() - start) as u64;
        if self.length > 0 && self.length + size > self.config.max_bytes {
            self.rotate(start)?;
        }
        self.length += size;
        if self.gathered.len() >= GATHERED {
            self.write(self.gathered.len())?;
        }
        Ok(())
    }

    /// Writes the appended lines, then the head (a file beside the log). The head has the hash of
    /// the last line, which shows whether lines were cut from the end. The head also has `lost`: the
    /// number and period of lost lines that the log has no record of. Does not wait until the kernel has written the
    /// bytes to disk.
    pub fn flush(&mut self, lost: Option<Lost>) -> io::Result<()> {
        self.write(self.gathered.len())?;
        let head = AuditHead {
            last: self.previous,
            lost,
        };
        head.write(&self.config.path)
    }

    /// Drops the lines that were appended but not written, and returns their number. The log must
    /// be opened again before another line is appended.
    pub fn discard(&mut self) -> u64 {
        let gathered = std::mem::take(&mut self.gathered);
        gathered.iter().filter(|byte| **byte == b'\n').count() as u64
    }

    /// Writes the first `length` gathered bytes.
    fn write(&mut self, mut length: usize) -> io::Result<()> {
        while length > 0 {
            let left = self.gathered.get(..length).unwrap_or_default();
            let taken = match self.file.write(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                taken => taken?,
            };
            // Removed at once: if the next write fails, no later one may write these bytes again.
            self.gathered.drain(..taken);
            length -= taken;
        }
        Ok(())
    }

    /// Writes the gathered bytes before `start`, moves each file to its next number, and opens a
    /// new file for the other bytes. If there are `keep` rotated files, the oldest is overwritten.
    fn rotate(&mut self, start: usize) -> io::Result<()> {
        self.write(start)?;
        let path = &self.config.path;
        for number in (1..self.config.keep).rev() {
            rename_if_there(&rotated(path, number), &rotated(path, number + 1))?;
        }
        rename_if_there(path, &rotated(path, 1))?;
        self.file = open_for_append(path)?;
        self.length = 0;
        Ok(())
    }
}

/// The number and period of lost lines, as an earlier process noted them in the head. `None` if the
/// head has none, or if the log ends with the record of this loss.
pub fn unrecorded_loss(path: &Path) -> Option<Lost> {
    let lost = AuditHead::read(path)?.lost?;
    let last = File::open(path).and_then(|mut log| {
        let length = whole_length(&mut log)?;
        newest_line(path, &mut log, length)
    });
    // The head is out of date if the process was killed after it wrote the record and before it
    // wrote the head.
    let line = last.ok().flatten().unwrap_or_default();
    let is_recorded = String::from_utf8_lossy(&line).contains(&lost.members());
    (!is_recorded).then_some(lost)
}

/// Removes the rotated files beyond `keep`, oldest first. The next rotation would lose the file
/// between these and the newer ones, and the chain would have a gap.
fn remove_surplus(config: &AuditConfig) -> io::Result<()> {
    let numbers = config.keep + 1..;
    let surplus = numbers.map(|number| rotated(&config.path, number));
    let surplus: Vec<_> = surplus.take_while(|file| file.exists()).collect();
    surplus.iter().rev().try_for_each(fs::remove_file)
}

fn rename_if_there(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn open_for_append(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .read(true)
        .mode(0o600)
        .open(path)
}

/// Truncates the file to its complete lines, and returns its length.
fn cut_half_line(file: &mut File) -> io::Result<u64> {
    let whole = whole_length(file)?;
    if whole < file.metadata()?.len() {
        file.set_len(whole)?;
    }
    Ok(whole)
}

/// The length of the file up to the end of its last complete line.
fn whole_length(file: &mut File) -> io::Result<u64> {
    let length = file.metadata()?.len();
    Ok(length - unfinished(file, length)?)
}

/// The log's last line, from the newest rotated file if the current file is empty.
fn newest_line(path: &Path, file: &mut File, length: u64) -> io::Result<Option<Vec<u8>>> {
    let last = last_line(file, length)?;
    match File::open(rotated(path, 1)) {
        Ok(mut older) if last.is_none() => {
            let length = older.metadata()?.len();
            last_line(&mut older, length)
        }
        _ => Ok(last),
    }
}

/// The last line of the first `length` bytes, which end with a line feed.
fn last_line(file: &mut File, length: u64) -> io::Result<Option<Vec<u8>>> {
    let Some(end) = length.checked_sub(1) else {
        return Ok(None);
    };
    let size = unfinished(file, end)?;
    let mut line = vec![0; usize::try_from(size).map_err(io::Error::other)?];
    file.seek(SeekFrom::Start(end - size))?;
    file.read_exact(&mut line)?;
    Ok(Some(line))
}

/// The number of bytes between the last line feed before `end` and `end`.
fn unfinished(file: &mut File, end: u64) -> io::Result<u64> {
    const BLOCK: u64 = 4096;
    let mut counted = 0;
    while counted < end {
        let take = BLOCK.min(end - counted);
        let mut block = vec![0; take as usize];
        file.seek(SeekFrom::Start(end - counted - take))?;
        file.read_exact(&mut block)?;
        let found = block.iter().rev().take_while(|byte| **byte != b'\n');
        let found = found.count() as u64;
        counted += found;
        if found < take {
            break;
        }
    }
    Ok(counted)
}

#[cfg(test)]
pub(super) mod tests {
    use addons::observe::CHAIN_BYTES;

    use super::*;
    use crate::telemetry::audit_verify::verify;

    pub(in crate::telemetry) fn config(dir: &Path) -> AuditConfig {
        AuditConfig {
            path: dir.join("audit.jsonl"),
            max_bytes: 1 << 20,
            keep: 2,
        }
    }

    /// Appends lines with these numbers.
    pub(in crate::telemetry) fn written(config: &AuditConfig, numbers: std::ops::Range<u32>) {
        let mut log = AuditFile::open(config.clone()).unwrap();
        for number in numbers {
            let object = format!("{{\"n\":{number}}}");
            log.append(object.as_bytes()).unwrap();
        }
        log.flush(None).unwrap();
    }

    #[test]
    fn the_chain_continues_over_restarts_and_rotations() {
        let dir = tempfile::tempdir().unwrap();
        let config = AuditConfig {
            max_bytes: 400,
            ..config(dir.path())
        };
        written(&config, 0..3);
        written(&config, 3..7);
        assert!(rotated(&config.path, 1).exists());
        assert!(!rotated(&config.path, 3).exists());
        assert_eq!(verify(&config.path).unwrap().lines, 7);
        written(&config, 7..60);
        assert!(
            verify(&config.path).unwrap().lines < 60,
            "the oldest lines are rotated away"
        );
    }

    #[test]
    fn a_lowered_keep_removes_the_oldest_files_and_leaves_the_chain_without_a_gap() {
        let dir = tempfile::tempdir().unwrap();
        let config = AuditConfig {
            max_bytes: 400,
            keep: 6,
            ..config(dir.path())
        };
        written(&config, 0..40);
        assert!(rotated(&config.path, 6).exists());
        let lowered = AuditConfig { keep: 2, ..config };
        for numbers in [40..41, 41..60] {
            written(&lowered, numbers);
            let kept = (1..9).filter(|number| rotated(&lowered.path, *number).exists());
            assert_eq!(kept.collect::<Vec<_>>(), [1, 2]);
            verify(&lowered.path).unwrap();
        }
    }

    #[test]
    fn many_lines_between_two_flushes_are_one_chain_over_rotated_files() {
        let dir = tempfile::tempdir().unwrap();
        let config = AuditConfig {
            max_bytes: 3 * GATHERED as u64 / 2,
            keep: 9,
            ..config(dir.path())
        };
        written(&config, 0..5000);
        assert!(rotated(&config.path, 3).exists());
        assert_eq!(verify(&config.path).unwrap().lines, 5000);
        let sizes = (1..4).map(|number| fs::metadata(rotated(&config.path, number)).unwrap().len());
        assert!(sizes.into_iter().all(|size| size <= config.max_bytes));
    }

    #[test]
    fn an_appended_line_is_longer_than_its_object_by_the_constant_chain_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        written(&config, 7..8);
        let length = fs::metadata(&config.path).unwrap().len();
        assert_eq!(length as usize, "{\"n\":7}".len() + CHAIN_BYTES);
    }

    #[test]
    fn a_line_that_a_crash_cut_off_is_removed_and_the_chain_continues() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        written(&config, 0..3);
        let mut file = OpenOptions::new().append(true).open(&config.path).unwrap();
        file.write_all(b"{\"n\":3,\"pr").unwrap();
        written(&config, 4..5);
        assert_eq!(verify(&config.path).unwrap().lines, 4);
    }

    pub(in crate::telemetry) fn lost(count: u64) -> Lost {
        Lost {
            count,
            since: 1_000,
            until: 2_000,
        }
    }

    #[test]
    fn a_loss_is_known_after_a_restart_until_the_log_has_a_record_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let path = &config.path;
        assert_eq!(unrecorded_loss(path), None);
        // Without a log, with a log, and with a log that ends in the record of another loss.
        let mut log = None;
        for before in [None, Some(b"{\"n\":1}".to_vec()), Some(lost(3).record())] {
            if let Some(line) = before {
                log.get_or_insert_with(|| AuditFile::open(config.clone()).unwrap());
                log.as_mut().unwrap().append(&line).unwrap();
                log.as_mut().unwrap().flush(None).unwrap();
            }
            AuditHead::note_lost(path, lost(18)).unwrap();
            assert_eq!(unrecorded_loss(path), Some(lost(18)));
            assert_eq!(
                verify(path).map(|log| log.unrecorded).ok(),
                log.as_ref().map(|_| Some(lost(18)))
            );
        }
        let mut log = log.unwrap();
        log.append(&lost(18).record()).unwrap();
        log.write(log.gathered.len()).unwrap();
        assert_eq!(
            unrecorded_loss(path),
            None,
            "killed before the head was written"
        );
        log.flush(None).unwrap();
        assert_eq!(AuditHead::read(path).unwrap().lost, None);
    }
}
