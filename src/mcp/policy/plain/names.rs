//! Resolves names and paths in a policy, as the interpreter does.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use regorus::Value;
use regorus::unstable::{Expr, Module, Ref, Rule, RuleHead};

type Path = Vec<String>;

/// A rule's definition and the path of its package.
#[derive(Clone, Copy)]
pub struct Definition<'m> {
    pub rule: &'m Rule,
    pub package: &'m [String],
}

/// Rules, imports and data of all files.
pub struct Names<'m> {
    packages: BTreeSet<Path>,
    /// Definitions by the path of the rule, without `data`.
    rules: BTreeMap<Path, Vec<Definition<'m>>>,
    /// Paths of functions, and of rules whose head is not a single name.
    not_plain: BTreeSet<Path>,
    /// Imported paths by package and alias. `None` if files of the package import different paths.
    imports: BTreeMap<(Path, String), Option<Vec<String>>>,
    data: &'m Value,
}

/// The data or the rule that a path below `data` refers to.
pub enum Target {
    /// A value of the data documents.
    Data(Value),
    /// The path of a rule, and the path below the rule's value.
    Rule(Path, Vec<String>),
}

impl<'m> Names<'m> {
    /// Collects the packages, rules and imports of modules. Each module is given with the path of
    /// its package.
    pub fn read(modules: &'m [(Path, Module)], data: &'m Value) -> Self {
        let mut names = Self {
            packages: BTreeSet::new(),
            rules: BTreeMap::new(),
            not_plain: BTreeSet::new(),
            imports: BTreeMap::new(),
            data,
        };
        for (package, module) in modules {
            names.packages.insert(package.clone());
            for rule in &module.policy {
                names.add_rule(package, rule);
            }
            for import in &module.imports {
                let Some(path) = names_of(&import.refr) else {
                    continue;
                };
                let alias = import.r#as.as_ref().map(|span| span.text().to_owned());
                let Some(alias) = alias.or_else(|| path.last().cloned()) else {
                    continue;
                };
                names
                    .imports
                    .entry((package.clone(), alias))
                    .and_modify(|known| *known = known.take().filter(|known| *known == path))
                    .or_insert(Some(path));
            }
        }
        names
    }

    fn add_rule(&mut self, package: &'m [String], rule: &'m Rule) {
        let (head, is_plain) = match rule {
            Rule::Default { refr, args, .. } => (refr, args.is_empty()),
            Rule::Spec { head, .. } => match head {
                RuleHead::Compr { refr, .. } => (refr, true),
                RuleHead::Set { refr, key, .. } => (refr, key.is_some()),
                RuleHead::Func { refr, .. } => (refr, false),
            },
        };
        let below = static_names(head);
        let path = [package, &below[..]].concat();
        if !is_plain || !matches!(head.as_ref(), Expr::Var { .. }) {
            self.not_plain.insert(path.clone());
        }
        let definitions = self.rules.entry(path).or_default();
        definitions.push(Definition { rule, package });
    }

    /// The definitions of a rule.
    pub fn definitions(&self, rule: &[String]) -> &[Definition<'m>] {
        self.rules.get(rule).map_or(&[], Vec::as_slice)
    }

    /// Resolves a path below `data`. `None` if it refers to several rules, to a rule that is not
    /// plain, or to data that rules could replace.
    pub fn below_data(&self, path: &[String]) -> Option<Target> {
        for length in 0..=path.len() {
            let (rule, below) = path.split_at_checked(length)?;
            if self.rules.contains_key(rule) {
                let target = Target::Rule(rule.to_vec(), below.to_vec());
                return self.stands_alone(rule).then_some(target);
            }
        }
        if self.has_below(path) {
            return None;
        }
        let below = |value: &'m Value, name: &String| &value[name.as_str()];
        Some(Target::Data(path.iter().fold(self.data, below).clone()))
    }

    /// Whether only this rule defines the values at its path and below, and the rule can be plain:
    /// - The rule is not a function, and its head is a single name.
    /// - No package is at the rule's path, and no package or other rule is below the path.
    /// - No data document is at the path or below it. All data above the path are objects.
    fn stands_alone(&self, rule: &[String]) -> bool {
        let mut document = self.data;
        for name in rule {
            if !matches!(document, Value::Object(_)) {
                return false;
            }
            document = &document[name.as_str()];
            if *document == Value::Undefined {
                break;
            }
        }
        *document == Value::Undefined && !self.not_plain.contains(rule) && !self.has_below(rule)
    }

    /// Whether a package is at the path or below it, or a rule is below it.
    fn has_below(&self, path: &[String]) -> bool {
        let from = (Bound::Included(path), Bound::Unbounded);
        let package = self.packages.range::<[String], _>(from).next();
        let below = (Bound::Excluded(path), Bound::Unbounded);
        let rule = self.rules.range::<[String], _>(below).next();
        package.is_some_and(|found| found.starts_with(path))
            || rule.is_some_and(|(found, _)| found.starts_with(path))
    }

    /// Resolves the name of a rule, a package or an import in `package` to its path. `None` for
    /// other names.
    pub fn of_package(&self, package: &[String], name: &str) -> Option<Meaning> {
        let path = [package, &[name.to_owned()]].concat();
        if self.rules.contains_key(&path) || self.has_below(&path) {
            return Some(Meaning::Data(path));
        }
        let import = self.imports.get(&(package.to_vec(), name.to_owned()))?;
        let (root, below) = import.as_ref()?.split_first()?;
        match root.as_str() {
            "data" => Some(Meaning::Data(below.to_vec())),
            "input" => Some(Meaning::Input(below.to_vec())),
            _ => None,
        }
    }

    /// Whether the package has an import, a rule or a package with the first name of a built-in
    /// function's path, which may hide the function.
    pub fn shadows(&self, package: &[String], function: &str) -> bool {
        let first = function.split('.').next().unwrap_or_default();
        let key = (package.to_vec(), first.to_owned());
        let path = [package, &[first.to_owned()]].concat();
        self.imports.contains_key(&key) || self.rules.contains_key(&path) || self.has_below(&path)
    }
}

/// The path below `data` or `input` that a name in a package refers to.
pub enum Meaning {
    Data(Path),
    Input(Path),
}

/// The names of `a.b["c"]`; `None` if a name is computed.
pub fn names_of(reference: &Ref<Expr>) -> Option<Path> {
    match reference.as_ref() {
        Expr::Var { span, .. } => Some(vec![span.text().to_owned()]),
        Expr::RefDot { refr, field, .. } => {
            let mut names = names_of(refr)?;
            names.push(field.0.text().to_owned());
            Some(names)
        }
        Expr::RefBrack { refr, index, .. } => {
            let Expr::String { value, .. } = index.as_ref() else {
                return None;
            };
            let mut names = names_of(refr)?;
            names.push(value.as_string().ok()?.to_string());
            Some(names)
        }
        _ => None,
    }
}

/// The names of a reference up to the first computed name.
fn static_names(reference: &Ref<Expr>) -> Path {
    if let Some(names) = names_of(reference) {
        return names;
    }
    match reference.as_ref() {
        Expr::RefDot { refr, .. } | Expr::RefBrack { refr, .. } => static_names(refr),
        _ => Vec::new(),
    }
}
