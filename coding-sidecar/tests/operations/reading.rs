//! `read`.

use std::fs;

use base64::Engine;
use coding_sidecar::files::ReadResult;
use proptest::prelude::*;
use serde_json::{Value, json};
use testkit::each_row;

use crate::fixture::{Fixture, message};

fn shown(fixture: &Fixture, request: Value) -> Value {
    serde_json::to_value(fixture.read(request).unwrap()).unwrap()
}

#[test]
fn lines_are_returned_with_their_ends() {
    let fixture = Fixture::new();
    fixture.put("file", "one\r\ntwo\n\nfour");
    fixture.put("empty", "");
    each_row(
        [
            (json!({"path": "file"}), "one\r\ntwo\n\nfour", 4, false),
            (json!({"path": "file", "limit": 1}), "one\r\n", 4, true),
            (
                json!({"path": "file", "offset": 2, "limit": 2}),
                "two\n\n",
                4,
                true,
            ),
            (json!({"path": "file", "offset": 4}), "four", 4, false),
            (
                json!({"path": "file", "offset": 1, "limit": 4}),
                "one\r\ntwo\n\nfour",
                4,
                false,
            ),
            (
                json!({"path": "file", "offset": 3, "limit": u64::MAX}),
                "\nfour",
                4,
                false,
            ),
            (json!({"path": "empty"}), "", 0, false),
            (json!({"path": "empty", "offset": 1}), "", 0, false),
        ],
        |(request, content, total, more)| {
            let expected = json!({
                "type": "text", "content": content, "totalLines": total, "hasMore": more,
            });
            assert_eq!(shown(&fixture, request), expected);
        },
    );
}

#[test]
fn missing_files_missing_lines_and_empty_ranges_are_refused() {
    let fixture = Fixture::new();
    fixture.put("file", "one\ntwo\n");
    fixture.put("empty", "");
    each_row(
        [
            (
                json!({"path": "file", "offset": 0}),
                "offset counts lines from 1",
            ),
            (
                json!({"path": "file", "limit": 0}),
                "limit must be at least 1",
            ),
            (
                json!({"path": "file", "offset": 3}),
                "file: offset 3 is beyond the last of its 2 lines",
            ),
            (
                json!({"path": "file", "offset": u64::MAX}),
                "beyond the last",
            ),
            (
                json!({"path": "empty", "offset": 2}),
                "beyond the last of its 0 lines",
            ),
            (json!({"path": "absent"}), "absent: no such file or folder"),
        ],
        |(request, reason)| {
            let failure = message(fixture.read(request));
            assert!(failure.contains(reason), "{failure}");
        },
    );
}

#[test]
fn missing_unknown_and_invalid_fields_are_refused() {
    for request in [
        json!({}),
        json!({"path": "a", "other": 1}),
        json!({"path": 1}),
        json!({"path": "a", "offset": -1}),
        json!({"path": "a", "offset": 1.5}),
    ] {
        let read: Result<coding_sidecar::files::ReadRequest, _> = serde_json::from_value(request);
        assert!(read.is_err());
    }
}

#[test]
fn a_text_is_cut_at_the_bounds_of_a_result() {
    let fixture = Fixture::new();
    fixture.put("many", "x\n".repeat(5000));
    fixture.put("wide", format!("{}\n", "y".repeat(999)).repeat(100));
    fixture.put("line", "z".repeat(60_000) + "\nlast\n");
    each_row(
        [
            ("many", json!("lines"), 2000, 5000, true),
            ("wide", json!("bytes"), 51, 100, true),
            ("line", json!("bytes"), 1, 2, true),
        ],
        |(path, by, lines, total, more)| {
            let shown = shown(&fixture, json!({"path": path}));
            let truncation = &shown["truncation"];
            assert_eq!(truncation["truncatedBy"], by);
            assert_eq!(truncation["outputLines"], lines);
            assert_eq!(truncation["totalLines"], total);
            assert_eq!(truncation["content"], shown["content"]);
            assert_eq!(truncation["firstLineExceedsLimit"], path == "line");
            assert_eq!(shown["totalLines"], total);
            assert_eq!(shown["hasMore"], more);
        },
    );
    let next = shown(&fixture, json!({"path": "line", "offset": 2}));
    assert_eq!(next["content"], "last\n");
    // The totals of the truncation do not count lines that the request left out.
    let some = shown(
        &fixture,
        json!({"path": "many", "limit": 3000, "offset": 2}),
    );
    assert_eq!(some["truncation"]["totalLines"], 3000);
    assert_eq!(some["truncation"]["totalBytes"], 6000);
}

