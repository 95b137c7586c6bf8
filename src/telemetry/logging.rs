//! Logs to standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::Logging;

/// Starts to log to standard error. Fails if the level is invalid, or if logging was already
/// started.
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

/// Returns the filter for `logging.level`. A bare level applies to the crates of the product, and
/// all other crates log warnings and errors. Any other text is a filter already.
fn directives(level: &str) -> String {
    if level.parse::<tracing::Level>().is_ok() {
        format!("warn,unified_proxy={level},addons={level}")
    } else {
        level.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_level_applies_to_the_crates_of_the_product() {
        assert_eq!(directives("info"), "warn,unified_proxy=info,addons=info");
        let own = "info,unified_proxy=debug";
        assert_eq!(directives(own), own);
    }
}
