//! Reads values from the tree and collects every error.
//!
//! A reader that finds an error reports it and returns `None`. The caller goes on with a default,
//! so that all errors are found. The configuration is refused at the end. No message quotes an
//! unparsed value, since that might be a misplaced secret.

use std::fmt::Display;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::report::{FileReport, Place};
use super::tree::{Key, Node, Scalar, Value, key_path};
use super::units;
use crate::contract::Origin;

/// The range of counts. A limit of 0 would switch the limited feature off, and a limit of more than
/// a million would limit nothing.
const COUNT: RangeInclusive<u32> = 1..=1_000_000;

/// Converts a default value to a non-zero number; 0 becomes 1.
#[must_use]
pub const fn at_least_one(number: u32) -> NonZeroU32 {
    match NonZeroU32::new(number) {
        Some(number) => number,
        None => NonZeroU32::MIN,
    }
}

/// A value in a file, its key path, and the report for its errors.
#[derive(Clone)]
pub struct Setting<'a> {
    pub(super) node: &'a Node,
    pub(super) path: String,
    pub(super) report: FileReport<'a>,
}

impl<'a> Setting<'a> {
    /// The place of the value's first character.
    pub fn place(&self) -> Place {
        self.node.place
    }

    /// The key path, such as `domains[2].ports[0]`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The file and line of the value.
    pub fn origin(&self) -> Origin {
        Origin {
            file: self.report.file.clone(),
            line: self.node.place.line,
        }
    }

