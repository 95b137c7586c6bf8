//! Bundles that are read, and bundles that are refused.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use serde_json::json;
use tar::{Builder, EntryType, Header};

use super::super::files::BundleFiles;
use super::*;

const POLICY: &str = "package mcp.authz\n\ndecision := \"allow\"\n";

/// A directory with files.
fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    directory
}

/// A gzipped archive with entries, whose names may be invalid.
fn archive(entries: &[(&str, EntryType, &[u8])]) -> tempfile::NamedTempFile {
    let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (path, kind, content) in entries {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(*kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        if *kind == EntryType::Symlink {
            header.set_link_name("/etc/passwd").unwrap();
        }
        header.set_cksum();
        builder.append(&header, *content).unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), builder.into_inner().unwrap().finish().unwrap()).unwrap();
    file
}

fn refusal(path: &Path) -> String {
    Bundle::read(path).unwrap_err().to_string()
}

#[test]
fn the_digest_covers_every_file_that_is_read_with_its_path() {
    let digest = |files: &[(&str, &str)]| Bundle::read(directory(files).path()).unwrap().digest;
    let first = digest(&[("authz.rego", POLICY), ("data.json", "{}")]);
    testkit::each_row(
        [
            (vec![("authz.rego", POLICY), ("data.json", "{}")], true),
            (
                vec![
                    ("authz.rego", POLICY),
                    ("data.json", "{}"),
                    ("README.md", "no data"),
                ],
                true,
            ),
            (vec![("authz.rego", POLICY), ("data.json", "{} ")], false),
            (vec![("authz.rego", POLICY), ("a/data.json", "{}")], false),
            (vec![("authz.rego", POLICY)], false),
            (
                vec![
                    ("authz.rego", POLICY),
                    ("data.json", "{}"),
                    (".manifest", "{}"),
                ],
                false,
            ),
        ],
        |(files, is_equal)| assert_eq!(digest(&files) == first, is_equal, "{files:?}"),
    );
    let entries = [
        ("data.json", EntryType::Regular, "{}".as_bytes()),
        ("./authz.rego", EntryType::Regular, POLICY.as_bytes()),
    ];
    let archived = Bundle::read(archive(&entries).path()).unwrap();
    assert_eq!(archived.digest, first, "an archive of the same files");
}

