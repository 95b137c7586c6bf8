//! `learned.yaml` in the data directory: the hosts that people approved for every container. Only
//! the server writes it.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io;
use std::path::Path;

use addons::contract::settings::{ConfigErrors, Document, Report, Setting};
use addons::contract::{ApprovalId, Host, LearnedHost, Level, is_public_name};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::files;
use super::state_file::{Prepared, StateFile};

/// The name of the file.
const NAME: &str = "learned.yaml";
/// Limit on the entries: more than anybody has read. The file is read and written as a whole.
pub const MAX_LEARNED: usize = 4096;

const HEAD: &str = "\
# Hosts that people approved for every container. Only unified-proxy writes this file.
# `unified-proxy approvals revoke ID` removes an entry (ID: its question), and
# `unified-proxy approvals learned --patch` prints the entries for allowlist.yaml.
version: 1
domains:";

/// Reads the file of a data directory. Errors go to `report`.
pub(super) fn read(data_dir: &Path, report: &Report) -> Vec<LearnedHost> {
    // The server reports a data directory that it cannot use.
    if !data_dir.is_dir() {
        return Vec::new();
    }
    let document = files::open(data_dir, NAME, None, report);
    let hosts = entries(&document);
    document.refuse_unknown_keys();
    hosts
}

fn entries(document: &Document<'_>) -> Vec<LearnedHost> {
    let (mut places, mut questions) = (HashSet::new(), HashSet::new());
    let fields = document.fields();
    let hosts = fields.list("domains", |at| {
        let one = entry(&at)?;
        if !places.insert((one.host.clone(), one.port)) {
            at.refuse("the list has this domain and port already");
        }
        if !questions.insert(one.question) {
            at.refuse("the list has this question already");
        }
        Some(one)
    });
    if hosts.len() > MAX_LEARNED {
        fields.refuse("domains", format!("has more than {MAX_LEARNED} entries"));
    }
    hosts
}

fn entry(at: &Setting<'_>) -> Option<LearnedHost> {
    let fields = at.fields()?;
    let host = fields.need("domain").and_then(|at| at.parse(public_name));
    let ports = fields.need("ports").and_then(|at| {
        let ports = at.filled_list(|at| at.number(1..=u16::MAX))?;
        if ports.len() > 1 {
            at.refuse("must have one port: each port has an entry of its own");
        }
        Some(ports)
    });
    let levels = Level::ALL.map(|level| (level.as_str(), level));
    let max_level = fields.need("max_level").and_then(|at| at.one_of(&levels));
    let author = fields.need("author").and_then(|at| at.text());
    let time = fields.need("time").and_then(|at| {
        at.parse(|text| {
            OffsetDateTime::parse(text, &Rfc3339)
                .map_err(|_| "must be a time such as 2030-01-01T12:00:00Z")
        })
    });
    let question = fields.need("question").and_then(|at| {
        at.parse(|text| ApprovalId::parse(text).ok_or("must be an id of 32 hexadecimal digits"))
    });
    Some(LearnedHost {
        host: host?,
        port: *ports?.first()?,
        max_level: max_level?,
        author: author?.into(),
        time: time?,
        question: question?,
    })
}

/// No person is asked about other hosts.
fn public_name(text: &str) -> Result<Host, String> {
    let host = Host::parse(text).map_err(|error| error.to_string())?;
    match is_public_name(&host) {
        true => Ok(host),
        false => Err("must be a public name, such as api.example.com".to_owned()),
    }
}

/// The text of the file with these entries.
fn text(hosts: &[LearnedHost]) -> String {
    let mut text = HEAD.to_owned();
    if hosts.is_empty() {
        text.push_str(" []");
    }
    text.push('\n');
    for one in hosts {
        // JSON is YAML.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let time = one.time.format(&Rfc3339).unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "  - {{ domain: {}, ports: [{}], max_level: {}, author: {}, time: {}, question: {} }}",
            quoted(&one.host.to_string()),
            one.port,
            one.max_level.as_str(),
            quoted(&one.author),
            quoted(&time),
            quoted(&one.question.to_string()),
        );
    }
    text
}

/// The file, for the server, which writes it.
pub struct LearnedFile(StateFile);

impl LearnedFile {
    /// The file of a data directory.
    pub fn of(data_dir: &Path) -> Self {
        Self(StateFile::new(data_dir.join(NAME)))
    }

    /// Reads the entries. Fails if the file is damaged or cannot be read.
    pub fn read(&self) -> Result<Vec<LearnedHost>, ConfigErrors> {
        let report = Report::default();
        let hosts = read(self.0.directory(), &report);
        report.finish()?;
        Ok(hosts)
    }

    /// Prepares a file with these entries. `None` if it would be too long to be read.
    pub fn with(&self, hosts: &[LearnedHost]) -> io::Result<Option<Prepared>> {
        let text = text(hosts);
        let fits = hosts.len() <= MAX_LEARNED && text.len() as u64 <= files::MAX_FILE_BYTES;
        fits.then(|| self.0.with(Some(text.as_bytes()))).transpose()
    }

