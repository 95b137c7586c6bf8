//! A YAML document as a tree whose nodes have a line and a column.
//!
//! Only plain YAML is read: one document of mappings, lists and scalars. Anchors, aliases, merge
//! keys, tags and duplicate keys are refused, so that a value means what its own line says.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Write;

use crate::contract::HostPattern;
use saphyr_parser::{Event, Parser, ScalarStyle, Span};
use zeroize::Zeroizing;

use super::report::{FileReport, Place};

/// Limit on the nesting of lists and mappings. Checked without recursion while the tree is built,
/// so that code that walks the tree may recurse.
const MAX_DEPTH: usize = 128;
/// Limit on the length of a key, in bytes. A host pattern in A-labels, the longest kind of key, has
/// at most 255 bytes.
const MAX_KEY_LENGTH: usize = 256;

/// A value and its place. It has no `Debug` on purpose, since it may hold a secret.
pub struct Node {
    pub place: Place,
    pub value: Value,
}

pub enum Value {
    Scalar(Scalar),
    Sequence(Vec<Node>),
    Mapping(Mapping),
    /// A value whose error was reported; no reader reports a second error.
    Refused,
}

impl Node {
    /// The values of the variables that were expanded in the scalars of this node.
    pub fn expanded(&self) -> Vec<&str> {
        match &self.value {
            Value::Scalar(scalar) => {
                let variables = scalar.variables.iter();
                variables.map(|one| one.value.as_str()).collect()
            }
            Value::Sequence(items) => items.iter().flat_map(Self::expanded).collect(),
            Value::Mapping(mapping) => {
                let values = mapping.entries.iter().map(|(_, value)| value);
                values.flat_map(Self::expanded).collect()
            }
            Value::Refused => Vec::new(),
        }
    }
}

#[derive(Default)]
pub struct Mapping {
    /// In the order of the file; keys are unique.
    pub entries: Vec<(Key, Node)>,
    /// The keys that readers claimed, in the order of their claims. `None`: no reader read the
    /// mapping, or its keys are chosen by the operator.
    pub claimed: RefCell<Option<Vec<&'static str>>>,
}

impl Mapping {
    /// Marks a key as claimed.
    pub fn claim(&self, key: &'static str) {
        let mut claimed = self.claimed.borrow_mut();
        let claimed = claimed.get_or_insert_default();
        if !claimed.contains(&key) {
            claimed.push(key);
        }
    }
}

/// A key of a mapping.
pub struct Key {
    /// Its text.
    pub name: String,
    /// The place of its first character.
    pub place: Place,
}

/// A value that is neither a list nor a mapping.
#[derive(Default)]
pub struct Scalar {
    /// Its text, with variables expanded.
    pub text: Zeroizing<String>,
    /// Whether it is written in quotes or as a block, so that it is a text even if it looks like a
    /// number.
    pub quoted: bool,
    /// The variables that were expanded in it.
    pub variables: Vec<Variable>,
}

/// A variable that was expanded in a scalar.
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its value, or the default that replaced it.
    pub value: Zeroizing<String>,
}

/// Appends a key to a key path.
pub fn key_path(path: &str, key: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if !key.is_empty() && key.bytes().all(plain) {
        let dot = if path.is_empty() { "" } else { "." };
        format!("{path}{dot}{key}")
    } else {
        format!("{path}[{key:?}]")
    }
}

/// The document cannot be parsed further; the error was reported.
pub struct Broken;

/// Parses a document; `None` if it is empty.
pub fn parse(text: &str, report: FileReport<'_>) -> Result<Option<Node>, Broken> {
    let mut parser = Parser::new_from_str(text);
    let mut builder = Builder {
        report,
        frames: Vec::new(),
        root: None,
    };
    while let Some(event) = parser.next_event() {
        match event {
            Ok((event, span)) => builder.event(event, span)?,
            Err(error) => {
                let place = Place::from(error.marker());
                let message = match unquoted_star(text, place) {
                    Some(advice) => advice,
                    None => format!("is not YAML: {}", error.info()),
                };
                report.refuse(place, &builder.path(), message);
                return Err(Broken);
            }
        }
    }
    Ok(builder.root)
}

/// Advice for a text that begins with `*`, which YAML parses as an alias; `None` if the text at
/// `place` does not begin with `*`. The advice shows the text only if it is a host pattern, since
/// any other text may be a secret.
fn unquoted_star(text: &str, place: Place) -> Option<String> {
    let line = text.lines().nth(place.line.checked_sub(1)?)?;
    let from = line.char_indices().nth(place.column.checked_sub(1)?)?.0;
    let rest = line.get(from..)?.strip_prefix('*')?;
    let word = rest.split([' ', '\t', ',', ']', '}', '#']).next()?;
    let example = match HostPattern::parse(&format!("*{word}")) {
        Ok(pattern) => format!("write \"{pattern}\""),
        Err(_) => "as in \"*.example.com\"".to_owned(),
    };
    Some(format!("text that begins with * must be quoted: {example}"))
}

/// A list or mapping whose end the parser has not reached.
enum Frame {
    Sequence {
        place: Place,
        items: Vec<Node>,
    },
    Mapping {
        place: Place,
        entries: Vec<(Key, Node)>,
        lines: HashMap<String, usize>,
        /// The key whose value comes next, and whether the pair is kept. A pair with a duplicate
        /// key or a merge key is dropped.
        pending: Option<(Key, bool)>,
    },
}