    /// The report for errors of the value's file.
    pub fn report(&self) -> FileReport<'a> {
        self.report
    }

    /// Reports an error of the value.
    pub fn refuse(&self, message: impl Into<String>) {
        self.report.refuse(self.node.place, &self.path, message);
    }

    /// Reports an error at the place of the value's key.
    pub fn refuse_key(&self, key: &Key, message: impl Into<String>) {
        self.report.refuse(key.place, &self.path, message);
    }

    /// Whether the value is `null` or an empty text, for example from an empty variable.
    pub fn is_nothing(&self) -> bool {
        match &self.node.value {
            Value::Scalar(scalar) => is_null(scalar) || scalar.text.is_empty(),
            _ => false,
        }
    }

    /// Whether the value is a scalar: not a list, not a mapping, and not a value that was refused
    /// while the file was parsed or its variables were expanded.
    pub fn is_scalar(&self) -> bool {
        matches!(self.node.value, Value::Scalar(_))
    }

    /// Whether the value is a mapping.
    pub fn is_mapping(&self) -> bool {
        matches!(self.node.value, Value::Mapping(_))
    }

    /// A text, with the variables that were expanded in it. A plain number, boolean or `null` is
    /// refused, unless it comes from a variable.
    pub fn scalar(&self) -> Option<&'a Scalar> {
        let scalar = self.any_scalar("a text")?;
        if is_null(scalar) {
            self.refuse("has no value");
            return None;
        }
        let expanded = !scalar.variables.is_empty();
        if !scalar.quoted && !expanded && has_another_type(&scalar.text) {
            self.refuse("must be a text: put it in quotes");
            return None;
        }
        Some(scalar)
    }

    /// A text.
    pub fn text(&self) -> Option<&'a str> {
        self.scalar().map(|scalar| scalar.text.as_str())
    }

    /// The values of the variables that were expanded in the value's scalars.
    pub fn expanded(&self) -> Vec<&'a str> {
        self.node.expanded()
    }

    /// The text of any scalar, including a plain `8080` or `true`. For values that are always texts,
    /// such as those of an MCP server's `env`.
    pub fn any_text(&self) -> Option<&'a str> {
        Some(self.any_scalar("a text")?.text.as_str())
    }

    /// A whole number that is written without quotes or comes from a variable; `Some(None)` for any
    /// other scalar.
    pub fn plain_number(&self) -> Option<Option<u64>> {
        let scalar = self.any_scalar("a number or a text")?;
        let plain = !scalar.quoted || !scalar.variables.is_empty();
        Some(units::whole(&scalar.text).filter(|_| plain))
    }

    /// Converts any value to JSON.
    pub fn json(&self) -> Option<serde_json::Value> {
        match &self.node.value {
            Value::Scalar(scalar) => Some(scalar_json(scalar)),
            Value::Sequence(_) => Some(self.list(|at| at.json())?.into()),
            Value::Mapping(_) => {
                let entries = self.entries()?;
                let read = entries.map(|(key, at)| Some((key.name.clone(), at.json()?)));
                Some(serde_json::Value::Object(read.collect::<Option<_>>()?))
            }
            Value::Refused => None,
        }
    }

    /// Parses a text; the parser's error becomes the message.
    pub fn parse<T, E: Display>(&self, parse: impl FnOnce(&str) -> Result<T, E>) -> Option<T> {
        match parse(self.text()?) {
            Ok(value) => Some(value),
            Err(error) => {
                self.refuse(error.to_string());
                None
            }
        }
    }

    /// The value that `words` pairs with the text. Any other text is refused.
    pub fn one_of<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        let text = self.any_scalar("a text")?.text.as_str();
        let found = words.iter().find(|(word, _)| *word == text);
        self.or_refuse(found.map(|(_, value)| *value), || {
            let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            format!("must be one of {}", words.join(", "))
        })
    }

    /// `true` or `false`.
    pub fn boolean(&self) -> Option<bool> {
        const WRONG: &str = "must be true or false";
        let found = self.plain(WRONG)?.parse().ok();
        self.or_refuse(found, || WRONG.to_owned())
    }

    /// A whole number in this range that is written without quotes or comes from a variable.
    pub fn number<T>(&self, range: RangeInclusive<T>) -> Option<T>
    where
        T: TryFrom<u64> + PartialOrd + Display,
    {
        let wrong = || {
            format!(
                "must be a whole number from {} to {}",
                range.start(),
                range.end()
            )
        };
        let number = units::whole(self.plain(&wrong())?);
        let found = number
            .and_then(|number| T::try_from(number).ok())
            .filter(|number| range.contains(number));
        self.or_refuse(found, wrong)
    }

    /// A whole number from 1 to a million.
    pub fn count(&self) -> Option<NonZeroU32> {
        self.number(COUNT).and_then(NonZeroU32::new)
    }

    /// A number of bytes in this range, or a size such as `100MB`, with or without quotes.
    pub fn size<T>(&self, range: RangeInclusive<u64>) -> Option<T>
    where
        T: TryFrom<u64>,
    {
        let least = units::show_size(*range.start());
        let most = units::show_size(*range.end());
        let wanted = format!("a number of bytes or a size such as 100MB, from {least} to {most}");
        let found = units::size(&self.any_scalar(&wanted)?.text)
            .filter(|size| range.contains(size))
            .and_then(|size| T::try_from(size).ok());
        self.or_refuse(found, || format!("must be {wanted}"))
    }

    /// A duration such as `10s`.
    pub fn duration(&self) -> Option<Duration> {
        let found = units::duration(&self.any_scalar("a duration")?.text);
        found.map_err(|message| self.refuse(message)).ok()
    }

    /// A number of seconds, or a duration such as `10s`.
    pub fn seconds(&self) -> Option<Duration> {
        let text = &self.any_scalar("a number of seconds")?.text;
        let found = match units::whole(text) {
            Some(_) => units::duration(&format!("{}s", text.as_str())),
            None => units::duration(text),
        };
        found.map_err(|message| self.refuse(message)).ok()
    }

    /// Reads a list. Items for which `read` returns `None` are left out.
    pub fn list<T>(&self, mut read: impl FnMut(Setting<'a>) -> Option<T>) -> Option<Vec<T>> {
        let Value::Sequence(items) = &self.node.value else {
            return self.wrong_type("a list, [] for an empty one");
        };
        let mut values = Vec::with_capacity(items.len());
        for (index, node) in items.iter().enumerate() {
            values.extend(read(Setting {
                node,
                path: format!("{}[{index}]", self.path),
                report: self.report,
            }));
        }
        Some(values)
    }

    /// Reads a list that must not be empty.
    pub fn filled_list<T>(&self, read: impl FnMut(Setting<'a>) -> Option<T>) -> Option<Vec<T>> {
        if matches!(&self.node.value, Value::Sequence(items) if items.is_empty()) {
            self.refuse("must not be empty");
            return None;
        }
        self.list(read)
    }

    /// The keys and values of a mapping whose keys are chosen by the operator.
    pub fn entries(&self) -> Option<impl Iterator<Item = (&'a Key, Setting<'a>)> + use<'a>> {
        let Value::Mapping(mapping) = &self.node.value else {
            return self.wrong_type("a mapping, {} for an empty one");
        };
        let (path, report) = (self.path.clone(), self.report);
        Some(mapping.entries.iter().map(move |(key, node)| {
            let path = key_path(&path, &key.name);
            (key, Setting { node, path, report })
        }))
    }

    fn any_scalar(&self, wanted: &str) -> Option<&'a Scalar> {
        match &self.node.value {
            Value::Scalar(scalar) => Some(scalar),
            _ => self.wrong_type(wanted),
        }
    }

    /// The text of a scalar that is written without quotes or comes from a variable, as numbers and
    /// booleans must be. Reports `wrong` for any other value that was not refused before.
    pub fn plain(&self, wrong: &str) -> Option<&'a str> {
        let scalar = match &self.node.value {
            Value::Scalar(scalar) if !scalar.quoted || !scalar.variables.is_empty() => scalar,
            Value::Refused => return None,
            _ => {
                self.refuse(wrong);
                return None;
            }
        };
        Some(&scalar.text)
    }

    fn or_refuse<T>(&self, found: Option<T>, wrong: impl FnOnce() -> String) -> Option<T> {
        if found.is_none() {
            self.refuse(wrong());
        }
        found
    }

    pub(super) fn wrong_type<T>(&self, wanted: &str) -> Option<T> {
        if !matches!(self.node.value, Value::Refused) {
            self.refuse(format!("must be {wanted}"));
        }
        None
    }
}

fn is_null(scalar: &Scalar) -> bool {
    let written = !scalar.quoted && scalar.variables.is_empty();
    written && matches!(scalar.text.as_str(), "" | "~" | "null" | "Null" | "NULL")
}

/// Converts a scalar to JSON. A plain null keeps its type, and so do a boolean and a number in the
/// spelling of JSON. Any other scalar becomes a string.
fn scalar_json(scalar: &Scalar) -> serde_json::Value {
    if scalar.quoted || !scalar.variables.is_empty() {
        return scalar.text.as_str().into();
    }
    if is_null(scalar) {
        return serde_json::Value::Null;
    }
    let plain = scalar.text.as_str();
    match serde_json::from_str(plain) {
        Ok(value @ (serde_json::Value::Bool(_) | serde_json::Value::Number(_))) => value,
        _ => plain.into(),
    }
}

/// Whether a plain scalar with this text counts as a boolean or a number. For null see [`is_null`].
fn has_another_type(text: &str) -> bool {
    let is_boolean = matches!(text, "true" | "True" | "TRUE" | "false" | "False" | "FALSE");
    let begins_as_number = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    let is_number = text.parse::<f64>().is_ok()
        || text.starts_with("0x")
        || text.starts_with("0o")
        || matches!(text.trim_start_matches(['+', '-']), ".inf" | ".nan");
    is_boolean || (begins_as_number && is_number)
}
