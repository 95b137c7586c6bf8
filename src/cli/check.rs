//! `check`: whether every configuration file is in order.

use super::exit::{Failure, print};
use super::{ConfigDir, load};

/// Loads the configuration of whatever runs here and prints what is wrong with it.
pub fn check(dir: &ConfigDir) -> Result<(), Failure> {
    let (dir, config) = load(dir)?;
    for warning in &config.warnings {
        eprintln!("warning: {warning}");
    }
    print(format_args!("{}: no errors", dir.display()))
}
