//! Checks of the syntax trees of a policy before it runs.
//!
//! regorus has two evaluators: an interpreter that passes OPA's own tests, and a virtual machine
//! that takes a quarter of the time and differs. The machine goes on where `x := input.missing` is
//! undefined, answers `undefined` where values conflict, and has no `with`. So it runs only
//! policies of the plainest kind, which [`Syntax::suits_machine`] accepts: constants that depend on
//! comparisons and calls of pure functions. A property test compares both evaluators on them.

#![expect(
    clippy::indexing_slicing,
    reason = "indexing a JSON value answers null for what is not there, and never panics"
)]

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Functions whose result may be larger than the sum of their arguments by more than a constant
/// factor, and what must be a literal so that it is not. Nothing interrupts a call.
const AMPLIFIERS: [(&str, Literals); 13] = [
    // Of any size, whatever the size of the arguments.
    ("bits.lsh", Literals::All),
    ("net.cidr_expand", Literals::All),
    ("numbers.range", Literals::All),
    ("numbers.range_step", Literals::All),
    // A width in the format.
    ("sprintf", Literals::OneOf(&[0])),
    // As large as the product of these arguments.
    ("concat", Literals::OneOf(&[0, 1])),
    ("json.marshal_with_options", Literals::OneOf(&[1])),
    ("regex.find_all_string_submatch_n", Literals::OneOf(&[0, 1])),
    ("regex.replace", Literals::OneOf(&[0, 2])),
    ("replace", Literals::OneOf(&[0, 2])),
    // Each element of the argument may double the result.
    ("graph.reachable_paths", Literals::OneOf(&[0])),
    ("json.patch", Literals::OneOf(&[1])),
    ("strings.replace_n", Literals::OneOf(&[0])),
];

/// The arguments of a call that must be literals.
#[derive(Clone, Copy)]
enum Literals {
    /// Each must be a scalar.
    All,
    /// One of those at these positions.
    OneOf(&'static [usize]),
}

impl Literals {
    fn are_in(self, arguments: &[Value]) -> bool {
        match self {
            Self::All => arguments.iter().all(is_scalar),
            Self::OneOf(positions) => positions
                .iter()
                .any(|at| arguments.get(*at).is_some_and(has_known_length)),
        }
    }

    /// Such as `the first or third argument`.
    fn text(self) -> String {
        let Self::OneOf(positions) = self else {
            return "every argument".to_owned();
        };
        let ordinals = ["first", "second", "third"];
        let named: Vec<_> = positions
            .iter()
            .filter_map(|at| ordinals.get(*at).copied())
            .collect();
        format!("the {} argument", named.join(" or "))
    }
}

/// Kinds of constants.
const SCALARS: [&str; 5] = ["String", "RawString", "Number", "Bool", "Null"];

/// The trees of all files.
pub struct Syntax(Vec<Value>);

impl Syntax {
    /// Reads what `regorus::Engine::get_ast_as_json` wrote.
    pub fn parse(text: &str) -> Result<Self, String> {
        let modules = serde_json::from_str(text).map_err(|error| error.to_string())?;
        Ok(Self(modules))
    }

    /// File and package path of each file; the path has no `data` in front.
    pub fn packages(&self) -> impl Iterator<Item = (&str, Vec<String>)> {
        self.0.iter().map(|module| {
            let package = &module["ast"]["package"]["refr"];
            (file(module), path(package).unwrap_or_default())
        })
    }

    /// The first call that may take all memory: its file, its function, and which argument must
    /// be a literal.
    pub fn amplifier(&self) -> Option<(&str, String, String)> {
        self.0.iter().find_map(|module| {
            let found = find(&module["ast"]["rules"], &|kind, node| {
                let name = path(&node["fcn"]).filter(|_| kind == "Call")?.join(".");
                let amplifier = AMPLIFIERS.iter().find(|(function, _)| *function == name);
                let (_, literals) = amplifier?;
                let arguments = node["params"].as_array()?;
                (!literals.are_in(arguments)).then(|| (name, literals.text()))
            });
            found.map(|(name, literals)| (file(module), name, literals))
        })
    }

    /// The trees as regorus wrote them.
    pub fn modules(&self) -> &[Value] {
        &self.0
    }

    /// Whether some file has a rule of that name in that package.
    pub fn has_rule(&self, package: &[&str], name: &str) -> bool {
        let modules = self.0.iter().filter(|module| {
            let path = path(&module["ast"]["package"]["refr"]);
            path.is_some_and(|path| path == package)
        });
        let rules = modules.flat_map(|module| module["ast"]["rules"].as_array());
        rules
            .flatten()
            .any(|rule| rule_name(rule).as_deref() == Some(name))
    }

