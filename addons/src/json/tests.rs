use proptest::prelude::*;
use serde_json::{Value, json};
use testkit::each_row;

use super::*;

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

fn canonical_of(text: &str) -> String {
    canonical(&Node::read(&raw(text)).unwrap())
}

#[test]
fn members_are_the_text_that_was_received() {
    let object = raw(r#" { "a" : 1e400 , "b\u0062":"x\"}" ,"c":[{ "d":[] }, 1.0], "":null } "#);
    let members = Members::read(&object).unwrap();
    let found: Vec<_> = members.iter().collect();
    let expected = [
        ("a", "1e400"),
        ("bb", r#""x\"}""#),
        ("c", r#"[{ "d":[] }, 1.0]"#),
        ("", "null"),
    ];
    assert_eq!(found, expected);
    assert_eq!(members.text("bb").as_deref(), Some("x\"}"));
    assert_eq!(members.text("a"), None);
    assert_eq!(members.elements("c"), [r#"{ "d":[] }"#, "1.0"]);
    assert!(members.elements("a").is_empty());
}

#[test]
fn non_objects_deep_nesting_and_duplicate_or_invalid_keys_are_refused() {
    let many = (0..20).map(|n| format!("\"k{n}\":0,")).collect::<String>();
    each_row(
        [
            ("[]".to_owned(), RawJsonError::NotAnObject),
            ("\"{}\"".to_owned(), RawJsonError::NotAnObject),
            (
                r#"{"a":1,"\u0061":2}"#.to_owned(),
                RawJsonError::DuplicateKey,
            ),
            (format!("{{{many}\"k3\":1}}"), RawJsonError::DuplicateKey),
            (r#"{"\ud800":1}"#.to_owned(), RawJsonError::BadKey),
        ],
        |(text, error)| {
            assert_eq!(Members::read(&raw(&text)).unwrap_err(), error, "{text}");
        },
    );
    let nested = raw(r#"{"a":[{"b":1,"b":2}]}"#);
    assert_eq!(Node::read(&nested).unwrap_err(), RawJsonError::DuplicateKey);
    let deep = raw(&format!("{}{}", "[".repeat(200), "]".repeat(200)));
    assert_eq!(Node::read(&deep).unwrap_err(), RawJsonError::TooDeep);
}

#[test]
fn a_tree_has_the_nesting_limit_of_the_parsers_whether_or_not_the_innermost_container_is_empty() {
    let shapes = [
        ("[", "", "]"),
        ("[", "0", "]"),
        ("[", "[],0", "]"),
        ("{\"a\":", "{}", "}"),
        ("{\"a\":", "{\"a\":0}", "}"),
        (" [ ", " ", " ] "),
    ];
    each_row(shapes, |(open, inner, close)| {
        let inside = usize::from(inner.contains(['[', '{']));
        for (depth, is_read) in [(MAX_NESTING, true), (MAX_NESTING + 1, false)] {
            let around = depth - inside;
            let text = format!("{}{inner}{}", open.repeat(around), close.repeat(around));
            let tree = Node::read(&raw(&text)).map(drop);
            let expected = if is_read {
                Ok(())
            } else {
                Err(RawJsonError::TooDeep)
            };
            assert_eq!(tree, expected, "{depth} times {open}, around {inner:?}");
            let parsed = strict::parse(text.as_bytes());
            assert_eq!(
                parsed.is_ok(),
                is_read,
                "{depth} times {open}, around {inner:?}"
            );
        }
    });
}

#[test]
fn one_member_is_replaced_or_added_and_the_others_stay() {
    let object = raw(r#"{"a":1.0,"name":"x","z":{"name":1}}"#);
    let members = Members::read(&object).unwrap();
    let replaced = members.with("name", "\"y\"");
    assert_eq!(replaced, r#"{"a":1.0,"name":"y","z":{"name":1}}"#);
    let added = members.with("new", "[]");
    assert_eq!(added, r#"{"a":1.0,"name":"x","z":{"name":1},"new":[]}"#);
    assert_eq!(ObjectText::default().end(), "{}");
}

/// Examples of RFC 8785, sections 3.2.2 and 3.2.3. It rounds the first number.
#[test]
fn the_canonical_text_follows_rfc_8785_except_for_numbers_that_a_double_does_not_hold() {
    let text = "{\"numbers\":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],\
        \"string\":\"\\u20ac$\\u000F\\u000aA'\\u0042\\u0022\\u005c\\\\\\\"\\/\",\
        \"literals\":[null,true,false]}";
    let expected = "{\"literals\":[null,true,false],\
        \"numbers\":[333333333.33333329,1e+30,4.5,0.002,1e-27],\
        \"string\":\"\u{20ac}$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}";
    assert_eq!(canonical_of(text), expected);
    // Section 3.2.3: keys in the order of their UTF-16 units.
    let keys = r#"{"\u20ac":5,"\r":1,"\ufb33":7,"1":2,"\ud83d\ude00":6,"\u0080":3,"\u00f6":4}"#;
    let sorted: Value = serde_json::from_str(&canonical_of(keys)).unwrap();
    let values: Vec<_> = sorted.as_object().unwrap().values().cloned().collect();
    assert_eq!(Value::from(values), json!([1, 2, 3, 4, 5, 6, 7]));
    each_row(
        [
            ("-0", "0"),
            ("0.0", "0"),
            ("1e0", "1"),
            ("100000000000000000000", "100000000000000000000"),
            ("1e20", "100000000000000000000"),
            ("1e21", "1e+21"),
            ("0.000001", "0.000001"),
            ("1e-7", "1e-7"),
            ("0.100000000000000", "0.1"),
            // The deviations: RFC 8785 might round these numbers, and would refuse the last.
            ("0.1000000000000000", "0.1000000000000000"),
            ("999999999999999.99", "999999999999999.99"),
            ("9007199254740993", "9007199254740993"),
            ("9007199254740993.0", "9007199254740993.0"),
            ("0.10000000000000000555", "0.10000000000000000555"),
            ("1e400", "1e400"),
        ],
        |(text, expected)| assert_eq!(canonical_of(text), expected, "{text}"),
    );
}

#[test]
fn sha256_hex_agrees_with_sha256sum() {
    // `printf abc | sha256sum`
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(sha256_hex("abc"), abc);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        // `serde_json` reads these numbers exactly; for others, the last digit may be wrong.
        any::<i32>().prop_map(|number| json!(f64::from(number) / 8.0)),
        "(?s).{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        let members = prop::collection::btree_map("(?s).{0,3}", inner.clone(), 0..5);
        prop_oneof![
            prop::collection::vec(inner, 0..5).prop_map(Value::from),
            members.prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn a_tree_is_written_as_it_was_read_without_white_space(value in any_json(), pretty: bool) {
        let text = match pretty {
            true => serde_json::to_string_pretty(&value).unwrap(),
            false => value.to_string(),
        };
        let text = raw(&text);
        prop_assert_eq!(Node::read(&text).unwrap().to_json(), value.to_string());
        if let Value::Object(object) = &value {
            let members = Members::read(&text).unwrap();
            prop_assert_eq!(members.iter().count(), object.len());
            for (key, value) in members.iter() {
                let value: Value = serde_json::from_str(value).unwrap();
                prop_assert_eq!(object.get(key), Some(&value));
            }
        }
    }

    #[test]
    fn the_canonical_text_ignores_white_space_and_is_its_own_canonical_text(value in any_json()) {
        let compact = canonical_of(&value.to_string());
        let pretty = serde_json::to_string_pretty(&value).unwrap();
        prop_assert_eq!(&canonical_of(&pretty), &compact);
        prop_assert_eq!(&canonical_of(&compact), &compact);
    }
}
