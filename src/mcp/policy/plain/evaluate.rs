//! One evaluation of a plan.

use std::cell::{Cell, OnceCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use regorus::unstable::BoolOp;
use regorus::{LimitError, Value};

use super::{
    Branch, Call, Computed, Definition, EntrypointSlots, EntrypointValue, Expression, Membership,
    Operation, Plan, Rule,
};
use crate::mcp::policy::error::EvaluationError;

/// Number of operations between two checks of the clock; an operation takes less than 100 ns,
/// without the function that it calls.
const STEPS_PER_CHECK: u32 = 64;

/// A value of the plan, the input or a slot. The error is boxed so that the result fits into two
/// registers.
type Found<'e> = Result<&'e Value, Failure>;
type Failure = Box<EvaluationError>;

/// One evaluation: the slots of the plan, each of which is filled at most once.
pub struct Evaluation<'e> {
    entrypoint: &'e EntrypointSlots,
    input: &'e Value,
    ends: Option<Instant>,
    steps: Cell<u32>,
    paths: Vec<Slot<'e, Box<[Value]>, &'e Value>>,
    rules: Vec<Slot<'e, Rule, Value>>,
    computed: Vec<Slot<'e, Computed, Value>>,
}

/// A part of the plan, and its value.
struct Slot<'e, T, V> {
    part: &'e T,
    value: OnceCell<V>,
}

impl<'e, T, V> Slot<'e, T, V> {
    /// The value of the part, which is evaluated at the first call.
    fn value_or(&self, evaluate: impl FnOnce(&'e T) -> Result<V, Failure>) -> Result<&V, Failure> {
        if let Some(value) = self.value.get() {
            return Ok(value);
        }
        let value = evaluate(self.part)?;
        Ok(self.value.get_or_init(|| value))
    }
}

impl<'e> Evaluation<'e> {
    pub fn new(plan: &'e Plan, input: &'e Value, ends: Option<Instant>) -> Self {
        Self {
            entrypoint: &plan.entrypoint,
            input,
            ends,
            steps: Cell::new(0),
            paths: slots(&plan.paths),
            rules: slots(&plan.rules),
            computed: slots(&plan.computed),
        }
    }

    /// Evaluates all rules of the entrypoint, even if the decision alone would suffice, since each
    /// rule may fail.
    pub fn entrypoint(&self) -> Result<EntrypointValue, EvaluationError> {
        let value = |slot: Option<usize>| match slot {
            Some(slot) => self.rule(slot).cloned().map_err(|failure| *failure),
            None => Ok(Value::Undefined),
        };
        match self.entrypoint {
            EntrypointSlots::Rule(slot) => value(Some(*slot)).map(EntrypointValue::Rule),
            EntrypointSlots::Package([decision, reason, modified]) => {
                let values = [value(*decision)?, value(*reason)?, value(*modified)?];
                Ok(EntrypointValue::Package(values))
            }
        }
    }

    fn rule(&self, slot: usize) -> Found<'_> {
        let slot = self.rules.get(slot).ok_or_else(no_slot)?;
        slot.value_or(|rule| match rule {
            Rule::Complete {
                definitions,
                default,
            } => self.complete(definitions, default).cloned(),
            Rule::Set(elements) => self.elements(elements),
        })
    }

