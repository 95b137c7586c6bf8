//! `write`.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use serde_json::json;
use testkit::each_row;

use crate::fixture::{Fixture, message};

#[test]
fn a_file_is_made_with_its_folders() {
    let fixture = Fixture::new();
    each_row(
        [
            "file",
            "a/b/c/file",
            "a/b/other",
            "./d//e/./file",
            "x/../y/file",
        ],
        |path| {
            let result = fixture.write(path, "é\n").unwrap();
            let shown = serde_json::to_value(result).unwrap();
            assert_eq!(shown, json!({"ok": true, "path": path, "bytes": 3}));
            assert_eq!(fixture.bytes(path), "é\n".as_bytes());
        },
    );
    let deep = "d/".repeat(1000) + "file";
    fixture.write(&deep, "deep").unwrap();
    assert_eq!(fixture.text(&deep).unwrap(), "deep");
}

#[test]
fn a_file_is_replaced_and_its_mode_kept() {
    let fixture = Fixture::new();
    each_row([0o644, 0o755, 0o600, 0o777, 0o640], |mode| {
        let path = fixture.put("file", "a longer old text");
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let before = fs::metadata(&path).unwrap().ino();
        fixture.write("file", "new").unwrap();
        assert_ne!(fs::metadata(&path).unwrap().ino(), before);
        fixture.edit("file", "new", "edited").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, mode);
        assert_eq!(fixture.bytes("file"), b"edited");
    });
    fixture.write("empty", "").unwrap();
    assert_eq!(fixture.bytes("empty"), b"");
}

#[test]
fn a_new_file_has_the_mode_that_the_umask_permits() {
    let fixture = Fixture::new();
    let other = fixture.put("other", "");
    fixture.write("new/file", "").unwrap();
    let mode = |path| fs::metadata(path).unwrap().mode();
    assert_eq!(mode(fixture.at("new/file")), mode(other));
    fs::create_dir(fixture.at("other-folder")).unwrap();
    assert_eq!(mode(fixture.at("new")), mode(fixture.at("other-folder")));
}

#[test]
fn a_failed_write_leaves_the_old_file_and_no_temporary_file() {
    let fixture = Fixture::new();
    fixture.put("file", "old");
    let work = crate::fixture::work();
    work.cancel();
    let request = serde_json::from_value(json!({"path": "file", "content": "new"})).unwrap();
    let failure = message(coding_sidecar::files::write(
        &fixture.workspace,
        request,
        &work,
    ));
    assert_eq!(failure, "the operation was cancelled");
    fs::create_dir(fixture.at("folder")).unwrap();
    for path in ["folder", "file/x", ".", "folder/.."] {
        assert!(fixture.write(path, "x").is_err(), "{path}");
    }
    assert_eq!(fixture.bytes("file"), b"old");
    let names: Vec<_> = fs::read_dir(&fixture.root)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn a_full_disk_is_reported_and_the_old_file_kept() {
    // A tmpfs of 64 KiB needs a mount namespace.
    if !crate::again::is_again() {
        return crate::again::run(
            "writing::a_full_disk_is_reported_and_the_old_file_kept",
            &["unshare", "--map-root-user", "--mount", "--"],
        );
    }
    let fixture = Fixture::new();
    fs::create_dir(fixture.at("small")).unwrap();
    let status = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "none"])
        .arg(fixture.at("small"))
        .status()
        .unwrap();
    assert!(status.success());
    fixture.put("small/file", "old");
    let failure = message(fixture.write("small/file", &"x".repeat(100_000)));
    assert_eq!(failure, "small/file: no space left");
    assert_eq!(fixture.bytes("small/file"), b"old");
    assert_eq!(
        fixture.ls(json!({"path": "small"})).unwrap().output,
        "file\n"
    );
}
