//! Nothing outside of the root is read, written, listed or quoted in errors.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Command;
use std::time::{Duration, Instant};

use coding_sidecar::workspace::Workspace;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;
use testkit::each_row;

use crate::again;
use crate::fixture::{Fixture, ONLY_OUTSIDE, SECRET, message};

/// Asserts that every operation fails on `path` for one of `reasons`, without changing or showing
/// anything outside.
fn refused(fixture: &Fixture, path: &str, reasons: &[&str]) {
    for (operation, result) in fixture.everything(path) {
        let failure = match result {
            Ok(shown) => panic!("{operation} {path:?} succeeded with {shown}"),
            Err(failure) => failure.to_string(),
        };
        assert!(
            reasons.iter().any(|reason| failure.contains(reason)),
            "{operation} {path:?} failed with {failure:?}"
        );
        assert!(!failure.contains(SECRET));
    }
    assert!(fixture.outside_is_untouched());
}

#[test]
fn a_path_that_leaves_the_root_is_refused_by_every_operation() {
    let fixture = Fixture::new();
    fixture.put("folder/file", "text");
    let base = fixture.base.to_str().unwrap().to_owned();
    let root = fixture.root.to_str().unwrap().to_owned();
    each_row(
        [
            "../outside/secret".to_owned(),
            "..".to_owned(),
            "../".to_owned(),
            "./..".to_owned(),
            "folder/../../outside/secret".to_owned(),
            "folder/../../root/folder/file".to_owned(),
            "../root/folder/file".to_owned(),
            "/etc/passwd".to_owned(),
            "//etc/passwd".to_owned(),
            "/".to_owned(),
            format!("{base}/outside/secret"),
            format!("{root}/../outside/secret"),
            format!("{root}-other/file"),
            format!("{root}x"),
            "/proc/self/root".to_owned() + &base + "/outside/secret",
            "/proc/self/cwd/Cargo.toml".to_owned(),
        ],
        |path| {
            let reasons = ["outside the workspace", "a folder, not a regular file"];
            let file = path.ends_with(char::is_alphanumeric);
            refused(&fixture, &path, &reasons[..if file { 1 } else { 2 }]);
        },
    );
}

#[test]
fn a_symbolic_link_that_is_absolute_or_leaves_the_root_is_refused_by_every_operation() {
    let fixture = Fixture::new();
    let base = fixture.base.to_str().unwrap().to_owned();
    fs::create_dir(fixture.at("folder")).unwrap();
    each_row(
        [
            ("file", "../outside/secret".to_owned(), "file"),
            ("absolute", format!("{base}/outside/secret"), "absolute"),
            ("outside", "../outside".to_owned(), "outside/secret"),
            ("outside2", "../outside".to_owned(), "outside2/new"),
            ("outside3", "../outside".to_owned(), "outside3"),
            ("whole", "/".to_owned(), "whole/etc/passwd"),
            ("chain", "file".to_owned(), "chain"),
            ("folder/up", "../..".to_owned(), "folder/up/outside/secret"),
            (
                "inside",
                fixture.at("folder").to_str().unwrap().to_owned(),
                "inside/x",
            ),
            ("free", "../outside/new".to_owned(), "free"),
        ],
        |(link, target, path)| {
            symlink(&target, fixture.at(link)).unwrap();
            refused(&fixture, path, &["outside the workspace"]);
        },
    );
}

#[test]
fn a_relative_symbolic_link_within_the_root_is_followed() {
    let fixture = Fixture::new();
    fixture.put("a/b/file", "one");
    symlink("../b", fixture.at("a/b/folder")).unwrap();
    symlink("b/folder/file", fixture.at("a/link")).unwrap();
    symlink("a/link", fixture.at("link")).unwrap();
    assert_eq!(fixture.text("link").unwrap(), "one");
    fixture.edit("link", "one", "two").unwrap();
    fixture.write("a/b/folder/other", "new").unwrap();
    // The links are still links; the file to which they lead was replaced.
    assert!(fixture.at("link").is_symlink() && fixture.at("a/link").is_symlink());
    assert_eq!(fixture.bytes("a/b/file"), b"two");
    assert_eq!(fixture.bytes("a/b/other"), b"new");
    symlink("b/made", fixture.at("a/free")).unwrap();
    fixture.write("a/free", "made").unwrap();
    assert_eq!(fixture.bytes("a/b/made"), b"made");
}

#[test]
fn a_ring_of_symbolic_links_is_refused() {
    let fixture = Fixture::new();
    symlink("b", fixture.at("a")).unwrap();
    symlink("a", fixture.at("b")).unwrap();
    refused(&fixture, "a", &["too many symbolic links"]);
    refused(&fixture, "a/x", &["too many symbolic links"]);
}

