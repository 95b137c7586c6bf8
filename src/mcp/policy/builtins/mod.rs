//! Functions of Rego whose results differ in regorus and in OPA, or whose cost regorus does not
//! bound.
//!
//! regorus calls a function that is installed here instead of its own function of that name. A
//! function returns what OPA's returns. If it cannot, it fails, and the failure ends the evaluation.
//!
//! A call of a function cannot be interrupted, so its time is linear in the size of its arguments, up
//! to a logarithm:
//!
//! | functions | bound |
//! | --- | --- |
//! | `indexof…`, `strings.count`, `object.subset`, `replace` | the search of [`str`], or Knuth-Morris-Pratt |
//! | `trim…`, `strings.any_…` | characters and strings are looked up in a set or a sorted list |
//! | `union`, `object.union_n` | sets and objects are merged in place |
//! | `json.filter`, `json.remove` | each value is visited once; a path has 200 segments at most |
//! | `json.is_valid`, `json.unmarshal` | integers have 64 bits at most |
//! | `glob.match`, `regex.…` | compiled patterns have 100 KiB at most; the clock is checked between two searches |
//! | `format_int`, `product`, `to_number`, `units.…` | numbers are about as great as `f64::MAX` at most |
//! | `net.cidr_expand`, `numbers.…` | results have 2^16 addresses or 2^20 numbers at most |
//! | `graph.reachable_paths`, `json.marshal_with_options`, `regex.find_all_string_submatch_n`, `regex.replace`, `replace`, `sprintf`, `strings.replace_n` | a call has literals: `syntax::AMPLIFIERS` |
//! | the others | one pass over the arguments, or over the sorted arguments |

mod collections;
mod encoding;
mod format;
mod glob;
mod go;
mod json;
mod net;
mod numbers;
mod pattern;
mod regex;
mod semver;
mod strings;

use std::cell::RefCell;
use std::time::{Duration, Instant};

use regorus::value::{Array, Object, Set};
use regorus::{Engine, Value};

use super::error::EvaluationError;
use Function::{Four, One, Three, Two};

pub use json::read_json;

/// The result of a function.
type Outcome = Result<Value, Stop>;

/// Why a function has no result.
#[derive(Debug)]
enum Stop {
    /// The call is undefined, as for OPA after an error.
    Undefined,
    /// OPA may have a result, but this function does not compute it. Names the reason.
    Unsupported(String),
    /// The time limit of the evaluation passed.
    TimedOut,
}

/// Tells regorus that a function failed. The evaluation fails with the error of [`end`].
#[derive(Debug, thiserror::Error)]
#[error("a function failed")]
struct Failed;

/// A function by the number of its arguments. regorus never passes `Value::Undefined`.
#[derive(Clone, Copy)]
enum Function {
    One(fn(&Value) -> Outcome),
    Two(fn(&Value, &Value) -> Outcome),
    Three(fn(&Value, &Value, &Value) -> Outcome),
    Four(fn(&Value, &Value, &Value, &Value) -> Outcome),
}

