//! `find`.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;
use testkit::each_row;

use crate::fixture::{Fixture, message};

fn files(fixture: &Fixture, request: serde_json::Value) -> Vec<String> {
    fixture.find(request).unwrap().files
}

#[test]
fn globs_match_names_or_paths() {
    let fixture = Fixture::new();
    for path in [
        "main.rs",
        "src/lib.rs",
        "src/deep/mod.rs",
        "src/lib.RS",
        ".hidden.rs",
        "a[1].txt",
        "src/x.ts",
    ] {
        fixture.put(path, "");
    }
    symlink("main.rs", fixture.at("link.rs")).unwrap();
    symlink("src", fixture.at("linked")).unwrap();
    each_row(
        [
            (
                json!({"pattern": "*.rs"}),
                vec![
                    ".hidden.rs",
                    "link.rs",
                    "main.rs",
                    "src/lib.rs",
                    "src/deep/mod.rs",
                ],
            ),
            (json!({"pattern": "lib.rs"}), vec!["src/lib.rs"]),
            (json!({"pattern": "src/*.rs"}), vec!["src/lib.rs"]),
            (json!({"pattern": "./src/*.rs"}), vec!["src/lib.rs"]),
            (json!({"pattern": "/src/*.rs"}), vec!["src/lib.rs"]),
            (
                json!({"pattern": "/*.rs"}),
                vec![".hidden.rs", "link.rs", "main.rs"],
            ),
            (
                json!({"pattern": "src/**/*.rs"}),
                vec!["src/lib.rs", "src/deep/mod.rs"],
            ),
            (json!({"pattern": "**/mod.rs"}), vec!["src/deep/mod.rs"]),
            (
                json!({"pattern": "*.{rs,ts}", "path": "src"}),
                vec!["src/lib.rs", "src/x.ts", "src/deep/mod.rs"],
            ),
            (
                json!({"pattern": "deep/*", "path": "src/"}),
                vec!["src/deep/mod.rs"],
            ),
            (
                json!({"pattern": "lib.*", "path": "linked"}),
                vec!["linked/lib.RS", "linked/lib.rs"],
            ),
            (json!({"pattern": "a[[]1].txt"}), vec!["a[1].txt"]),
            (json!({"pattern": "?ain.rs"}), vec!["main.rs"]),
            (json!({"pattern": "deep"}), vec![]),
            (json!({"pattern": "linked"}), vec!["linked"]),
        ],
        |(request, expected)| assert_eq!(files(&fixture, request), expected),
    );
    // Each path that is found can be read.
    for path in files(
        &fixture,
        json!({"pattern": "lib.*", "path": "src/../linked"}),
    ) {
        fixture.text(&path).unwrap();
    }
}

#[test]
fn ignore_files_are_honoured_with_and_without_a_repository() {
    let fixture = Fixture::new();
    for path in [
        "keep",
        "a.log",
        "b.log",
        "build/x",
        "sub/build/x",
        "sub/c.log",
        "sub/only-root",
        "only-root",
        "sub/deep/keep.log",
        "sub/deep/tmp",
        "excluded",
        "by-ignore",
        "by-git",
        ".git/config",
        "module/.git/HEAD",
        "module/a.log",
        "module/m.tmp",
        "sub/deep/by-ignore",
    ] {
        fixture.put(path, "");
    }
    fixture.put(
        ".gitignore",
        "\u{feff}*.log\n!b.log\nbuild/\n/only-root\n# no\nby-git\n[\n",
    );
    fixture.put("sub/deep/.gitignore", "!keep.log\ntmp\n");
    fixture.put(".ignore", "by-ignore\n!by-git\n");
    fixture.put("module/.gitignore", "m.tmp\n");
    fixture.put(".git/info/exclude", "excluded\n");
    let all = files(&fixture, json!({"pattern": "*"}));
    assert_eq!(
        all,
        [
            ".gitignore",
            ".ignore",
            "b.log",
            "by-git",
            "keep",
            "module/.gitignore",
            "module/a.log",
            "sub/only-root",
            "sub/deep/.gitignore",
            "sub/deep/keep.log"
        ]
    );
    // The rules of the folders above apply to a search below them.
    let below = files(&fixture, json!({"pattern": "*", "path": "sub"}));
    assert_eq!(
        below,
        ["sub/only-root", "sub/deep/.gitignore", "sub/deep/keep.log"]
    );
    symlink("sub/deep", fixture.at("link")).unwrap();
    let linked = files(&fixture, json!({"pattern": "*", "path": "link"}));
    assert_eq!(linked, ["link/.gitignore", "link/keep.log"]);
    // An ignored folder is searched if the request names it.
    assert_eq!(
        files(&fixture, json!({"pattern": "*", "path": "build"})),
        ["build/x"]
    );
    fs::remove_dir_all(fixture.at(".git")).unwrap();
    let without = files(&fixture, json!({"pattern": "*"}));
    assert!(without.contains(&"excluded".to_owned()) && !without.contains(&"a.log".to_owned()));
}

