//! Numbers: their text, their sums and products, and units.

use regorus::Value;

use super::strings::to_lower;
use super::{Outcome, Stop, elements, integer, string, unsupported};

/// Limit on the length of a number's text, in bytes. A finite `f64` has up to 309 digits before
/// the point.
const MAX_TEXT: usize = 400;
/// The greatest product.
const MAX_PRODUCT: &str = "1e308";
/// Limit on the numbers in a range.
const MAX_RANGE: i128 = 1 << 20;

pub fn to_number(value: &Value) -> Outcome {
    match value {
        Value::Null => Ok(Value::from(0)),
        Value::Bool(value) => Ok(Value::from(i64::from(*value))),
        Value::Number(_) => Ok(value.clone()),
        Value::String(text) => {
            let is_go = |byte: u8| byte.is_ascii_hexdigit() || b"xXpP_.+-".contains(&byte);
            let unsigned = text.trim_start_matches(['+', '-']);
            match decimal(text) {
                Some(_) => parse(text),
                // OPA accepts hexadecimal numbers and underscores, but cannot calculate with them.
                None if unsigned.starts_with(|first: char| first.is_ascii_digit())
                    && text.bytes().all(is_go)
                    && text.contains(['x', 'X', '_']) =>
                {
                    unsupported(format!("{text:.20} is not a decimal number"))
                }
                None => Err(Stop::Undefined),
            }
        }
        _ => Err(Stop::Undefined),
    }
}

/// A decimal number: its sign, its digits without the point, the number of digits behind the
/// point, and its exponent.
struct Decimal<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    exponent: i64,
}

/// Reads a number in Go's syntax without underscores. `None` if the text is none.
fn decimal(text: &str) -> Option<Decimal<'_>> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => {
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            // More digits are a number beyond all bounds.
            let bound = if exponent.starts_with('-') {
                i64::MIN
            } else {
                i64::MAX
            };
            (mantissa, exponent.parse().unwrap_or(bound))
        }
        None => (unsigned, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut digits = whole.bytes().chain(fraction.bytes()).peekable();
    (digits.peek().is_some() && digits.all(|digit| digit.is_ascii_digit())).then_some(Decimal {
        negative: text.starts_with('-'),
        whole,
        fraction,
        exponent,
    })
}

/// The number of a decimal text; undefined if it is greater than any `f64`.
fn parse(text: &str) -> Outcome {
    if text.len() > MAX_TEXT {
        return unsupported(format!("a number has more than {MAX_TEXT} characters"));
    }
    match text.parse::<f64>() {
        // regorus would raise ten to the power of the exponent.
        Ok(0.0) => Ok(Value::from(0)),
        Ok(number) if number.is_finite() => {
            Value::from_numeric_string(text).map_err(|_| Stop::Undefined)
        }
        _ => Err(Stop::Undefined),
    }
}

pub fn sum(numbers: &Value) -> Outcome {
    let mut sum = Value::from(0);
    for number in elements(numbers)? {
        let number = number.as_number().map_err(|_| Stop::Undefined)?;
        let left = sum.as_number().map_err(|_| Stop::Undefined)?;
        sum = left.add(number).map_err(too_great)?.into();
    }
    Ok(sum)
}

pub fn product(numbers: &Value) -> Outcome {
    let limit = Value::from_numeric_string(MAX_PRODUCT).map_err(too_great)?;
    let limit = limit.as_number().map_err(too_great)?;
    let mut product = Value::from(1);
    for number in elements(numbers)? {
        let number = number.as_number().map_err(|_| Stop::Undefined)?;
        let left = product.as_number().map_err(|_| Stop::Undefined)?;
        let next = left.mul(number).map_err(too_great)?;
        if next.abs() > *limit {
            return Err(too_great("a product"));
        }
        product = next.into();
    }
    Ok(product)
}

fn too_great(_: impl std::fmt::Display) -> Stop {
    Stop::Unsupported(format!("a number is greater than {MAX_PRODUCT}"))
}

pub fn range(from: &Value, to: &Value) -> Outcome {
    range_step(from, to, &Value::from(1))
}

