use serde_json::value::RawValue;
use serde_json::{Value, json};
use testkit::each_row;
use time::macros::datetime;

use super::*;

const NOW: OffsetDateTime = datetime!(2030-01-01 12:00:00 UTC);

fn question(id: &str) -> Value {
    json!({
        "id": id, "kind": "tool", "state": "pending", "container_id": "web", "lease": "l",
        "subject": "kb/delete", "arguments": {"path": "a", "list": [1]}, "rule": "freeze",
        "reason": "no deletes on Fridays", "level": "Public", "created_at": "2030-01-01T11:55:00Z",
        "expires_at": "2030-01-01T12:55:00Z", "attempts": 3, "waiting": 1, "scopes": ["once", "for"],
        "decided_by": null, "decided_at": null, "comment": null,
    })
}

fn parsed(question: Value) -> Approval {
    serde_json::from_value(question).unwrap()
}

#[test]
fn questions_are_a_table_whose_ids_have_as_many_digits_as_tell_them_apart() {
    let alone = parsed(question("0123456789abcdef0123456789abcdef"));
    assert_eq!(
        questions(&[&alone], NOW),
        "ID        KIND  CONTAINER  AGE  LEFT  SUBJECT    REASON\n\
         01234567  tool  web        5m   55m   kb/delete  no deletes on Fridays"
    );
    let close = parsed(question("0123456789abcd000000000000000000"));
    let far = parsed(question("ff000000000000000000000000000000"));
    let table = questions(&[&alone, &far, &close], NOW);
    let ids: Vec<_> = table
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(
        ids,
        ["0123456789abcde", "ff0000000000000", "0123456789abcd0"]
    );
    assert_eq!(questions(&[], NOW), "no question waits for a decision");
}

#[test]
fn the_details_of_a_question_have_the_whole_arguments() {
    let mut open = question("0123456789abcdef0123456789abcdef");
    assert_eq!(
        details(&parsed(open.clone()), NOW),
        "id         0123456789abcdef0123456789abcdef\n\
         kind       tool\n\
         state      pending, 55m left\n\
         container  web\n\
         subject    kb/delete\n\
         arguments  {\n           \
           \x20 \"path\": \"a\",\n           \
           \x20 \"list\": [\n           \
           \x20   1\n           \
           \x20 ]\n           \
           }\n\
         rule       freeze\n\
         reason     no deletes on Fridays\n\
         level      Public\n\
         asked      3 times, first 5m ago; 1 caller waits\n\
         scopes     once, for"
    );
    open["state"] = "denied".into();
    open["decided_by"] = "uid 0 (root)".into();
    open["decided_at"] = "2030-01-01T11:59:00Z".into();
    open["comment"] = "not today".into();
    let details = details(&parsed(open), NOW);
    let end = "decided    2030-01-01T11:59:00Z by uid 0 (root)\ncomment    not today";
    assert!(details.ends_with(end), "{details}");
    assert!(details.contains("\nstate      denied\n"), "{details}");
}

#[test]
fn arguments_are_indented_and_no_value_changes() {
    each_row(
        [
            ("null", "null"),
            ("[]", "[]"),
            ("{}", "{}"),
            ("[{}]", "[\n  {}\n]"),
            (
                r#"{"a":"{[,:]}\\\"\",\"","b":[12345678901234567890123,1e400]}"#,
                r#"{
  "a": "{[,:]}\\\"\",\"",
  "b": [
    12345678901234567890123,
    1e400
  ]
}"#,
            ),
        ],
        |(json, expected)| {
            let margin = " ".repeat(LABEL);
            let text = indented(json, LABEL).replace(&format!("\n{margin}"), "\n");
            assert_eq!(text, expected);
            let values: &RawValue = serde_json::from_str(&text).unwrap();
            let kept = values.get().replace(['\n', ' '], "");
            assert_eq!(kept, json.replace(' ', ""));
        },
    );
}

#[test]
fn what_a_container_chose_cannot_control_the_terminal_or_disguise_itself() {
    let hostile = [
        "\u{1b}[2J",
        "\r",
        "\n",
        "\u{7}",
        "\u{9b}31m",
        "\u{7f}",
        "\u{202e}",
        "\u{2066}",
        "\u{2069}",
        "\u{200f}",
        "\u{61c}",
        "\u{200b}",
        "\u{2028}",
        "\u{feff}",
        "\u{2060}",
        "\u{ad}",
        "\u{e0041}",
        "\u{180e}",
        "\u{e0100}",
    ];
    let members = [
        "id",
        "kind",
        "state",
        "container_id",
        "subject",
        "rule",
        "reason",
        "level",
        "comment",
        "created_at",
        "expires_at",
        "decided_by",
    ];
    each_row(hostile, |text| {
        let mut all = question("0123456789abcdef0123456789abcdef");
        for member in members {
            all[member] = format!("a{text}b").into();
        }
        all["decided_at"] = "2030-01-01T11:59:00Z".into();
        all["scopes"] = json!([format!("a{text}b")]);
        all["arguments"] = json!({ format!("a{text}b"): [format!("a{text}b")] });
        let all = parsed(all);
        let grant = json!({
            "id": format!("a{text}b"), "approval": null, "kind": format!("a{text}b"),
            "container_id": format!("a{text}b"), "lease": "l", "subject": format!("a{text}b"),
            "level": format!("a{text}b"), "scope": format!("a{text}b"),
            "given_by": format!("a{text}b"), "created_at": "", "expires_at": format!("a{text}b"),
        });
        let grant = serde_json::from_value(grant).unwrap();
        let json = super::super::json(&all).unwrap();
        for shown in [
            questions(&[&all], NOW),
            grants(&[&grant], NOW),
            details(&all, NOW),
            json.clone(),
        ] {
            let lines = shown.replace('\n', "");
            assert!(!lines.contains(text), "{shown:?}");
            let harmful = lines.chars().find(|c| c.is_control());
            assert_eq!(harmful, None, "{shown:?}");
        }
        let again: Approval = serde_json::from_str(&json).unwrap();
        assert_eq!(again.subject, all.subject);
        // A line feed begins no line of its own.
        assert_eq!(questions(&[&all], NOW).lines().count(), 2);
    });
}

#[test]
fn a_period_has_one_unit() {
    each_row(
        [
            ("2030-01-01T12:00:00Z", "0s"),
            ("2030-01-01T11:58:01Z", "119s"),
            ("2030-01-01T11:58:00Z", "2m"),
            ("2030-01-01T10:00:01Z", "119m"),
            ("2029-12-31T12:00:00Z", "24h"),
            ("2029-12-30T12:00:00Z", "2d"),
            ("2030-01-01T12:00:07Z", "0s"),
            ("soon\u{7}", "soon\\u{7}"),
        ],
        |(at, expected)| assert_eq!(since(at, NOW), expected),
    );
}

#[test]
fn a_changed_definition_is_shown_as_its_changed_lines() {
    let mut asked = question("0123456789abcdef0123456789abcdef");
    asked["kind"] = "definition".into();
    asked["arguments"] = json!({ "new": { "name": "b\u{202e}" }, "old": { "name": "a" } });
    let shown = details(&parsed(asked), NOW);
    let expected = "definition\n  {\n-   \"name\": \"a\"\n+   \"name\": \"b\\u202e\"\n  }\nrule ";
    assert!(shown.contains(expected), "{shown}");
}
