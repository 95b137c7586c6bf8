//! An evaluator of plain policies: rules whose bodies are comparisons and calls of pure functions.
//!
//! regorus interprets all of Rego. Plain policies need a fraction of that, and are most of what
//! operators write: no variables, nothing that iterates, no functions of their own, no clock. They
//! are compiled to a [`Plan`], in which each path of the input, each call and each rule has a slot,
//! so that it is evaluated once however often the policy names it. Values, comparisons and functions
//! are those of regorus. What [`Plan::compile`] does not know goes to the interpreter. A plan gives
//! the same result as the interpreter for each input, an error included; a property test compares
//! both.

mod compile;
mod cost;
mod evaluate;
mod functions;
mod names;

use std::collections::BTreeSet;
use std::time::Instant;

use regorus::Value;
use regorus::unstable::{BoolOp, Expr, Parser, Ref, Source, Span};

use super::error::EvaluationError;
use compile::Compiler;
use cost::Bound;
use evaluate::Evaluation;
use functions::Function;
use names::{Modules, Names};

/// What an evaluation is asked for.
#[derive(Debug)]
pub enum Entrypoint {
    /// A rule whose value is an object with the decision.
    Rule(Vec<String>),
    /// A package with the rules `decision`, `reason` and `modified`, as far as they exist.
    Package(Vec<String>, [bool; 3]),
}

/// The names of the rules that are read of an entrypoint that is a package.
pub const MEMBERS: [&str; 3] = ["decision", "reason", "modified"];

/// The values of an entrypoint; [`Value::Undefined`] where it has none.
#[derive(Debug)]
pub enum Answered {
    /// The value of a rule.
    Object(Value),
    /// Decision, reason and modified.
    Members([Value; 3]),
}

/// A compiled policy.
pub struct Plan {
    answer: Answer,
    rules: Vec<Rule>,
    calls: Vec<Call>,
    /// Paths below the input that the policy reads.
    paths: Vec<Box<[Value]>>,
    bound: Option<Bound>,
}

/// The rules, by slot, whose values are the answer.
enum Answer {
    Object(usize),
    Members([Option<usize>; 3]),
}

enum Rule {
    /// Has one value, or none. The default is [`Value::Undefined`] where there is none.
    Complete {
        definitions: Vec<Definition>,
        default: Value,
    },
    /// Has the keys of all elements whose bodies hold.
    Set(Vec<Branch>),
}

/// A definition of a complete rule: its branches are the body and its `else` bodies.
struct Definition(Vec<Branch>);

/// A value, and the statements that must hold.
struct Branch {
    body: Vec<Statement>,
    value: Expression,
}

struct Statement {
    expression: Expression,
    is_negated: bool,
}

#[derive(PartialEq)]
enum Expression {
    Constant(Value),
    /// A path below the input, by slot.
    Input(usize),
    /// The value of a rule, by slot.
    Rule(usize),
    /// The value of a call, by slot.
    Call(usize),
    /// What lies at a path below a value.
    Below(Box<Expression>, Box<[Value]>),
    Compare(BoolOp, Box<[Expression; 2]>),
    In(Box<Membership>),
    Array(Box<[Expression]>),
    Set(Box<[Expression]>),
    Object(Box<[(Expression, Expression)]>),
}

#[derive(PartialEq)]
struct Membership {
    key: Option<Expression>,
    value: Expression,
    collection: Expression,
}

struct Call {
    name: &'static str,
    function: Function,
    arguments: Box<[Expression]>,
    /// The place of the call and its arguments in the text, which functions name in their errors.
    span: Span,
    parameters: Vec<Ref<Expr>>,
}

impl Plan {
    /// Compiles the rules that an entrypoint depends on. `None` where one of them is not plain.
    pub fn compile(
        policies: &[(String, String)],
        is_v1: bool,
        data: &Value,
        entrypoint: &Entrypoint,
    ) -> Option<Self> {
        let modules = policies.iter().map(|(file, text)| {
            let source = Source::from_contents(file.clone(), text.clone()).ok()?;
            let mut parser = Parser::new(&source).ok()?;
            if is_v1 {
                parser.enable_rego_v1().ok()?;
            }
            parser.parse().ok()
        });
        let modules: Option<Vec<_>> = modules.collect();
        let modules = Modules::of(modules?)?;
        let names = Names::read(&modules, data);
        let mut plan = Compiler::new(&names).plan(entrypoint)?;
        plan.bound = Bound::of(&plan);
        Some(plan)
    }

    /// The members of the input that the rules read; `None` where one takes the input as a whole.
    pub fn members(&self) -> Option<BTreeSet<String>> {
        let first = |path: &[Value]| match path.first()? {
            Value::String(name) => Some(name.to_string()),
            // The input is an object whose keys are strings.
            _ => Some(String::new()),
        };
        self.paths.iter().map(|path| first(path)).collect()
    }

    /// The longest time of an evaluation, in nanoseconds, for an input of `bytes`. `None` if it calls
    /// a function without a known bound.
    pub fn nanoseconds(&self, bytes: usize) -> Option<u64> {
        self.bound.map(|bound| bound.nanoseconds(bytes))
    }

    /// Evaluates the rules. Looks at the clock between steps, never within a call.
    pub fn evaluate(
        &self,
        input: &Value,
        ends: Option<Instant>,
    ) -> Result<Answered, EvaluationError> {
        Evaluation::new(self, input, ends).answer()
    }
}
