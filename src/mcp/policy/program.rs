//! A bundle that is ready to run.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use regorus::languages::rego::compiler::Compiler;
use regorus::rvm::program::Program as MachineCode;
use regorus::rvm::vm::{RegoVM, VmError};
use regorus::utils::limits::ExecutionTimerConfig;
use regorus::{Engine, LimitError, Value};

use super::answer::{self, Answer};
use super::bundle::Bundle;
use super::error::{EvaluationError, LoadError};
use super::recursion;
use super::syntax::Syntax;

/// Steps of an evaluation between two looks at the clock; a step takes about 100 ns.
const STEPS_PER_LOOK: NonZeroU32 = NonZeroU32::MIN.saturating_add(63);
/// What the first evaluation, at load, may take.
const WARM_UP_LIMIT: Duration = Duration::from_secs(5);
/// A call without arguments, of a tool that no policy knows.
const SAMPLE: &str = r#"{
    "phase": "request", "method": "tools/call", "params": {"name": "", "arguments": {}},
    "name": "", "server": "", "tool": "", "arguments": {}, "tool_id": "", "agent_id": "",
    "container": "", "session": "", "security_level": "Public", "annotations": {}
}"#;
/// Members of an input that are the same for a request and its response. The security level is
/// not: another call may raise it meanwhile.
const OF_REQUEST: [&str; 12] = [
    "direction",
    "method",
    "params",
    "name",
    "server",
    "tool",
    "arguments",
    "tool_id",
    "agent_id",
    "container",
    "session",
    "annotations",
];
/// The package of the rule that collects an answer. No bundle may define it.
const PACKAGE: [&str; 2] = ["unified_proxy", "entrypoint"];
/// The rule that collects an answer.
const ANSWER: &str = "data.unified_proxy.entrypoint.answer";

/// Evaluators of one bundle, all alike.
pub struct Program {
    template: Template,
    /// The members of the input that plain rules read. `None`: any may be read.
    members: Option<BTreeSet<String>>,
    /// As many as evaluations ran at once.
    idle: Mutex<Vec<Evaluator>>,
}

/// What evaluators are made of.
enum Template {
    Machine { code: Arc<MachineCode>, data: Value },
    Interpreter(Box<Engine>),
}

/// Keeps caches between evaluations, but nothing of an input.
enum Evaluator {
    Machine(Box<RegoVM>),
    Interpreter(Box<Engine>),
}

impl Program {
    /// Compiles a bundle for its entrypoint, and evaluates it once.
    pub fn compile(bundle: &Bundle, entrypoint: &str) -> Result<Self, LoadError> {
        let mut engine = Engine::new();
        engine.set_rego_v0(bundle.manifest.rego_version == 0);
        // As OPA: a function that is given a value of the wrong type has no result.
        engine.set_strict_builtin_errors(false);
        engine.set_gather_prints(true);
        for (path, text) in &bundle.policies {
            engine
                .add_policy(path.clone(), text.clone())
                .map_err(policy_error)?;
        }
        let syntax = syntax(&engine)?;
        for (file, package) in syntax.packages() {
            bundle.check_package(file, &package)?;
            if package.first().is_some_and(|name| name == PACKAGE[0]) {
                let message = format!("the package {} is reserved", PACKAGE[0]);
                return Err(LoadError::File(file.to_owned(), message));
            }
        }
        if let Some((file, function, literals)) = syntax.amplifier() {
            let file = file.to_owned();
            return Err(LoadError::Unbounded {
                file,
                function,
                literals,
            });
        }
        if let Some((file, rule)) = recursion::find(&syntax) {
            return Err(LoadError::Recursion(file, rule));
        }
        let data: Value = serde_json::from_value(bundle.data.clone())
            .map_err(|error| LoadError::Policy(error.to_string()))?;
        engine.add_data(data.clone()).map_err(policy_error)?;
        engine
            .add_policy(String::new(), collector(&syntax, entrypoint)?)
            .map_err(policy_error)?;
        let is_plain = syntax.suits_machine();
        let suits_machine = bundle.manifest.rego_version == 1 && is_plain;
        let program = Self {
            template: Template::of(engine, data, suits_machine)?,
            members: is_plain.then(|| syntax.members_of_input()).flatten(),
            idle: Mutex::default(),
        };
        program.warm_up()?;
        Ok(program)
    }

    /// Whether the virtual machine runs it, which takes a quarter of the time.
    pub fn runs_on_machine(&self) -> bool {
        matches!(self.template, Template::Machine { .. })
    }

    /// Whether it may read a member of the input.
    pub fn reads(&self, member: &str) -> bool {
        let members = self.members.as_ref();
        members.is_none_or(|members| members.contains(member))
    }

    /// Whether the decision on a response may differ from that on its request: the rules are not
    /// plain, or read a member that differs.
    pub fn reads_responses(&self) -> bool {
        let same = |member: &String| OF_REQUEST.contains(&&**member);
        let members = self.members.as_ref();
        !members.is_some_and(|members| members.iter().all(same))
    }

