//! The interpreter of regorus.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use regorus::utils::limits::ExecutionTimerConfig;
use regorus::{Engine, LimitError, Value};

use super::builtins;
use super::error::EvaluationError;

/// Number of evaluation steps between two checks of the clock; a step takes about 100 ns.
const STEPS_PER_CHECK: NonZeroU32 = NonZeroU32::MIN.saturating_add(63);
/// The path of the generated rule that collects an answer. `answer::read` describes its value.
pub const ANSWER: &str = "data.unified_proxy.entrypoint.answer";
/// The only function of `time` that policies may call.
pub const NOW: &str = "time.now_ns";

/// Pool of interpreters with the same policies and data.
pub struct Interpreters {
    template: Box<Engine>,
    /// Idle interpreters. Never more than the greatest number of evaluations that ran at once.
    idle: Mutex<Vec<Interpreter>>,
}

/// An interpreter. It keeps caches between evaluations, but no input.
struct Interpreter {
    engine: Box<Engine>,
    /// Start of the evaluation, in nanoseconds of Unix time.
    now: Arc<AtomicI64>,
}

impl Interpreters {
    /// Creates a pool of interpreters with the policies and data of `engine`.
    pub fn of(engine: Engine) -> Self {
        Self {
            template: Box::new(engine),
            idle: Mutex::default(),
        }
    }

    /// Evaluates the rule [`ANSWER`], on this thread. Fails with [`EvaluationError::TimedOut`]
    /// after `limit`.
    pub fn evaluate(&self, input: Value, limit: Duration) -> Result<Value, EvaluationError> {
        let idle = self.idle.lock().pop();
        let mut interpreter = match idle {
            Some(interpreter) => interpreter,
            None => Interpreter::of((*self.template).clone())?,
        };
        let value = interpreter.run(input, limit);
        // Not reached after a panic, which may leave the interpreter in an inconsistent state.
        self.idle.lock().push(interpreter);
        value
    }
}

impl Interpreter {
    /// Creates an interpreter with a separate clock, so that `time.now_ns` returns the same value
    /// throughout an evaluation while other evaluations run.
    fn of(mut engine: Engine) -> Result<Self, EvaluationError> {
        let now = Arc::new(AtomicI64::new(0));
        let clock = Arc::clone(&now);
        let read = move |_: Vec<Value>| Ok(Value::from(clock.load(Ordering::Relaxed)));
        engine
            .add_extension(NOW.to_owned(), 0, Box::new(read))
            .map_err(|error| EvaluationError::Failed(error.to_string()))?;
        let engine = Box::new(engine);
        Ok(Self { engine, now })
    }

    fn run(&mut self, input: Value, limit: Duration) -> Result<Value, EvaluationError> {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let now = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
        self.now.store(now, Ordering::Relaxed);
        let engine = &mut self.engine;
        engine.set_execution_timer_config(ExecutionTimerConfig {
            limit,
            check_interval: STEPS_PER_CHECK,
        });
        engine.set_input(input);
        builtins::begin(limit);
        let value = engine.eval_rule(ANSWER.to_owned());
        let failure = builtins::end();
        engine.set_input(Value::Null);
        for line in engine.take_prints().into_iter().flatten() {
            tracing::debug!(line, "printed by a policy");
        }
        failure?;
        value.map_err(|error| {
            let limit = error.chain().find_map(|cause| cause.downcast_ref());
            match limit {
                Some(LimitError::TimeLimitExceeded { .. }) => EvaluationError::TimedOut,
                _ => EvaluationError::Failed(error.to_string()),
            }
        })
    }
}
