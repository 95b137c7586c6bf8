//! An evaluator of plain policies: rules whose bodies are comparisons and calls of pure functions.
//!
//! regorus interprets all of Rego. Most policies that operators write are plain: they have no
//! variables and no iterations, define no functions, and do not read the clock.
//! They are compiled to a [`Plan`], which numbers the paths of the input, the rules and the
//! computed values. These numbers are called slots. An evaluation stores the value of each slot, so
//! that a path, a rule or a computed value is evaluated at most once. Values, comparisons and
//! functions are those of regorus. The interpreter evaluates the policies for which
//! [`Plan::compile`] returns `None`. A plan has the same result as the interpreter for each input,
//! errors included; a property test compares both.

mod compile;
mod cost;
mod evaluate;
mod functions;
mod names;

use std::collections::BTreeSet;
use std::time::Instant;

use addons::contract::ReadMembers;
use regorus::Value;
use regorus::unstable::{BoolOp, Expr, Parser, Ref, Source, Span};

use super::error::EvaluationError;
use compile::Compiler;
use cost::Bound;
use evaluate::Evaluation;
use functions::{Builtin, TextTest};
use names::{Names, names_of};

/// The rules whose values are the answer of an evaluation.
#[derive(Debug)]
pub enum Entrypoint {
    /// A rule whose value is an object with the decision.
    Rule(Vec<String>),
    /// A package, and which of its rules `decision`, `reason` and `modified` exist.
    Package(Vec<String>, [bool; 3]),
}

/// The names of the values that make up an answer. If the entrypoint is a package, its rules have
/// these names. If the entrypoint is a rule, the members of its object have them.
pub const MEMBERS: [&str; 3] = ["decision", "reason", "modified"];

/// The values of an entrypoint; [`Value::Undefined`] for a rule without a value.
#[derive(Debug)]
pub enum EntrypointValue {
    /// The value of a rule.
    Rule(Value),
    /// The values of the rules [`MEMBERS`] of a package.
    Package([Value; 3]),
}

/// A compiled policy.
pub struct Plan {
    entrypoint: EntrypointSlots,
    rules: Vec<Rule>,
    computed: Vec<Computed>,
    /// Paths below the input that the policy reads.
    paths: Vec<Box<[Value]>>,
    bound: Option<Bound>,
}

/// The slots of the rules of an entrypoint.
enum EntrypointSlots {
    Rule(usize),
    Package([Option<usize>; 3]),
}

enum Rule {
    /// A rule with at most one value. `default` is [`Value::Undefined`] if the rule has no default.
    Complete {
        definitions: Vec<Definition>,
        default: Value,
    },
    /// A rule whose value is a set: the values of all branches whose bodies hold.
    Set(Vec<Branch>),
}

/// A definition of a complete rule: its branches are the body and its `else` bodies.
struct Definition(Vec<Branch>);

/// A value, and the statements that must hold for it.
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
    Operation(Box<Operation>),
}

#[derive(PartialEq)]
enum Operation {
    /// The value of a rule, by slot.
    Rule(usize),
    /// A computed value, by slot.
    Computed(usize),
    /// The value at a path below another value.
    Below(Expression, Box<[Value]>),
    Compare(BoolOp, [Expression; 2]),
    /// A test, the text that is tested, and the part that the test looks for.
    Test(TextTest, [Expression; 2]),
    In(Membership),
}

#[derive(PartialEq)]
struct Membership {
    key: Option<Expression>,
    value: Expression,
    collection: Expression,
}

/// A value that is neither in the policy nor in the input.
#[derive(PartialEq)]
enum Computed {
    Call(Call),
    Array(Box<[Expression]>),
    Set(Box<[Expression]>),
    Object(Box<[(Expression, Expression)]>),
}

struct Call {
    builtin: Builtin,
    arguments: Box<[Expression]>,
    /// The place of the call in the text. The functions of regorus need `span` and `parameters` to
    /// name places in their errors.
    span: Span,
    /// The syntax trees of the arguments.
    parameters: Vec<Ref<Expr>>,
}

/// Calls are equal if they have the same function and arguments. Their places may differ.
impl PartialEq for Call {
    fn eq(&self, other: &Self) -> bool {
        self.builtin.name == other.builtin.name && self.arguments == other.arguments
    }
}

impl From<Operation> for Expression {
    fn from(operation: Operation) -> Self {
        Self::Operation(Box::new(operation))
    }
}

impl Plan {
    /// Compiles the rules that an entrypoint depends on. `None` if one of them is not plain.
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
            let module = parser.parse().ok()?;
            Some((names_of(&module.package.refr)?, module))
        });
        let modules: Vec<_> = modules.collect::<Option<_>>()?;
        let names = Names::read(&modules, data);
        let mut plan = Compiler::new(&names).plan(entrypoint)?;
        plan.bound = Bound::of(&plan);
        Some(plan)
    }

    /// The members of the input that the rules read.
    pub fn members(&self) -> ReadMembers {
        let mut names = BTreeSet::new();
        for path in &self.paths {
            match path.first() {
                Some(Value::String(name)) => names.insert(&**name),
                // Reads no member: the input is an object whose keys are strings.
                Some(_) => false,
                None => return ReadMembers::ALL,
            };
        }
        ReadMembers::named(names)
    }

    /// The longest time of an evaluation, in nanoseconds, for an input of `bytes`. `None` if the
    /// plan calls a function without a known bound.
    pub fn max_nanoseconds(&self, bytes: usize) -> Option<u64> {
        self.bound.map(|bound| bound.total(bytes))
    }

    /// Evaluates the rules. Fails with [`EvaluationError::TimedOut`] after `ends`. Checks the clock
    /// between steps, never within a call.
    pub fn evaluate(
        &self,
        input: &Value,
        ends: Option<Instant>,
    ) -> Result<EntrypointValue, EvaluationError> {
        Evaluation::new(self, input, ends).entrypoint()
    }
}