    /// Evaluates it for one input, on this thread.
    pub fn evaluate(&self, input: &Value, limit: Duration) -> Result<Answer, EvaluationError> {
        let idle = self.idle.lock().pop();
        let mut evaluator = idle.unwrap_or_else(|| self.template.evaluator());
        let value = evaluator.run(input.clone(), limit);
        // A panic does not come here: the evaluator is dropped with what it was about to do.
        self.idle.lock().push(evaluator);
        answer::read(&value?)
    }

    /// Finds what shows only when a policy runs, and fills the caches.
    fn warm_up(&self) -> Result<(), LoadError> {
        let sample = serde_json::from_str(SAMPLE).unwrap_or(Value::Null);
        match self.evaluate(&sample, WARM_UP_LIMIT) {
            Err(EvaluationError::Failed(error)) => Err(policy_error(error)),
            Err(EvaluationError::TimedOut) => {
                let limit = WARM_UP_LIMIT.as_secs();
                let message = format!("an evaluation without arguments took more than {limit} s");
                Err(LoadError::Policy(message))
            }
            Ok(_) | Err(EvaluationError::Answer(_)) => Ok(()),
        }
    }
}

impl Template {
    fn of(mut engine: Engine, data: Value, suits_machine: bool) -> Result<Self, LoadError> {
        let compiled = engine
            .compile_with_entrypoint(&ANSWER.into())
            .map_err(policy_error)?;
        if suits_machine {
            // What it cannot compile, the interpreter can.
            if let Ok(code) = Compiler::compile_from_policy(&compiled, &[ANSWER]) {
                let mut machine = RegoVM::new();
                machine.load_program(Arc::clone(&code));
                if machine.set_data(data.clone()).is_ok() {
                    return Ok(Self::Machine { code, data });
                }
            }
        }
        Ok(Self::Interpreter(Box::new(engine)))
    }

    fn evaluator(&self) -> Evaluator {
        match self {
            Self::Machine { code, data } => {
                let mut machine = RegoVM::new();
                machine.load_program(Arc::clone(code));
                // The time is the bound.
                machine.set_max_instructions(usize::MAX);
                // It was accepted at load.
                let _ = machine.set_data(data.clone());
                Evaluator::Machine(Box::new(machine))
            }
            Self::Interpreter(engine) => Evaluator::Interpreter(engine.clone()),
        }
    }
}

impl Evaluator {
    fn run(&mut self, input: Value, limit: Duration) -> Result<Value, EvaluationError> {
        let timer = ExecutionTimerConfig {
            limit,
            check_interval: STEPS_PER_LOOK,
        };
        match self {
            Self::Machine(machine) => {
                machine.set_execution_timer_config(Some(timer));
                machine.set_input(input);
                let value = machine.execute_entry_point_by_index(0);
                machine.set_input(Value::Null);
                value.map_err(|error| match error {
                    VmError::TimeLimitExceeded { .. } => EvaluationError::TimedOut,
                    error => EvaluationError::Failed(error.to_string()),
                })
            }
            Self::Interpreter(engine) => {
                engine.set_execution_timer_config(timer);
                engine.set_input(input);
                let value = engine.eval_rule(ANSWER.to_owned());
                engine.set_input(Value::Null);
                for line in engine.take_prints().into_iter().flatten() {
                    tracing::debug!(line, "printed by a policy");
                }
                value.map_err(|error| {
                    let limit = error.chain().find_map(|cause| cause.downcast_ref());
                    match limit {
                        Some(LimitError::TimeLimitExceeded { .. }) => EvaluationError::TimedOut,
                        _ => EvaluationError::Failed(error.to_string()),
                    }
                })
            }
        }
    }
}

/// A policy of ours that evaluates all of the answer at once. A value that is undefined is an
/// empty list.
fn collector(syntax: &Syntax, entrypoint: &str) -> Result<String, LoadError> {
    let path: Vec<_> = entrypoint.trim_matches('/').split('/').collect();
    let is_name = |name: &&str| !name.is_empty() && !name.contains(['"', '\\', '\n']);
    let invalid = || LoadError::Entrypoint(entrypoint.to_owned());
    let (Some((name, package)), true) = (path.split_last(), path.iter().all(is_name)) else {
        return Err(invalid());
    };
    let reference: String = path.iter().map(|name| format!("[\"{name}\"]")).collect();
    let items = if syntax.has_rule(package, name) {
        format!("[value | value := data{reference}]")
    } else if syntax.has_rule(&path, "decision") {
        let members = ["decision", "reason", "modified"];
        let member = |name| match syntax.has_rule(&path, name) {
            true => format!("[value | value := data{reference}.{name}]"),
            false => "[]".to_owned(),
        };
        members.map(member).join(", ")
    } else {
        return Err(LoadError::NoEntrypoint(
            entrypoint.to_owned(),
            path.join("."),
        ));
    };
    let package = PACKAGE.join(".");
    Ok(format!(
        "package {package}\n\nimport rego.v1\n\nanswer := [{items}]\n"
    ))
}

fn syntax(engine: &Engine) -> Result<Syntax, LoadError> {
    let trees = engine.get_ast_as_json().map_err(policy_error)?;
    Syntax::parse(&trees).map_err(LoadError::Policy)
}

fn policy_error(error: impl std::fmt::Display) -> LoadError {
    LoadError::Policy(error.to_string().trim().to_owned())
}

#[cfg(test)]
#[path = "tests/program.rs"]
mod tests;
