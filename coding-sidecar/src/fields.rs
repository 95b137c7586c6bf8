//! Deserializes and bounds fields of requests. Accepts the notations that language models write,
//! such as `10.0` for a whole number.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Number;

use crate::failure::Failure;
use crate::truncation::OUTPUT_LINES_MAX;

/// Deserializes a whole number of at least 0, such as a limit; null is `None`. Accepts a float
/// without a fraction, such as `10.0`.
pub(crate) fn count<'de, D: Deserializer<'de>>(field: D) -> Result<Option<u64>, D::Error> {
    let Some(number) = Option::<Number>::deserialize(field)? else {
        return Ok(None);
    };
    match number.as_u64().or_else(|| whole(number.as_f64()?)) {
        Some(count) => Ok(Some(count)),
        None => Err(D::Error::custom(format!(
            "{number} is not a whole number of at least 0"
        ))),
    }
}

/// Converts a float that is a whole number and fits into `u64`; `None` for any other.
fn whole(float: f64) -> Option<u64> {
    (float.fract() == 0.0)
        .then(|| format!("{float:.0}").parse().ok())
        .flatten()
}

/// Returns the request's limit, or `default` if it has none, but at most [`OUTPUT_LINES_MAX`].
/// Fails if the request's limit is 0.
pub(crate) fn limit(requested: Option<u64>, default: u64) -> Result<usize, Failure> {
    match requested {
        Some(0) => Err(Failure::Request("limit must be at least 1".into())),
        limit => Ok(usize::try_from(limit.unwrap_or(default))
            .unwrap_or(usize::MAX)
            .min(OUTPUT_LINES_MAX)),
    }
}

/// Deserializes a boolean; null is false.
pub(crate) fn switch<'de, D: Deserializer<'de>>(field: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(field)?.unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testkit::each_row;

    use super::*;

    #[test]
    fn counts_are_numbers_of_at_least_0_without_a_fraction() {
        each_row(
            [
                (json!(10), Some(Some(10))),
                (json!(10.0), Some(Some(10))),
                (json!(1e3), Some(Some(1000))),
                (json!(0.0), Some(Some(0))),
                (json!(u64::MAX), Some(Some(u64::MAX))),
                (json!(null), Some(None)),
                (json!(10.5), None),
                (json!(-1), None),
                (json!(-1.0), None),
                (json!(1e300), None),
                (json!("10"), None),
                (json!(true), None),
            ],
            |(field, expected)| assert_eq!(count(field).ok(), expected),
        );
    }

    #[test]
    fn a_switch_is_a_boolean_or_null() {
        assert!(switch(json!(true)).unwrap());
        assert!(!switch(json!(null)).unwrap());
        assert!(switch(json!("yes")).is_err());
    }
}
