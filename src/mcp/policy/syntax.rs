//! Checks the syntax trees of policies before the policies run.

#![expect(
    clippy::indexing_slicing,
    reason = "indexing a JSON value returns null for a missing member, and never panics"
)]

use std::collections::BTreeMap;

use serde_json::Value;

use super::interpreter::NOW;

/// Functions whose result may be larger than the sum of their arguments by more than a constant
/// factor. The time limit does not interrupt a call. A call must therefore have literals for all
/// arguments, or for one of the arguments listed here.
const AMPLIFIERS: [(&str, Literals); 13] = [
    // The result may have any size, whatever the size of the arguments.
    ("bits.lsh", Literals::All),
    ("net.cidr_expand", Literals::All),
    ("numbers.range", Literals::All),
    ("numbers.range_step", Literals::All),
    // The format may contain a width.
    ("sprintf", Literals::OneOf(&[0])),
    // The result may be as large as the product of two arguments.
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
    /// Every argument must be a scalar.
    All,
    /// One of the arguments at these positions must have a known length.
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

    /// The arguments in words, such as `the first or third argument`.
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

/// The names of a path. Paths of rules, packages and imports have no `data` in front.
pub type Path = Vec<String>;

/// Kinds of nodes that are scalar constants.
const SCALARS: [&str; 5] = ["String", "RawString", "Number", "Bool", "Null"];

/// The trees of all files.
pub struct Syntax(Vec<Value>);

impl Syntax {
    /// Parses the output of `regorus::Engine::get_ast_as_json`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let modules = serde_json::from_str(text).map_err(|error| error.to_string())?;
        Ok(Self(modules))
    }

    /// File and package path of each file; the path has no `data` in front.
    pub fn packages(&self) -> impl Iterator<Item = (&str, Path)> {
        self.0.iter().map(|module| (file(module), package(module)))
    }

    /// The first call that may take all memory: its file, its function, and the arguments that must
    /// be literals. `None` if there is none.
    pub fn amplifier(&self) -> Option<(&str, String, String)> {
        let found = self.find_in_rules(|kind, node| {
            let name = called(kind, node)?;
            let amplifier = AMPLIFIERS.iter().find(|(function, _)| *function == name);
            let (_, literals) = amplifier?;
            let arguments = node["params"].as_array()?;
            (!literals.are_in(arguments)).then(|| (name, literals.text()))
        });
        found.map(|(file, (name, literals))| (file, name, literals))
    }

    /// The trees as regorus wrote them.
    pub fn modules(&self) -> &[Value] {
        &self.0
    }

    /// Whether some file has a rule of that name in the package at that path.
    pub fn has_rule(&self, path: &[&str], name: &str) -> bool {
        let modules = self.0.iter().filter(|module| package(module) == path);
        let mut paths = modules.flat_map(rules).filter_map(rule_path);
        paths.any(|path| path.first().is_some_and(|first| first == name))
    }

    /// The first `with` that replaces a function by one of [`AMPLIFIERS`]: its file and the name of
    /// the amplifier. Any such `with` counts, since the arguments of the calls to the replaced
    /// function are not checked.
    pub fn unbounded_replacement(&self) -> Option<(&str, String)> {
        self.find_in_rules(|kind, node| {
            let name = path(node).filter(|_| kind == "as")?.join(".");
            let mut amplifiers = AMPLIFIERS.iter();
            amplifiers.any(|(known, _)| *known == name).then_some(name)
        })
    }

    /// The first call of a function of `time` other than [`NOW`]: its file and the function.
    /// regorus has these functions only if it is built with tables of all time zones.
    pub fn function_of_time(&self) -> Option<(&str, String)> {
        self.0.iter().find_map(|module| {
            // In this file, `time` is a package of the bundle, not regorus' functions.
            if imports(module).contains_key("time") {
                return None;
            }
            let found = find(&module["ast"]["rules"], &|kind, node| {
                let name = called(kind, node)?;
                (name.starts_with("time.") && name != NOW).then_some(name)
            });
            found.map(|name| (file(module), name))
        })
    }

    /// The first file in which the value of `in` is used, not only whether it holds. With an
    /// undefined operand, `in` is undefined in OPA, but false in regorus.
    pub fn value_of_in(&self) -> Option<&str> {
        let mut modules = self.0.iter();
        let found = modules.find(|module| uses_value_of_in(&module["ast"]["rules"]));
        found.map(file)
    }

    /// The first call of a function that neither the policies define nor `exists` knows: its file and
    /// the function.
    pub fn unknown_function(&self, exists: impl Fn(&str) -> bool) -> Option<(&str, String)> {
        self.0.iter().find_map(|module| {
            let (package, imports) = (package(module), imports(module));
            let package: Vec<_> = package.iter().map(String::as_str).collect();
            let is_defined = |name: &str| {
                let first = name.split('.').next().unwrap_or(name);
                first == "data" || imports.contains_key(first) || self.has_rule(&package, first)
            };
            let found = find(&module["ast"]["rules"], &|kind, node| {
                called(kind, node).filter(|name| !exists(name) && !is_defined(name))
            });
            found.map(|name| (file(module), name))
        })
    }

    /// The first file with a call of `walk` as a value. For regorus, that is a list of all pairs; in
    /// OPA, each pair is a value of its own.
    pub fn walk_as_value(&self) -> Option<&str> {
        let found = self.find_in_rules(|kind, node| {
            let is_walk = called(kind, node).is_some_and(|name| name == "walk");
            let arguments = node["params"].as_array().map_or(0, Vec::len);
            (is_walk && arguments != 2).then_some(())
        });
        found.map(|(file, ())| file)
    }

    /// The first `some x` without `in` whose variable has the name of a rule: its file and the name.
    /// regorus takes the value of the rule, OPA a new variable.
    pub fn variable_of_a_rules_name(&self) -> Option<(&str, String)> {
        self.0.iter().find_map(|module| {
            let package = package(module);
            let package: Vec<_> = package.iter().map(String::as_str).collect();
            let found = find(&module["ast"]["rules"], &|kind, node| {
                let declared = node["vars"].as_array().filter(|_| kind == "SomeVars")?;
                let mut names = declared.iter().filter_map(|at| text_at(source(module), at));
                names.find(|name| self.has_rule(&package, name))
            });
            found.map(|name| (file(module), name.to_owned()))
        })
    }

    /// Whether some rule calls a function.
    pub fn calls(&self, function: &str) -> bool {
        let found =
            self.find_in_rules(|kind, node| called(kind, node).filter(|name| name == function));
        found.is_some()
    }

    /// Whether some rule reads another member of the input than these, or may do so.
    pub fn reads_input_beyond(&self, members: &[&str]) -> bool {
        self.0.iter().any(|module| {
            let ast = &module["ast"];
            reads_input_beyond(&ast["rules"], members)
                || reads_input_beyond(&ast["imports"], members)
        })
    }

    /// The first result of `look` for a node of the rules, with the node's file.
    fn find_in_rules<T>(&self, look: impl Fn(&str, &Value) -> Option<T>) -> Option<(&str, T)> {
        self.0.iter().find_map(|module| {
            let found = find(&module["ast"]["rules"], &look);
            found.map(|found| (file(module), found))
        })
    }
}

