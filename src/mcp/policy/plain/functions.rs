//! The functions that plain policies may call: pure functions, whose result depends only on their
//! arguments.

use regorus::unstable::{BUILTINS, BuiltinFcn};

/// A function that plain policies may call.
pub enum Function {
    Test(TextTest),
    Builtin(Builtin),
}

/// A function that tests a text, called without copies of its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextTest {
    StartsWith,
    EndsWith,
    Contains,
}

/// A function of regorus.
pub struct Builtin {
    pub name: &'static str,
    pub function: BuiltinFcn,
    /// Whether all arguments must be strings. The function is not called with other values: it
    /// would format an error that contains the whole argument and that is then dropped.
    pub of_strings: bool,
}

const OF_STRINGS: [&str; 16] = [
    "contains",
    "endswith",
    "indexof",
    "lower",
    "regex.match",
    "replace",
    "semver.compare",
    "split",
    "startswith",
    "trim",
    "trim_left",
    "trim_prefix",
    "trim_right",
    "trim_space",
    "trim_suffix",
    "upper",
];

const OTHERS: [&str; 38] = [
    "abs",
    "array.concat",
    "array.reverse",
    "array.slice",
    "base64.decode",
    "base64.encode",
    "ceil",
    "concat",
    "count",
    "floor",
    "format_int",
    "glob.match",
    "intersection",
    "is_array",
    "is_boolean",
    "is_null",
    "is_number",
    "is_object",
    "is_set",
    "is_string",
    "json.marshal",
    "max",
    "min",
    "net.cidr_contains",
    "object.get",
    "object.keys",
    "object.remove",
    "object.union",
    "round",
    "sort",
    "sprintf",
    "strings.any_prefix_match",
    "strings.any_suffix_match",
    "substring",
    "sum",
    "to_number",
    "type_name",
    "union",
];

impl Function {
    /// The function with this name, if it takes this number of arguments; `None` otherwise. A call
    /// in Rego may have one more argument, with which the result is compared. Such a call is not
    /// plain.
    pub fn find(name: &str, arguments: usize) -> Option<Self> {
        let known = |names: &[&'static str]| names.iter().copied().find(|known| *known == name);
        let of_strings = known(&OF_STRINGS);
        let name = of_strings.or_else(|| known(&OTHERS))?;
        let function = BUILTINS.get(name).copied()?;
        let is_complete = usize::from(function.1) == arguments;
        is_complete.then_some(match name {
            "startswith" => Self::Test(TextTest::StartsWith),
            "endswith" => Self::Test(TextTest::EndsWith),
            "contains" => Self::Test(TextTest::Contains),
            name => Self::Builtin(Builtin {
                name,
                function,
                of_strings: of_strings.is_some(),
            }),
        })
    }
}

impl TextTest {
    pub fn holds(self, text: &str, part: &str) -> bool {
        match self {
            Self::StartsWith => text.starts_with(part),
            Self::EndsWith => text.ends_with(part),
            Self::Contains => text.contains(part),
        }
    }
}