#[test]
fn links_of_proc_are_not_followed() {
    // A root that has /proc below it, like the root of a whole container.
    let mut fixture = Fixture::new();
    fixture.workspace = Workspace::open("/".as_ref(), false).unwrap();
    let base = fixture.base.to_str().unwrap().to_owned();
    for path in [
        format!("/proc/self/root{base}/outside/secret"),
        format!("proc/self/cwd/../../../../../../../..{base}/outside/secret"),
        "/proc/self/fd/0".to_owned(),
        "proc/self/exe".to_owned(),
    ] {
        let failure = message(fixture.read(json!({"path": path})));
        let refused = failure.contains("link of /proc") || failure.contains("outside");
        assert!(refused, "{path}: {failure}");
    }
}

#[test]
fn absolute_and_relative_paths_below_the_root_are_equivalent() {
    let mut fixture = Fixture::new();
    fixture.put("folder/file", "text");
    let root = fixture.root.to_str().unwrap().to_owned();
    each_row(
        [
            format!("{root}/folder/file"),
            format!("{root}//folder/./file"),
            format!("/.{root}/folder/file"),
            "./folder//file".to_owned(),
            "folder/../folder/file".to_owned(),
        ],
        |path| assert_eq!(fixture.text(&path).unwrap(), "text"),
    );
    // The root may itself be named through a link, or by its real path.
    symlink(&fixture.root, fixture.base.join("alias")).unwrap();
    let alias = fixture.base.join("alias");
    fixture.workspace = Workspace::open(&alias, false).unwrap();
    for root in [alias.to_str().unwrap(), &root] {
        assert_eq!(
            fixture.text(&format!("{root}/folder/file")).unwrap(),
            "text"
        );
    }
}

#[test]
fn write_and_edit_replace_only_the_named_one_of_two_hard_links() {
    let fixture = Fixture::new();
    fixture.put("a", "old");
    fs::hard_link(fixture.at("a"), fixture.at("b")).unwrap();
    assert_eq!(fixture.text("b").unwrap(), "old");
    fixture.write("a", "new").unwrap();
    assert_eq!(fixture.bytes("a"), b"new");
    assert_eq!(fixture.bytes("b"), b"old");
    fs::hard_link(fixture.at("b"), fixture.at("c")).unwrap();
    fixture.edit("b", "old", "edited").unwrap();
    assert_eq!(fixture.bytes("c"), b"old");
    assert_eq!(fixture.bytes("b"), b"edited");
    assert_eq!(fs::metadata(fixture.at("c")).unwrap().nlink(), 1);
}

#[test]
fn a_path_that_no_file_can_have_is_refused_with_its_reason() {
    let fixture = Fixture::new();
    each_row(
        [
            (String::new(), "the path is empty"),
            ("a\0b".to_owned(), "NUL"),
            ("x".repeat(256), "256 bytes long, the limit is 255"),
            (
                format!("a/{}/b", "é".repeat(128)),
                "256 bytes long, the limit is 255",
            ),
            ("a/".repeat(2100), "4200 bytes long, the limit is 4095"),
            ("x".repeat(5_000_000), "5000000 bytes long"),
        ],
        |(path, reason)| {
            refused(&fixture, &path, &[reason]);
            let failure = message(fixture.read(json!({"path": path})));
            assert!(failure.len() < 600 && !failure.contains('\0'));
        },
    );
    // The longest allowed name: reading fails only because the file does not exist, and writing
    // creates it.
    let name = "x".repeat(255);
    let failure = message(fixture.read(json!({"path": name})));
    assert!(failure.contains("no such file"), "{failure}");
    fixture.write(&name, "text").unwrap();
    assert_eq!(fixture.text(&name).unwrap(), "text");
}

#[test]
fn fifos_sockets_and_devices_are_refused_without_blocking() {
    let fixture = Fixture::new();
    rustix::fs::mkfifoat(CWD, fixture.at("fifo"), Mode::from(0o666)).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(fixture.at("socket")).unwrap();
    fs::create_dir(fixture.at("folder")).unwrap();
    let mut rows = vec![("fifo", "a FIFO"), ("socket", "a socket")];
    let device = rustix::fs::makedev(1, 3);
    let made = mknodat(
        CWD,
        fixture.at("null"),
        FileType::CharacterDevice,
        Mode::from(0o666),
        device,
    );
    if made.is_ok() {
        rows.push(("null", "a device"));
    }
    let started = Instant::now();
    each_row(rows, |(path, kind)| {
        refused(&fixture, path, &[kind]);
        let through = format!("{path}-link");
        symlink(path, fixture.at(&through)).unwrap();
        refused(&fixture, &through, &[kind]);
    });
    // A search of the tree leaves out these entries.
    fixture.put("text", "x\n");
    let found = fixture.grep(json!({"pattern": "."})).unwrap();
    assert_eq!(found.content, "text:1: x\n");
    assert!(started.elapsed() < Duration::from_secs(10));
    for (operation, result) in fixture.everything("folder") {
        let succeeds = matches!(operation, "ls" | "find" | "grep");
        assert_eq!(result.is_ok(), succeeds, "{operation}: {result:?}");
        if let Err(failure) = result {
            assert!(failure.to_string().contains("a folder, not a regular file"));
        }
    }
    assert_eq!(
        message(fixture.write("folder/", "x")),
        "folder/: a folder, not a regular file"
    );
}