/// The first result of `look` for a node of the tree; `look` gets the node's kind and the node.
fn find<T>(tree: &Value, look: &impl Fn(&str, &Value) -> Option<T>) -> Option<T> {
    match tree {
        Value::Object(members) => members
            .iter()
            .find_map(|(kind, node)| look(kind, node).or_else(|| find_below(kind, node, look))),
        Value::Array(items) => items.iter().find_map(|item| find(item, look)),
        _ => None,
    }
}

/// Whether a tree has a reference to the input that does not begin with one of these members.
fn reads_input_beyond(tree: &Value, members: &[&str]) -> bool {
    if let Some(path) = static_path(tree)
        && path.first().is_some_and(|first| first == "input")
    {
        let is_known = path
            .get(1)
            .is_some_and(|member| members.contains(&&**member));
        // The names below may be computed by further references.
        return !is_known || below_reference(tree, members);
    }
    match tree {
        Value::Object(fields) => fields
            .values()
            .any(|node| reads_input_beyond(node, members)),
        Value::Array(items) => items.iter().any(|item| reads_input_beyond(item, members)),
        _ => false,
    }
}

/// Whether a computed name in a reference to the input reads another member of the input.
fn below_reference(reference: &Value, members: &[&str]) -> bool {
    let Some(node) = reference
        .get("RefDot")
        .or_else(|| reference.get("RefBrack"))
    else {
        return false;
    };
    let computed = &node["index"];
    reads_input_beyond(computed, members) || below_reference(&node["refr"], members)
}

