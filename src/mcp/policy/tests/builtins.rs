//! Functions of Rego: their values, and the calls that fail.

use std::time::{Duration, Instant};

use serde_json::json;

use super::*;
use crate::mcp::policy::bundle::{Bundle, Manifest};
use crate::mcp::policy::interpreter::NOW;
use crate::mcp::policy::program::Program;

/// The value of an expression in a policy as JSON, `undefined`, or `fails: ` with the error.
pub(super) fn evaluated(expression: &str) -> String {
    of_rules(&format!("value := {expression}"))
}

/// The value of the rule `value` of a policy, as [`evaluated`] returns it.
fn of_rules(rules: &str) -> String {
    let head = "package test\ndecision := \"redact\"\nmodified := {\"values\": [v | v := value]}";
    let bundle = Bundle {
        policies: vec![("test.rego".to_owned(), format!("{head}\n{rules}\n"))],
        data: json!({}),
        manifest: Manifest::default(),
        digest: [0; 32],
    };
    let program = match Program::compile(&bundle, "test") {
        Ok(program) => program,
        Err(error) => return format!("fails: {error}"),
    };
    let ends = Instant::now().checked_add(Duration::from_secs(5));
    let answer = program.evaluate(&Value::Null, ends).unwrap();
    let modified = answer.modified.expect("the policy redacts");
    let modified: serde_json::Value = serde_json::from_str(modified.get()).unwrap();
    match modified["values"].as_array().unwrap().first() {
        Some(value) => value.to_string(),
        None => "undefined".to_owned(),
    }
}

/// Compares the values of expressions. An expected failure is a part of the error.
fn check(rows: &[(&str, &str)]) {
    testkit::each_row(rows, |(expression, expected)| {
        let found = evaluated(expression);
        match expected.strip_prefix("fails: ") {
            Some(part) => assert!(
                found.starts_with("fails: ") && found.contains(part),
                "{found}"
            ),
            None => assert_eq!(&found, expected),
        }
    });
}

#[test]
fn each_function_of_regorus_is_kept_replaced_or_missing() {
    let mut missing: Vec<_> = regorus::unstable::BUILTINS
        .keys()
        .copied()
        .filter(|name| !exists(name))
        .collect();
    missing.sort_unstable();
    let expected = [
        "__builtin_sets.intersection",
        "__builtin_sets.union",
        "rand.intn",
    ];
    assert_eq!(missing, expected);
    assert!(!exists(NOW));
    for (name, _) in FUNCTIONS {
        assert!(!KEPT.contains(name), "{name}");
    }
}

#[test]
fn a_failure_ends_the_evaluation_even_where_regorus_ignores_it() {
    let rules = |second: &str| {
        format!(
            "f(x) := 1 if regex.match(\"(?i)*\", x)\nf(x) := 1 if regex.match(\"a(?i)*\", x)\n{second}"
        )
    };
    let second = "f(x) := 2 if startswith(x, \"b\")\nvalue := f(\"b\")";
    let found = of_rules(&rules(second));
    assert!(
        found.contains("regex.match: a repetition follows flags"),
        "{found}"
    );
    let found = of_rules(&rules("value := true if not f(\"b\")"));
    assert!(
        found.contains("regex.match: a repetition follows flags"),
        "{found}"
    );
    assert_eq!(
        of_rules("f(x) := 2 if startswith(x, \"b\")\nvalue := f(\"b\")"),
        "2"
    );
}

