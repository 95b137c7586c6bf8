//! OPA's own test cases: each row of `opa.txt` has an expression, its value in OPA and the test
//! case of OPA.

use std::collections::BTreeSet;

use super::tests::evaluated;

/// Rows whose value differs from OPA's, with the reason. An expression stands for all rows that
/// begin with it.
const DIFFERENT: [(&str, &str); 9] = [
    (
        "count(base64.decode(\"2E84ZuPUd7zfvCZSNEchVpDEIj6PL7JfLpIqyxVG16k=\"))",
        "a string that is not UTF-8: the call fails",
    ),
    ("1.1 % 1", "operators fail instead of being undefined"),
    ("{1} - 1", "operators fail instead of being undefined"),
    ("1 - {1}", "operators fail instead of being undefined"),
    (
        "1e400 > 1e399",
        "a number beyond f64: the policy is refused",
    ),
    ("1e-400 > 0", "a number below f64 is 0"),
    (
        "0.1234567890123456789 > 0.1234567890123456788",
        "fractions are f64",
    ),
    ("strings.split_n(", "the function does not exist here"),
    (
        "sprintf(\"hi %v\", [2e308])",
        "a number beyond f64: the policy is refused",
    ),
];

/// Parts of the errors with which policies are refused that OPA accepts.
const REFUSALS: [&str; 3] = [
    "write `walk` with two arguments",
    "the value of `in` is used",
    "the result of strings.replace_n can take all memory",
];

#[test]
fn functions_return_what_opa_returns() {
    let rows = include_str!("opa.txt")
        .lines()
        .filter(|row| !row.starts_with('#'));
    let (mut different, mut refusals) = (BTreeSet::new(), BTreeSet::new());
    testkit::each_row(rows, |row| {
        let [expression, expected, _] = row.split('\t').collect::<Vec<_>>()[..] else {
            panic!("a row has three columns");
        };
        let found = evaluated(expression);
        if let Some(refusal) = REFUSALS.iter().find(|part| found.contains(**part)) {
            refusals.insert(*refusal);
            return;
        }
        let is_equal = match expected {
            "undefined" => found == "undefined",
            _ => is_equal_json(expected, &found),
        };
        let known = DIFFERENT
            .iter()
            .find(|(known, _)| expression.starts_with(known));
        match (is_equal, known) {
            (true, None) => {}
            (false, Some((known, _))) => drop(different.insert(*known)),
            (true, Some(_)) => panic!("the row is equal; remove it from DIFFERENT"),
            (false, None) => panic!("{found}"),
        }
    });
    let known = DIFFERENT.map(|(expression, _)| expression);
    assert_eq!(different, known.into(), "DIFFERENT has rows that are gone");
    assert_eq!(
        refusals,
        REFUSALS.into(),
        "REFUSALS has errors that are gone"
    );
}

/// Whether two texts stand for the same value. Numbers are compared as `f64`.
fn is_equal_json(a: &str, b: &str) -> bool {
    let parse = |text| serde_json::from_str::<serde_json::Value>(text).ok();
    match (parse(a), parse(b)) {
        (Some(a), Some(b)) => are_equal(&a, &b),
        _ => false,
    }
}

fn are_equal(a: &serde_json::Value, b: &serde_json::Value) -> bool {
    use serde_json::Value::{Array, Number, Object};
    match (a, b) {
        (Number(a), Number(b)) => a.as_f64() == b.as_f64(),
        (Array(a), Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| are_equal(a, b)),
        (Object(a), Object(b)) => {
            let has = |(name, a)| b.get(name).is_some_and(|b| are_equal(a, b));
            a.len() == b.len() && a.iter().all(has)
        }
        _ => a == b,
    }
}