/// Whether an `in` is anything else than a statement or a negated statement.
fn uses_value_of_in(tree: &Value) -> bool {
    match tree {
        Value::Object(members) => members.iter().any(|(kind, node)| match kind.as_str() {
            "Membership" => true,
            "Expr" | "NotExpr" => match &node["expr"]["Membership"] {
                Value::Null => uses_value_of_in(node),
                operands => uses_value_of_in(operands),
            },
            kind if is_leaf(kind) => false,
            _ => uses_value_of_in(node),
        }),
        Value::Array(items) => items.iter().any(uses_value_of_in),
        _ => false,
    }
}

/// Searches below a node. Constants and variables have text, not nodes, below them.
fn find_below<T>(kind: &str, node: &Value, look: &impl Fn(&str, &Value) -> Option<T>) -> Option<T> {
    if is_leaf(kind) {
        None
    } else {
        find(node, look)
    }
}

fn is_leaf(kind: &str) -> bool {
    kind == "Var" || SCALARS.contains(&kind)
}

/// The imports of a file from `data`: the imported paths by alias.
pub fn imports(module: &Value) -> BTreeMap<String, Path> {
    let imports = module["ast"]["imports"].as_array().into_iter().flatten();
    let paths = imports.filter_map(|import| {
        let whole = path(&import["refr"])?;
        let (root, below) = whole.split_first()?;
        let alias = match text_at(source(module), &import["as"]) {
            Some(alias) => alias,
            None => whole.last()?,
        };
        (root == "data").then(|| (alias.to_owned(), below.to_vec()))
    });
    paths.collect()
}

/// The text of a file.
pub fn source(module: &Value) -> &str {
    module["source"]["contents"].as_str().unwrap_or_default()
}

/// The text at a place in a file. Some nodes have the place of a name instead of the name.
pub fn text_at<'s>(source: &'s str, place: &Value) -> Option<&'s str> {
    let at = |end| usize::try_from(place[end].as_u64()?).ok();
    source.get(at("start")?..at("end")?)
}

/// The names of `a.b["c"]`; `None` if a name is computed.
pub fn path(expression: &Value) -> Option<Path> {
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

/// The names of a reference, up to the first computed name; `None` for other expressions.
pub fn static_path(tree: &Value) -> Option<Path> {
    path(tree).or_else(|| {
        let node = tree.get("RefDot").or_else(|| tree.get("RefBrack"))?;
        static_path(&node["refr"])
    })
}

/// The function of a call; `None` for other nodes.
fn called(kind: &str, node: &Value) -> Option<String> {
    let function = path(&node["fcn"]).filter(|_| kind == "Call")?;
    Some(function.join("."))
}

/// The rules of a module.
pub fn rules(module: &Value) -> impl Iterator<Item = &Value> {
    module["ast"]["rules"].as_array().into_iter().flatten()
}

/// The head of a rule; `None` for a default rule.
pub fn head(rule: &Value) -> Option<&Value> {
    rule["Spec"]["head"].as_object()?.values().next()
}

/// The path of a rule below its package, up to the first computed name.
pub fn rule_path(rule: &Value) -> Option<Path> {
    static_path(head(rule).map_or(&rule["Default"]["refr"], |head| &head["refr"]))
}

/// The path of a module's package, without `data`; empty if a name is computed.
pub fn package(module: &Value) -> Path {
    path(&module["ast"]["package"]["refr"]).unwrap_or_default()
}

/// The file of a module.
pub fn file(module: &Value) -> &str {
    module["source"]["file"].as_str().unwrap_or_default()
}

fn is_scalar(expression: &Value) -> bool {
    SCALARS.iter().any(|kind| expression.get(kind).is_some())
}

/// Whether an argument is a constant or a list literal, and therefore contributes at most a
/// constant factor to the result, whatever the input.
fn has_known_length(expression: &Value) -> bool {
    expression.get("Array").is_some() || is_constant(expression)
}

/// Whether an expression consists of literals only.
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
