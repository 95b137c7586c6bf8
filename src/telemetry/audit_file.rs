//! The audit log on disk: lines chained by hashes, in files that rotate.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use addons::observe::hex;
use aws_lc_rs::digest::{SHA256, digest};
use thiserror::Error;

use crate::config::AuditConfig;

/// What the first line of all points to.
const GENESIS: Digits = [b'0'; 64];

/// How much is gathered before it is handed to the system.
const GATHERED: usize = 64 * 1024;

/// A SHA-256 in lower-case hexadecimal digits.
type Digits = [u8; 64];

/// The log, open for appending.
pub struct AuditFile {
    config: AuditConfig,
    file: File,
    /// What was appended and the system does not have yet.
    gathered: Vec<u8>,
    /// How long the file is with what is gathered.
    length: u64,
    previous: Digits,
}

impl AuditFile {
    /// Opens the log and goes on where it ended. A last line that a crash cut in the middle is
    /// no record and is removed.
    pub fn open(config: AuditConfig) -> io::Result<Self> {
        if let Some(directory) = config.path.parent() {
            fs::create_dir_all(directory)?;
        }
        let mut file = open_for_append(&config.path)?;
        let length = cut_half_line(&mut file)?;
        let last = match last_line(&mut file, length)? {
            Some(line) => Some(line),
            None => match File::open(rotated(&config.path, 1)) {
                Ok(mut older) => {
                    let length = older.metadata()?.len();
                    last_line(&mut older, length)?
                }
                Err(_) => None,
            },
        };
        Ok(Self {
            config,
            file,
            gathered: Vec::new(),
            length,
            previous: last.map_or(GENESIS, |line| hash(&line)),
        })
    }

    /// Appends a line: the JSON object, with the hash of the line before as its last member.
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

    /// Hands what was appended to the system, and notes how far the log goes, so that lines
    /// cut from its end are missed.
    pub fn flush(&mut self) -> io::Result<()> {
        self.write(self.gathered.len())?;
        fs::write(head_path(&self.config.path), self.previous)
    }

    /// How many lines were appended that the system does not have.
    pub fn unwritten(&self) -> usize {
        let ends = self.gathered.iter().filter(|byte| **byte == b'\n');
        ends.count()
    }

    /// Hands the first bytes of what is gathered to the system.
    fn write(&mut self, mut length: usize) -> io::Result<()> {
        while length > 0 {
            let left = self.gathered.get(..length).unwrap_or_default();
            let taken = match self.file.write(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                taken => taken?,
            };
            // What the system has is no longer waiting, whatever becomes of the rest.
            self.gathered.drain(..taken);
            length -= taken;
        }
        Ok(())
    }

