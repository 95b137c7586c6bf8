//! `check`: validates every configuration file.

use super::exit::{Failure, print};
use super::{ConfigDir, load};

/// Loads the configuration of the server on this machine and prints its warnings. If the
/// configuration is invalid, the failure lists all errors.
pub fn check(dir: &ConfigDir) -> Result<(), Failure> {
    let (dir, config) = load(dir)?;
    for warning in &config.warnings {
        eprintln!("warning: {warning}");
    }
    print(format_args!("{}: no errors", dir.display()))
}
