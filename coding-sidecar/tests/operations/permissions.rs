//! Files that the system's permissions protect. Most tests run as a user without privileges.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use serde_json::json;

use crate::again;
use crate::fixture::{Fixture, message};

/// Runs a test as the user `nobody` if this process is root: root passes every permission check.
fn as_nobody(name: &str, test: fn()) {
    if rustix::process::geteuid().is_root() {
        let nobody = [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--",
        ];
        again::run(&format!("permissions::{name}"), &nobody);
    } else {
        test();
    }
}

fn mode(fixture: &Fixture, path: &str, mode: u32) {
    fs::set_permissions(fixture.at(path), Permissions::from_mode(mode)).unwrap();
}

#[test]
fn reading_a_file_needs_read_permission_and_replacing_it_write_permission() {
    as_nobody(
        "reading_a_file_needs_read_permission_and_replacing_it_write_permission",
        || {
            let fixture = Fixture::new();
            fixture.put("read-only", "old");
            fixture.put("closed", "old");
            mode(&fixture, "read-only", 0o444);
            mode(&fixture, "closed", 0);
            assert_eq!(fixture.text("read-only").unwrap(), "old");
            for failure in [
                message(fixture.read(json!({"path": "closed"}))),
                message(fixture.write("closed", "new")),
                // The permissions of the folder alone would allow the replacement.
                message(fixture.write("read-only", "new")),
                message(fixture.edit("read-only", "old", "new")),
                message(fixture.edit("closed", "old", "new")),
            ] {
                assert!(failure.contains("permission denied"), "{failure}");
            }
            assert_eq!(fixture.bytes("read-only"), b"old");
            let grep = fixture.grep(json!({"pattern": "old"})).unwrap();
            assert_eq!(grep.content, "read-only:1: old\n");
            let skipped = grep.details.unwrap().skipped.unwrap();
            assert!(skipped.starts_with("not searched: closed: "), "{skipped}");
        },
    );
}

#[test]
fn files_in_a_read_only_folder_are_not_written() {
    as_nobody("files_in_a_read_only_folder_are_not_written", || {
        let fixture = Fixture::new();
        fixture.put("folder/file", "old");
        mode(&fixture, "folder", 0o555);
        for failure in [
            message(fixture.write("folder/file", "new")),
            message(fixture.write("folder/new", "new")),
            message(fixture.write("folder/a/b", "new")),
            message(fixture.edit("folder/file", "old", "new")),
        ] {
            assert!(failure.contains("permission denied"), "{failure}");
        }
        assert_eq!(
            fixture.ls(json!({"path": "folder"})).unwrap().output,
            "file\n"
        );
        assert_eq!(fixture.bytes("folder/file"), b"old");
        mode(&fixture, "folder", 0o755);
    });
}

#[test]
fn a_folder_that_cannot_be_listed_is_reported_with_the_results() {
    as_nobody(
        "a_folder_that_cannot_be_listed_is_reported_with_the_results",
        || {
            let fixture = Fixture::new();
            fixture.put("closed/file", "x");
            fixture.put("open/file", "x");
            mode(&fixture, "closed", 0);
            let found = fixture.find(json!({"pattern": "file"})).unwrap();
            assert_eq!(found.files, ["open/file"]);
            let skipped = Some("not searched: closed: permission denied".to_owned());
            assert_eq!(found.skipped, skipped);
            let grep = fixture.grep(json!({"pattern": "x"})).unwrap();
            assert_eq!(grep.content, "open/file:1: x\n");
            assert_eq!(grep.details.unwrap().skipped, skipped);
            let failure = message(fixture.ls(json!({"path": "closed"})));
            assert!(failure.contains("permission denied"), "{failure}");
            mode(&fixture, "closed", 0o755);
        },
    );
}

#[test]
fn a_file_of_another_owner_keeps_its_owner_if_the_system_permits() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let fixture = Fixture::new();
    let path = fixture.put("file", "old");
    std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
    mode(&fixture, "file", 0o4755);
    fixture.write("file", "new").unwrap();
    let stat = fs::metadata(&path).unwrap();
    assert_eq!((stat.uid(), stat.gid()), (65534, 65534));
    assert_eq!(stat.mode() & 0o7777, 0o4755);
}
