//! Semantic versions. OPA accepts a `v` in front and numbers of 63 bits.

use std::cmp::Ordering;

use regorus::Value;
use semver::Version;

use super::{Outcome, Stop, string, unsupported};

pub fn compare(a: &Value, b: &Value) -> Outcome {
    let (a, b) = (parse(a)?, parse(b)?);
    // OPA compares longer identifiers as equal.
    let is_long = |part: &str| part.len() > 18 && part.bytes().all(|byte| byte.is_ascii_digit());
    if a.pre.split('.').chain(b.pre.split('.')).any(is_long) {
        return unsupported("a number of a pre-release has more than 18 digits");
    }
    Ok(Value::from(match a.cmp_precedence(&b) {
        Ordering::Less => -1,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    }))
}

pub fn is_valid(version: &Value) -> Outcome {
    Ok(Value::from(parse(version).is_ok()))
}

fn parse(version: &Value) -> Result<Version, Stop> {
    let text = string(version)?;
    let version = Version::parse(text.strip_prefix('v').unwrap_or(text));
    let version = version.map_err(|_| Stop::Undefined)?;
    let numbers = [version.major, version.minor, version.patch];
    match numbers.iter().all(|number| i64::try_from(*number).is_ok()) {
        true => Ok(version),
        false => Err(Stop::Undefined),
    }
}
