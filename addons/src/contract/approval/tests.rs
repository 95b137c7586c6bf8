use proptest::prelude::*;
use serde_json::{Map, Value, json};
use testkit::each_row;

use super::*;

fn topic() -> Topic {
    Topic {
        lease: LeaseId::parse("01890a5d-ac96-774b-bcce-b302099a8057").unwrap(),
        container: ContainerId::parse("c1").unwrap(),
        kind: QuestionKind::Tool,
        server: Some("files".into()),
        subject: "delete".into(),
        rule: Some("freeze".into()),
        reason: None,
        level: Level::Public,
        revision: "r1".into(),
    }
}

fn question(topic: Topic, arguments: Option<&str>) -> Question {
    let arguments = arguments.map(|json| RawValue::from_string(json.to_owned()).unwrap());
    Question::new(topic, arguments.as_deref()).unwrap()
}

fn digest_of(arguments: &str) -> String {
    question(topic(), Some(arguments)).digest().to_owned()
}

#[test]
fn ids_have_one_written_form_and_are_never_equal() {
    let (one, other) = (
        ApprovalId::generate().unwrap(),
        ApprovalId::generate().unwrap(),
    );
    assert_ne!(one, other);
    let text = one.to_string();
    assert_eq!(text.len(), 32);
    assert_eq!(ApprovalId::parse(&text), Some(one));
    let letters = "abcdef00".repeat(4);
    for other in [
        text[1..].to_owned(),
        format!("0{text}"),
        format!("+{}", &text[1..]),
        letters.to_uppercase(),
        String::new(),
    ] {
        assert_eq!(ApprovalId::parse(&other), None, "{other}");
    }
    assert!(GrantId::parse(&letters).is_some());
}