struct Builder<'a> {
    report: FileReport<'a>,
    frames: Vec<Frame>,
    root: Option<Node>,
}

impl Builder<'_> {
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), Broken> {
        let place = Place::from(&span.start);
        match event {
            Event::DocumentStart(_) if self.root.is_some() => self.stop(
                place,
                "a second document begins here: a file must hold only one",
            ),
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_extras(place, anchor, tag.is_some());
                self.scalar(place, text.into_owned(), style)
            }
            Event::SequenceStart(anchor, tag) => {
                self.refuse_extras(place, anchor, tag.is_some());
                let items = Vec::new();
                self.open(place, Frame::Sequence { place, items })
            }
            Event::MappingStart(anchor, tag) => {
                self.refuse_extras(place, anchor, tag.is_some());
                let frame = Frame::Mapping {
                    place,
                    entries: Vec::new(),
                    lines: HashMap::new(),
                    pending: None,
                };
                self.open(place, frame)
            }
            Event::SequenceEnd | Event::MappingEnd => {
                self.close();
                Ok(())
            }
            Event::Alias(_) => {
                self.refuse(place, "aliases are not read: write the value out");
                self.expect_value(place)?;
                self.add(place, Value::Refused);
                Ok(())
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
        }
    }

    fn scalar(&mut self, place: Place, text: String, style: ScalarStyle) -> Result<(), Broken> {
        if self.wants_key() {
            return self.key(Key { name: text, place }, style == ScalarStyle::Plain);
        }
        let scalar = Scalar {
            text: Zeroizing::new(text),
            quoted: style != ScalarStyle::Plain,
            variables: Vec::new(),
        };
        self.add(place, Value::Scalar(scalar));
        Ok(())
    }

    fn key(&mut self, key: Key, plain: bool) -> Result<(), Broken> {
        if key.name.len() > MAX_KEY_LENGTH {
            let message = format!("a key is longer than {MAX_KEY_LENGTH} bytes");
            return self.stop(key.place, &message);
        }
        let merge = plain && key.name == "<<";
        let Some(Frame::Mapping { lines, pending, .. }) = self.frames.last_mut() else {
            return Ok(());
        };
        let line = key.place.line;
        let before = lines.get(&key.name).copied();
        if before.is_none() {
            lines.insert(key.name.clone(), line);
        }
        let place = key.place;
        *pending = Some((key, !merge && before.is_none()));
        if merge {
            self.refuse(place, "merge keys are not read: write the values out");
        } else if let Some(before) = before {
            self.refuse(place, &format!("duplicate key, first in line {before}"));
        }
        Ok(())
    }

    fn open(&mut self, place: Place, frame: Frame) -> Result<(), Broken> {
        self.expect_value(place)?;
        if self.frames.len() >= MAX_DEPTH {
            let message = format!("is nested deeper than {MAX_DEPTH} levels");
            return self.stop(place, &message);
        }
        self.frames.push(frame);
        Ok(())
    }

    fn close(&mut self) {
        match self.frames.pop() {
            Some(Frame::Sequence { place, items }) => self.add(place, Value::Sequence(items)),
            Some(Frame::Mapping { place, entries, .. }) => {
                let claimed = RefCell::default();
                self.add(place, Value::Mapping(Mapping { entries, claimed }));
            }
            None => {}
        }
    }

    fn add(&mut self, place: Place, value: Value) {
        let node = Node { place, value };
        match self.frames.last_mut() {
            None => self.root = Some(node),
            Some(Frame::Sequence { items, .. }) => items.push(node),
            Some(Frame::Mapping {
                entries, pending, ..
            }) => {
                if let Some((key, true)) = pending.take() {
                    entries.push((key, node));
                }
            }
        }
    }

    fn wants_key(&self) -> bool {
        matches!(
            self.frames.last(),
            Some(Frame::Mapping { pending: None, .. })
        )
    }

    fn expect_value(&self, place: Place) -> Result<(), Broken> {
        if self.wants_key() {
            return self.stop(place, "a key must be a text, not a list or a mapping");
        }
        Ok(())
    }

    fn refuse_extras(&self, place: Place, anchor: usize, tag: bool) {
        if anchor != 0 {
            self.refuse(place, "anchors are not read: write the value out");
        }
        if tag {
            self.refuse(place, "tags are not read: write the value without its tag");
        }
    }

    fn refuse(&self, place: Place, message: &str) {
        self.report.refuse(place, &self.path(), message);
    }

    fn stop(&self, place: Place, message: &str) -> Result<(), Broken> {
        self.refuse(place, message);
        Err(Broken)
    }

    /// The key path of the parser's position.
    fn path(&self) -> String {
        let mut path = String::new();
        for frame in &self.frames {
            match frame {
                Frame::Sequence { items, .. } => {
                    let _ = write!(path, "[{}]", items.len());
                }
                Frame::Mapping { pending, .. } => {
                    if let Some((key, _)) = pending {
                        path = key_path(&path, &key.name);
                    }
                }
            }
        }
        path
    }
}
