//! `approvals learned`: what is approved for every container, also as entries of `allowlist.yaml`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use addons::contract::{Host, Level};
use clap::Args;
use serde_json::Value;

use super::servers::Servers;
use super::{all_grants, now, show};
use crate::admin::{EVERY, GrantEntry, GrantList};
use crate::cli::Output;
use crate::cli::exit::{Failure, print, printable};

/// The entries of `learned.yaml`.
#[derive(Args, Debug)]
pub struct LearnedOptions {
    /// Print them as lines to add to `domains` in allowlist.yaml
    #[arg(long, conflicts_with = "json")]
    patch: bool,
    #[command(flatten)]
    output: Output,
}

impl LearnedOptions {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let found = all_grants(&Servers::of(&self.output.target)).await?;
        let grants = found.into_iter().map(|found| found.item);
        let grants: Vec<_> = grants.filter(|grant| grant.container_id == EVERY).collect();
        if self.patch {
            return print(patch(&grants));
        }
        self.output.show(&GrantList { grants }, |list| {
            show::grants(&list.grants.iter().collect::<Vec<_>>(), now())
        })
    }
}

/// Entries of an allowlist, one for each host, indented as in the shipped file. An entry has one
/// security level for all ports: the lowest. One that a server could not have written is left out.
fn patch(grants: &[GrantEntry]) -> String {
    let mut hosts: BTreeMap<String, (Vec<u16>, Level, Vec<String>)> = BTreeMap::new();
    for grant in grants {
        let parsed = grant.subject.rsplit_once(':').and_then(|(host, port)| {
            let host = Host::parse(host).ok()?.to_string();
            Some((host, port.parse().ok()?, Level::parse(&grant.level)?))
        });
        let Some((host, port, level)) = parsed else {
            continue;
        };
        let (ports, max_level, notes) =
            hosts.entry(host).or_insert((Vec::new(), level, Vec::new()));
        ports.push(port);
        *max_level = level.min(*max_level);
        let [by, at, id] =
            [&grant.given_by, &grant.created_at, &grant.id].map(|text| printable(text));
        notes.push(format!("{by}, {at}, approval {id}"));
    }
    if hosts.is_empty() {
        return "# nothing is approved for every container".to_owned();
    }
    let mut text = "# allowlist.yaml: add these lines under domains".to_owned();
    for (host, (mut ports, level, notes)) in hosts {
        ports.sort_unstable();
        ports.dedup();
        for note in notes {
            // Writing to a String cannot fail.
            let _ = write!(text, "\n  # {note}");
        }
        let host = Value::from(host);
        let level = level.as_str();
        let _ = write!(
            text,
            "\n  - {{ domain: {host}, ports: {ports:?}, max_level: {level} }}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Profile, load_with};

    fn learned(subject: &str, level: &str, by: &str) -> GrantEntry {
        GrantEntry {
            id: "0a".repeat(16),
            approval: None,
            kind: "host".to_owned(),
            container_id: EVERY.to_owned(),
            lease: EVERY.to_owned(),
            subject: subject.to_owned(),
            level: level.to_owned(),
            scope: "always".to_owned(),
            given_by: by.to_owned(),
            created_at: "2030-01-01T12:00:00Z".to_owned(),
            expires_at: None,
        }
    }

    #[test]
    fn the_patch_has_one_entry_for_each_host_with_its_ports_and_lowest_level() {
        let entries = [
            learned("b.example.com:8443", "Secret", "uid 1000 (ann)"),
            learned("a.example.com:443", "Secret", "uid 1000 (ann)"),
            learned("b.example.com:443", "Public", "uid 0 (root)"),
        ];
        let id = "0a".repeat(16);
        let expected = format!(
            "# allowlist.yaml: add these lines under domains\n\
             \x20 # uid 1000 (ann), 2030-01-01T12:00:00Z, approval {id}\n\
             \x20 - {{ domain: \"a.example.com\", ports: [443], max_level: Secret }}\n\
             \x20 # uid 1000 (ann), 2030-01-01T12:00:00Z, approval {id}\n\
             \x20 # uid 0 (root), 2030-01-01T12:00:00Z, approval {id}\n\
             \x20 - {{ domain: \"b.example.com\", ports: [443, 8443], max_level: Public }}"
        );
        assert_eq!(patch(&entries), expected);
        assert_eq!(patch(&[]), "# nothing is approved for every container");
    }

    #[test]
    fn nothing_in_a_patch_can_add_a_line_to_the_allowlist() {
        let entries = [
            learned("a.example.com:443", "Public", "x\n- evil.example.com"),
            learned("evil.example.com\n- b:443", "Public", "x"),
            learned("c.example.com:443", "public", "x"),
        ];
        let text = patch(&entries);
        let is_entry = |line: &&str| !line.trim_start().starts_with('#');
        let entries: Vec<&str> = text.lines().filter(is_entry).collect();
        assert_eq!(
            entries,
            ["  - { domain: \"a.example.com\", ports: [443], max_level: Public }"]
        );
    }

    #[test]
    fn the_patch_fits_the_end_of_the_shipped_allowlist() {
        let patch = patch(&[
            learned("a.example.com:443", "Public", "x"),
            learned("b.example.com:8443", "Secret", "uid 1000 (ann): \"#"),
        ]);
        let shipped = include_str!("../../../config/allowlist.yaml");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("allowlist.yaml");
        std::fs::write(path, format!("{shipped}{patch}\n")).unwrap();
        let config = load_with(directory.path(), Profile::Serve, &|_| None).unwrap();
        let host = Host::parse("b.example.com").unwrap();
        let entry = config.addons.allowlist.find(&host).unwrap();
        assert_eq!(
            (&*entry.ports, entry.max_level),
            (&[8443][..], Level::Secret)
        );
    }
}