#[test]
fn wrong_types_are_undefined() {
    let calls = [
        "count(input.x)",
        "count(7)",
        "format_int(\"7\", 10)",
        "format_int(7, 7)",
        "glob.match(1, [], \"a\")",
        "glob.match(\"a\", \"a\", \"a\")",
        "glob.match(\"a\", [\"ab\"], \"a\")",
        "glob.match(\"a\", [\"\"], \"a\")",
        "indexof(1, \"a\")",
        "json.filter([1], [\"0\"])",
        "json.filter({}, \"a\")",
        "json.remove({}, [1])",
        "json.unmarshal({})",
        "lower(null)",
        "net.cidr_contains(\"10.0.0.0/8\", 1)",
        "object.subset({}, [])",
        "object.union_n([{}, 1])",
        "product([1, \"a\"])",
        "regex.find_n(\"a\", \"a\", 1.5)",
        "regex.match(1, \"a\")",
        "regex.split(\"a\", null)",
        "semver.compare(1, \"1.0.0\")",
        "sprintf(\"%v\", 1)",
        "strings.any_prefix_match([1], \"a\")",
        "strings.count(\"a\", 1)",
        "substring(\"abc\", \"0\", 1)",
        "substring(\"abc\", -1, 1)",
        "sum([[1]])",
        "to_number([])",
        "trace(1)",
        "trim(1, \"a\")",
        "union({1})",
        "units.parse(1)",
        "upper({})",
        "urlquery.encode_object({\"a\": 1})",
        "urlquery.encode_object({\"a\": [1]})",
    ];
    testkit::each_row(calls, |call| assert_eq!(evaluated(call), "undefined"));
    check(&[
        ("base64.is_valid(1)", "false"),
        ("json.is_valid(1)", "false"),
        ("net.cidr_is_valid(1)", "false"),
        ("regex.is_valid(1)", "false"),
        ("semver.is_valid(1)", "false"),
    ]);
}

