//! `${NAME}` and `${NAME:-default}` inside scalars; `${env:NAME}`, as some MCP clients write it, means
//! `${NAME}`.
//!
//! Variables are expanded after parsing, within each scalar, so that the value of a variable is
//! never parsed as YAML.

use zeroize::Zeroizing;

use super::report::FileReport;
use super::tree::{Node, Scalar, Value, Variable, key_path};

/// Returns the value of an environment variable; `None` if it is not set.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Keys of MCP clients whose values have no effect, each with the number of keys above it. Variables
/// in them need no value.
const UNUSED: [(&str, usize); 2] = [("inputs", 0), ("envFile", 2)];

/// Expands every scalar below the root of a document. Reports each scalar that cannot be expanded, and
/// marks it as refused.
pub fn expand(root: &mut Node, env: Env<'_>, report: FileReport<'_>) {
    expand_below(root, "", 0, env, report);
}

/// As [`expand`], for a node with this number of keys above it.
fn expand_below(node: &mut Node, path: &str, depth: usize, env: Env<'_>, report: FileReport<'_>) {
    match &mut node.value {
        Value::Scalar(scalar) => {
            if let Err(messages) = expand_scalar(scalar, env) {
                for message in messages {
                    report.refuse(node.place, path, message);
                }
                node.value = Value::Refused;
            }
        }
        Value::Sequence(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                expand_below(item, &format!("{path}[{index}]"), depth, env, report);
            }
        }
        Value::Mapping(mapping) => {
            for (key, value) in &mut mapping.entries {
                if !UNUSED.contains(&(key.name.as_str(), depth)) {
                    let path = key_path(path, &key.name);
                    expand_below(value, &path, depth + 1, env, report);
                }
            }
        }
        Value::Refused => {}
    }
}

fn expand_scalar(scalar: &mut Scalar, env: Env<'_>) -> Result<(), Vec<String>> {
    if !scalar.text.contains("${") {
        return Ok(());
    }
    let mut text = Zeroizing::new(String::new());
    let mut variables = Vec::new();
    let mut errors = Vec::new();
    let mut rest = scalar.text.as_str();
    while let Some((before, after)) = rest.split_once("${") {
        text.push_str(before);
        let Some((name, default, after)) = read_reference(after) else {
            errors.push(malformed(after).to_owned());
            return Err(errors);
        };
        rest = after;
        match value(name, default, env) {
            Some(value) => {
                text.push_str(&value);
                variables.push(Variable {
                    name: name.to_owned(),
                    value,
                });
            }
            None => errors.push(format!(
                "the variable {name} is not set: set it, or give a default with ${{{name}:-…}}"
            )),
        }
    }
    text.push_str(rest);
    if !errors.is_empty() {
        return Err(errors);
    }
    scalar.text = text;
    scalar.variables = variables;
    Ok(())
}

/// The error for a malformed reference. `text` begins after its `${`.
fn malformed(text: &str) -> &'static str {
    match text.starts_with("input:") {
        true => {
            "${input:…} is a question of VS Code, which nobody answers here: write ${NAME}, and set the \
             variable NAME"
        }
        false => "malformed variable: write ${NAME} or ${NAME:-default}",
    }
}

/// Reads a reference. `text` begins after its `${`. Returns the name, the default, and the text
/// after the reference; `None` if the reference is malformed.
fn read_reference(text: &str) -> Option<(&str, Option<&str>, &str)> {
    let (inside, rest) = text.split_once('}')?;
    // `${env:-default}` is a variable of the name `env`.
    let of_env = inside
        .strip_prefix("env:")
        .filter(|rest| !rest.starts_with('-'));
    let inside = of_env.unwrap_or(inside);
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let nested = default.is_some_and(|default| default.contains("${"));
    let valid = begins_well && name.bytes().all(fits) && !nested;
    valid.then_some((name, default, rest))
}

/// The value of a reference. As in a shell, the default also replaces an empty value.
fn value(name: &str, default: Option<&str>, env: Env<'_>) -> Option<Zeroizing<String>> {
    let set = env(name).map(Zeroizing::new);
    match default {
        Some(default) => Some(
            set.filter(|value| !value.is_empty())
                .unwrap_or_else(|| Zeroizing::new(default.to_owned())),
        ),
        None => set,
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    fn expanded(text: &str) -> Result<String, Vec<String>> {
        let mut scalar = Scalar {
            text: Zeroizing::new(text.to_owned()),
            ..Scalar::default()
        };
        let env = |name: &str| match name {
            "A" => Some("a".to_owned()),
            "EMPTY" => Some(String::new()),
            "REFERENCE" => Some("${A}".to_owned()),
            _ => None,
        };
        expand_scalar(&mut scalar, &env)?;
        Ok(scalar.text.to_string())
    }

    #[test]
    fn variables_and_defaults_are_expanded_once() {
        each_row(
            [
                ("", ""),
                ("$A $ {A} }", "$A $ {A} }"),
                ("${A}", "a"),
                ("x${A}y${A}z", "xayaz"),
                ("${env:A}", "a"),
                ("${env:B:-b}", "b"),
                ("${env:-b}", "b"),
                ("${A:-b}", "a"),
                ("${B:-b}", "b"),
                ("${B:-}", ""),
                ("${EMPTY}", ""),
                ("${EMPTY:-b}", "b"),
                ("${B:-b:-c}", "b:-c"),
                ("${REFERENCE}", "${A}"),
            ],
            |(text, result)| {
                assert_eq!(expanded(text).as_deref(), Ok(result), "{text}");
            },
        );
    }

    #[test]
    fn unset_variables_and_malformed_references_are_refused() {
        each_row(
            [
                ("${B}", "variable B is not set"),
                ("${A", "malformed variable"),
                ("${}", "malformed variable"),
                ("${1A}", "malformed variable"),
                ("${env:}", "malformed variable"),
                ("${env:env:A}", "malformed variable"),
                ("${env:B}", "variable B is not set"),
                ("${input:api-key}", "write ${NAME}"),
                ("${A-b}", "malformed variable"),
                ("${A b}", "malformed variable"),
                ("${B:-${A}}", "malformed variable"),
            ],
            |(text, word)| {
                let errors = expanded(text).unwrap_err();
                assert!(errors[0].contains(word), "{text}: {errors:?}");
            },
        );
        assert_eq!(expanded("${B}${C}").unwrap_err().len(), 2);
    }
}