    /// Whether the virtual machine gives the same results as the interpreter.
    pub fn suits_machine(&self) -> bool {
        let mut complete: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
        for module in &self.0 {
            let package = path(&module["ast"]["package"]["refr"]).unwrap_or_default();
            for rule in module["ast"]["rules"].as_array().into_iter().flatten() {
                if !plain_expressions(rule) {
                    return false;
                }
                if let Some(default) = rule.get("Default") {
                    if !is_scalar(&default["value"]) || has_items(&default["args"]) {
                        return false;
                    }
                    continue;
                }
                let (spec, head) = (&rule["Spec"], &rule["Spec"]["head"]);
                if let Some(set) = head.get("Set") {
                    if set["refr"].get("Var").is_none() || !is_scalar(&set["key"]) {
                        return false;
                    }
                } else if let Some(name) = head["Compr"]["refr"]["Var"]["value"].as_str() {
                    let path = format!("{}.{name}", package.join("."));
                    complete.entry(path).or_default().push(spec);
                } else {
                    return false;
                }
            }
        }
        complete.values().all(|specs| has_one_value(specs))
    }

    /// The members of the input that the rules read; `None` where one takes the input as a whole.
    /// An import may give another name to what it reads, so it counts like an expression.
    pub fn members_of_input(&self) -> Option<BTreeSet<String>> {
        let mut members = BTreeSet::new();
        for module in &self.0 {
            collect_members(&module["ast"]["rules"], &mut members)?;
            collect_members(&module["ast"]["imports"], &mut members)?;
        }
        Some(members)
    }
}

/// Adds the members of the input that an expression reads, or one below it. `None` where one takes
/// the input as a whole.
fn collect_members(tree: &Value, members: &mut BTreeSet<String>) -> Option<()> {
    if let Some(names) = path(tree) {
        let mut names = names.into_iter();
        if names.next().as_deref() == Some("input") {
            members.insert(names.next()?);
        }
        return Some(());
    }
    let mut each = |tree| collect_members(tree, members);
    match tree {
        Value::Object(below) => below.values().try_for_each(&mut each),
        Value::Array(below) => below.iter().try_for_each(&mut each),
        _ => Some(()),
    }
}

/// Whether a rule with these definitions cannot have two values at once: all are one constant, or
/// there is one definition. Nothing iterates, so one body has one value. The machine ends with the
/// first body that holds, the interpreter with the first that has a value: with `else`, values must
/// be constants.
fn has_one_value(specs: &[&Value]) -> bool {
    let constants: Option<Vec<String>> = specs.iter().map(|spec| constant(spec)).collect();
    if let Some(constants) = constants {
        return constants.windows(2).all(|pair| pair.first() == pair.last());
    }
    let [spec] = specs else { return false };
    let bodies = spec["bodies"].as_array().map_or(&[][..], Vec::as_slice);
    let alternatives = bodies.get(1..).unwrap_or_default();
    let exclusive = alternatives.iter().all(|body| body["is_else"] == true);
    exclusive && (alternatives.is_empty() || each_constant(spec))
}

/// The value of a definition that has no other one.
fn constant(spec: &Value) -> Option<String> {
    let bodies = spec["bodies"].as_array()?;
    if bodies.len() > 1 {
        return None;
    }
    literal_text(&spec["head"]["Compr"]["assign"])
}

/// Whether no value of a definition or of its `else` depends on anything.
fn each_constant(spec: &Value) -> bool {
    let bodies = spec["bodies"].as_array().into_iter().flatten();
    let assigns = bodies.map(|body| &body["assign"]);
    let mut all = [&spec["head"]["Compr"]["assign"]]
        .into_iter()
        .chain(assigns);
    all.all(|assign| literal_text(assign).is_some())
}

/// Without an assignment a rule is `true`.
fn literal_text(assign: &Value) -> Option<String> {
    if assign.is_null() {
        return Some("true".to_owned());
    }
    let value = &assign["value"];
    let kind = value.as_object()?.values().next()?;
    is_scalar(value).then(|| kind["value"].to_string())
}

/// Whether both evaluators agree on every expression of a rule.
fn plain_expressions(rule: &Value) -> bool {
    const KINDS: [&str; 14] = [
        "Spec",
        "Default",
        "Compr",
        "Set",
        "Expr",
        "NotExpr",
        "String",
        "RawString",
        "Number",
        "Bool",
        "Null",
        "Var",
        "RefDot",
        "BoolExpr",
    ];
    let foreign = find(rule, &|kind, node| {
        let known = match kind {
            "with_mods" => false,
            "Call" => {
                let name = path(&node["fcn"]).unwrap_or_default().join(".");
                BUILTINS.contains(&name.as_str())
            }
            "RefBrack" => is_scalar(&node["index"]),
            "Membership" => node["key"].is_null(),
            "Array" => node["items"]
                .as_array()
                .is_some_and(|items| items.iter().all(is_scalar)),
            // Members of the syntax tree have small letters. `Set` is a rule's head, too.
            kind if kind.starts_with(char::is_uppercase) => KINDS.contains(&kind),
            _ => true,
        };
        let set_of_scalars = || {
            let items = node["items"].as_array();
            items.is_none_or(|items| items.iter().all(is_scalar))
        };
        (!known || kind == "Set" && !set_of_scalars()).then_some(())
    });
    foreign.is_none()
}

/// Functions without side effects that look at nothing but their arguments; both evaluators call
/// the same code.
const BUILTINS: [&str; 43] = [
    "abs",
    "array.concat",
    "array.reverse",
    "array.slice",
    "base64.decode",
    "base64.encode",
    "ceil",
    "concat",
    "contains",
    "count",
    "endswith",
    "floor",
    "format_int",
    "glob.match",
    "indexof",
    "intersection",
    "is_array",
    "is_boolean",
    "is_null",
    "is_number",
    "is_object",
    "is_set",
    "is_string",
    "json.marshal",
    "lower",
    "max",
    "min",
    "net.cidr_contains",
    "object.get",
    "object.keys",
    "regex.match",
    "replace",
    "round",
    "semver.compare",
    "sort",
    "split",
    "sprintf",
    "startswith",
    "sum",
    "to_number",
    "trim_prefix",
    "union",
    "upper",
];

/// The first answer for a node of the tree, asked with its kind.
fn find<T>(tree: &Value, look: &impl Fn(&str, &Value) -> Option<T>) -> Option<T> {
    match tree {
        Value::Object(members) => members
            .iter()
            .find_map(|(kind, node)| look(kind, node).or_else(|| find_below(kind, node, look))),
        Value::Array(items) => items.iter().find_map(|item| find(item, look)),
        _ => None,
    }
}

/// Of a constant or a name, the value is text: it has no nodes.
fn find_below<T>(kind: &str, node: &Value, look: &impl Fn(&str, &Value) -> Option<T>) -> Option<T> {
    let is_leaf = kind == "Var" || SCALARS.contains(&kind);
    if is_leaf { None } else { find(node, look) }
}

/// The names of `a.b["c"]`.
pub fn path(expression: &Value) -> Option<Vec<String>> {
    if let Some(name) = expression["Var"]["value"].as_str() {
        return Some(vec![name.to_owned()]);
    }
    let (inner, name) = match (expression.get("RefDot"), expression.get("RefBrack")) {
        (Some(dot), _) => (&dot["refr"], dot["field"].get(1)?.as_str()?),
        (_, Some(bracket)) => (
            &bracket["refr"],
            bracket["index"]["String"]["value"].as_str()?,
        ),
        _ => return None,
    };
    let mut names = path(inner)?;
    names.push(name.to_owned());
    Some(names)
}

/// The name of a rule below its package: `a` of `a.b["c"] := 1`.
fn rule_name(rule: &Value) -> Option<String> {
    let heads = rule["Spec"]["head"].as_object();
    let head = heads.and_then(|heads| heads.values().next());
    let mut name = head.map_or(&rule["Default"]["refr"], |head| &head["refr"]);
    loop {
        if let Some(text) = name["Var"]["value"].as_str() {
            return Some(text.to_owned());
        }
        name = name.as_object()?.values().next()?.get("refr")?;
    }
}

/// The file of a module.
pub fn file(module: &Value) -> &str {
    module["source"]["file"].as_str().unwrap_or_default()
}

fn is_scalar(expression: &Value) -> bool {
    SCALARS.iter().any(|kind| expression.get(kind).is_some())
}

/// Whether an argument contributes no more than a constant factor, whatever the input: a constant,
/// or a list whose elements are all written in the policy.
fn has_known_length(expression: &Value) -> bool {
    expression.get("Array").is_some() || is_constant(expression)
}

/// Whether an expression has literals alone.
fn is_constant(expression: &Value) -> bool {
    let all = |list: &Value| {
        let items = list.as_array();
        items.is_some_and(|items| items.iter().all(is_constant))
    };
    // Each field is a list of its place in the text, its key and its value.
    let is_field = |field: &Value| is_constant(&field[1]) && is_constant(&field[2]);
    let fields = expression["Object"]["fields"].as_array();
    is_scalar(expression)
        || all(&expression["Array"]["items"])
        || all(&expression["Set"]["items"])
        || fields.is_some_and(|fields| fields.iter().all(is_field))
}

fn has_items(list: &Value) -> bool {
    list.as_array().is_some_and(|items| !items.is_empty())
}
