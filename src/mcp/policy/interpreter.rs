//! regorus' interpreter, for policies that are not plain.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use regorus::utils::limits::ExecutionTimerConfig;
use regorus::{Engine, LimitError, Value};

use super::error::EvaluationError;

/// Steps of an evaluation between two looks at the clock; a step takes about 100 ns.
const STEPS_PER_LOOK: NonZeroU32 = NonZeroU32::MIN.saturating_add(63);
/// The rule that collects an answer.
pub const ANSWER: &str = "data.unified_proxy.entrypoint.answer";
/// The only function of time.
pub const NOW: &str = "time.now_ns";

/// Interpreters of one policy, all alike.
pub struct Interpreters {
    template: Box<Engine>,
    /// As many as evaluations ran at once.
    idle: Mutex<Vec<Interpreter>>,
}

/// Keeps caches between evaluations, but nothing of an input.
struct Interpreter {
    engine: Box<Engine>,
    /// Nanoseconds since 1970, when the evaluation began.
    now: Arc<AtomicI64>,
}

impl Interpreters {
    /// Interpreters with the policies and data of an engine.
    pub fn of(engine: Engine) -> Self {
        Self {
            template: Box::new(engine),
            idle: Mutex::default(),
        }
    }

    /// Evaluates the rule that collects the answer, on this thread.
    pub fn evaluate(&self, input: Value, limit: Duration) -> Result<Value, EvaluationError> {
        let idle = self.idle.lock().pop();
        let mut interpreter = match idle {
            Some(interpreter) => interpreter,
            None => Interpreter::of((*self.template).clone())?,
        };
        let value = interpreter.run(input, limit);
        // A panic does not come here: the interpreter is dropped with what it was about to do.
        self.idle.lock().push(interpreter);
        value
    }
}

impl Interpreter {
    /// An engine with a clock of its own: an evaluation sees one time, whatever others run.
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
            check_interval: STEPS_PER_LOOK,
        });
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