    /// Evaluates all definitions of a complete rule. Fails if two have different values; returns
    /// `default` if none has a value.
    fn complete<'s>(&'s self, definitions: &'e [Definition], default: &'s Value) -> Found<'s> {
        let mut found = &Value::Undefined;
        for definition in definitions {
            let value = self.first(&definition.0)?;
            match (value, found) {
                (Value::Undefined, _) => {}
                (_, Value::Undefined) => found = value,
                _ if value == found => {}
                _ => return Err(failed("complete rules should not produce multiple outputs")),
            }
        }
        Ok(match found {
            Value::Undefined => default,
            found => found,
        })
    }

    /// The value of the first branch that has one; undefined if there is no such branch.
    fn first(&self, branches: &'e [Branch]) -> Found<'_> {
        for branch in branches {
            match self.branch(branch)? {
                Value::Undefined => {}
                value => return Ok(value),
            }
        }
        Ok(&Value::Undefined)
    }

    fn elements(&self, elements: &'e [Branch]) -> Result<Value, Failure> {
        let mut found = BTreeSet::new();
        for element in elements {
            match self.branch(element)? {
                Value::Undefined => {}
                value => {
                    found.insert(value.clone());
                }
            }
        }
        Ok(Value::from(found))
    }

    /// The value of a branch; undefined unless each statement of its body holds. A statement holds
    /// if its expression is neither false nor undefined. A negated statement holds if its
    /// expression is false or undefined.
    #[inline]
    fn branch(&self, branch: &'e Branch) -> Found<'_> {
        for statement in &branch.body {
            let value = self.value(&statement.expression)?;
            let is_true = !matches!(value, Value::Bool(false) | Value::Undefined);
            if is_true == statement.is_negated {
                return Ok(&Value::Undefined);
            }
        }
        self.value(&branch.value)
    }

    /// The value of an expression. Inlined, since most are constants and paths of the input.
    #[inline]
    fn value(&self, expression: &'e Expression) -> Found<'_> {
        match expression {
            Expression::Constant(value) => Ok(value),
            Expression::Input(slot) => {
                let slot = self.paths.get(*slot).ok_or_else(no_slot)?;
                slot.value_or(|path| Ok(below(self.input, path))).copied()
            }
            Expression::Operation(operation) => self.operation(operation),
        }
    }

    fn operation(&self, operation: &'e Operation) -> Found<'_> {
        self.step()?;
        match operation {
            Operation::Rule(slot) => self.rule(*slot),
            Operation::Computed(slot) => self.computed(*slot),
            Operation::Below(whole, path) => Ok(below(self.value(whole)?, path)),
            Operation::Compare(operator, [left, right]) => {
                Ok(match (self.value(left)?, self.value(right)?) {
                    (Value::Undefined, _) | (_, Value::Undefined) => &Value::Undefined,
                    (left, right) => boolean(compare(operator, left, right)),
                })
            }
            Operation::Test(test, [text, part]) => {
                Ok(match (self.value(text)?, self.value(part)?) {
                    (Value::String(text), Value::String(part)) => boolean(test.holds(text, part)),
                    _ => &Value::Undefined,
                })
            }
            Operation::In(membership) => self.membership(membership),
        }
    }

    /// Evaluates `in`. As in the interpreter, the result is a boolean even if the value or the
    /// collection is undefined.
    fn membership(&self, membership: &'e Membership) -> Found<'_> {
        let value = self.value(&membership.value)?;
        let collection = self.value(&membership.collection)?;
        Ok(boolean(match (collection, &membership.key) {
            (Value::Array(_) | Value::Object(_), Some(key)) => {
                collection[self.value(key)?] == *value
            }
            (Value::Array(items), None) => items.contains(value),
            (Value::Object(members), None) => members.values().any(|member| member == value),
            (Value::Set(items), None) => items.contains(value),
            _ => false,
        }))
    }

    fn computed(&self, slot: usize) -> Found<'_> {
        let slot = self.computed.get(slot).ok_or_else(no_slot)?;
        slot.value_or(|computed| match computed {
            Computed::Call(call) => self.call(call),
            Computed::Array(items) => self.all(items, Value::from),
            Computed::Set(items) => {
                self.all(items, |items| Value::from(BTreeSet::from_iter(items)))
            }
            Computed::Object(fields) => self.object(fields),
        })
    }

    /// Evaluates all items and combines them with `make`; undefined if one item is.
    fn all(
        &self,
        items: &'e [Expression],
        make: impl FnOnce(Vec<Value>) -> Value,
    ) -> Result<Value, Failure> {
        let mut values = Vec::with_capacity(items.len());
        for item in items {
            match self.value(item)? {
                Value::Undefined => return Ok(Value::Undefined),
                value => values.push(value.clone()),
            }
        }
        Ok(make(values))
    }

    fn object(&self, fields: &'e [(Expression, Expression)]) -> Result<Value, Failure> {
        let mut members = BTreeMap::new();
        for (key, value) in fields {
            let key = self.value(key)?;
            if *key == Value::Undefined {
                return Ok(Value::Undefined);
            }
            let value = self.value(value)?;
            if *value == Value::Undefined {
                return Ok(Value::Undefined);
            }
            members.insert(key.clone(), value.clone());
        }
        Ok(Value::from(members))
    }

    /// Calls a function of regorus. As in the interpreter, all arguments are evaluated, and the
    /// value of a function that fails is undefined. An argument that the function does not accept
    /// makes the value undefined, too.
    fn call(&self, call: &'e Call) -> Result<Value, Failure> {
        let arguments = call.arguments.iter();
        let arguments = arguments.map(|argument| self.value(argument).cloned());
        let arguments: Vec<Value> = arguments.collect::<Result<_, _>>()?;
        let is_accepted = |value: &Value| match call.builtin.of_strings {
            true => matches!(value, Value::String(_)),
            false => *value != Value::Undefined,
        };
        if !arguments.iter().all(is_accepted) {
            return Ok(Value::Undefined);
        }
        match call.builtin.function.0(&call.span, &call.parameters, &arguments, false) {
            // A limit of regorus was exceeded, such as that on a pattern's size.
            Err(error) if error.is::<LimitError>() => Err(failed(error)),
            Err(_) => Ok(Value::Undefined),
            Ok(value) => Ok(value),
        }
    }

    /// Counts an operation, and checks the clock every [`STEPS_PER_CHECK`] operations.
    fn step(&self) -> Result<(), Failure> {
        let steps = self.steps.get().wrapping_add(1);
        self.steps.set(steps);
        match steps.is_multiple_of(STEPS_PER_CHECK) {
            true => self.check_clock(),
            false => Ok(()),
        }
    }

    #[cold]
    fn check_clock(&self) -> Result<(), Failure> {
        match self.ends {
            Some(ends) if ends <= Instant::now() => Err(Box::new(EvaluationError::TimedOut)),
            _ => Ok(()),
        }
    }
}

/// Empty slots for parts of a plan.
fn slots<T, V>(parts: &[T]) -> Vec<Slot<'_, T, V>> {
    let empty = |part| Slot {
        part,
        value: OnceCell::new(),
    };
    parts.iter().map(empty).collect()
}

fn below<'v>(value: &'v Value, path: &[Value]) -> &'v Value {
    path.iter().fold(value, |value, key| &value[key])
}

/// Compares values in the order of regorus.
fn compare(operator: &BoolOp, left: &Value, right: &Value) -> bool {
    match operator {
        BoolOp::Lt => left < right,
        BoolOp::Le => left <= right,
        BoolOp::Eq => left == right,
        BoolOp::Ge => left >= right,
        BoolOp::Gt => left > right,
        BoolOp::Ne => left != right,
    }
}

fn boolean(value: bool) -> &'static Value {
    match value {
        true => &Value::Bool(true),
        false => &Value::Bool(false),
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Box::new(EvaluationError::Failed(error.to_string()))
}

/// The error for a slot that does not exist, which never occurs: the compiler creates each slot
/// that it refers to.
fn no_slot() -> Failure {
    failed("the plan of the policy has no such slot")
}
