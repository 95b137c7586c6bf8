//! Checks a mutation's input: denies fields that the mutation may not have, and checks each string
//! with the rule for its field name.

use serde_json::{Map, Value};

use super::allowed;
use crate::github::body::join;
use crate::github::content::{self, Objection, ObjectionAt, objection_at};
use crate::github::mentions::Mentions;

/// The only argument of GitHub's mutations.
const ARGUMENT: &str = "input";

/// The first objection to the arguments of a mutation. A mutation that is not in `ALLOWED` gets
/// here only if the configuration adds it or has `github_writes: blocklist`. It may have any
/// argument and field, but its strings are checked.
pub(super) fn objection(
    mutation: &str,
    arguments: &Map<String, Value>,
    mentions: &Mentions,
) -> Option<ObjectionAt> {
    let judge = InputJudge {
        fields: allowed::fields(mutation),
        names_a_label: mutation == "createLabel" || mutation == "updateLabel",
        mentions,
    };
    arguments.iter().find_map(|(argument, value)| {
        if judge.fields.is_some() && argument != ARGUMENT {
            let objection = Objection::Key(vec![ARGUMENT]);
            return Some(objection_at(argument, objection));
        }
        judge.value(value, "", "")
    })
}

struct InputJudge<'a> {
    fields: Option<&'static [&'static str]>,
    names_a_label: bool,
    mentions: &'a Mentions,
}

impl InputJudge<'_> {
    /// Judges the value of the field `name` at the path `key`. The recursion is bounded by the
    /// depth limits of the parsers.
    fn value(&self, value: &Value, name: &str, key: &str) -> Option<ObjectionAt> {
        match value {
            Value::Object(members) => members.iter().find_map(|(name, value)| {
                let key = join(key, name);
                match self.fields {
                    Some(fields) if !allowed::has(fields, &key) => {
                        Some(objection_at(&key, Objection::Key(fields.to_vec())))
                    }
                    _ => self.field(value, name, &key),
                }
            }),
            Value::Array(items) => items.iter().find_map(|item| self.value(item, name, key)),
            Value::String(text) => {
                let objection = self.text(text, name)?;
                Some(objection_at(key, objection))
            }
            _ => None,
        }
    }

    /// Judges the value of a permitted field. `body` and `event` must be strings or null: their
    /// rules read strings, so a value that a server might convert to a string is denied.
    fn field(&self, value: &Value, name: &str, key: &str) -> Option<ObjectionAt> {
        let is_string_or_null = matches!(value, Value::String(_) | Value::Null);
        if (name == "body" || name == "event") && !is_string_or_null {
            return Some(objection_at(key, Objection::Type("a text".to_owned())));
        }
        self.value(value, name, key)
    }

    fn text(&self, text: &str, name: &str) -> Option<Objection> {
        match name {
            "body" => content::comment(text, self.mentions),
            "event" => content::approval(text),
            "labels" => content::label(text, self.mentions),
            "name" if self.names_a_label => content::label(text, self.mentions),
            name if name.to_ascii_lowercase().ends_with("logins") => {
                content::login(text, self.mentions)
            }
            _ => content::text(text, self.mentions),
        }
    }
}
