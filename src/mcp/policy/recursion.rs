//! Finds rules that depend on themselves. OPA refuses such rules. regorus detects some of them when
//! they run. Others overflow the stack of the thread, which ends the process.

#![expect(
    clippy::indexing_slicing,
    reason = "indexing a JSON value returns null for a missing member, and never panics"
)]

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::syntax::{
    Path, Syntax, file, head, imports, package, rule_path, rules, source, static_path, text_at,
};

type Names = BTreeSet<String>;

/// The rules of a bundle, by path without `data`.
type Rules = BTreeMap<Path, Rule>;

#[derive(Default)]
struct Rule {
    file: String,
    /// Paths that the rule refers to. Each is the path of a rule, of a package, or of a value
    /// within the value of a rule.
    uses: BTreeSet<Path>,
}

/// File and name of a rule that depends on itself; `None` if there is none.
pub fn find(syntax: &Syntax) -> Option<(String, String)> {
    let rules = read(syntax.modules());
    let (path, rule) = rules.iter().find(|(path, _)| reaches(&rules, path))?;
    Some((rule.file.clone(), path.join(".")))
}

fn read(modules: &[Value]) -> Rules {
    let mut all = Rules::new();
    for module in modules {
        let package = package(module);
        let imports = imports(module);
        for rule in rules(module) {
            let Some(name) = rule_path(rule) else {
                continue;
            };
            let mut reader = Reader {
                source: source(module),
                package: &package,
                imports: &imports,
                uses: BTreeSet::new(),
            };
            reader.rule(rule);
            let node = all.entry([&package[..], &name[..]].concat()).or_default();
            file(module).clone_into(&mut node.file);
            node.uses.append(&mut reader.uses);
        }
    }
    all
}

/// Whether a rule depends on itself, directly or through other rules.
fn reaches(rules: &Rules, rule: &Path) -> bool {
    let mut seen = BTreeSet::new();
    let mut pending = vec![rule];
    while let Some(at) = pending.pop() {
        for used in used_by(rules, at) {
            if used == rule {
                return true;
            }
            if seen.insert(used) {
                pending.push(used);
            }
        }
    }
    false
}

/// The rules that a rule refers to directly.
fn used_by<'r>(rules: &'r Rules, rule: &Path) -> impl Iterator<Item = &'r Path> {
    let uses = rules.get(rule).into_iter().flat_map(|rule| &rule.uses);
    uses.flat_map(|used| {
        let touches = |rule: &&Path| rule.starts_with(used) || used.starts_with(rule);
        rules.keys().filter(touches)
    })
}

/// Collects the references of a rule.
struct Reader<'m> {
    source: &'m str,
    package: &'m Path,
    imports: &'m BTreeMap<String, Path>,
    uses: BTreeSet<Path>,
}

impl Reader<'_> {
    fn rule(&mut self, rule: &Value) {
        let spec = &rule["Spec"];
        let Some(head) = head(rule) else { return };
        let mut arguments = Names::new();
        variables(&head["args"], &mut arguments);
        let bodies = spec["bodies"].as_array().map_or(&[][..], Vec::as_slice);
        let first = bodies.first().map_or(&Value::Null, |body| &body["query"]);
        let mut names = arguments.clone();
        self.bound(first, &mut names);
        self.expression(&head["assign"], &names);
        self.expression(&head["key"], &names);
        // The key of `rule[key]`; the rule's own name is not a reference.
        self.expression(&head["refr"]["RefBrack"]["index"], &names);
        for body in bodies {
            let mut names = arguments.clone();
            self.bound(&body["query"], &mut names);
            self.expression(&body["assign"], &names);
            self.expression(&body["query"], &names);
        }
    }

    /// Collects the references in an expression. `names` are the variables in scope, which hide
    /// rules with the same names.
    fn expression(&mut self, tree: &Value, names: &Names) {
        match tree {
            Value::Array(items) => items.iter().for_each(|item| self.expression(item, names)),
            Value::Object(members) if members.contains_key("query") => {
                let mut inner = names.clone();
                // The variables of `every`.
                inner.extend(
                    ["key", "value"]
                        .iter()
                        .filter_map(|of| self.name_at(&tree[*of])),
                );
                self.bound(&tree["query"], &mut inner);
                for (kind, member) in members {
                    let scope = if kind == "domain" { names } else { &inner };
                    self.expression(member, scope);
                }
            }
            Value::Object(members) => {
                if let Some(path) = static_path(tree) {
                    self.refer(&path, names);
                }
                for (kind, member) in members {
                    // The rule depends on the whole path, not on the path's prefixes.
                    match (kind.as_str(), member.get("refr")) {
                        ("RefDot" | "RefBrack", Some(inner)) if static_path(tree).is_some() => {
                            self.expression(&member["index"], names);
                            self.indexes(inner, names);
                        }
                        _ => self.expression(member, names),
                    }
                }
            }
            _ => {}
        }
    }

    /// Collects the references in the brackets of a reference.
    fn indexes(&mut self, tree: &Value, names: &Names) {
        for kind in ["RefDot", "RefBrack"] {
            if let Some(node) = tree.get(kind) {
                self.expression(&node["index"], names);
                self.indexes(&node["refr"], names);
            }
        }
    }

    /// Adds the variables that the statements of a query declare.
    fn bound(&self, query: &Value, names: &mut Names) {
        for statement in query["stmts"].as_array().into_iter().flatten() {
            let literal = &statement["literal"];
            let source = &literal["SomeIn"];
            variables(&source["key"], names);
            variables(&source["value"], names);
            let declared = literal["SomeVars"]["vars"].as_array();
            names.extend(
                declared
                    .into_iter()
                    .flatten()
                    .filter_map(|var| self.name_at(var)),
            );
            let assignment = &literal["Expr"]["expr"]["AssignExpr"];
            if assignment["op"] == "ColEq" {
                variables(&assignment["lhs"], names);
            }
        }
    }

    fn name_at(&self, place: &Value) -> Option<String> {
        text_at(self.source, place).map(str::to_owned)
    }

    fn refer(&mut self, path: &[String], names: &Names) {
        let Some((first, below)) = path.split_first() else {
            return;
        };
        if names.contains(first) || first == "input" {
            return;
        }
        let whole = match self.imports.get(first) {
            _ if first == "data" => below.to_vec(),
            Some(imported) => [imported, below].concat(),
            None => [&self.package[..], path].concat(),
        };
        self.uses.insert(whole);
    }
}

/// Adds the variables of a pattern.
fn variables(pattern: &Value, names: &mut Names) {
    match pattern {
        Value::Array(items) => items.iter().for_each(|item| variables(item, names)),
        Value::Object(members) => {
            if let Some(name) = pattern["Var"]["value"].as_str() {
                names.insert(name.to_owned());
            }
            members.values().for_each(|member| variables(member, names));
        }
        _ => {}
    }
}
