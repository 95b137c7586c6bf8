//! A bundle that is ready to run.

use std::time::{Duration, Instant};

use regorus::{Engine, Value};

use super::answer::{self, Answer, MEMBERS};
use super::builtins;
use super::bundle::Bundle;
use super::error::{EvaluationError, LoadError};
use super::files::digest;
use super::interpreter::{ANSWER, Interpreters, NOW};
use super::recursion;
use super::syntax::Syntax;

/// Limit on the size of an input, in bytes. Parsed, the input takes about ten times as much memory.
pub const MAX_INPUT_BYTES: usize = 4 << 20;
/// Limit on the size of an input of a policy that calls `walk`, in bytes. `walk` copies the path of
/// each value: 64 KiB of zeros in 127 nested lists take 100 MB.
const MAX_WALKED_BYTES: usize = 64 << 10;
/// Time limit of the first evaluation, when the bundle is loaded.
const WARM_UP_LIMIT: Duration = Duration::from_secs(5);
/// The input of the first evaluation: a call without arguments, of a tool that no policy knows.
const SAMPLE: &str = r#"{
    "phase": "request", "method": "tools/call", "params": {"name": "", "arguments": {}},
    "name": "", "server": "", "tool": "", "arguments": {}, "tool_id": "", "agent_id": "",
    "container": "", "session": "", "security_level": "Public", "annotations": {}
}"#;
/// The members of an input that are known of a result without its call.
const OF_RESULT: [&str; 7] = [
    "phase",
    "direction",
    "method",
    "result",
    "error",
    "container",
    "security_level",
];
/// The package of the rule that collects an answer. No bundle may have a package whose path begins
/// with `unified_proxy`.
const PACKAGE: [&str; 2] = ["unified_proxy", "entrypoint"];

/// A compiled bundle.
pub struct Program {
    interpreters: Interpreters,
    max_input: usize,
    depends_on_call: bool,
    revision: [u8; 32],
}

impl Program {
    /// Compiles a bundle for its entrypoint, and evaluates it once. Fails if the bundle is refused,
    /// or if that evaluation fails or exceeds [`WARM_UP_LIMIT`]. An invalid answer is no failure.
    pub fn compile(bundle: &Bundle, entrypoint: &str) -> Result<Self, LoadError> {
        let loaded = Loaded::read(bundle, entrypoint)?;
        let max_input = match loaded.syntax.calls("walk") {
            true => MAX_WALKED_BYTES,
            false => MAX_INPUT_BYTES,
        };
        Self {
            max_input,
            depends_on_call: loaded.syntax.reads_input_beyond(&OF_RESULT),
            revision: digest([bundle.digest.as_slice(), entrypoint.as_bytes()]),
            interpreters: Interpreters::of(loaded.engine),
        }
        .warmed_up()
    }

    /// Limit on the size of an input, in bytes.
    pub fn max_input(&self) -> usize {
        self.max_input
    }

    /// Whether the policies read more of their input than [`OF_RESULT`].
    pub fn depends_on_call(&self) -> bool {
        self.depends_on_call
    }

    /// SHA-256 of the bundle's files and entrypoint.
    pub fn revision(&self) -> [u8; 32] {
        self.revision
    }

    /// Evaluates the bundle for one input, on this thread. Fails with
    /// [`EvaluationError::TimedOut`] after `ends`.
    pub fn evaluate(
        &self,
        input: &Value,
        ends: Option<Instant>,
    ) -> Result<Answer, EvaluationError> {
        let value = self.interpreters.evaluate(input.clone(), left(ends))?;
        answer::read(&value).map_err(EvaluationError::Answer)
    }

    /// Evaluates the bundle once, to find errors that occur only at run time and to fill the
    /// caches.
    fn warmed_up(self) -> Result<Self, LoadError> {
        let sample = serde_json::from_str(SAMPLE).unwrap_or(Value::Null);
        let ends = Instant::now().checked_add(WARM_UP_LIMIT);
        match self.evaluate(&sample, ends) {
            Err(EvaluationError::Failed(error)) => Err(policy_error(error)),
            Err(EvaluationError::TimedOut) => {
                let limit = WARM_UP_LIMIT.as_secs();
                let message = format!("an evaluation without arguments took more than {limit} s");
                Err(LoadError::Policy(message))
            }
            Ok(_) | Err(EvaluationError::Answer(_)) => Ok(self),
        }
    }
}

/// The time until `ends`; [`Duration::MAX`] without a deadline.
pub fn left(ends: Option<Instant>) -> Duration {
    ends.map_or(Duration::MAX, |ends| {
        ends.saturating_duration_since(Instant::now())
    })
}

/// The rules whose values are the answer of an evaluation.
enum Entrypoint {
    /// A rule whose value is an object with the decision.
    Rule(Vec<String>),
    /// A package, and which of its rules `decision`, `reason` and `modified` exist.
    Package(Vec<String>, [bool; 4]),
}

/// A bundle that regorus accepted.
struct Loaded {
    engine: Engine,
    syntax: Syntax,
}