pub fn range_step(from: &Value, to: &Value, step: &Value) -> Outcome {
    let whole = |value: &Value| match value.as_number() {
        Ok(number) if number.is_integer() => match number.as_i128() {
            Some(number) => Ok(number),
            None => unsupported("a number has more than 128 bits"),
        },
        _ => Err(Stop::Undefined),
    };
    let (from, to, step) = (whole(from)?, whole(to)?, whole(step)?);
    if step <= 0 {
        return Err(Stop::Undefined);
    }
    let step = usize::try_from(step).unwrap_or(usize::MAX);
    if i128::try_from(from.abs_diff(to)).is_ok_and(|distance| distance < MAX_RANGE) {
        let numbers: Vec<_> = match from <= to {
            true => (from..=to).step_by(step).map(Value::from).collect(),
            false => (to..=from).rev().step_by(step).map(Value::from).collect(),
        };
        return Ok(Value::from(numbers));
    }
    unsupported(format!("the bounds differ by more than {MAX_RANGE}"))
}

pub fn format_int(number: &Value, base: &Value) -> Outcome {
    let number = number.as_number().map_err(|_| Stop::Undefined)?;
    // OPA rounds a longer number to 64 bits.
    let Some(digits) = number.abs().floor().as_u64() else {
        return unsupported("the number has more than 64 bits");
    };
    let text = match integer(base)? {
        2 => format!("{digits:b}"),
        8 => format!("{digits:o}"),
        10 => format!("{digits}"),
        16 => format!("{digits:x}"),
        _ => return Err(Stop::Undefined),
    };
    let sign = if number.is_positive() || digits == 0 {
        ""
    } else {
        "-"
    };
    Ok(Value::from(format!("{sign}{text}")))
}

/// Splits text into a number and a unit, as OPA does.
fn split_unit(text: &str) -> Result<(&str, &str), Stop> {
    let bytes = text.as_bytes();
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
    let mut at = 0;
    while at < bytes.len() {
        match byte(at) {
            b'e' | b'E' if matches!(byte(at + 1), b'0'..=b'9' | b'+' | b'-') => {
                at += usize::from(matches!(byte(at + 1), b'+' | b'-'));
                let digits = bytes.iter().skip(at + 1);
                if digits.take_while(|byte| byte.is_ascii_digit()).count() > 6 {
                    return Err(Stop::Undefined);
                }
            }
            b'0'..=b'9' | b'.' | b'+' | b'-' => {}
            _ => break,
        }
        at += 1;
    }
    match text.split_at_checked(at) {
        Some((number, unit)) if !number.is_empty() => Ok((number, unit)),
        _ => Err(Stop::Undefined),
    }
}

/// The factor of a prefix in lower case, such as `k` or `ki`; 1 for none.
fn factor(prefix: &str) -> Result<u64, Stop> {
    let (letter, base) = match prefix.strip_suffix('i') {
        Some(letter) => (letter, 1024_u64),
        None => (prefix, 1000),
    };
    let power = match (letter, prefix) {
        (_, "") => 0,
        _ if letter.len() == 1 => "kmgtpe".find(letter).ok_or(Stop::Undefined)? + 1,
        _ => return Err(Stop::Undefined),
    };
    Ok((0..power).fold(1, |factor, _| factor * base))
}

pub fn units_parse(text: &Value) -> Outcome {
    let text = string(text)?.replace('"', "");
    if text.contains(' ') {
        return Err(Stop::Undefined);
    }
    let (number, unit) = split_unit(&text)?;
    let number = decimal(number).ok_or(Stop::Undefined)?;
    // OPA distinguishes `m` from `M`, and accepts `mi` as well as `Mi`.
    let (factor, shift) = match (unit, unit.split_at_checked(1)) {
        ("", _) => (1, 0),
        ("m", _) => (1, -3),
        (_, Some((letter, rest))) => {
            let prefix = letter.to_ascii_lowercase() + &to_lower(rest);
            (factor(&prefix)?, 0)
        }
        _ => return Err(Stop::Undefined),
    };
    scaled(&number, factor, shift)
}

