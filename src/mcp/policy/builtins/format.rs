//! `sprintf`, as in Go's package `fmt` for the types of Rego.

use std::fmt::Write as _;
use std::sync::LazyLock;

use regex::Regex;
use regorus::Value;

use super::{Outcome, Stop, array, string, unsupported};

/// Limit on widths and precisions; Go's limit is a million.
const MAX_WIDTH: usize = 1 << 16;

/// A value as OPA hands it to Go.
enum Argument {
    Int(i64),
    /// The sign and the digits of an integer that is no `int` of Go.
    Big(Value),
    Float(f64),
    /// A string, or the Rego text of another value.
    Text(String),
}

/// A verb with its flags.
#[derive(Default)]
struct Verb {
    minus: bool,
    plus: bool,
    space: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
    name: char,
}

pub fn sprintf(format: &Value, values: &Value) -> Outcome {
    let format = string(format)?;
    let arguments = array(values)?.iter().map(Argument::of);
    let arguments: Vec<_> = arguments.collect::<Result<_, _>>()?;
    let mut unused = arguments.iter();
    let mut text = String::new();
    let mut rest = format;
    while let Some((before, behind)) = rest.split_once('%') {
        text.push_str(before);
        let Some((verb, behind)) = Verb::read(behind)? else {
            text.push_str("%!(NOVERB)");
            rest = "";
            break;
        };
        rest = behind;
        if verb.name == '%' {
            text.push('%');
        } else if let Some(argument) = unused.next() {
            text.push_str(&verb.format(argument)?);
        } else {
            push(&mut text, format_args!("%!{}(MISSING)", verb.name));
        }
    }
    text.push_str(rest);
    let extra: Vec<_> = unused.map(Argument::with_type).collect::<Result<_, _>>()?;
    if !extra.is_empty() {
        push(&mut text, format_args!("%!(EXTRA {})", extra.join(", ")));
    }
    Ok(Value::from(text))
}

fn push(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a string never fails.
    let _ = text.write_fmt(arguments);
}

impl Argument {
    fn of(value: &Value) -> Result<Self, Stop> {
        Ok(match value {
            Value::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(number), _) => Self::Int(number),
                (None, Some(number)) => Self::Float(number),
                (None, None) => Self::Big(value.clone()),
            },
            Value::String(text) => Self::Text((**text).to_owned()),
            _ => {
                let mut text = String::new();
                push_rego(&mut text, value);
                Self::Text(text)
            }
        })
    }

    /// The type and the value, as Go prints an argument that does not fit its verb.
    fn with_type(&self) -> Result<String, Stop> {
        let kind = match self {
            Self::Int(_) => "int",
            Self::Big(_) => "*big.Int",
            Self::Float(_) => "float64",
            Self::Text(_) => "string",
        };
        let verb = Verb {
            name: 'v',
            ..Verb::default()
        };
        Ok(format!("{kind}={}", verb.format(self)?))
    }
}

impl Verb {
    /// Reads a verb from behind the percent sign, and returns the rest of the text. `None` if there
    /// is no verb.
    fn read(text: &str) -> Result<Option<(Self, &str)>, Stop> {
        let mut verb = Self::default();
        let mut rest = text;
        loop {
            let Some(c) = rest.chars().next() else {
                return Ok(None);
            };
            match c {
                '-' => verb.minus = true,
                '+' => verb.plus = true,
                ' ' => verb.space = true,
                '0' => verb.zero = true,
                _ => break,
            }
            rest = rest.strip_prefix(c).unwrap_or_default();
        }
        verb.width = read_number(&mut rest)?;
        if let Some(behind) = rest.strip_prefix('.') {
            rest = behind;
            verb.precision = Some(read_number(&mut rest)?);
        }
        let mut characters = rest.chars();
        let Some(name) = characters.next() else {
            return Ok(None);
        };
        if matches!(name, '#' | '*' | '[') {
            return unsupported(format!("{name} in a verb"));
        }
        verb.name = name;
        Ok(Some((verb, characters.as_str())))
    }