    /// Begins a new file, for what is gathered from `start` on.
    fn rotate(&mut self, start: usize) -> io::Result<()> {
        self.write(start)?;
        let path = &self.config.path;
        if self.config.keep == 0 {
            fs::remove_file(path)?;
        } else {
            for number in (1..self.config.keep).rev() {
                rename_if_there(&rotated(path, number), &rotated(path, number + 1))?;
            }
            rename_if_there(path, &rotated(path, 1))?;
        }
        self.file = open_for_append(path)?;
        self.length = 0;
        Ok(())
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

/// Reads the whole chain, oldest file first; answers how many lines it has. What was rotated
/// away is gone by the operator's own rule, so the oldest line left is where trust begins.
pub fn verify(path: &Path) -> Result<u64, AuditBroken> {
    let newest_rotated = (1..)
        .take_while(|number| rotated(path, *number).exists())
        .last()
        .unwrap_or(0);
    let files = (1..=newest_rotated)
        .rev()
        .map(|number| rotated(path, number))
        .chain([path.to_owned()]);
    let head = fs::read(head_path(path)).ok();
    let mut previous = (newest_rotated == 0).then_some(GENESIS);
    let (mut lines, mut reaches_head) = (0, head.is_none());
    for file in files {
        let failed = |source| AuditBroken::Io {
            path: file.clone(),
            source,
        };
        let reader = BufReader::new(File::open(&file).map_err(failed)?);
        for (at, line) in reader.split(b'\n').enumerate() {
            let line = line.map_err(failed)?;
            let claimed = claimed_previous(&line);
            let follows = match (&previous, &claimed) {
                (Some(previous), Some(claimed)) => previous == claimed.as_bytes(),
                (None, Some(_)) => true,
                (_, None) => false,
            };
            if !follows {
                return Err(AuditBroken::Broken {
                    path: file,
                    line: at + 1,
                });
            }
            let current = hash(&line);
            reaches_head |= head.as_deref() == Some(&current);
            previous = Some(current);
            lines += 1;
        }
    }
    if reaches_head || head.as_deref() == Some(&GENESIS) {
        Ok(lines)
    } else {
        Err(AuditBroken::Cut {
            path: path.to_owned(),
        })
    }
}

fn claimed_previous(line: &[u8]) -> Option<String> {
    let object: serde_json::Value = serde_json::from_slice(line).ok()?;
    object.get("prev")?.as_str().map(str::to_owned)
}

fn hash(line: &[u8]) -> Digits {
    hex(digest(&SHA256, line).as_ref())
}

fn rotated(path: &Path, number: usize) -> PathBuf {
    suffixed(path, &format!(".{number}"))
}

fn head_path(path: &Path) -> PathBuf {
    suffixed(path, ".head")
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
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

fn cut_half_line(file: &mut File) -> io::Result<u64> {
    let length = file.metadata()?.len();
    let whole = length - trailing_bytes(file, length, |byte| byte != b'\n')?;
    if whole < length {
        file.set_len(whole)?;
    }
    Ok(whole)
}

/// The last line below `length`, which is the length of whole lines.
fn last_line(file: &mut File, length: u64) -> io::Result<Option<Vec<u8>>> {
    let Some(end) = length.checked_sub(1) else {
        return Ok(None);
    };
    let size = trailing_bytes(file, end, |byte| byte != b'\n')?;
    let mut line = vec![0; usize::try_from(size).map_err(io::Error::other)?];
    file.seek(SeekFrom::Start(end - size))?;
    file.read_exact(&mut line)?;
    Ok(Some(line))
}

/// How many bytes before `end` satisfy `fits`, without a gap.
fn trailing_bytes(file: &mut File, end: u64, fits: impl Fn(u8) -> bool) -> io::Result<u64> {
    const BLOCK: u64 = 4096;
    let mut counted = 0;
    while counted < end {
        let take = BLOCK.min(end - counted);
        let mut block = vec![0; take as usize];
        file.seek(SeekFrom::Start(end - counted - take))?;
        file.read_exact(&mut block)?;
        let fitting = block.iter().rev().take_while(|byte| fits(**byte)).count() as u64;
        counted += fitting;
        if fitting < take {
            break;
        }
    }
    Ok(counted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &Path) -> AuditConfig {
        AuditConfig {
            path: dir.join("audit.jsonl"),
            max_bytes: 1 << 20,
            keep: 2,
            lines_per_minute_per_container: 6000,
            bytes_per_minute_per_container: 2 << 20,
        }
    }

    fn written(config: &AuditConfig, numbers: std::ops::Range<u32>) {
        let mut log = AuditFile::open(config.clone()).unwrap();
        for number in numbers {
            let object = format!("{{\"n\":{number}}}");
            log.append(object.as_bytes()).unwrap();
        }
        log.flush().unwrap();
    }

    #[test]
    fn the_chain_goes_on_over_restarts_and_rotations() {
        let dir = tempfile::tempdir().unwrap();
        let config = AuditConfig {
            max_bytes: 400,
            ..config(dir.path())
        };
        written(&config, 0..3);
        written(&config, 3..7);
        assert!(rotated(&config.path, 1).exists());
        assert!(!rotated(&config.path, 3).exists());
        assert_eq!(verify(&config.path).unwrap(), 7);
        written(&config, 7..60);
        assert!(
            verify(&config.path).unwrap() < 60,
            "the oldest lines are rotated away"
        );
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
        assert_eq!(verify(&config.path).unwrap(), 5000);
        let sizes = (1..4).map(|number| fs::metadata(rotated(&config.path, number)).unwrap().len());
        assert!(sizes.into_iter().all(|size| size <= config.max_bytes));
    }

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
    fn a_line_that_a_crash_cut_in_half_is_removed_and_the_chain_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        written(&config, 0..3);
        let mut file = OpenOptions::new().append(true).open(&config.path).unwrap();
        file.write_all(b"{\"n\":3,\"pr").unwrap();
        written(&config, 4..5);
        assert_eq!(verify(&config.path).unwrap(), 4);
    }
}