#[test]
fn irregular_and_too_large_ignore_files_are_not_applied() {
    let fixture = Fixture::new();
    fixture.put("a/x", "");
    fixture.put("b/x", "");
    fixture.put("c/x", "");
    fixture.put("a/.gitignore", "x\n".repeat(300_000));
    rustix::fs::mkfifoat(
        rustix::fs::CWD,
        fixture.at("b/.gitignore"),
        rustix::fs::Mode::from(0o666),
    )
    .unwrap();
    symlink("../../outside/secret", fixture.at("c/.gitignore")).unwrap();
    let result = fixture.find(json!({"pattern": "x"})).unwrap();
    assert_eq!(result.files, ["a/x", "b/x", "c/x"]);
    let skipped = "not searched: a: its ignore rules are too large and were not applied";
    assert_eq!(result.skipped.as_deref(), Some(skipped));
}

#[test]
fn a_line_break_in_a_name_is_escaped() {
    let fixture = Fixture::new();
    fixture.put("a\nforged.txt", "");
    assert_eq!(
        files(&fixture, json!({"pattern": "*.txt"})),
        ["a\\nforged.txt"]
    );
}

#[test]
fn a_search_ends_at_its_limit_or_at_the_bound_on_bytes() {
    let fixture = Fixture::new();
    for number in 0..2300 {
        fixture.put(&format!("d{}/{number:04}", number / 1000), "");
    }
    fixture.put("exact/a", "");
    for number in 0..400 {
        fixture.put(&format!("wide/{number:03}{}", "x".repeat(200)), "");
    }
    each_row(
        [
            (json!({"pattern": "0???"}), 1000, false, None),
            (json!({"pattern": "[01]???"}), 1000, true, None),
            (json!({"pattern": "*", "limit": 3}), 3, true, None),
            (json!({"pattern": "a", "limit": 1}), 1, false, None),
            (
                json!({"pattern": "*", "limit": 1_000_000}),
                2000,
                true,
                None,
            ),
            (
                json!({"pattern": "*", "path": "wide"}),
                244,
                true,
                Some("bytes"),
            ),
        ],
        |(request, count, truncated, by)| {
            let limit = request["limit"].as_u64().unwrap_or(1000).min(2000);
            let result = serde_json::to_value(fixture.find(request).unwrap()).unwrap();
            assert_eq!(result["files"].as_array().unwrap().len(), count);
            assert_eq!(result["truncated"], truncated);
            assert_eq!(result["limit"], limit);
            assert_eq!(result["truncation"]["truncatedBy"].as_str(), by);
        },
    );
}

#[test]
fn invalid_globs_limits_and_paths_are_refused() {
    let fixture = Fixture::new();
    each_row(
        [
            (json!({"pattern": ""}), "pattern is empty"),
            (json!({"pattern": "[a"}), "pattern: error parsing glob"),
            (json!({"pattern": "{a"}), "pattern: error parsing glob"),
            (
                json!({"pattern": "x".repeat(1001)}),
                "1001 bytes long, the limit is 1000",
            ),
            (
                json!({"pattern": "*", "limit": 0}),
                "limit must be at least 1",
            ),
            (
                json!({"pattern": "*", "path": "absent"}),
                "absent: no such file",
            ),
        ],
        |(request, reason)| {
            let failure = message(fixture.find(request));
            assert!(failure.contains(reason), "{failure}");
        },
    );
}
