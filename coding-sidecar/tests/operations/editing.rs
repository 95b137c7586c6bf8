//! `edit`.

use std::process::Command;

use proptest::prelude::*;
use testkit::each_row;

use crate::fixture::{Fixture, message};

#[test]
fn a_text_that_occurs_once_is_replaced_and_the_diff_shown() {
    let fixture = Fixture::new();
    let lines: String = (1..=20)
        .map(|number| format!("line {number:02}\n"))
        .collect();
    fixture.put("folder/file", &lines);
    let result = fixture
        .edit("folder/file", "line 10\nline 11", "line X")
        .unwrap();
    assert_eq!(
        serde_json::to_value(&result).unwrap(),
        serde_json::json!({"ok": true, "path": "folder/file", "diff": result.diff})
    );
    assert_eq!(
        result.diff,
        "--- folder/file\n+++ folder/file\n@@ -7,8 +7,7 @@\n line 07\n line 08\n line 09\n\
         -line 10\n-line 11\n+line X\n line 12\n line 13\n line 14\n"
    );
    let expected = lines.replace("line 10\nline 11", "line X");
    assert_eq!(fixture.text("folder/file").unwrap(), expected);
}

#[test]
fn edits_that_cannot_be_made_are_refused_with_the_reason() {
    let fixture = Fixture::new();
    let content = "aXa\nb\naa a\nmixed\r\nends\n";
    fixture.put("file", content);
    each_row(
        [
            ("c", "x", "oldText does not occur in the file"),
            ("B", "x", "oldText does not occur"),
            ("\nb\n ", "x", "oldText does not occur"),
            (
                "a",
                "x",
                "oldText occurs more than once, first on lines 1 and 1",
            ),
            ("a\n", "x", "first on lines 1 and 3"),
            ("mixed\nends", "x", "occurs with other line ends"),
            ("b\r\naa", "x", "occurs with other line ends"),
            ("", "x", "oldText is empty"),
            ("b", "b", "oldText and newText are the same"),
        ],
        |(old, new, reason)| {
            let failure = message(fixture.edit("file", old, new));
            assert!(failure.contains(reason), "{failure}");
            assert_eq!(fixture.bytes("file"), content.as_bytes());
        },
    );
    // Overlapping matches count as two.
    fixture.put("overlap", "xaaax");
    assert!(message(fixture.edit("overlap", "aa", "b")).contains("more than once"));
    assert_eq!(
        message(fixture.edit("absent", "a", "b")),
        "absent: no such file or folder"
    );
    fixture.put("large", vec![b'x'; 16 * 1024 * 1024 + 1]);
    assert!(message(fixture.edit("large", "a", "b")).contains("larger than 16777216 bytes"));
}

#[test]
fn line_ends_and_bytes_that_are_not_edited_are_kept() {
    let fixture = Fixture::new();
    each_row(
        [
            // All line ends are CRLF: LF in a text stands for CRLF.
            (
                &b"a\r\nb\r\nc\r\n"[..],
                "a\nb",
                "x\ny\nz",
                &b"x\r\ny\r\nz\r\nc\r\n"[..],
            ),
            (b"a\r\nb\r\nc", "b", "x\ny", b"a\r\nx\r\ny\r\nc"),
            (b"a\r\nb\r\n", "a\r\nb", "x\r\ny", b"x\r\ny\r\n"),
            (b"\xef\xbb\xbfa\r\nb", "a\n", "\n", b"\xef\xbb\xbf\r\nb"),
            (b"a\r\r\nb\r\n", "b", "c", b"a\r\r\nc\r\n"),
            // Line ends are mixed or LF: the texts are used unchanged.
            (b"a\r\nb\nc\r\n", "b\nc", "x\ny", b"a\r\nx\ny\r\n"),
            (b"a\nb\n", "a", "a\r\nx", b"a\r\nx\nb\n"),
            // No newline is added at the end.
            (b"a\nb", "b", "c", b"a\nc"),
            (b"a\nb\n", "b\n", "b", b"a\nb"),
            // Bytes that are not UTF-8 are kept.
            (
                b"caf\xe9 one\n\xff\xfe",
                "one",
                "two",
                b"caf\xe9 two\n\xff\xfe",
            ),
            (b"a\0b", "b", "c", b"a\0c"),
        ],
        |(content, old, new, edited)| {
            fixture.put("file", content);
            fixture.edit("file", old, new).unwrap();
            assert_eq!(
                fixture.bytes("file").escape_ascii().to_string(),
                edited.escape_ascii().to_string()
            );
        },
    );
}