impl Loaded {
    fn read(bundle: &Bundle, entrypoint: &str) -> Result<Self, LoadError> {
        let mut engine = Engine::new();
        engine.set_rego_v0(bundle.manifest.rego_version == 0);
        // As in OPA, a function that is called with a value of the wrong type is undefined.
        engine.set_strict_builtin_errors(false);
        engine.set_gather_prints(true);
        builtins::install(&mut engine).map_err(policy_error)?;
        for (path, text) in &bundle.policies {
            engine
                .add_policy(path.clone(), text.clone())
                .map_err(policy_error)?;
        }
        let trees = engine.get_ast_as_json().map_err(policy_error)?;
        let syntax = Syntax::parse(&trees).map_err(LoadError::Policy)?;
        check(&syntax, bundle)?;
        let entrypoint = read_entrypoint(&syntax, entrypoint)?;
        let data: Value = serde_json::from_value(bundle.data.clone())
            .map_err(|error| LoadError::Policy(error.to_string()))?;
        engine.add_data(data).map_err(policy_error)?;
        engine
            .add_policy(String::new(), collector(&entrypoint))
            .map_err(policy_error)?;
        engine
            .compile_with_entrypoint(&ANSWER.into())
            .map_err(policy_error)?;
        Ok(Self { engine, syntax })
    }
}

/// Refuses policies that regorus accepts, but the proxy does not.
fn check(syntax: &Syntax, bundle: &Bundle) -> Result<(), LoadError> {
    let refuse = |file: &str, message| Err(LoadError::File(file.to_owned(), message));
    for (file, package) in syntax.packages() {
        bundle.check_package(file, &package)?;
        if package.first().is_some_and(|name| name == PACKAGE[0]) {
            return refuse(file, format!("the package {} is reserved", PACKAGE[0]));
        }
    }
    if let Some((file, function, literals)) = syntax.amplifier() {
        let message = format!(
            "the result of {function} can take all memory; write {literals} of the call as a literal"
        );
        return refuse(file, message);
    }
    if let Some((file, function)) = syntax.unbounded_replacement() {
        let message = format!(
            "`with … as {function}`: the result of {function} can take all memory; replace the \
             function by a rule of the policy"
        );
        return refuse(file, message);
    }
    if let Some((file, function)) = syntax.function_of_time() {
        let message = format!(
            "{function} does not exist here; calculate with time.now_ns(), nanoseconds since 1970 \
             in UTC"
        );
        return refuse(file, message);
    }
    let exists = |name: &str| builtins::exists(name) || name == NOW;
    if let Some((file, function)) = syntax.unknown_function(exists) {
        let message =
            format!("the function {function} does not exist here; docs/mcp.md lists those that do");
        return refuse(file, message);
    }
    if let Some(file) = syntax.value_of_in() {
        let message = "the value of `in` is used: write `in` only as a condition of its own, as in \
                       `allow if input.tool in data.tools`";
        return refuse(file, message.to_owned());
    }
    if let Some(file) = syntax.walk_as_value() {
        let message = "write `walk` with two arguments, as in `walk(input, [path, value])`";
        return refuse(file, message.to_owned());
    }
    if let Some((file, name)) = syntax.variable_of_a_rules_name() {
        let message =
            format!("`some {name}` has the name of a rule: give the variable another name");
        return refuse(file, message);
    }
    if let Some((file, rule)) = recursion::find(syntax) {
        let message = format!("the rule {rule} depends on itself; Rego has no recursion");
        return refuse(&file, message);
    }
    Ok(())
}

/// Resolves the entrypoint to a rule, or to a package with the rule `decision`. Fails if the
/// policies define neither.
fn read_entrypoint(syntax: &Syntax, entrypoint: &str) -> Result<Entrypoint, LoadError> {
    let path: Vec<_> = entrypoint.trim_matches('/').split('/').collect();
    let is_name = |name: &&str| !name.is_empty() && !name.contains(['"', '\\', '\n']);
    let invalid = || LoadError::Entrypoint(entrypoint.to_owned());
    let (Some((name, package)), true) = (path.split_last(), path.iter().all(is_name)) else {
        return Err(invalid());
    };
    let names = path.iter().map(|name| (*name).to_owned()).collect();
    if syntax.has_rule(package, name) {
        Ok(Entrypoint::Rule(names))
    } else if syntax.has_rule(&path, MEMBERS[0]) {
        let exist = MEMBERS.map(|name| syntax.has_rule(&path, name));
        Ok(Entrypoint::Package(names, exist))
    } else {
        let (entrypoint, path) = (entrypoint.to_owned(), path.join("."));
        Err(LoadError::NoEntrypoint(entrypoint, path))
    }
}

/// The text of a policy whose rule `answer` evaluates the whole answer at once. An undefined value
/// becomes an empty list.
fn collector(entrypoint: &Entrypoint) -> String {
    let reference = |path: &[String]| {
        let names = path.iter().map(|name| format!("[\"{name}\"]"));
        names.collect::<String>()
    };
    let items = match entrypoint {
        Entrypoint::Rule(path) => format!("[value | value := data{}]", reference(path)),
        Entrypoint::Package(path, exist) => {
            let package = reference(path);
            let items = MEMBERS
                .iter()
                .zip(exist)
                .map(|(name, exists)| match exists {
                    true => format!("[value | value := data{package}.{name}]"),
                    false => "[]".to_owned(),
                });
            items.collect::<Vec<_>>().join(", ")
        }
    };
    let package = PACKAGE.join(".");
    format!("package {package}\n\nimport rego.v1\n\nanswer := [{items}]\n")
}

fn policy_error(error: impl std::fmt::Display) -> LoadError {
    LoadError::Policy(error.to_string().trim().to_owned())
}

#[cfg(test)]
#[path = "tests/program.rs"]
mod tests;
