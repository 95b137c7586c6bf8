//! Log lines on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::Logging;

/// Begins to log. An error says what is wrong with the level.
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

/// The filter for a level: a bare level applies to our own lines, and libraries log warnings.
fn directives(level: &str) -> String {
    if level.parse::<tracing::Level>().is_ok() {
        format!("warn,unified_proxy={level}")
    } else {
        level.to_owned()
    }
}
