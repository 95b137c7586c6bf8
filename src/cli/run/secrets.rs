//! Decides which variables of the environment are secrets, by name and value.

mod names;
mod values;

use names::{Kind, kind};
use values::{is_number, is_plain, pairs};

/// Variables that are not secret, even if their name or value matches one of the lists.
const PLAIN: [&str; 3] = ["PWD", "OLDPWD", "XAUTHLOCALHOSTNAME"];
/// Values that are secret under no name.
const BOOLEANS: [&str; 15] = [
    "", "0", "1", "disabled", "enabled", "false", "n", "no", "none", "null", "off", "on", "true",
    "y", "yes",
];
/// The least bytes of a secret in a pair within a value, which is not the variable's own value.
const MIN_PAIRED: usize = 4;

/// Whether a variable looks like a secret, by its name or its value.
pub fn is_secret(name: &str, value: &str) -> bool {
    !PLAIN.contains(&name) && (is_secret_under(name, value) || has_secret_value(value))
}

fn is_secret_under(name: &str, value: &str) -> bool {
    if BOOLEANS.contains(&value.to_ascii_lowercase().as_str()) {
        return false;
    }
    match kind(name) {
        Kind::Secret => true,
        Kind::Quantity => !is_number(value),
        Kind::Doubtful => !is_plain(value),
        Kind::Other => false,
    }
}

fn has_secret_value(value: &str) -> bool {
    values::is_secret(value)
        || pairs(value).any(|(name, text)| text.len() >= MIN_PAIRED && is_secret_under(name, text))
}

#[cfg(test)]
mod tests;
