//! `ls`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use serde_json::json;
use testkit::each_row;

use crate::fixture::{Fixture, message};

#[test]
fn a_folder_is_listed_in_order_with_its_folders_marked() {
    let fixture = Fixture::new();
    fixture.put("b/c/file", "");
    fixture.put(".hidden", "");
    fixture.put("Z", "");
    fixture.put("a b", "");
    fixture.put("line\nbreak", "");
    fs::write(fixture.at(OsStr::from_bytes(b"caf\xe9")), "").unwrap();
    symlink("b/c", fixture.at("to-folder")).unwrap();
    symlink("../b", fixture.at("b/beside")).unwrap();
    symlink("Z", fixture.at("to-file")).unwrap();
    symlink("../outside", fixture.at("to-outside")).unwrap();
    symlink("nowhere", fixture.at("to-nothing")).unwrap();
    let listed = ".hidden\nZ\na b\nb/\ncaf\u{fffd}\nline\\nbreak\nto-file\nto-folder/\nto-nothing\nto-outside\n";
    for request in [json!({}), json!({"path": "."}), json!({"path": "b/.."})] {
        let result = serde_json::to_value(fixture.ls(request).unwrap()).unwrap();
        assert_eq!(result, json!({"output": listed}));
    }
    assert_eq!(
        fixture.ls(json!({"path": "b"})).unwrap().output,
        "beside/\nc/\n"
    );
    fs::create_dir(fixture.at("empty")).unwrap();
    assert_eq!(fixture.ls(json!({"path": "empty"})).unwrap().output, "");
    assert_eq!(
        message(fixture.ls(json!({"limit": 0}))),
        "limit must be at least 1"
    );
}

#[test]
fn a_listing_ends_at_its_limit_or_at_the_bound_on_bytes_and_counts_the_rest() {
    let fixture = Fixture::new();
    for number in 0..2500 {
        fixture.put(&format!("{number:04}"), "");
    }
    for number in 0..300 {
        fixture.put(&format!("wide/{number:03}{}", "x".repeat(240)), "");
    }
    each_row(
        [
            (json!({}), 500, (2501, 12_506), "lines"),
            (json!({"limit": 3}), 3, (2501, 12_506), "lines"),
            (json!({"limit": 100_000}), 2000, (2501, 12_506), "lines"),
            (json!({"path": "wide"}), 209, (300, 73_200), "bytes"),
            (
                json!({"path": "wide", "limit": 100}),
                100,
                (300, 73_200),
                "lines",
            ),
        ],
        |(request, lines, (total, bytes), by)| {
            let result = serde_json::to_value(fixture.ls(request).unwrap()).unwrap();
            let output = result["output"].as_str().unwrap();
            assert_eq!(output.lines().count(), lines);
            assert!(output.starts_with("0000\n") || output.starts_with("000x"));
            let truncation = &result["truncation"];
            assert_eq!(truncation["truncatedBy"], by);
            assert_eq!(truncation["totalLines"], total);
            assert_eq!(truncation["totalBytes"], bytes);
            assert_eq!(truncation["maxLines"], 2000);
            assert_eq!(truncation["outputLines"], lines);
        },
    );
}