#[test]
fn images_up_to_4_mib_are_returned_in_base64_with_their_mime_type() {
    let fixture = Fixture::new();
    each_row(
        [
            ("a.png", &b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..], "image/png"),
            ("b", b"\xff\xd8\xff\xe0\0\x10JFIF", "image/jpeg"),
            ("c.txt", b"GIF89a\x01\0\x01\0\x80", "image/gif"),
            ("d", b"RIFF\x24\0\0\0WEBPVP8 ", "image/webp"),
        ],
        |(path, content, mime_type)| {
            fixture.put(path, content);
            let data = base64::engine::general_purpose::STANDARD.encode(content);
            let expected = json!({"type": "image", "data": data, "mimeType": mime_type});
            assert_eq!(shown(&fixture, json!({"path": path})), expected);
        },
    );
    let large = [b"\x89PNG\r\n\x1a\n\0".to_vec(), vec![7; 4 * 1024 * 1024]].concat();
    fixture.put("large.png", &large);
    let failure = message(fixture.read(json!({"path": "large.png"})));
    assert!(
        failure.contains("image/png of more than 4194304 bytes"),
        "{failure}"
    );
    fixture.put("large.png", &large[..4 * 1024 * 1024]);
    assert_eq!(
        shown(&fixture, json!({"path": "large.png"}))["type"],
        "image"
    );
}

#[test]
fn files_that_are_not_images_are_refused_if_they_have_a_nul_byte_and_shown_otherwise() {
    let fixture = Fixture::new();
    let elf = fs::read(std::env::current_exe().unwrap()).unwrap();
    let late = [vec![b'x'; 20_000], vec![0]].concat();
    each_row(
        [
            ("elf", &elf[..10_000], "a binary file (NUL at byte 7"),
            ("utf-16", b"\xff\xfea\0b\0", "NUL at byte 3"),
            ("late", &late, "NUL at byte 20000"),
            ("bmp", b"BM\x46\0\0\0", "not a PNG, JPEG, GIF or WebP"),
        ],
        |(path, content, reason)| {
            fixture.put(path, content);
            let failure = message(fixture.read(json!({"path": path})));
            assert!(failure.contains(reason), "{failure}");
        },
    );
    each_row(
        [
            ("latin-1", &b"caf\xe9\n"[..], "caf\u{fffd}\n"),
            ("gif-text", b"GIF89a is a format\n", "GIF89a is a format\n"),
            ("riff-text", b"RIFF....WEBP...", "RIFF....WEBP..."),
            ("bom", b"\xef\xbb\xbfx", "\u{feff}x"),
            ("cut", b"a\xe2\x82", "a\u{fffd}"),
        ],
        |(path, content, text)| {
            fixture.put(path, content);
            assert_eq!(fixture.text(path).unwrap(), text);
        },
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn reading_by_pages_concatenates_to_the_file(
        lines in prop::collection::vec("[a-zé\r\u{feff}€]{0,12}", 0..60),
        ends_with_newline in any::<bool>(),
        repeat in prop_oneof![Just(1_usize), Just(300)],
        limit in 1_u64..40,
    ) {
        let mut content = lines.join("\n").repeat(repeat);
        if ends_with_newline {
            content.push('\n');
        }
        let fixture = Fixture::new();
        fixture.put("file", &content);
        let limit = limit * repeat as u64;
        let mut offset = 1;
        let mut pages = String::new();
        loop {
            let request = json!({"path": "file", "offset": offset, "limit": limit});
            let ReadResult::Text { content: page, total_lines, has_more, truncation } =
                fixture.read(request).unwrap() else { panic!("no text") };
            prop_assert_eq!(total_lines, content.lines().count().max(content.split_inclusive('\n').count()) as u64);
            pages.push_str(&page);
            offset += truncation.map_or(limit, |truncation| truncation.output_lines);
            prop_assert_eq!(has_more, offset <= total_lines);
            if !has_more {
                break;
            }
        }
        prop_assert_eq!(pages, content);
    }
}