#[test]
fn a_diff_is_bounded() {
    let fixture = Fixture::new();
    each_row([10_usize, 3_000, 200_000], |lines| {
        let old: String = (0..lines).map(|number| format!("old {number}\n")).collect();
        let new: String = (0..lines).map(|number| format!("new {number}\n")).collect();
        fixture.put("file", format!("before\n{old}after\n"));
        let started = std::time::Instant::now();
        let diff = fixture.edit("file", &old, &new).unwrap().diff;
        assert!(started.elapsed().as_secs() < 10);
        assert!(diff.len() < 52_000);
        assert_eq!(fixture.text("file").unwrap().lines().nth(1), Some("new 0"));
        let cut = diff
            .lines()
            .last()
            .unwrap()
            .ends_with("more lines of the diff are not shown]");
        assert_eq!(cut, lines > 10, "{diff}");
        assert!(
            diff.contains(&format!("@@ -1,{0} +1,{0} @@\n", lines + 2)),
            "{}",
            &diff[..200]
        );
    });
    fixture.put("line", "x".repeat(100_000));
    fixture.edit("line", &"x".repeat(100_000), "y").unwrap();
    fixture.put("line", format!("a{}", "x".repeat(100_000)));
    let diff = fixture.edit("line", "a", "b").unwrap().diff;
    assert!(diff.len() < 52_000 && diff.starts_with("--- line\n+++ line\n@@ -1 +1 @@\n"));
}

/// Lines with one kind of end, or with both mixed.
fn content() -> impl Strategy<Value = String> {
    let lines = prop::collection::vec("[ab€ ]{0,4}", 1..12);
    let ends = prop_oneof![Just("\n"), Just("\r\n"), Just("mixed")];
    let bom = prop_oneof![Just(""), Just("\u{feff}")];
    (lines, ends, any::<bool>(), bom).prop_map(|(lines, end, last, bom)| {
        let mut content = bom.to_owned();
        for (number, line) in lines.iter().enumerate() {
            content.push_str(line);
            if last || number + 1 < lines.len() {
                content.push_str(match end {
                    "mixed" => ["\n", "\r\n"][number % 2],
                    end => end,
                });
            }
        }
        content
    })
}

/// Whether there is at least one LF, and each follows a CR.
fn is_crlf(text: &str) -> bool {
    text.contains('\n') && text.matches('\n').count() == text.matches("\r\n").count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn an_edit_and_its_reverse_restore_the_file(
        content in content(),
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
        new in "[cd\n]{1,6}|c\r\nd",
        lf_only in any::<bool>(),
    ) {
        let at = |index: &prop::sample::Index| {
            content.floor_char_boundary(index.index(content.len() + 1))
        };
        let (from, to) = (at(&from).min(at(&to)), at(&from).max(at(&to)));
        let mut old = content[from..to].to_owned();
        // A model often writes LF where the file has CRLF.
        if lf_only && is_crlf(&content) {
            old = old.replace("\r\n", "\n");
        }
        prop_assume!(!old.is_empty() && content.matches('\n').count() > 1);
        let fixture = Fixture::new();
        fixture.put("file", &content);
        prop_assume!(fixture.edit("file", &old, &new).is_ok());
        let edited = String::from_utf8(fixture.bytes("file")).unwrap();
        prop_assert_eq!(is_crlf(&content) && edited.contains('\n'), is_crlf(&content) && is_crlf(&edited));
        // The reverse edit restores CRLF only if the remaining line ends are still all CRLF.
        prop_assume!(is_crlf(&content) == is_crlf(&edited));
        let back = fixture.edit("file", &new, &old);
        // The reverse edit is refused if `new` occurs more than once in the edited file.
        prop_assume!(back.is_ok());
        prop_assert_eq!(String::from_utf8(fixture.bytes("file")).unwrap(), content);
    }

    #[test]
    fn git_can_apply_the_diff(content in content(), new in "[cd\n]{0,9}", at in any::<prop::sample::Index>()) {
        prop_assume!(!content.contains('\r') && !content.is_empty());
        let fixture = Fixture::new();
        fixture.put("file", &content);
        let start = content.floor_char_boundary(at.index(content.len()));
        let old = &content[start..];
        prop_assume!(!old.is_empty());
        let Ok(result) = fixture.edit("file", old, &new) else { return Ok(()) };
        let edited = fixture.bytes("file");
        fixture.put("file", &content);
        fixture.put("diff", &result.diff);
        let patch = Command::new("git")
            .current_dir(&fixture.root)
            .args(["apply", "-p0", "--unidiff-zero", "--whitespace=nowarn", "diff"])
            .output();
        let Ok(patch) = patch else { return Ok(()) };
        let stderr = String::from_utf8_lossy(&patch.stderr).into_owned();
        if edited.is_empty() {
            return Ok(());
        }
        prop_assert!(patch.status.success(), "{}\n{}", stderr, result.diff);
        prop_assert_eq!(fixture.bytes("file"), edited);
    }
}
