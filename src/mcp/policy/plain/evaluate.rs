//! One evaluation of a plan.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use regorus::unstable::{BuiltinFcn, comparison};
use regorus::{LimitError, Value};

use super::functions::Function;
use super::{
    Branch, Call, Definition, EntrypointSlots, EntrypointValue, Expression, Membership, Plan, Rule,
    Statement,
};
use crate::mcp::policy::error::EvaluationError;

/// Number of steps between two checks of the clock; a step takes less than 100 ns, without the
/// function that it calls.
const STEPS_PER_CHECK: u32 = 64;

/// A value; borrowed if the plan, the input or a slot holds it.
type Found<'e> = Result<Cow<'e, Value>, EvaluationError>;

/// One evaluation: the slots of the plan, each of which is filled at most once.
pub struct Evaluation<'e> {
    plan: &'e Plan,
    input: &'e Value,
    ends: Option<Instant>,
    steps: Cell<u32>,
    paths: Vec<OnceCell<&'e Value>>,
    rules: Vec<OnceCell<Value>>,
    calls: Vec<OnceCell<Value>>,
}

impl<'e> Evaluation<'e> {
    pub fn new(plan: &'e Plan, input: &'e Value, ends: Option<Instant>) -> Self {
        Self {
            plan,
            input,
            ends,
            steps: Cell::new(0),
            paths: vec![OnceCell::new(); plan.paths.len()],
            rules: vec![OnceCell::new(); plan.rules.len()],
            calls: vec![OnceCell::new(); plan.calls.len()],
        }
    }

    /// Evaluates all rules of the entrypoint, even if the decision alone would suffice, since each
    /// rule may fail.
    pub fn entrypoint(&self) -> Result<EntrypointValue, EvaluationError> {
        let value = |slot: Option<usize>| match slot {
            Some(slot) => self.rule(slot).cloned(),
            None => Ok(Value::Undefined),
        };
        match self.plan.entrypoint {
            EntrypointSlots::Rule(slot) => value(Some(slot)).map(EntrypointValue::Rule),
            EntrypointSlots::Package([decision, reason, modified]) => {
                let values = [value(decision)?, value(reason)?, value(modified)?];
                Ok(EntrypointValue::Package(values))
            }
        }
    }

    fn rule(&self, slot: usize) -> Result<&Value, EvaluationError> {
        let (Some(cell), Some(rule)) = (self.rules.get(slot), self.plan.rules.get(slot)) else {
            return Err(no_slot());
        };
        if let Some(value) = cell.get() {
            return Ok(value);
        }
        let value = match rule {
            Rule::Complete {
                definitions,
                default,
            } => self.complete(definitions, default)?,
            Rule::Set(elements) => self.set(elements)?,
        };
        Ok(cell.get_or_init(|| value))
    }

    /// Evaluates all definitions of a complete rule. Fails if two have different values; returns
    /// `default` if none has a value.
    fn complete(
        &self,
        definitions: &'e [Definition],
        default: &Value,
    ) -> Result<Value, EvaluationError> {
        let mut found = Value::Undefined;
        for definition in definitions {
            let value = self.first(&definition.0)?;
            match (&*value, &found) {
                (Value::Undefined, _) => {}
                (_, Value::Undefined) => found = value.into_owned(),
                (value, found) if value == found => {}
                _ => {
                    let message = "complete rules should not produce multiple outputs";
                    return Err(EvaluationError::Failed(message.to_owned()));
                }
            }
        }
        Ok(match found {
            Value::Undefined => default.clone(),
            found => found,
        })
    }