    fn format(&self, argument: &Argument) -> Result<String, Stop> {
        match argument {
            Argument::Int(number) => {
                let digits = number.unsigned_abs();
                let digits = match self.name {
                    'v' | 'd' => digits.to_string(),
                    'b' => format!("{digits:b}"),
                    'o' | 'O' => format!("{digits:o}"),
                    'x' => format!("{digits:x}"),
                    'X' => format!("{digits:X}"),
                    'c' => {
                        let c = u32::try_from(*number).ok().and_then(char::from_u32);
                        let c = c.unwrap_or(char::REPLACEMENT_CHARACTER);
                        return self.pad_text(&c.to_string());
                    }
                    _ => return self.bad(argument),
                };
                // Go takes the plus of `%+v` for another flag.
                let plus = self.plus && self.name != 'v';
                Ok(self.pad_integer(*number < 0, plus, &digits))
            }
            Argument::Big(number) => {
                let Ok(number) = number.as_number() else {
                    return Err(Stop::Undefined);
                };
                let digits = number.abs();
                let digits = match self.name {
                    'v' | 'd' | 's' => digits.format_decimal(),
                    'b' => digits.format_bin(),
                    'o' | 'O' => digits.format_octal(),
                    'x' => digits.format_hex(),
                    'X' => digits.format_big_hex(),
                    name => return unsupported(format!("%{name} of an integer of this size")),
                };
                Ok(self.pad_integer(!number.is_positive(), self.plus, &digits))
            }
            Argument::Float(number) => {
                let digits = match self.name {
                    'v' | 'g' => general(number.abs(), self.precision),
                    'G' => general(number.abs(), self.precision).to_uppercase(),
                    'e' => exponent(number.abs(), self.precision.unwrap_or(6)),
                    'E' => exponent(number.abs(), self.precision.unwrap_or(6)).to_uppercase(),
                    'f' | 'F' => format!("{:.*}", self.precision.unwrap_or(6), number.abs()),
                    'b' | 'x' | 'X' => {
                        return unsupported(format!("%{} of a fraction", self.name));
                    }
                    _ => return self.bad(argument),
                };
                let plus = self.plus && self.name != 'v';
                let sign = self.sign(number.is_sign_negative(), plus);
                let zeros = self.width.saturating_sub(sign.len() + digits.len());
                Ok(match self.zero && !self.minus {
                    true => format!("{sign}{}{digits}", "0".repeat(zeros)),
                    false => self.pad(format!("{sign}{digits}")),
                })
            }
            Argument::Text(text) => {
                let cut = match self
                    .precision
                    .and_then(|most| text.char_indices().nth(most))
                {
                    Some((end, _)) => text.get(..end).unwrap_or_default(),
                    None => text,
                };
                match self.name {
                    'v' | 's' => self.pad_text(cut),
                    'q' if !self.plus => {
                        let mut quoted = String::new();
                        push_quoted(&mut quoted, cut);
                        self.pad_text(&quoted)
                    }
                    'x' | 'X' | 'q' => unsupported(format!("%{} with this flag", self.name)),
                    _ => self.bad(argument),
                }
            }
        }
    }

    /// Go's text for an argument that does not fit the verb.
    fn bad(&self, argument: &Argument) -> Result<String, Stop> {
        let has_flags = self.minus || self.plus || self.space || self.zero;
        if has_flags || self.width > 0 || self.precision.is_some() {
            return unsupported(format!("%{} with flags for this argument", self.name));
        }
        match self.name {
            'q' | 'U' | 'T' | 'p' | 'w' | 't' if !matches!(argument, Argument::Text(_)) => {
                unsupported(format!("%{} of a number", self.name))
            }
            'T' | 'p' | 'w' => unsupported(format!("%{}", self.name)),
            name => Ok(format!("%!{name}({})", argument.with_type()?)),
        }
    }

    fn sign(&self, is_negative: bool, plus: bool) -> &'static str {
        match (is_negative, plus, self.space) {
            (true, _, _) => "-",
            (_, true, _) => "+",
            (_, _, true) => " ",
            _ => "",
        }
    }

    fn pad_integer(&self, is_negative: bool, plus: bool, digits: &str) -> String {
        let prefix = if self.name == 'O' { "0o" } else { "" };
        let sign = self.sign(is_negative, plus);
        if digits == "0" && self.precision == Some(0) {
            return self.pad(String::new());
        }
        let least = match self.precision {
            Some(precision) => precision,
            None if self.zero && !self.minus => self.width.saturating_sub(sign.len()),
            None => 0,
        };
        let zeros = "0".repeat(least.saturating_sub(digits.len()));
        self.pad(format!("{sign}{prefix}{zeros}{digits}"))
    }

    /// Pads a text. Versions of Go differ in whether they pad with zeros.
    fn pad_text(&self, text: &str) -> Result<String, Stop> {
        match self.zero && !self.minus && self.width > 0 {
            true => unsupported("a text is padded with zeros"),
            false => Ok(self.pad(text.to_owned())),
        }
    }

    /// Pads a text with spaces to the width.
    fn pad(&self, text: String) -> String {
        let spaces = " ".repeat(self.width.saturating_sub(text.chars().count()));
        match self.minus {
            true => text + &spaces,
            false => spaces + &text,
        }
    }
}