/// The product of a number, a factor and a power of ten.
fn scaled(number: &Decimal<'_>, factor: u64, shift: i64) -> Outcome {
    let digits = format!("{}{}", number.whole, number.fraction);
    let digits = parse(&digits)?;
    let factor = Value::from(factor);
    let (Ok(digits), Ok(factor)) = (digits.as_number(), factor.as_number()) else {
        return Err(Stop::Undefined);
    };
    let all = digits.mul(factor).map_err(too_great)?.format_decimal();
    let digits = all.trim_end_matches('0');
    let behind = i64::try_from(number.fraction.len()).unwrap_or(i64::MAX);
    let zeros = i64::try_from(all.len() - digits.len()).unwrap_or(i64::MAX);
    let shift = number.exponent.saturating_add(shift).saturating_sub(behind);
    let shift = shift.saturating_add(zeros);
    if digits.is_empty() {
        return Ok(Value::from(0));
    }
    if shift < -10 {
        return unsupported("OPA rounds to ten digits behind the point");
    }
    let sign = if number.negative { "-" } else { "" };
    match parse(&format!("{sign}{digits}e{shift}")) {
        Err(Stop::Undefined) => Err(too_great("a unit")),
        result => result,
    }
}

pub fn units_parse_bytes(text: &Value) -> Outcome {
    let text = to_lower(string(text)?).replace('"', "");
    if text.contains(' ') {
        return Err(Stop::Undefined);
    }
    let (number, unit) = split_unit(&text)?;
    let number = decimal(number).ok_or(Stop::Undefined)?;
    let prefix = match unit.strip_suffix('b') {
        Some("") => return Err(Stop::Undefined),
        Some(prefix) => prefix,
        None => unit,
    };
    let bytes = multiply(&number, factor(prefix)?)?;
    Ok(match (number.negative, i128::try_from(bytes)) {
        (true, Ok(bytes)) => Value::from(-bytes),
        _ => Value::from(bytes),
    })
}

/// The product, rounded down. OPA calculates with mantissas of 64 bits.
fn multiply(number: &Decimal<'_>, factor: u64) -> Result<u128, Stop> {
    let digits = format!("{}{}", number.whole, number.fraction);
    let digits = digits.trim_start_matches('0');
    let behind = i64::try_from(number.fraction.len()).unwrap_or(i64::MAX);
    let power = number.exponent.saturating_sub(behind);
    let ten = u32::try_from(power.unsigned_abs()).ok();
    let ten = ten.and_then(|power| 10_u64.checked_pow(power));
    let (digits, ten) = match (digits.parse::<u64>(), ten) {
        _ if digits.is_empty() => return Ok(0),
        (Ok(digits), Some(ten)) => (digits, ten),
        _ => return unsupported("the number has more than 19 digits"),
    };
    let (mantissa, exponent) = if power >= 0 {
        round(u128::from(digits) * u128::from(ten), 0, false)
    } else {
        // The quotient has at least 64 bits; one more is needed to round.
        let shift = digits.leading_zeros() + 64;
        let (dividend, ten) = (u128::from(digits) << shift, u128::from(ten));
        let rest = dividend % ten * 2;
        let quotient = dividend / ten * 2 + rest / ten;
        round(quotient, -i64::from(shift) - 1, rest % ten > 0)
    };
    let (mantissa, exponent) = round(u128::from(mantissa) * u128::from(factor), exponent, false);
    let mantissa = u128::from(mantissa);
    let shift = u32::try_from(exponent.unsigned_abs()).unwrap_or(u32::MAX);
    match exponent >= 0 {
        true if shift <= 64 => Ok(mantissa << shift),
        true => Err(too_great("a unit")),
        false => Ok(mantissa.checked_shr(shift).unwrap_or(0)),
    }
}

/// Rounds `number * 2^exponent` to a mantissa of 64 bits, halves to even. `more` means that the
/// exact number is greater by a fraction of its lowest bit.
fn round(number: u128, exponent: i64, more: bool) -> (u64, i64) {
    let shift = 64_u32.saturating_sub(number.leading_zeros());
    let mantissa = number >> shift;
    let rest = number - (mantissa << shift);
    let half = (1_u128 << shift) >> 1;
    let is_up = shift > 0 && (rest > half || rest == half && (more || mantissa & 1 == 1));
    let rounded = mantissa + u128::from(is_up);
    let exponent = exponent + i64::from(shift);
    match u64::try_from(rounded) {
        Ok(rounded) => (rounded, exponent),
        Err(_) => (1 << 63, exponent + 1),
    }
}
