//! Values of arguments with their variables filled in.

use std::collections::HashMap;

use serde_json::{Map, Value as Json};

use super::budget::Budget;
use super::syntax::Value;
use crate::contract::Denial;

/// The values of one operation's variables.
pub(super) struct Variables<'a> {
    pub(super) given: Option<&'a Map<String, Json>>,
    pub(super) defaults: &'a HashMap<String, Value>,
}

impl Variables<'_> {
    /// Returns a value with its variables filled in, as the server does. A variable without a value
    /// becomes null. Numbers and booleans in the query's text become `true`, since no rule depends
    /// on them.
    pub(super) fn fill(&self, value: &Value, budget: &mut Budget) -> Result<Json, Denial> {
        budget.spend_step()?;
        Ok(match value {
            Value::Null => Json::Null,
            Value::Plain => Json::Bool(true),
            Value::Text(text) => {
                budget.spend_bytes(text.len())?;
                Json::String(text.clone())
            }
            Value::Variable(name) => return self.variable(name, budget),
            Value::List(items) => {
                let filled = items.iter().map(|item| self.fill(item, budget));
                Json::Array(filled.collect::<Result<_, _>>()?)
            }
            Value::Object(members) => {
                let mut object = Map::new();
                for (name, value) in members {
                    object.insert(name.clone(), self.fill(value, budget)?);
                }
                Json::Object(object)
            }
        })
    }

    fn variable(&self, name: &str, budget: &mut Budget) -> Result<Json, Denial> {
        if let Some(given) = self.given.and_then(|given| given.get(name)) {
            budget.spend_value(given)?;
            return Ok(given.clone());
        }
        match self.defaults.get(name) {
            // A default is constant: the parser refuses a variable in it.
            Some(default) => self.fill(default, budget),
            None => Ok(Json::Null),
        }
    }
}
