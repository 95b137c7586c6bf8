//! `grep`.

use serde_json::{Value, json};
use testkit::each_row;

use crate::fixture::{Fixture, message};

fn content(fixture: &Fixture, request: Value) -> String {
    fixture.grep(request).unwrap().content
}

#[test]
fn lines_are_found_by_pattern_and_options() {
    let fixture = Fixture::new();
    fixture.put("a.rs", "fn one() {}\r\nfn two() {}\nlet x = \"a.b\";\n");
    fixture.put("sub/b.txt", "One\naxb\nlast one");
    each_row(
        [
            (
                json!({"pattern": "fn \\w+"}),
                "a.rs:1: fn one() {}\na.rs:2: fn two() {}\n",
            ),
            (
                json!({"pattern": "one"}),
                "a.rs:1: fn one() {}\nsub/b.txt:3: last one\n",
            ),
            (
                json!({"pattern": "ONE$", "ignoreCase": true}),
                "sub/b.txt:1: One\nsub/b.txt:3: last one\n",
            ),
            (
                json!({"pattern": "a.b"}),
                "a.rs:3: let x = \"a.b\";\nsub/b.txt:2: axb\n",
            ),
            (
                json!({"pattern": "a.b", "literal": true}),
                "a.rs:3: let x = \"a.b\";\n",
            ),
            (
                json!({"pattern": "(", "literal": true, "glob": "*.rs", "limit": 1}),
                "a.rs:1: fn one() {}\n",
            ),
            (
                json!({"pattern": "^one|^One", "glob": "*.txt"}),
                "sub/b.txt:1: One\n",
            ),
            (
                json!({"pattern": "one", "glob": "!*.rs"}),
                "sub/b.txt:3: last one\n",
            ),
            (
                json!({"pattern": "one", "glob": "sub/**"}),
                "sub/b.txt:3: last one\n",
            ),
            (
                json!({"pattern": "one", "path": "sub"}),
                "sub/b.txt:3: last one\n",
            ),
            (
                json!({"pattern": "one", "path": "sub/b.txt"}),
                "sub/b.txt:3: last one\n",
            ),
            (
                json!({"pattern": "one", "path": "sub/b.txt", "glob": "*.rs"}),
                "",
            ),
            (json!({"pattern": "absent"}), ""),
        ],
        |(request, expected)| assert_eq!(content(&fixture, request), expected),
    );
}

#[test]
fn optional_fields_may_be_null_and_counts_may_be_floats_without_a_fraction() {
    let fixture = Fixture::new();
    fixture.put("a", "one\ntwo\n");
    let request = json!({"pattern": "o", "path": null, "glob": null, "ignoreCase": null,
        "literal": null, "context": null, "limit": 1.0});
    let found = fixture.grep(request).unwrap();
    assert_eq!(found.content, "a:1: one\n");
    let request = json!({"path": "a", "offset": 2.0, "limit": null});
    assert_eq!(
        serde_json::to_value(fixture.read(request).unwrap()).unwrap()["content"],
        "two\n"
    );
    fixture.ls(json!({"path": null, "limit": 5.0})).unwrap();
    fixture
        .find(json!({"pattern": "*", "path": null, "limit": 5.0}))
        .unwrap();
}

#[test]
fn context_is_shown_around_matches() {
    let fixture = Fixture::new();
    fixture.put("f", "1\n2\nx3\n4\n5\n6\n7\nx8\nx9\n10\n");
    let lines = "f-2- 2\nf:3: x3\nf-4- 4\nf-7- 7\nf:8: x8\nf:9: x9\nf-10- 10\n";
    assert_eq!(
        content(&fixture, json!({"pattern": "x", "context": 1})),
        lines
    );
    // The limit counts matches, not the lines of their context.
    let request = json!({"pattern": "x", "context": 1, "limit": 1});
    let result = serde_json::to_value(fixture.grep(request).unwrap()).unwrap();
    assert_eq!(result["content"], "f-2- 2\nf:3: x3\nf-4- 4\n");
    assert_eq!(result["details"], json!({"matchLimitReached": 1}));
    assert!(
        message(fixture.grep(json!({"pattern": "x", "context": 101}))).contains("the limit is 100")
    );
}