    /// The value of the first branch whose body holds and whose value is defined; undefined if
    /// there is no such branch.
    fn first(&self, branches: &'e [Branch]) -> Found<'_> {
        for branch in branches {
            if self.holds(&branch.body)? {
                let value = self.value(&branch.value)?;
                if *value != Value::Undefined {
                    return Ok(value);
                }
            }
        }
        Ok(Cow::Borrowed(&Value::Undefined))
    }

    fn set(&self, elements: &'e [Branch]) -> Result<Value, EvaluationError> {
        let mut found = BTreeSet::new();
        for element in elements {
            if self.holds(&element.body)? {
                let value = self.value(&element.value)?;
                if *value != Value::Undefined {
                    found.insert(value.into_owned());
                }
            }
        }
        Ok(Value::from(found))
    }

    /// Whether each statement holds: its expression is neither false nor undefined or, if the
    /// statement is negated, is one of these.
    fn holds(&self, body: &'e [Statement]) -> Result<bool, EvaluationError> {
        for statement in body {
            let value = self.value(&statement.expression)?;
            let is_true = !matches!(*value, Value::Bool(false) | Value::Undefined);
            if is_true == statement.is_negated {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn value(&self, expression: &'e Expression) -> Found<'_> {
        self.step()?;
        match expression {
            Expression::Constant(value) => Ok(Cow::Borrowed(value)),
            Expression::Input(slot) => self.input(*slot).map(Cow::Borrowed),
            Expression::Rule(slot) => self.rule(*slot).map(Cow::Borrowed),
            Expression::Call(slot) => self.call(*slot).map(Cow::Borrowed),
            Expression::Below(whole, path) => Ok(match self.value(whole)? {
                Cow::Borrowed(whole) => Cow::Borrowed(below(whole, path)),
                Cow::Owned(whole) => Cow::Owned(below(&whole, path).clone()),
            }),
            Expression::Compare(operator, sides) => {
                let [left, right] = &**sides;
                let (left, right) = (self.value(left)?, self.value(right)?);
                if *left == Value::Undefined || *right == Value::Undefined {
                    return Ok(Cow::Borrowed(&Value::Undefined));
                }
                let result = comparison::compare(operator, &left, &right);
                result.map(Cow::Owned).map_err(failed)
            }
            Expression::In(membership) => self.membership(membership),
            Expression::Array(items) => self.all(items, Value::from),
            Expression::Set(items) => {
                let set = |items: Vec<Value>| Value::from(BTreeSet::from_iter(items));
                self.all(items, set)
            }
            Expression::Object(fields) => self.object(fields),
        }
    }

    fn input(&self, slot: usize) -> Result<&'e Value, EvaluationError> {
        let (Some(cell), Some(path)) = (self.paths.get(slot), self.plan.paths.get(slot)) else {
            return Err(no_slot());
        };
        Ok(*cell.get_or_init(|| below(self.input, path)))
    }

    /// Evaluates `in`. As in the interpreter, the result is a boolean even if the value or the
    /// collection is undefined.
    fn membership(&self, membership: &'e Membership) -> Found<'_> {
        let value = self.value(&membership.value)?;
        let collection = self.value(&membership.collection)?;
        let found = match (&*collection, &membership.key) {
            (Value::Array(_) | Value::Object(_), Some(key)) => {
                let key = self.value(key)?;
                collection[&*key] == *value
            }
            (Value::Array(items), None) => items.contains(&value),
            (Value::Object(members), None) => members.values().any(|member| *member == *value),
            (Value::Set(items), None) => items.contains(&value),
            _ => false,
        };
        Ok(Cow::Owned(Value::Bool(found)))
    }

    /// Evaluates all items and combines them with `make`; undefined if one item is.
    fn all(&self, items: &'e [Expression], make: impl FnOnce(Vec<Value>) -> Value) -> Found<'_> {
        let mut values = Vec::with_capacity(items.len());
        for item in items {
            match self.value(item)?.into_owned() {
                Value::Undefined => return Ok(Cow::Borrowed(&Value::Undefined)),
                value => values.push(value),
            }
        }
        Ok(Cow::Owned(make(values)))
    }

    fn object(&self, fields: &'e [(Expression, Expression)]) -> Found<'_> {
        let mut members = BTreeMap::new();
        for (key, value) in fields {
            let key = self.value(key)?.into_owned();
            if key == Value::Undefined {
                return Ok(Cow::Borrowed(&Value::Undefined));
            }
            let value = self.value(value)?.into_owned();
            if value == Value::Undefined {
                return Ok(Cow::Borrowed(&Value::Undefined));
            }
            members.insert(key, value);
        }
        Ok(Cow::Owned(Value::from(members)))
    }

    fn call(&self, slot: usize) -> Result<&Value, EvaluationError> {
        let (Some(cell), Some(call)) = (self.calls.get(slot), self.plan.calls.get(slot)) else {
            return Err(no_slot());
        };
        if let Some(value) = cell.get() {
            return Ok(value);
        }
        let value = match call.function {
            Function::StartsWith => self.test(call, |text, part| text.starts_with(part)),
            Function::EndsWith => self.test(call, |text, part| text.ends_with(part)),
            Function::Contains => self.test(call, |text, part| text.contains(part)),
            Function::OfStrings(function) => {
                self.builtin(call, function, |value| matches!(value, Value::String(_)))
            }
            Function::Other(function) => {
                self.builtin(call, function, |value| *value != Value::Undefined)
            }
        };
        let value = value?;
        Ok(cell.get_or_init(|| value))
    }

    /// Tests two strings; undefined for other values.
    fn test(
        &self,
        call: &'e Call,
        test: impl FnOnce(&str, &str) -> bool,
    ) -> Result<Value, EvaluationError> {
        let [text, part] = &*call.arguments else {
            return Err(no_slot());
        };
        Ok(match (&*self.value(text)?, &*self.value(part)?) {
            (Value::String(text), Value::String(part)) => Value::Bool(test(text, part)),
            _ => Value::Undefined,
        })
    }

    /// Calls a function of regorus. As in the interpreter, all arguments are evaluated, and the
    /// value of a function that fails is undefined. Undefined also if `is_accepted` is false for an
    /// argument.
    fn builtin(
        &self,
        call: &'e Call,
        function: BuiltinFcn,
        is_accepted: impl Fn(&Value) -> bool,
    ) -> Result<Value, EvaluationError> {
        let arguments = call.arguments.iter();
        let arguments = arguments.map(|argument| self.value(argument).map(Cow::into_owned));
        let arguments: Vec<Value> = arguments.collect::<Result<_, _>>()?;
        if !arguments.iter().all(is_accepted) {
            return Ok(Value::Undefined);
        }
        match function.0(&call.span, &call.parameters, &arguments, false) {
            // A limit of regorus was exceeded, such as that on a pattern's size.
            Err(error) if error.is::<LimitError>() => Err(failed(error)),
            Err(_) => Ok(Value::Undefined),
            Ok(value) => Ok(value),
        }
    }

    fn step(&self) -> Result<(), EvaluationError> {
        let steps = self.steps.get().wrapping_add(1);
        self.steps.set(steps);
        let looks = steps.is_multiple_of(STEPS_PER_CHECK);
        match self.ends {
            Some(ends) if looks && Instant::now() >= ends => Err(EvaluationError::TimedOut),
            _ => Ok(()),
        }
    }
}

fn below<'v>(value: &'v Value, path: &[Value]) -> &'v Value {
    path.iter().fold(value, |value, key| &value[key])
}

fn failed(error: impl std::fmt::Display) -> EvaluationError {
    EvaluationError::Failed(error.to_string())
}

/// The error for a slot that does not exist, which never occurs: the compiler creates each slot
/// that it refers to.
fn no_slot() -> EvaluationError {
    EvaluationError::Failed("the plan of the policy has no such slot".to_owned())
}
