//! Log lines on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::Logging;

/// Starts to log to standard error. The error is a sentence: the level is invalid, or logging was
/// started before.
pub fn init(logging: &Logging) -> Result<(), String> {
    let filter = EnvFilter::try_new(directives(&logging.level))
        .map_err(|error| format!("logging.level {:?}: {error}", logging.level))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    let started = if logging.json {
        builder.json().flatten_event(true).try_init()
    } else {
        builder.try_init()
    };
    started.map_err(|error| error.to_string())
}

/// The filter for a level: a bare level applies to the lines of this crate, and libraries log
/// warnings. Any other text is used as the filter.
fn directives(level: &str) -> String {
    if level.parse::<tracing::Level>().is_ok() {
        format!("warn,unified_proxy={level}")
    } else {
        level.to_owned()
    }
}