#[test]
fn globs_are_those_of_gobwas() {
    check(&[
        (r#"glob.match("repo:*:read", [":"], "repo:a:read")"#, "true"),
        (
            r#"glob.match("repo:*:read", [":"], "repo:a:write:b:read")"#,
            "false",
        ),
        (
            r#"glob.match("repo:**:read", [":"], "repo:a:write:b:read")"#,
            "true",
        ),
        (r#"glob.match("a*", [":"], "a/b.c")"#, "true"),
        (r#"glob.match("a*", null, "a\u0000\n:/.b")"#, "true"),
        (r#"glob.match("a?b", [], "a\u0000b")"#, "true"),
        (r#"glob.match("a?b", [], "a.b")"#, "false"),
        (r#"glob.match("a?b", ["é"], "aéb")"#, "false"),
        (r#"glob.match("*", ["\u0000"], "a\u0000b")"#, "false"),
        (r#"glob.match("[!.]", [], ".")"#, "false"),
        (r#"glob.match("[!a]", [], ".")"#, "true"),
        (r#"glob.match("[à-é]", [], "è")"#, "true"),
        (r#"glob.match("{a,{b,c*}}.d", [], "cxx.d")"#, "true"),
        (r#"glob.match("{a,b", [], "b")"#, "true"),
        (r#"glob.match("a,b}", [], "a,b}")"#, "true"),
        (r#"glob.match("\\{a\\,\\*\\}", [], "{a,*}")"#, "true"),
        (r#"glob.match("{a\\,b,c}", [], "a,b")"#, "true"),
        (r#"glob.match("[a\\]]", [], "]")"#, "true"),
        (r#"glob.match("a\\", [], "a")"#, "true"),
        (r#"glob.match("(a|b)+.$", null, "(a|b)+.$")"#, "true"),
        (r#"glob.match("[]", [], "a")"#, "undefined"),
        (r#"glob.match("[b-a]", [], "a")"#, "undefined"),
        (r#"glob.match("[ab", [], "a")"#, "undefined"),
        (r#"glob.match("[a-bc]", [], "a")"#, "undefined"),
        (r#"glob.match("a\ufffd", [], "a")"#, "undefined"),
        (r#"glob.match("a\u0000", [], "a")"#, "fails: zeros"),
        (
            r#"glob.quote_meta("{a}[b]*?\\é,-!")"#,
            r#""\\{a\\}\\[b\\]\\*\\?\\\\é,-!""#,
        ),
    ]);
    let long = Value::from("a?".repeat(40_000));
    let result = glob::matches(&long, &Value::Null, &long);
    assert!(matches!(result, Err(Stop::Unsupported(_))), "{result:?}");
}

#[test]
fn regular_expressions_are_those_of_go() {
    check(&[
        // ASCII classes.
        (r#"regex.match(`^\d$`, "٣")"#, "false"),
        (r#"regex.match(`^\w$`, "é")"#, "false"),
        (r#"regex.match(`^\s$`, "\u000b")"#, "false"),
        (r#"regex.match(`^\W\D\S$`, "ééé")"#, "true"),
        (r#"regex.match(`\bb`, "éb")"#, "true"),
        (r#"regex.match(`^[[:alpha:]]$`, "é")"#, "false"),
        (r#"regex.match(`^[[:^alpha:]\pL]$`, "é")"#, "true"),
        (r#"regex.match(`(?i)^k$`, "\u212a")"#, "true"),
        (r#"regex.match(`^.$`, "\n")"#, "false"),
        (r#"regex.match(`^a$`, "a\n")"#, "false"),
        (r#"regex.match(`a\x{0}b`, "a\u0000b")"#, "true"),
        // Syntax that the crate reads otherwise.
        (r#"regex.match(`^[a&&b]$`, "&")"#, "true"),
        (r#"regex.match(`^[[a]$`, "[")"#, "true"),
        (r#"regex.match(`^[a~~b+--]$`, ",")"#, "true"),
        (r#"regex.match(`^a{,2}$`, "a{,2}")"#, "true"),
        (r#"regex.match(`^{$`, "{")"#, "true"),
        (r#"regex.match(`^\Qa.b\E$`, "a.b")"#, "true"),
        (r#"regex.match(`^\Qa.b`, "a.b")"#, "true"),
        (r#"regex.match(`^\101\0$`, "A\u0000")"#, "true"),
        (r#"regex.match(`^(?P<1a>x)$`, "x")"#, "true"),
        (r#"regex.match(`(?x)a b`, "ab")"#, "undefined"),
        (r#"regex.match(`a**`, "a")"#, "undefined"),
        (r#"regex.match(`(a{100}){11}`, "a")"#, "undefined"),
        (r#"regex.match(`a{1001}`, "a")"#, "undefined"),
        (r#"regex.match(`\1`, "a")"#, "undefined"),
        (r#"regex.match(`\<a`, "<a")"#, "true"),
        (r#"regex.match(`(?=a)`, "a")"#, "undefined"),
        (r#"regex.match(`\pl`, "a")"#, "fails: Unicode class"),
        (r#"regex.match(`\b{start}`, "a")"#, "false"),
        (r#"regex.match(`\x{d800}`, "a")"#, "fails: surrogate"),
        (
            r#"regex.match(`a(?i)*`, "a")"#,
            "fails: a repetition follows flags",
        ),
        (
            r#"regex.match(`\pL{50}`, "a")"#,
            "fails: cannot be compiled",
        ),
        (r#"regex.is_valid(`[a`)"#, "false"),
        (r#"regex.is_valid(`\pL{50}`)"#, "fails: cannot be compiled"),
        // Repeated searches.
        (r#"regex.split("", "aéb")"#, r#"["a","é","b"]"#),
        (r#"regex.split("b*", "abbc")"#, r#"["a","c"]"#),
        (r#"regex.split("", "")"#, "[]"),
        (r#"regex.split("a", "")"#, r#"[""]"#),
        (r#"regex.find_n("a*", "baac", -1)"#, r#"["","aa",""]"#),
        (r#"regex.find_n("a", "aaa", 0)"#, "[]"),
        (r#"regex.find_n("a", "aaa", 2)"#, r#"["a","a"]"#),
        (
            r#"regex.find_all_string_submatch_n("(a)|(b)", "ab", -1)"#,
            r#"[["a","a",""],["b","","b"]]"#,
        ),
        (r#"regex.replace("baaac", "a*", "x")"#, r#""xbxcx""#),
        (
            r#"regex.replace("ab", "(?P<n>a)", "$n-${n}-$1x-${1}x-$$-$-$01-${a b}")"#,
            r#""a-a--ax-$-$--${a b}b""#,
        ),
        (r#"regex.replace("ab", "(?P<é>a)", "$é")"#, "undefined"),
        // Templates.
        (
            r#"regex.template_match("a.<[0-9]+>.c", "a.12.c", "<", ">")"#,
            "true",
        ),
        (
            r#"regex.template_match("a.<[0-9]+>.c", "axbx12.c", "<", ">")"#,
            "false",
        ),
        (r#"regex.template_match("<a|b>c", "bc", "<", ">")"#, "true"),
        (r#"regex.template_match("{a{2}}", "aa", "{", "}")"#, "true"),
        (r#"regex.template_match("<a", "a", "<", ">")"#, "undefined"),
        (r#"regex.template_match("a", "a", "<<", ">")"#, "undefined"),
        (r#"regex.template_match("|a|", "a", "|", "|")"#, "undefined"),
    ]);
}

#[test]
fn networks_are_those_of_go() {
    check(&[
        (
            r#"net.cidr_contains("10.0.0.0/8", "::ffff:10.1.2.3")"#,
            "true",
        ),
        (
            r#"net.cidr_contains("::ffff:10.0.0.0/104", "10.1.2.3")"#,
            "true",
        ),
        (
            r#"net.cidr_contains("::ffff:10.0.0.0/104", "11.1.2.3")"#,
            "false",
        ),
        (r#"net.cidr_contains("::/0", "10.1.2.3")"#, "false"),
        (
            r#"net.cidr_contains("10.0.0.0/8", "::ffff:10.0.0.0/104")"#,
            "true",
        ),
        (
            r#"net.cidr_contains("10.0.0.0/8", "10.01.2.3")"#,
            "undefined",
        ),
        (
            r#"net.cidr_contains("10.0.0.0/8", " 10.1.2.3")"#,
            "undefined",
        ),
        (
            r#"net.cidr_contains("10.0.0.0/8", "fe80::1%eth0")"#,
            "undefined",
        ),
        (
            r#"net.cidr_contains("10.0.0.0/8", "10.1.2.3\u0000")"#,
            "undefined",
        ),
        (
            r#"net.cidr_contains("10.0.0.0/33", "10.1.2.3")"#,
            "undefined",
        ),
        (r#"net.cidr_is_valid("10.0.0.0/08")"#, "true"),
        (r#"net.cidr_is_valid("10.0.0.0/+8")"#, "false"),
        (r#"net.cidr_is_valid("10.0.0.0/")"#, "false"),
        (r#"net.cidr_is_valid("10.0.0/8")"#, "false"),
        (r#"net.cidr_is_valid("::ffff:1.2.3.4/128")"#, "true"),
        (
            r#"net.cidr_expand("255.255.255.254/31")"#,
            r#"["255.255.255.254","255.255.255.255"]"#,
        ),
        (
            r#"net.cidr_expand("::ffff:1.2.3.4/127")"#,
            r#"["1.2.3.4","1.2.3.5"]"#,
        ),
        (r#"net.cidr_expand("::1:0/127")"#, r#"["::1:0","::1:1"]"#),
        (r#"net.cidr_expand("10.0.0.0/8")"#, "fails: addresses"),
        (r#"net.cidr_expand("::/0")"#, "fails: addresses"),
    ]);
}

#[test]
fn numbers_have_limits() {
    let many = "9".repeat(500);
    let product = format!("product([{}])", "9000000000000000000,".repeat(20));
    check(&[
        (r#"to_number("1e3")"#, "1000"),
        (r#"to_number("+5.")"#, "5"),
        (r#"to_number(".5")"#, "0.5"),
        (r#"to_number("0e999999999")"#, "0"),
        (r#"to_number("1e400")"#, "undefined"),
        (r#"to_number("1e99999999999999999999")"#, "undefined"),
        (r#"to_number("1e-99999999999999999999")"#, "0"),
        (r#"to_number(" 1")"#, "undefined"),
        (r#"to_number("1\u0000")"#, "undefined"),
        (r#"to_number("١")"#, "undefined"),
        (r#"to_number("1_000")"#, "fails: decimal"),
        (r#"to_number("0x10")"#, "fails: decimal"),
        (
            r#"to_number("123456789012345678901234567890") == 123456789012345678901234567890"#,
            "true",
        ),
        (&format!("to_number(\"{many}\")"), "fails: characters"),
        (&format!("json.unmarshal(\"{many}\")"), "fails: 64 bits"),
        (&format!("json.unmarshal(\"[-1,\\\"{many}\\\"]\")[0]"), "-1"),
        (&format!("units.parse(\"{many}\")"), "fails: characters"),
        (&format!("units.parse_bytes(\"{many}\")"), "fails: digits"),
        (&product, "fails: 1e308"),
        ("product([])", "1"),
        ("product([0, 1e300, 1e300])", "0"),
        ("product([2, 0.5])", "1"),
        ("sum([1.7e308, 1.7e308, 0.5])", "fails: 1e308"),
        ("sum({1, 2.5})", "3.5"),
        ("numbers.range(1, 3000000)", "fails: bounds"),
        ("numbers.range_step(0, 10, 0)", "undefined"),
        ("numbers.range_step(10, 0, 4)", "[10,6,2]"),
        ("format_int(-0.5, 10)", "\"0\""),
        ("format_int(-255.9, 16)", "\"-ff\""),
        ("format_int(18446744073709551616, 10)", "fails: 64 bits"),
        ("units.parse(\"100m\")", "0.1"),
        ("units.parse(\"1.5Ki\")", "1536"),
        ("units.parse(\"-2M\")", "-2000000"),
        ("units.parse(\"1h\")", "undefined"),
        ("units.parse(\"1 M\")", "undefined"),
        ("units.parse(\"1e9999999\")", "undefined"),
        ("units.parse(\"1e999\")", "fails: 1e308"),
        ("units.parse_bytes(\"1.001kb\")", "1001"),
        ("units.parse_bytes(\"0.3mib\")", "314572"),
        ("units.parse_bytes(\"-1.5KiB\")", "-1536"),
        ("units.parse_bytes(\"b\")", "undefined"),
        ("units.parse_bytes(\"1b\")", "undefined"),
    ]);
}

#[test]
fn strings_consist_of_characters() {
    check(&[
        (r#"count("a😀é")"#, "3"),
        (r#"lower("ΑΣ İẞK")"#, r#""ασ ißk""#),
        (r#"upper("ßŉᾳ ǆ")"#, r#""ßŉᾼ Ǆ""#),
        (r#"indexof("aéb", "b")"#, "2"),
        (r#"indexof("ab", "")"#, "undefined"),
        (r#"indexof_n("éaaa", "aa")"#, "[1,2]"),
        (r#"indexof_n("a", "")"#, "undefined"),
        (r#"strings.count("aaa", "aa")"#, "1"),
        (r#"strings.count("aé", "")"#, "3"),
        (r#"substring("aéb", 1, 1)"#, r#""é""#),
        (r#"substring("aéb", 1, -1)"#, r#""éb""#),
        (r#"substring("aéb", 5, 1)"#, r#""""#),
        (r#"trim("éaé", "é\u0000")"#, r#""a""#),
        (r#"trim_left("\u0000a", "\u0000")"#, r#""a""#),
        (r#"trim_right("aéb", "bé")"#, r#""a""#),
        (r#"replace("ab", "", "-")"#, r#""-a-b-""#),
        (r#"replace("aé", "", "-")"#, "fails: ASCII"),
        (
            r#"replace("aé\u0000", "é", "\u0000")"#,
            r#""a\u0000\u0000""#,
        ),
        (r#"strings.any_suffix_match(["aé", "b"], ["é"])"#, "true"),
        (r#"strings.any_prefix_match("b", ["a", "c"])"#, "false"),
        (r#"trace("x")"#, "true"),
    ]);
}

#[test]
fn sprintf_formats_as_go() {
    check(&[
        (
            r#"sprintf("%d|%5d|%-5d|%05d|%+d|% d", [1, 2, 3, -4, 5, 6])"#,
            r#""1|    2|3    |-0004|+5| 6""#,
        ),
        (
            r#"sprintf("%x|%X|%o|%O|%b|%c", [255, 255, 8, 8, 5, 233])"#,
            r#""ff|FF|10|0o10|101|é""#,
        ),
        (
            r#"sprintf("%v|%v|%v|%v", [1.5, json.unmarshal("1e21"), 1234567.5, 0.00001])"#,
            r#""1.5|1e+21|1.2345675e+06|1e-05""#,
        ),
        (
            r#"sprintf("%.2f|%6.1f|%e|%g|%.3g", [2.345, 2.25, 1.5, 0.5, 1234.5])"#,
            r#""2.35|   2.2|1.500000e+00|0.5|1.23e+03""#,
        ),
        (
            r#"sprintf("%s|%10s|%-4s|%.2s|%q", ["a", "é", "b", "éèà", "\u0001\"é"])"#,
            r#""a|         é|b   |éè|\"\\x01\\\"é\"""#,
        ),
        (
            r#"sprintf("%v %v %v %s", [null, true, [1, "a\u200b"], {"b": {2, 1}, "a": set()}])"#,
            r#""null true [1, \"a\\u200b\"] {\"a\": set(), \"b\": {1, 2}}""#,
        ),
        (
            r#"sprintf("%s|%d|%d", [5, "x", 1.5])"#,
            r#""%!s(int=5)|%!d(string=x)|%!d(float64=1.5)""#,
        ),
        (r#"sprintf("%d %d", [1])"#, r#""1 %!d(MISSING)""#),
        (r#"sprintf("%d", [1, "a"])"#, r#""1%!(EXTRA string=a)""#),
        (r#"sprintf("100%% %", [])"#, r#""100% %!(NOVERB)""#),
        (
            r#"sprintf("%s", [18446744073709551617])"#,
            r#""18446744073709551617""#,
        ),
        (
            r#"sprintf("%d", [9223372036854775807])"#,
            r#""9223372036854775807""#,
        ),
        (r#"sprintf("%*d", [1, 2])"#, "fails: * in a verb"),
        (r#"sprintf("%[1]d", [1])"#, "fails: [ in a verb"),
        (r#"sprintf("%#x", [1])"#, "fails: # in a verb"),
        (r#"sprintf("%T", ["a"])"#, "fails: %T"),
        (r#"sprintf("%99999d", [1])"#, "fails: width"),
    ]);
}

#[test]
fn json_is_that_of_go() {
    check(&[
        (
            r#"json.marshal("<é&>\u2028\u0000\b")"#,
            r#""\"\\u003cé\\u0026\\u003e\\u2028\\u0000\\b\"""#,
        ),
        (
            r#"json.marshal({"b": {2, 1}, "a": 18446744073709551617, 3: null})"#,
            r#""{\"3\":null,\"a\":18446744073709551617,\"b\":[1,2]}""#,
        ),
        (
            r#"json.marshal({[1, "<"]: 1})"#,
            r#""{\"[1,\\\"\\\\u003c\\\"]\":1}""#,
        ),
        (
            r#"json.marshal_with_options({"a": [1, {}]}, {"indent": " ", "prefix": ">"})"#,
            r#"">{\n> \"a\": [\n>  1,\n>  {}\n> ]\n>}""#,
        ),
        (
            r#"json.marshal_with_options({"a": []}, {})"#,
            r#""{\"a\":[]}""#,
        ),
        (
            r#"json.marshal_with_options([1], {"pretty": true})"#,
            r#""[\n\t1\n]""#,
        ),
        (
            r#"json.marshal_with_options([1], {"indent": " ", "pretty": false})"#,
            r#""[1]""#,
        ),
        (
            r#"json.marshal_with_options([1], {"other": 1})"#,
            "undefined",
        ),
        (
            r#"json.unmarshal("{\"a\": 1, \"a\": [2.5, null]}")"#,
            r#"{"a":[2.5,null]}"#,
        ),
        (
            r#"json.unmarshal("18446744073709551615")"#,
            "18446744073709551615",
        ),
        (
            r#"json.unmarshal("{\"$serde_json::private::Number\": \"1e999999999\"}")"#,
            r#"{"$serde_json::private::Number":"1e999999999"}"#,
        ),
        (r#"json.unmarshal("[1")"#, "undefined"),
        (r#"json.unmarshal("1 2")"#, "undefined"),
        (r#"json.unmarshal("1e999")"#, "fails: out of range"),
        (r#"json.unmarshal("\"\\ud800\"")"#, "fails: hex escape"),
        (r#"json.is_valid("\"\\ud800\"")"#, "true"),
        (r#"json.is_valid("1e999")"#, "true"),
        (r#"json.is_valid("\"\u0001\"")"#, "false"),
        (r#"json.is_valid("01")"#, "false"),
        (
            r#"json.filter({"a": {"b": 1, "c": 2}, "d": [3, 4]}, ["/a/b", "d/1"])"#,
            r#"{"a":{"b":1},"d":[4]}"#,
        ),
        (r#"json.filter({"a": 1}, ["a/b"])"#, r#"{"a":1}"#),
        (
            r#"json.filter({"a/b": 1, "~": 2}, ["a~1b", "~0"])"#,
            r#"{"a/b":1,"~":2}"#,
        ),
        (r#"json.filter({"a": 1}, [""])"#, "{}"),
        (
            r#"json.remove({"a": [1, {"b": 2, "c": 3}], "é": 4}, ["/a/1/b", ["é"]])"#,
            r#"{"a":[1,{"c":3}]}"#,
        ),
        (r#"json.remove({"a": 1}, ["a/b"])"#, r#"{"a":1}"#),
        (r#"json.remove({"a": {"b": 1}}, ["a", "a/b"])"#, "{}"),
    ]);
    let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let is_valid = |depth| json::is_valid(&Value::from(deep(depth))).unwrap();
    assert_eq!(is_valid(10_000), Value::from(true));
    assert_eq!(is_valid(10_001), Value::from(false));
    let found = evaluated(&format!("json.unmarshal(\"{}\")", deep(200)));
    assert!(found.contains("recursion limit"), "{found}");
    let path = format!("json.filter({{}}, [\"{}\"])", "a/".repeat(300));
    assert!(evaluated(&path).contains("segments"));
}

#[test]
fn encodings_are_those_of_go() {
    check(&[
        (r#"base64.decode("aGk=\n")"#, r#""hi""#),
        (r#"base64.decode("aGl=")"#, r#""hi""#),
        (r#"base64.decode("aGk")"#, "undefined"),
        (r#"base64.decode("_-==")"#, "undefined"),
        (r#"base64.decode("/w==")"#, "fails: UTF-8"),
        (r#"base64.is_valid("/w==")"#, "true"),
        (r#"base64url.decode("w6k")"#, r#""é""#),
        (r#"base64url.decode("w")"#, "undefined"),
        (r#"hex.decode("C3a9")"#, r#""é""#),
        (r#"hex.decode("c3a")"#, "undefined"),
        (r#"hex.decode("+1")"#, "undefined"),
        (r#"hex.decode("ff")"#, "fails: UTF-8"),
        (
            r#"urlquery.encode("a b~*é&\u0000")"#,
            r#""a+b~%2A%C3%A9%26%00""#,
        ),
        (r#"urlquery.decode("a%C3%A9+b&c=d")"#, r#""aé b&c=d""#),
        (r#"urlquery.decode("%4")"#, "undefined"),
        (r#"urlquery.decode("%+1")"#, "undefined"),
        (r#"urlquery.decode_object("a=1;b=2")"#, "undefined"),
        (
            r#"urlquery.decode_object("&a=1&a=2=3&%62")"#,
            r#"{"a":["1","2=3"],"b":[""]}"#,
        ),
        (
            r#"urlquery.encode_object({"b": ["2", "1"], "a": {"é"}, 3: "x"})"#,
            r#""3=x&a=%C3%A9&b=2&b=1""#,
        ),
        (r#"semver.compare("v1.2.3", "1.2.3")"#, "0"),
        (r#"semver.compare("1.2.3-a", "1.2.3")"#, "-1"),
        (r#"semver.compare("1.2.3-2", "1.2.3-10")"#, "-1"),
        (r#"semver.is_valid("vv1.2.3")"#, "false"),
        (r#"semver.is_valid("9223372036854775808.0.0")"#, "false"),
    ]);
}

#[test]
fn lists_and_objects_are_compared_and_merged() {
    check(&[
        ("object.subset([1, 2, 1, 2, 3], [1, 2, 3])", "true"),
        ("object.subset([1], [])", "true"),
        ("object.subset([], [1])", "false"),
        ("object.subset({\"a\": [1, 2]}, {\"a\": {1}})", "false"),
        ("object.subset([1, 2], {2, 1})", "true"),
        (
            "object.union_n([{\"a\": {\"b\": 2}}, {\"a\": 4}, {\"a\": {\"c\": 3}}])",
            r#"{"a":{"c":3}}"#,
        ),
        (
            "object.union_n([{\"a\": {\"b\": 2}}, {\"a\": {\"c\": 3}}])",
            r#"{"a":{"b":2,"c":3}}"#,
        ),
        ("union({{1, 2}, {3}, set()})", "[1,2,3]"),
        (
            "graph.reachable_paths({\"x\": [\"x\"]}, [\"x\"])",
            r#"[["x","x"]]"#,
        ),
    ]);
}

/// Inputs on which a quadratic algorithm takes minutes.
#[test]
fn the_time_of_a_call_is_linear() {
    let size = 1 << 19;
    let text = |text: &str| Value::from(text.repeat(size));
    let list = |value: &str| Value::from(vec![Value::from(value); size]);
    let numbered: Vec<_> = (0..size / 8)
        .map(|n| Value::from(format!("{n:07}")))
        .collect();
    let half = Value::from(format!("{}b", "a".repeat(size / 2)));
    let objects = numbered.iter().map(|name| {
        Value::from(std::collections::BTreeMap::from([(
            name.clone(),
            Value::Null,
        )]))
    });
    let sets: std::collections::BTreeSet<_> = numbered
        .iter()
        .map(|member| Value::from(std::collections::BTreeSet::from([member.clone()])))
        .collect();
    let mut part = vec![Value::from("a"); size / 2];
    part.push(Value::from("b"));
    let calls: Vec<(&str, Vec<Value>)> = vec![
        ("indexof", vec![text("a"), half.clone()]),
        ("indexof_n", vec![text("a"), half.clone()]),
        ("strings.count", vec![text("a"), half]),
        ("object.subset", vec![list("a"), Value::from(part)]),
        (
            "object.union_n",
            vec![Value::from(objects.collect::<Vec<_>>())],
        ),
        ("union", vec![Value::from(sets)]),
        (
            "strings.any_prefix_match",
            vec![Value::from(numbered.clone()), Value::from(numbered.clone())],
        ),
        (
            "strings.any_suffix_match",
            vec![Value::from(numbered.clone()), list("x")],
        ),
        (
            "trim",
            vec![
                text("a"),
                Value::from(
                    (0..0x1_0000_u32)
                        .filter_map(char::from_u32)
                        .collect::<String>()
                        + "a",
                ),
            ],
        ),
        ("product", vec![Value::from(vec![Value::from(1); size])]),
        ("json.unmarshal", vec![text("1")]),
        ("json.is_valid", vec![text("[")]),
        ("to_number", vec![text("1")]),
        ("units.parse", vec![text("1")]),
        ("regex.is_valid", vec![text("(")]),
        ("glob.match", vec![text("{"), Value::Null, text("a")]),
    ];
    begin(Duration::MAX);
    for (name, arguments) in calls {
        let begun = Instant::now();
        let (_, function) = FUNCTIONS.iter().find(|(known, _)| *known == name).unwrap();
        let _ = function.call(name, &arguments);
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(20), "{name} took {took:?}");
    }
    let _ = end();
}

#[test]
fn a_search_that_repeats_ends_with_the_evaluation() {
    let text = Value::from("A".repeat(1 << 18));
    let pattern = Value::from(".*[^A-Z]|[A-Z]");
    begin(Duration::from_millis(50));
    let begun = Instant::now();
    let result = regex::find_n(&pattern, &text, &Value::from(-1));
    assert!(matches!(result, Err(Stop::TimedOut)), "{result:?}");
    assert!(begun.elapsed() < Duration::from_secs(20));
    let _ = end();
}