#[test]
fn operations_on_a_fifo_do_not_wake_its_writer() {
    let fixture = Fixture::new();
    rustix::fs::mkfifoat(CWD, fixture.at("fifo"), Mode::from(0o666)).unwrap();
    let path = fixture.at("fifo");
    // Blocks until the FIFO is opened for reading.
    let writer = std::thread::spawn(move || File::options().write(true).open(path).is_ok());
    std::thread::sleep(Duration::from_millis(100));
    refused(&fixture, "fifo", &["a FIFO"]);
    std::thread::sleep(Duration::from_millis(100));
    assert!(!writer.is_finished());
    let _reader = File::open(fixture.at("fifo")).unwrap();
    assert!(writer.join().unwrap());
}

#[test]
fn a_file_where_a_folder_is_expected_is_refused() {
    let fixture = Fixture::new();
    fixture.put("file", "text");
    refused(
        &fixture,
        "file/below",
        &["a part of the path is a file where a folder is expected"],
    );
    for (operation, result) in fixture.everything("file/") {
        assert!(result.is_err(), "{operation}: {result:?}");
    }
    assert!(message(fixture.ls(json!({"path": "file"}))).contains("a regular file, not a folder"));
    assert!(
        message(fixture.find(json!({"path": "file", "pattern": "*"})))
            .contains("a regular file, not a folder")
    );
    assert_eq!(fixture.bytes("file"), b"text");
}

#[test]
fn a_mount_below_the_root_is_within_it_and_its_mount_point_cannot_be_replaced() {
    if !again::is_again() {
        return again::run(
            "escapes::a_mount_below_the_root_is_within_it_and_its_mount_point_cannot_be_replaced",
            &["unshare", "--map-root-user", "--mount", "--"],
        );
    }
    let fixture = Fixture::new();
    fs::create_dir(fixture.at("mounted")).unwrap();
    fixture.put("file", "under");
    let mount = |arguments: &[&str]| {
        let status = Command::new("mount").args(arguments).status().unwrap();
        assert!(status.success(), "mount {arguments:?}");
    };
    let outside = fixture.base.join("outside");
    let at = |path: &str| fixture.at(path).to_str().unwrap().to_owned();
    mount(&["--bind", outside.to_str().unwrap(), &at("mounted")]);
    mount(&[
        "--bind",
        outside.join("secret").to_str().unwrap(),
        &at("file"),
    ]);
    assert_eq!(fixture.text("mounted/secret").unwrap(), SECRET);
    let found = fixture.find(json!({"pattern": "secret"})).unwrap();
    assert_eq!(found.files, ["mounted/secret"]);
    // `mounted/..` is the root and not the parent of the mount's source, so this path leaves the
    // root.
    let failure = message(fixture.read(json!({"path": "mounted/../../outside/secret"})));
    assert!(failure.contains("outside the workspace"), "{failure}");
    assert_eq!(fixture.text("file").unwrap(), SECRET);
    let failure = message(fixture.write("file", "new"));
    assert!(failure.contains("a mount point"), "{failure}");
    assert!(fixture.outside_is_untouched());
    mount(&["-o", "remount,bind,ro", &at("mounted")]);
    for failure in [
        message(fixture.write("mounted/new", "x")),
        message(fixture.write("mounted/secret", "x")),
        message(fixture.edit("mounted/secret", SECRET, "x")),
        message(fixture.write("mounted/a/b", "x")),
    ] {
        assert!(failure.contains("read-only"), "{failure}");
    }
}

#[test]
fn files_outside_the_root_are_reachable_if_this_is_allowed() {
    let mut fixture = Fixture::new();
    fixture.workspace = Workspace::open(&fixture.root, true).unwrap();
    let outside = fixture.base.join("outside");
    let secret = outside.join("secret").to_str().unwrap().to_owned();
    assert_eq!(fixture.text(&secret).unwrap(), SECRET);
    assert_eq!(fixture.text("../outside/secret").unwrap(), SECRET);
    symlink(&secret, fixture.at("link")).unwrap();
    fixture.edit("link", SECRET, "edited").unwrap();
    assert_eq!(fs::read_to_string(&secret).unwrap(), "edited");
    let new = outside.join("a/b/new").to_str().unwrap().to_owned();
    fixture.write(&new, "text").unwrap();
    let found = fixture
        .find(json!({"path": outside.to_str().unwrap(), "pattern": "*"}))
        .unwrap();
    let other = outside.join(ONLY_OUTSIDE).to_str().unwrap().to_owned();
    assert_eq!(found.files, [other, secret, new]);
    fixture.write("in/side", "text").unwrap();
    assert_eq!(fixture.bytes("in/side"), b"text");
}

#[test]
fn a_root_that_is_not_a_folder_is_not_opened() {
    let fixture = Fixture::new();
    fixture.put("file", "");
    for path in ["file", "absent"] {
        assert!(Workspace::open(&fixture.at(path), false).is_err());
    }
}