    /// Prepares the file as it is now.
    pub fn unchanged(&self) -> io::Result<Prepared> {
        self.0.unchanged()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use testkit::each_row;

    use super::*;

    const ENTRY: &str = "{ domain: \"a.example.com\", ports: [443], max_level: Public, author: \"ann\", \
        time: \"2030-01-01T12:00:00Z\", question: \"000000000000000000000000000000aa\" }";

    fn learned(host: &str, port: u16, question: usize) -> LearnedHost {
        LearnedHost {
            host: Host::parse(host).unwrap(),
            port,
            max_level: Level::Confidential,
            author: "uid 1000 (ann): \"#\\".into(),
            time: OffsetDateTime::from_unix_timestamp(1_900_000_000).unwrap(),
            question: ApprovalId::parse(&format!("{question:032x}")).unwrap(),
        }
    }

    fn file() -> (tempfile::TempDir, LearnedFile) {
        let directory = tempfile::tempdir().unwrap();
        let file = LearnedFile::of(directory.path());
        (directory, file)
    }

    #[test]
    fn what_is_written_is_read_and_replaced_as_a_whole() {
        let (directory, file) = file();
        assert_eq!(file.read().unwrap(), []);
        let before = file.unchanged().unwrap();
        let hosts = [
            learned("a.example.com", 443, 0xaa),
            learned("a.example.com", 8443, 1),
            learned("xn--bcher-kva.example.com", 22, 2),
        ];
        let prepared = file.with(&hosts).unwrap().unwrap();
        assert_eq!(file.read().unwrap(), [], "not yet");
        prepared.commit().unwrap();
        assert_eq!(file.read().unwrap(), hosts);
        let with_three = file.unchanged().unwrap();
        before.commit().unwrap();
        assert!(!directory.path().join(NAME).exists());
        with_three.commit().unwrap();
        file.with(&[]).unwrap().unwrap().commit().unwrap();
        assert_eq!(file.read().unwrap(), []);
        let left = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(left, 1, "no temporary file is left");
    }

    #[test]
    fn a_list_that_could_not_be_read_again_is_not_written() {
        let (_directory, file) = file();
        let many = |count: usize, host: &str| -> Vec<LearnedHost> {
            (0..count)
                .map(|at| learned(&format!("n{at}.{host}"), 443, at))
                .collect()
        };
        let long = format!("{}.{}.example.com", "a".repeat(60), "b".repeat(60));
        assert!(
            file.with(&many(MAX_LEARNED, "example.com"))
                .unwrap()
                .is_some()
        );
        assert!(
            file.with(&many(MAX_LEARNED + 1, "example.com"))
                .unwrap()
                .is_none()
        );
        assert!(file.with(&many(MAX_LEARNED, &long)).unwrap().is_none());
    }

    #[test]
    fn a_damaged_file_is_an_error_with_its_line() {
        let (directory, file) = file();
        let with = |from: &str, to: &str| format!("- {}", ENTRY.replace(from, to));
        each_row(
            [
                (format!("- {ENTRY}"), None),
                (
                    with("a.example.com", "*.example.com"),
                    Some("domains[0].domain"),
                ),
                (
                    with("a.example.com", "10.0.0.7"),
                    Some("must be a public name"),
                ),
                (
                    with("a.example.com", "github.io"),
                    Some("must be a public name"),
                ),
                (with("[443]", "[443, 80]"), Some("must have one port")),
                (with("[443]", "[0]"), Some("domains[0].ports[0]")),
                (with("Public", "public"), Some("domains[0].max_level")),
                (with("12:00", "12"), Some("must be a time")),
                (with("aa", "a"), Some("32 hexadecimal digits")),
                (with("author: \"ann\", ", ""), Some("author: is missing")),
                (with("author", "writer"), Some("unknown key")),
                (
                    format!("- {ENTRY}\n- {ENTRY}"),
                    Some("this domain and port already"),
                ),
                (
                    format!("- {ENTRY}\n{}", with("443", "80")),
                    Some("this question already"),
                ),
                ("- a.example.com".to_owned(), Some("must be a mapping")),
                ("- ${HOME}".to_owned(), Some("must be a mapping")),
                ("- {".to_owned(), Some("learned.yaml:")),
            ],
            |(entries, error)| {
                let text = format!("version: 1\ndomains:\n{entries}\n");
                fs::write(directory.path().join(NAME), text).unwrap();
                let read = file.read();
                let Some(expected) = error else {
                    assert_eq!(read.unwrap().len(), 1);
                    return;
                };
                let said = read.unwrap_err().to_string();
                assert!(
                    said.contains(expected) && said.starts_with("learned.yaml:"),
                    "{said}"
                );
            },
        );
    }
}