/// The functions of this module. `walk` is not among them: regorus evaluates it as a loop.
const FUNCTIONS: &[(&str, Function)] = &[
    ("base64.decode", One(encoding::base64_decode)),
    ("base64.is_valid", One(encoding::base64_is_valid)),
    ("base64url.decode", One(encoding::base64url_decode)),
    ("count", One(collections::count)),
    ("format_int", Two(numbers::format_int)),
    ("glob.match", Three(glob::matches)),
    ("glob.quote_meta", One(glob::quote_meta)),
    ("graph.reachable_paths", Two(collections::reachable_paths)),
    ("hex.decode", One(encoding::hex_decode)),
    ("indexof", Two(strings::indexof)),
    ("indexof_n", Two(strings::indexof_n)),
    ("json.filter", Two(json::filter)),
    ("json.is_valid", One(json::is_valid)),
    ("json.marshal", One(json::marshal)),
    ("json.marshal_with_options", Two(json::marshal_with_options)),
    ("json.remove", Two(json::remove)),
    ("json.unmarshal", One(json::unmarshal)),
    ("lower", One(strings::lower)),
    ("net.cidr_contains", Two(net::cidr_contains)),
    ("net.cidr_expand", One(net::cidr_expand)),
    ("net.cidr_is_valid", One(net::cidr_is_valid)),
    ("numbers.range", Two(numbers::range)),
    ("numbers.range_step", Three(numbers::range_step)),
    ("object.subset", Two(collections::subset)),
    ("object.union_n", One(collections::object_union_n)),
    ("product", One(numbers::product)),
    (
        "regex.find_all_string_submatch_n",
        Three(regex::find_all_string_submatch_n),
    ),
    ("regex.find_n", Three(regex::find_n)),
    ("regex.is_valid", One(regex::is_valid)),
    ("regex.match", Two(regex::matches)),
    ("regex.replace", Three(regex::replace)),
    ("regex.split", Two(regex::split)),
    ("regex.template_match", Four(regex::template_match)),
    ("replace", Three(strings::replace)),
    ("semver.compare", Two(semver::compare)),
    ("semver.is_valid", One(semver::is_valid)),
    ("sprintf", Two(format::sprintf)),
    ("strings.any_prefix_match", Two(strings::any_prefix_match)),
    ("strings.any_suffix_match", Two(strings::any_suffix_match)),
    ("strings.count", Two(strings::count)),
    ("strings.replace_n", Two(strings::replace_n)),
    ("substring", Three(strings::substring)),
    ("sum", One(numbers::sum)),
    ("to_number", One(numbers::to_number)),
    ("trace", One(strings::trace)),
    ("trim", Two(strings::trim)),
    ("trim_left", Two(strings::trim_left)),
    ("trim_right", Two(strings::trim_right)),
    ("union", One(collections::union)),
    ("units.parse", One(numbers::units_parse)),
    ("units.parse_bytes", One(numbers::units_parse_bytes)),
    ("upper", One(strings::upper)),
    ("urlquery.decode", One(encoding::urlquery_decode)),
    (
        "urlquery.decode_object",
        One(encoding::urlquery_decode_object),
    ),
    ("urlquery.encode", One(encoding::urlquery_encode)),
    (
        "urlquery.encode_object",
        One(encoding::urlquery_encode_object),
    ),
];

/// Functions of regorus that return what OPA's return.
#[rustfmt::skip]
const KEPT: &[&str] = &[
    // Calculate with one or two numbers.
    "abs", "bits.and", "bits.negate", "bits.or", "bits.rsh", "bits.xor", "ceil", "floor",
    "round",
    // Pass over their arguments once.
    "array.concat", "array.reverse", "array.slice", "base64.encode", "base64url.encode",
    "base64url.encode_no_pad", "contains", "endswith", "hex.encode", "is_array", "is_boolean",
    "is_null", "is_number", "is_object", "is_set", "is_string", "max", "min", "object.get",
    "object.keys", "print", "split", "startswith", "strings.reverse", "trim_prefix",
    "trim_space", "trim_suffix", "type_name",
    // Sort their arguments, or look up in sorted arguments.
    "graph.reachable", "intersection", "object.filter", "object.remove", "object.union", "sort",
    // A call has literals: `syntax::AMPLIFIERS`.
    "bits.lsh", "concat", "json.patch",
    // The input of a policy that calls it is limited: `program::MAX_WALKED_BYTES`.
    "walk",
];

/// Whether policies may call the function. The only other one is `interpreter::NOW`. Of regorus'
/// functions, `rand.intn` is missing, because a decision must not depend on chance, and
/// `__builtin_sets.…`, which OPA does not have.
pub fn exists(name: &str) -> bool {
    KEPT.contains(&name) || FUNCTIONS.iter().any(|(known, _)| *known == name)
}

/// Installs the functions in an engine without policies.
pub fn install(engine: &mut Engine) -> Result<(), impl std::fmt::Display + use<>> {
    FUNCTIONS.iter().try_for_each(|(name, function)| {
        let arguments = match function {
            One(_) => 1,
            Two(_) => 2,
            Three(_) => 3,
            Four(_) => 4,
        };
        let call = move |arguments: Vec<Value>| Ok(function.call(name, &arguments)?);
        engine.add_extension((*name).to_owned(), arguments, Box::new(call))
    })
}