#[test]
fn data_is_read_at_the_path_of_its_directories() {
    let directory = directory(&[
        ("authz.rego", POLICY),
        ("authz_test.rego", "no policy"),
        ("README.md", "no data"),
        ("data.json", r#"{"a": {"b": 1}}"#),
        ("a/c/data.yaml", "list: [x, 2, true, null, 'no', 1.5]\n"),
        ("a/d/data.json", "[1, 2]"),
    ]);
    let bundle = Bundle::read(directory.path()).unwrap();
    assert_eq!(
        bundle.policies,
        [("authz.rego".to_owned(), POLICY.to_owned())]
    );
    let list = json!(["x", 2, true, null, "no", 1.5]);
    let data = json!({"a": {"b": 1, "c": {"list": list}, "d": [1, 2]}});
    assert_eq!(bundle.data, data);
}

#[test]
fn an_archive_is_read_like_a_directory() {
    let manifest = br#"{"revision": "7", "roots": ["mcp", "limits"], "metadata": {"by": "us"}}"#;
    let archive = archive(&[
        ("/.manifest", EntryType::Regular, manifest),
        ("./mcp/", EntryType::Directory, b""),
        ("./mcp/authz.rego", EntryType::Regular, POLICY.as_bytes()),
        ("limits/data.json", EntryType::Regular, b"{\"most\": 3}"),
    ]);
    let bundle = Bundle::read(archive.path()).unwrap();
    assert_eq!(bundle.manifest.revision, "7");
    assert_eq!(bundle.manifest.metadata["by"], "us");
    assert_eq!(bundle.data, json!({"limits": {"most": 3}}));
    assert_eq!(bundle.policies[0].0, "mcp/authz.rego");
}

#[test]
fn directories_that_are_not_valid_bundles_are_refused() {
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[("data.json", "{}")], "no .rego file"),
        (
            &[("p.rego", POLICY), ("data.json", "[1]")],
            "must be an object",
        ),
        (
            &[("p.rego", POLICY), ("data.json", "{")],
            "data.json: the JSON is malformed",
        ),
        (
            &[("p.rego", POLICY), ("data.json", r#"{"a":1,"a":2}"#)],
            "data.json",
        ),
        (
            &[("p.rego", POLICY), ("data.yaml", "a: &x 1\nb: *x\n")],
            "anchors",
        ),
        (&[("p.rego", POLICY), ("data.yaml", "a: !t 1\n")], "line 1"),
        (
            &[("p.rego", POLICY), ("data.yaml", "a: 1\na: 2\n")],
            "line 2: the key \"a\"",
        ),
        (
            &[("p.rego", POLICY), ("data.yaml", "a: 1\n---\nb: 1\n")],
            "one document",
        ),
        (
            &[
                ("p.rego", POLICY),
                ("data.json", r#"{"a":{"b":1}}"#),
                ("a/data.json", r#"{"b":1}"#),
            ],
            "data.json: a/b is defined twice",
        ),
        (
            &[
                ("p.rego", POLICY),
                (".manifest", r#"{"roots": ["a", "a/b"]}"#),
            ],
            "overlaps",
        ),
        (
            &[("p.rego", POLICY), (".manifest", r#"{"rego_version": 2}"#)],
            "rego_version 2",
        ),
        (&[("p.rego", POLICY), (".manifest", "[]")], ".manifest: "),
        (
            &[
                ("p.rego", POLICY),
                (".manifest", r#"{"roots": ["mcp"]}"#),
                ("other/data.json", r#"{"x": 1}"#),
            ],
            "data: other is outside the roots of .manifest: mcp",
        ),
        (
            &[
                ("p.rego", POLICY),
                (".manifest", r#"{"roots": ["mcp/limits"]}"#),
                ("data.json", r#"{"mcp": {"other": 1}}"#),
            ],
            "mcp/other is outside",
        ),
    ];
    testkit::each_row(cases, |(files, expected)| {
        let error = refusal(directory(files).path());
        assert!(error.contains(expected), "{error:?}");
    });
}

#[test]
fn archives_with_invalid_entries_are_refused() {
    let policy = POLICY.as_bytes();
    type Member<'a> = (&'a str, EntryType, &'a [u8]);
    let cases: &[(&[Member<'_>], &str)] = &[
        (
            &[("../p.rego", EntryType::Regular, policy)],
            "leads out of the bundle",
        ),
        (
            &[("a/../../p.rego", EntryType::Regular, policy)],
            "leads out of the bundle",
        ),
        (&[("p.rego", EntryType::Symlink, b"")], "not a regular file"),
        (&[("p.rego", EntryType::Link, b"")], "not a regular file"),
        (&[("p.rego", EntryType::Fifo, b"")], "not a regular file"),
        (
            &[
                ("p.rego", EntryType::Regular, policy),
                ("./p.rego", EntryType::Regular, policy),
            ],
            "in the archive twice",
        ),
        (
            &[(
                "a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/p.rego",
                EntryType::Regular,
                policy,
            )],
            "more than 16 directories",
        ),
        (
            &[("p.rego", EntryType::Regular, b"\xff")],
            "p.rego: the file is not UTF-8",
        ),
    ];
    testkit::each_row(cases, |(entries, expected)| {
        let error = refusal(archive(entries).path());
        assert!(error.contains(expected), "{error:?}");
    });
}

#[test]
fn links_in_a_directory_are_refused() {
    let directory = directory(&[("p.rego", POLICY)]);
    symlink("/etc/passwd", directory.path().join("data.json")).unwrap();
    let error = refusal(directory.path());
    assert!(error.contains("data.json is not a regular file"), "{error}");
}

#[test]
fn a_bundle_that_unpacks_to_too_much_is_refused() {
    let large = vec![b' '; 17 << 20];
    let archive = archive(&[("data.json", EntryType::Regular, &large)]);
    assert!(fs::metadata(archive.path()).unwrap().len() < 1 << 20);
    assert!(refusal(archive.path()).contains("more than 16777216 bytes"));
}

#[test]
fn an_archive_that_is_cut_off_at_the_limit_is_refused() {
    // The first file fills the limit exactly, so the header of the second begins behind it.
    let skipped = vec![0; (32 << 20) - 512];
    let archive = archive(&[
        ("README.md", EntryType::Regular, &skipped),
        ("authz.rego", EntryType::Regular, POLICY.as_bytes()),
    ]);
    assert!(refusal(archive.path()).contains("more than 33554432 bytes"));
}

#[test]
fn a_bundle_of_too_many_files_is_refused() {
    let names: Vec<_> = (0..4097).map(|number| format!("{number}.txt")).collect();
    let file = |name| (name, EntryType::Regular, &b""[..]);
    let entries: Vec<_> = names.iter().map(|name| file(name.as_str())).collect();
    assert!(refusal(archive(&entries).path()).contains("more than 4096"));
}

#[test]
fn a_path_that_is_not_a_bundle_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "plain text").unwrap();
    assert!(refusal(file.path()).contains("the archive cannot be read"));
    assert!(refusal(Path::new("/nonexistent")).contains("/nonexistent cannot be read"));
    assert!(refusal(Path::new("/dev/null")).contains("neither a directory nor"));
}

proptest! {
    #[test]
    fn the_yaml_parser_reads_json_as_the_same_value(value in value()) {
        // JSON is YAML.
        prop_assert_eq!(yaml::parse(&value.to_string()), Ok(value));
    }

    #[test]
    fn reading_a_damaged_archive_never_panics(cut in 0_usize..400, flip in 0_usize..400) {
        let whole = archive(&[("p.rego", EntryType::Regular, POLICY.as_bytes())]);
        let mut bytes = fs::read(whole.path()).unwrap();
        if let Some(byte) = bytes.get_mut(flip) {
            *byte ^= 0x55;
        }
        bytes.truncate(bytes.len().saturating_sub(cut));
        fs::write(whole.path(), bytes).unwrap();
        if let Ok(bundle) = Bundle::read(whole.path()) {
            prop_assert!(!bundle.policies.is_empty());
        }
    }
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[ -~]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,4}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

#[test]
fn versions_change_with_the_files_that_are_read_and_with_the_error_of_a_bundle() {
    let directory = directory(&[("authz.rego", POLICY), ("a/data.json", "{}")]);
    let file = directory.path().join("bundle.tar.gz");
    let paths = [directory.path().to_owned(), file.clone()];
    let mut before = BundleFiles::of(paths);
    let mut has_changed = || {
        let now = before.read_again();
        std::mem::replace(&mut before, now) != before
    };
    type Change = fn(&Path) -> std::io::Result<()>;
    let changes: [(&str, Change, bool); 8] = [
        ("authz.rego", |path| fs::write(path, "package b"), true),
        ("a/data.json", |path| fs::write(path, "[]"), true),
        ("a/more.rego", |path| fs::write(path, POLICY), true),
        ("a/more.rego", |path| fs::remove_file(path), true),
        ("README.md", |path| fs::write(path, "none"), false),
        ("bundle.tar.gz", |path| fs::write(path, "archive"), true),
        ("link", |path| symlink("/etc/passwd", path), true),
        ("link", |path| fs::remove_file(path), true),
    ];
    testkit::each_row(changes, |(name, change, is_noticed)| {
        assert!(!has_changed());
        change(&directory.path().join(name)).unwrap();
        assert_eq!(has_changed(), is_noticed);
    });
}

#[test]
fn versions_change_with_the_target_of_a_link_to_a_bundle() {
    let targets = [POLICY; 2].map(|policy| directory(&[("authz.rego", policy)]));
    let links = tempfile::tempdir().unwrap();
    let (link, new) = (links.path().join("link"), links.path().join("new"));
    symlink(targets[0].path(), &link).unwrap();
    let before = BundleFiles::of([link.clone()]);
    assert!(before.read_again() == before);
    symlink(targets[1].path(), &new).unwrap();
    fs::rename(new, link).unwrap();
    assert!(before.read_again() != before);
}

#[test]
fn the_walk_for_versions_is_bounded() {
    let directory = directory(&[("authz.rego", POLICY)]);
    for number in 0..4096 {
        fs::write(directory.path().join(number.to_string()), "").unwrap();
    }
    let first = BundleFiles::of([directory.path().to_owned()]);
    fs::write(directory.path().join("authz.rego"), "package b").unwrap();
    assert!(first.read_again() == first, "no version is kept");
    fs::remove_file(directory.path().join("0")).unwrap();
    assert!(first.read_again() != first);
}