#[test]
fn the_digest_is_the_hash_of_the_canonical_object() {
    let expected = r#"{"arguments":{"a":[1,"€"],"b":1.5},"kind":"tool","lease":"01890a5d-ac96-774b-bcce-b302099a8057","revision":"r1","server":"files","subject":"delete"}"#;
    let asked = question(topic(), Some(r#" {"b":15e-1 , "a":[1.0,"\u20ac"]} "#));
    assert_eq!(asked.digest(), sha256_hex(expected));
    assert_eq!(asked.arguments(), Some(r#"{"a":[1,"€"],"b":1.5}"#));
}

#[test]
fn arguments_that_servers_read_alike_have_one_digest() {
    each_row(
        [
            (r#"{"a":1,"b":2}"#, r#" { "b" : 2 , "a" : 1 } "#),
            ("[1, 10, -0, 1e2, 0.1]", "[1.0,1e1,0,100,1e-1]"),
            (r#""\u0041\/\n""#, r#""A/\u000a""#),
            (r#"{"\u00e9":1}"#, r#"{"é":1}"#),
            (
                r#"{"a":{"c":[{"e":1,"d":2}],"b":0}}"#,
                r#"{"a":{"b":0,"c":[{"d":2,"e":1}]}}"#,
            ),
        ],
        |(one, other)| assert_eq!(digest_of(one), digest_of(other), "{one} {other}"),
    );
}

#[test]
fn arguments_that_servers_read_differently_have_two_digests() {
    each_row(
        [
            ("1", "\"1\""),
            ("9007199254740993", "9007199254740992"),
            ("9007199254740993.0", "9007199254740992"),
            ("9007199254740993e0", "9007199254740992e0"),
            ("0.1", "0.10000000000000000555"),
            ("[1,2]", "[2,1]"),
            ("{}", "[]"),
            ("null", "{}"),
            (r#"{"a":null}"#, "{}"),
            // The same character, composed and decomposed: different names to a file system.
            (r#""é""#, "\"e\u{301}\""),
            (r#"{"a":"b,c"}"#, r#"{"a":"b","c":""}"#),
        ],
        |(one, other)| assert_ne!(digest_of(one), digest_of(other), "{one} {other}"),
    );
}

#[test]
fn every_bound_part_makes_another_question_and_the_texts_for_the_person_do_not() {
    let first = question(topic(), Some("{}"));
    type Change = (&'static str, bool, fn(&mut Topic));
    let changes: [Change; 11] = [
        ("lease", true, |topic| topic.lease = LeaseId::generate()),
        ("kind", true, |topic| topic.kind = QuestionKind::Definition),
        ("server", true, |topic| topic.server = Some("file".into())),
        ("no server", true, |topic| topic.server = None),
        ("empty server", true, |topic| topic.server = Some("".into())),
        ("subject", true, |topic| topic.subject = "delete2".into()),
        ("revision", true, |topic| topic.revision = "r2".into()),
        ("moved text", true, |topic| {
            topic.server = Some("filesd".into());
            topic.subject = "elete".into();
        }),
        ("rule", false, |topic| topic.rule = None),
        ("reason", false, |topic| topic.reason = Some("why".into())),
        ("level", false, |topic| topic.level = Level::Secret),
    ];
    each_row(changes, |(what, is_other, change)| {
        let mut topic = topic();
        change(&mut topic);
        let other = question(topic, Some("{}"));
        assert_eq!(other.digest() != first.digest(), is_other, "{what}");
    });
    let without = question(topic(), None);
    assert_ne!(without.digest(), first.digest());
    assert_ne!(without.digest(), question(topic(), Some("null")).digest());
}

#[test]
fn ambiguous_arguments_cannot_be_asked_about() {
    let deep = "[".repeat(200) + &"]".repeat(200);
    each_row(
        [
            (r#"{"a":1,"\u0061":2}"#, RawJsonError::DuplicateKey),
            (r#"[{"a":{"b":1,"b":1}}]"#, RawJsonError::DuplicateKey),
            (r#"{"\ud800":1}"#, RawJsonError::BadKey),
            (deep.as_str(), RawJsonError::TooDeep),
        ],
        |(json, error)| {
            let json = RawValue::from_string(json.to_owned()).unwrap();
            assert_eq!(Question::new(topic(), Some(&json)), Err(error));
        },
    );
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>()
            .prop_filter("finite", |number| number.is_finite())
            .prop_map(Value::from),
        "(?s).{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        let members = prop::collection::btree_map("(?s).{0,6}", inner.clone(), 0..4);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            members.prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// The value with the members of every object in the reverse order.
fn reversed(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let members = members.iter().rev();
            let members = members.map(|(key, value)| (key.clone(), reversed(value)));
            Value::Object(members.collect::<Map<_, _>>())
        }
        Value::Array(elements) => elements.iter().map(reversed).collect(),
        other => other.clone(),
    }
}

/// JSON in which every character of a text that is not a letter is escaped, with white space.
fn escaped(value: &Value) -> String {
    let text = |text: &str| {
        let mut json = String::from("\"");
        for unit in text.encode_utf16() {
            match char::from_u32(u32::from(unit)) {
                Some(letter) if letter.is_ascii_alphabetic() => json.push(letter),
                _ => json.push_str(&format!("\\u{unit:04X}")),
            }
        }
        json + "\""
    };
    match value {
        Value::Object(members) => {
            let members = members.iter();
            let members =
                members.map(|(key, value)| format!("{} :\n{}", text(key), escaped(value)));
            format!("{{ {} }}", members.collect::<Vec<_>>().join(" ,\t"))
        }
        Value::Array(elements) => {
            let elements: Vec<_> = elements.iter().map(escaped).collect();
            format!("[ {} ]", elements.join(" , "))
        }
        Value::String(string) => text(string),
        // A double that is an integer below 2^53 with a fraction and an exponent.
        Value::Number(number)
            if number
                .as_i64()
                .is_some_and(|n| n != 0 && n.unsigned_abs() < 1 << 50) =>
        {
            format!("{number}0.00e-1")
        }
        other => other.to_string(),
    }
}

/// Changes one value within the JSON.
fn changed(value: &Value, at: usize) -> Value {
    match value {
        Value::Object(members) if !members.is_empty() => {
            let mut members = members.clone();
            let at = at % members.len();
            let value = members.values_mut().nth(at).unwrap();
            *value = changed(value, at);
            Value::Object(members)
        }
        Value::Array(elements) if !elements.is_empty() => {
            let mut elements = elements.clone();
            let at = at % elements.len();
            elements[at] = changed(&elements[at], at);
            Value::Array(elements)
        }
        other => json!({ "instead": other }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn order_escapes_white_space_and_number_forms_do_not_change_the_digest(value in any_json()) {
        let digest = digest_of(&value.to_string());
        prop_assert_eq!(&digest_of(&reversed(&value).to_string()), &digest);
        prop_assert_eq!(&digest_of(&escaped(&value)), &digest);
    }

    #[test]
    fn canonical_arguments_are_the_same_value_and_canonical_themselves(value in any_json()) {
        let asked = question(topic(), Some(&value.to_string()));
        let canonical = asked.arguments().unwrap();
        let again = question(topic(), Some(canonical));
        prop_assert_eq!(again.arguments(), Some(canonical));
        prop_assert_eq!(again.digest(), asked.digest());
    }

    #[test]
    fn a_change_anywhere_in_the_arguments_is_another_question(
        value in any_json(),
        at in any::<usize>(),
    ) {
        let other = changed(&value, at);
        prop_assert_ne!(digest_of(&value.to_string()), digest_of(&other.to_string()));
    }

    #[test]
    fn texts_of_neighbouring_parts_do_not_run_together(
        server in "(?s).{0,8}",
        subject in "(?s).{0,8}",
        revision in "(?s).{0,8}",
        other in ("(?s).{0,8}", "(?s).{0,8}", "(?s).{0,8}"),
    ) {
        let of = |server: &str, subject: &str, revision: &str| {
            let topic = Topic {
                server: Some(server.into()),
                subject: subject.into(),
                revision: revision.into(),
                ..topic()
            };
            question(topic, None).digest().to_owned()
        };
        let equal = (&server, &subject, &revision) == (&other.0, &other.1, &other.2);
        let digests = (of(&server, &subject, &revision), of(&other.0, &other.1, &other.2));
        prop_assert_eq!(digests.0 == digests.1, equal);
    }
}
