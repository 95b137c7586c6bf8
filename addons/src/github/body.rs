//! The keys and types that the body of a REST write may have, and the judge of a body.
//!
//! A key that is not listed is denied, at every depth, so that a key that GitHub adds later stays
//! denied until it is listed. A value must have the listed type, so that the judge and GitHub
//! cannot interpret it differently.

use serde_json::{Map, Value};

use super::content::{self, Objection, ObjectionAt, objection_at};
use super::mentions::Mentions;

/// The keys of an object, each with the kind of its value. `null` is accepted for every key.
pub(super) type Keys = &'static [(&'static str, Kind)];

/// The type of a value, and the rule that judges it.
#[derive(Debug)]
pub(super) enum Kind {
    /// The text of a comment, an issue or a review, in which bots look for commands.
    Comment,
    /// Any other text, such as a title.
    Text,
    /// A text or a whole number.
    TextOrNumber,
    /// A whole number.
    Number,
    /// `true` or `false`.
    Flag,
    /// The event of a review, such as `COMMENT`.
    Event,
    /// The name of a label.
    Label,
    /// The login of an assignee or a requested reviewer.
    Login,
    /// A branch of this repository.
    Branch,
    /// A list of values of one kind.
    List(&'static Kind),
    /// An object with these keys.
    Object(Keys),
    /// A value of one of these kinds. The first kind with the type of the value judges the value.
    AnyOf(&'static [Kind]),
}

/// Judges the values of one body.
pub(super) struct Judge<'a> {
    pub(super) owner: &'a str,
    pub(super) mentions: &'a Mentions,
}

impl Judge<'_> {
    /// Returns the first objection to a body; `None` if the body may pass.
    pub(super) fn objection(&self, body: &Value, kind: &Kind) -> Option<ObjectionAt> {
        self.value(body, kind, "")
    }

    /// Judges a value. The recursion is bounded by the depth of `kind`.
    fn value(&self, value: &Value, kind: &Kind, key: &str) -> Option<ObjectionAt> {
        if !kind.fits(value) {
            return Some(objection_at(key, Objection::Type(kind.wanted())));
        }
        match (kind, value) {
            (Kind::AnyOf(kinds), value) => {
                let kind = kinds.iter().find(|kind| kind.fits(value))?;
                self.value(value, kind, key)
            }
            (Kind::Object(keys), Value::Object(members)) => self.members(members, keys, key),
            (Kind::List(kind), Value::Array(items)) => {
                items.iter().find_map(|item| self.value(item, kind, key))
            }
            (kind, Value::String(text)) => Some(objection_at(key, self.text(text, kind)?)),
            _ => None,
        }
    }

    fn members(&self, members: &Map<String, Value>, keys: Keys, key: &str) -> Option<ObjectionAt> {
        members.iter().find_map(|(name, value)| {
            let path = join(key, name);
            match keys.iter().find(|(listed, _)| listed == name) {
                Some(_) if value.is_null() => None,
                Some((_, kind)) => self.value(value, kind, &path),
                None => {
                    let allowed = keys.iter().map(|(listed, _)| *listed).collect();
                    Some(objection_at(&path, Objection::Key(allowed)))
                }
            }
        })
    }

    fn text(&self, text: &str, kind: &Kind) -> Option<Objection> {
        match kind {
            Kind::Comment => content::comment(text, self.mentions),
            Kind::Event => content::approval(text),
            Kind::Label => content::label(text, self.mentions),
            Kind::Login => content::login(text, self.mentions),
            Kind::Branch => content::branch(text, self.owner),
            _ => content::text(text, self.mentions),
        }
    }
}

impl Kind {
    /// Whether a value has the type, without regard to its members.
    fn fits(&self, value: &Value) -> bool {
        match self {
            Self::Number => value.is_i64(),
            Self::TextOrNumber => value.is_string() || Self::Number.fits(value),
            Self::Flag => value.is_boolean(),
            Self::List(_) => value.is_array(),
            Self::Object(_) => value.is_object(),
            Self::AnyOf(kinds) => kinds.iter().any(|kind| kind.fits(value)),
            Self::Comment | Self::Text | Self::Event | Self::Label | Self::Login | Self::Branch => {
                value.is_string()
            }
        }
    }

    /// The type, for an error message.
    fn wanted(&self) -> String {
        let wanted = match self {
            Self::Number => "a whole number",
            Self::TextOrNumber => "a text or a whole number",
            Self::Flag => "true or false",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
            Self::AnyOf(kinds) => {
                let kinds: Vec<_> = kinds.iter().map(Self::wanted).collect();
                return kinds.join(" or ");
            }
            _ => "a text",
        };
        wanted.to_owned()
    }
}

/// Joins `comments` and `body` to `comments.body`.
pub(super) fn join(key: &str, name: &str) -> String {
    if key.is_empty() {
        name.to_owned()
    } else {
        format!("{key}.{name}")
    }
}