#[test]
fn the_result_has_the_first_matches_in_the_order_of_the_tree() {
    let fixture = Fixture::new();
    for folder in 0..12 {
        for file in 0..80 {
            fixture.put(
                &format!("{folder:02}/{file:02}"),
                format!("{folder} {file}\n").repeat(3),
            );
        }
    }
    let everything: Vec<String> = (0..12)
        .flat_map(|folder| (0..80).map(move |file| (folder, file)))
        .flat_map(|(folder, file)| (1..=3).map(move |line| (folder, file, line)))
        .map(|(folder, file, line)| format!("{folder:02}/{file:02}:{line}: {folder} {file}"))
        .collect();
    for limit in [1, 2, 3, 100, 500, 1999] {
        let result = fixture
            .grep(json!({"pattern": " ", "limit": limit}))
            .unwrap();
        let lines: Vec<_> = result.content.lines().collect();
        assert_eq!(lines, everything[..limit]);
        assert_eq!(
            result.details.unwrap().match_limit_reached,
            Some(limit as u64)
        );
    }
    let exact = fixture
        .grep(json!({"pattern": "^11 79$", "limit": 3}))
        .unwrap();
    assert_eq!(exact.content.lines().count(), 3);
    assert_eq!(exact.details, None);
    let none = fixture.grep(json!({"pattern": "99"})).unwrap();
    assert_eq!(serde_json::to_value(none).unwrap(), json!({"content": ""}));
}

#[test]
fn long_lines_and_long_results_are_cut() {
    let fixture = Fixture::new();
    fixture.put("long", format!("{}\nshort é\n", "é".repeat(5000)));
    fixture.put("fits", "é".repeat(500));
    fixture.put("wide", "é".to_owned() + &"😀".repeat(499) + "😀😀");
    let result = serde_json::to_value(fixture.grep(json!({"pattern": "é"})).unwrap()).unwrap();
    let lines: Vec<_> = result["content"].as_str().unwrap().lines().collect();
    assert_eq!(lines[0], format!("fits:1: {}", "é".repeat(500)));
    assert_eq!(lines[1], format!("long:1: {} [cut]", "é".repeat(500)));
    assert_eq!(lines[2], "long:2: short é");
    assert_eq!(lines[3], format!("wide:1: é{} [cut]", "😀".repeat(499)));
    assert_eq!(result["details"], json!({"linesTruncated": true}));
    fixture.put("many", format!("{}\n", "m".repeat(100)).repeat(10_000));
    let result = fixture
        .grep(json!({"pattern": "m", "limit": 5000}))
        .unwrap();
    let result = serde_json::to_value(result).unwrap();
    let truncation = &result["details"]["truncation"];
    assert_eq!(truncation["truncatedBy"], "bytes");
    assert_eq!(truncation["content"], result["content"]);
    assert!(result["content"].as_str().unwrap().len() <= 51_200);
    assert_eq!(result["details"]["matchLimitReached"], 2000);
}

#[test]
fn binary_files_are_left_out_and_other_encodings_searched() {
    let fixture = Fixture::new();
    fixture.put("binary", b"x\0x\n");
    fixture.put("latin", b"caf\xe9 x\n");
    fixture.put("new\nline", "x\n");
    fixture.put("utf16", b"\xff\xfex\0\n\0");
    let result = fixture.grep(json!({"pattern": "x"})).unwrap();
    assert_eq!(
        result.content,
        "latin:1: caf\u{fffd} x\nnew\\nline:1: x\nutf16:1: x\n"
    );
    assert_eq!(result.details, None);
    let named = fixture
        .grep(json!({"pattern": "x", "path": "binary"}))
        .unwrap();
    let skipped = named.details.unwrap().skipped.unwrap();
    assert_eq!(
        skipped,
        "not searched: binary: the rest, from the NUL at byte 1 on (a binary file)"
    );
}

#[test]
fn invalid_requests_and_large_patterns_are_refused_and_no_pattern_takes_exponential_time() {
    let fixture = Fixture::new();
    fixture.put("file", "a".repeat(10_000));
    let started = std::time::Instant::now();
    each_row(
        [
            (json!({"pattern": ""}), "pattern is empty"),
            (json!({"pattern": "("}), "pattern: "),
            (json!({"pattern": "\\w{1000}{1000}"}), "exceeds size limit"),
            (
                json!({"pattern": "a\\nb"}),
                "pattern: grep searches within lines",
            ),
            (
                json!({"pattern": "x".repeat(4097)}),
                "4097 bytes long, the limit is 4096",
            ),
            (
                json!({"pattern": "(".repeat(300) + &")".repeat(300)}),
                "pattern: ",
            ),
            (
                json!({"pattern": "x", "glob": "["}),
                "glob: error parsing glob",
            ),
            (
                json!({"pattern": "x", "limit": 0}),
                "limit must be at least 1",
            ),
        ],
        |(request, reason)| {
            let failure = message(fixture.grep(request));
            assert!(failure.contains(reason), "{failure}");
        },
    );
    // Backtracking engines would need exponential time for this pattern.
    let request = json!({"pattern": "(a*)*(a*)*b$"});
    assert_eq!(fixture.grep(request).unwrap().content, "");
    assert!(started.elapsed().as_secs() < 20);
}