/// Reads a number at the beginning of a text, and skips it. 0 without a number.
fn read_number(text: &mut &str) -> Result<usize, Stop> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, rest) = text.split_at_checked(end).unwrap_or_default();
    *text = rest;
    match digits.parse() {
        Ok(number) if number <= MAX_WIDTH => Ok(number),
        Err(_) if digits.is_empty() => Ok(0),
        _ => unsupported(format!("a width of more than {MAX_WIDTH}")),
    }
}

/// A number with an exponent of at least two digits.
fn exponent(number: f64, precision: usize) -> String {
    go_exponent(&format!("{number:.precision$e}"))
}

fn go_exponent(text: &str) -> String {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// A number in the shorter of two forms: `%g`. Without a precision, it has as many digits as are
/// needed to tell it from other numbers.
fn general(number: f64, precision: Option<usize>) -> String {
    let text = match precision {
        Some(precision) => format!("{number:.*e}", precision.max(1) - 1),
        None => format!("{number:e}"),
    };
    let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
    let power: i32 = power.parse().unwrap_or(0);
    let mantissa = match mantissa.contains('.') {
        true => mantissa.trim_end_matches('0').trim_end_matches('.'),
        false => mantissa,
    };
    let digits = mantissa.len() - usize::from(mantissa.contains('.'));
    // A mantissa of 17 digits and a power of 308 are far below the limits of these types.
    let digits = i32::try_from(digits).unwrap_or(i32::MAX);
    let limit = match precision.map(|precision| i32::try_from(precision.max(1)).unwrap_or(i32::MAX))
    {
        Some(limit) if limit > digits && digits > power => digits,
        Some(limit) => limit,
        None => 6,
    };
    if power < -4 || power >= limit {
        return go_exponent(&format!("{mantissa}e{power}"));
    }
    let behind = usize::try_from(digits - 1 - power).unwrap_or(0);
    format!("{number:.behind$}")
}

/// Appends a value as OPA prints it.
fn push_rego(text: &mut String, value: &Value) {
    match value {
        Value::Null | Value::Undefined => text.push_str("null"),
        Value::Bool(value) => push(text, format_args!("{value}")),
        Value::Number(number) => text.push_str(&number.format_decimal()),
        Value::String(string) => push_quoted(text, string),
        Value::Array(items) => push_list(text, ('[', ']'), items.iter(), push_rego),
        Value::Set(members) if members.is_empty() => text.push_str("set()"),
        Value::Set(members) => push_list(text, ('{', '}'), members.iter(), push_rego),
        Value::Object(fields) => {
            push_list(
                text,
                ('{', '}'),
                fields.iter_sorted(),
                |text, (key, value)| {
                    push_rego(text, key);
                    text.push_str(": ");
                    push_rego(text, value);
                },
            );
        }
    }
}

fn push_list<T>(
    text: &mut String,
    (open, close): (char, char),
    items: impl Iterator<Item = T>,
    push_item: impl Fn(&mut String, T),
) {
    text.push(open);
    for (at, item) in items.enumerate() {
        if at > 0 {
            text.push_str(", ");
        }
        push_item(text, item);
    }
    text.push(close);
}

/// Appends a string in quotes, as Go's `strconv.Quote` does.
fn push_quoted(text: &mut String, string: &str) {
    /// Characters that Go prints as themselves.
    static PRINTED: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"^[\pL\pM\pN\pP\pS ]$").ok());
    text.push('"');
    for c in string.chars() {
        let mut buffer = [0; 4];
        let code = u32::from(c);
        match c {
            '"' | '\\' => push(text, format_args!("\\{c}")),
            ' '..='~' => text.push(c),
            '\x07' => text.push_str("\\a"),
            '\x08' => text.push_str("\\b"),
            '\x0c' => text.push_str("\\f"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\x0b' => text.push_str("\\v"),
            '\0'..='\x7f' => push(text, format_args!("\\x{code:02x}")),
            _ if PRINTED
                .as_ref()
                .is_some_and(|set| set.is_match(c.encode_utf8(&mut buffer))) =>
            {
                text.push(c);
            }
            '\u{80}'..='\u{ffff}' => push(text, format_args!("\\u{code:04x}")),
            _ => push(text, format_args!("\\U{code:08x}")),
        }
    }
    text.push('"');
}