impl Function {
    fn call(self, name: &str, arguments: &[Value]) -> Result<Value, Failed> {
        let result = match (self, arguments) {
            (One(function), [a]) => function(a),
            (Two(function), [a, b]) => function(a, b),
            (Three(function), [a, b, c]) => function(a, b, c),
            (Four(function), [a, b, c, d]) => function(a, b, c, d),
            _ => Err(Stop::Undefined),
        };
        let error = match result {
            Ok(value) => return Ok(value),
            Err(Stop::Undefined) => return Ok(Value::Undefined),
            Err(Stop::TimedOut) => EvaluationError::TimedOut,
            Err(Stop::Unsupported(why)) => EvaluationError::Failed(format!("{name}: {why}")),
        };
        EVALUATION.with_borrow_mut(|evaluation| {
            evaluation.error.get_or_insert(error);
        });
        Err(Failed)
    }
}

/// The evaluation that runs on a thread.
#[derive(Default)]
struct Evaluation {
    /// The deadline; `None` without one.
    ends: Option<Instant>,
    /// The first error of a function.
    error: Option<EvaluationError>,
}

thread_local! {
    static EVALUATION: RefCell<Evaluation> = RefCell::default();
}

/// Begins an evaluation on this thread. A function fails when `limit` has passed.
pub fn begin(limit: Duration) {
    EVALUATION.set(Evaluation {
        ends: Instant::now().checked_add(limit),
        error: None,
    });
}

/// Ends the evaluation on this thread. Fails if a function failed: regorus ignores an error in a
/// function of a policy if another definition of that function has a result.
pub fn end() -> Result<(), EvaluationError> {
    EVALUATION.take().error.map_or(Ok(()), Err)
}

/// Fails if the time limit of the evaluation has passed.
fn check_time() -> Result<(), Stop> {
    let ends = EVALUATION.with_borrow(|evaluation| evaluation.ends);
    match ends {
        Some(ends) if ends <= Instant::now() => Err(Stop::TimedOut),
        _ => Ok(()),
    }
}

fn unsupported<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Unsupported(why.into()))
}

fn string(value: &Value) -> Result<&str, Stop> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(Stop::Undefined),
    }
}

/// A number without a fraction. OPA accepts 64 bits.
fn integer(value: &Value) -> Result<i64, Stop> {
    value.as_i64().map_err(|_| Stop::Undefined)
}

fn array(value: &Value) -> Result<&Array, Stop> {
    value.as_array().map_err(|_| Stop::Undefined)
}

fn set(value: &Value) -> Result<&Set, Stop> {
    value.as_set().map_err(|_| Stop::Undefined)
}

fn object(value: &Value) -> Result<&Object, Stop> {
    value.as_object().map_err(|_| Stop::Undefined)
}

/// The elements of an array or a set.
fn elements(value: &Value) -> Result<Vec<&Value>, Stop> {
    match value {
        Value::Array(list) => Ok(list.iter().collect()),
        Value::Set(set) => Ok(set.iter().collect()),
        _ => Err(Stop::Undefined),
    }
}

/// Where `needle` is in `haystack`, overlapping occurrences
/// included: the algorithm of Knuth, Morris and Pratt. `needle` is not empty.
fn occurrences<T: PartialEq>(haystack: &[T], needle: &[T]) -> Vec<usize> {
    // For each prefix of the needle, the length of the longest proper prefix that is its suffix.
    let mut borders = vec![0_usize];
    let extend = |borders: &[usize], mut length: usize, item: &T| {
        while length > 0 && needle.get(length) != Some(item) {
            length = borders.get(length - 1).copied().unwrap_or(0);
        }
        length + usize::from(needle.get(length) == Some(item))
    };
    for item in needle.iter().skip(1) {
        let length = borders.last().copied().unwrap_or(0);
        borders.push(extend(&borders, length, item));
    }
    let mut found = Vec::new();
    let mut length = 0;
    for (at, item) in haystack.iter().enumerate() {
        length = extend(&borders, length, item);
        if length == needle.len() {
            found.push((at + 1).saturating_sub(length));
        }
    }
    found
}

#[cfg(test)]
#[path = "../tests/builtins.rs"]
mod tests;

#[cfg(test)]
#[path = "../tests/opa.rs"]
mod opa;
