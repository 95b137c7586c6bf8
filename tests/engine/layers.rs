//! Checks the imports in the sources, except those of tests: no folder of `src` imports from a
//! layer above it, and no files import each other in a cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use regex::Regex;

/// The engine's folders and files, from the top down. Each imports only from those below it.
const LAYERS: [&str; 20] = [
    "main",
    "cli",
    "app",
    "admin",
    "ingress",
    "mcp",
    "dns",
    "http",
    "snapshot",
    "upstream",
    "approvals",
    "registry",
    "telemetry",
    "tls",
    "config",
    "secret_files",
    "sqlite",
    "sandbox",
    "runtime",
    "exit_code",
];

/// A module's path below the crate's root: `["http", "exchange"]`.
type Module = Vec<String>;

/// The sources of a crate without their tests and comments.
struct Sources(BTreeMap<Module, String>);

impl Sources {
    fn read(root: &Path) -> Self {
        let mut sources = BTreeMap::new();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let relative = path.strip_prefix(root).unwrap().with_extension("");
                    let mut module: Module = relative
                        .iter()
                        .map(|part| part.to_str().unwrap().to_owned())
                        .collect();
                    if module.iter().any(|part| part == "tests") {
                        continue;
                    }
                    if module
                        .last()
                        .is_some_and(|last| last == "mod" || last == "lib")
                    {
                        module.pop();
                    }
                    sources.insert(module, code(&fs::read_to_string(&path).unwrap()));
                }
            }
        }
        Self(sources)
    }

    /// The files that a file imports from.
    fn imports(&self, module: &Module) -> BTreeSet<Module> {
        let mut imports: BTreeSet<Module> = paths(&self.0[module])
            .into_iter()
            .filter_map(|path| self.resolve(module, path))
            .collect();
        // Imports from the `mod.rs` of a folder that contains the file are allowed, so they are
        // left out.
        imports.retain(|import| !module.starts_with(import));
        imports
    }

    /// The file in which the item of a path is defined, also if a folder re-exports the item;
    /// `None` for a path into another crate.
    fn resolve(&self, from: &Module, path: Vec<String>) -> Option<Module> {
        let mut absolute = match path.first()?.as_str() {
            "crate" => path[1..].to_vec(),
            "self" => [from.clone(), path[1..].to_vec()].concat(),
            "super" => {
                let up = path.iter().take_while(|part| *part == "super").count();
                let base = from.get(..from.len().checked_sub(up)?)?;
                [base, &path[up..]].concat()
            }
            child
                if self
                    .0
                    .contains_key(&[&from[..], &[child.to_owned()]].concat()) =>
            {
                [from.clone(), path].concat()
            }
            _ => return None,
        };
        let mut name = None;
        while !self.0.contains_key(&absolute) {
            name = absolute.pop();
        }
        let exported = name.and_then(|name| self.exporter(&absolute, &name));
        Some(exported.unwrap_or(absolute))
    }

    /// The file from which a folder re-exports a name.
    fn exporter(&self, folder: &Module, name: &str) -> Option<Module> {
        let exports = Regex::new(r"(?m)^\s*pub(?:\([^)]*\))?\s+use\s+([^;]+);").unwrap();
        let source = &self.0[folder];
        let mut found = exports
            .captures_iter(source)
            .flat_map(|export| expand(&export[1]))
            .filter(|path| path.last().is_some_and(|last| last == name));
        let path = found.next()?;
        self.resolve(folder, path)
    }

    /// The paths of files that form a cycle of imports, if there is one.
    fn cycle(&self) -> Option<Vec<String>> {
        let graph: BTreeMap<_, _> = self.0.keys().map(|m| (m, self.imports(m))).collect();
        let mut left: BTreeSet<&Module> = self.0.keys().collect();
        // A file that imports none of the remaining files is in no cycle.
        loop {
            let leaf = left
                .iter()
                .find(|module| graph[**module].iter().all(|other| !left.contains(other)));
            match leaf {
                Some(leaf) => {
                    let leaf = *leaf;
                    left.remove(leaf);
                }
                None if left.is_empty() => return None,
                None => break,
            }
        }
        let mut trail = vec![*left.first().unwrap()];
        loop {
            let next = graph[*trail.last().unwrap()].iter();
            let next = next.filter_map(|other| left.get(other)).next().unwrap();
            if let Some(at) = trail.iter().position(|seen| seen == next) {
                let cycle = trail[at..].iter().map(|module| module.join("::"));
                return Some(cycle.collect());
            }
            trail.push(next);
        }
    }
}

/// The source without line comments and unit tests.
fn code(source: &str) -> String {
    let comments = Regex::new(r"//[^\n]*").unwrap();
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
    comments.replace_all(code, "").into_owned()
}

/// Every path that a file imports, or that it names with `crate::` or `super::`. Re-exports
/// (`pub use`) do not count as imports.
fn paths(code: &str) -> Vec<Vec<String>> {
    let uses = Regex::new(r"(?m)^\s*(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);").unwrap();
    let named = Regex::new(r"\b(?:crate|super)(?:::\w+)+").unwrap();
    let mut paths: Vec<_> = uses
        .captures_iter(code)
        .filter(|import| import.get(1).is_none())
        .flat_map(|import| expand(&import[2]))
        .collect();
    let rest = uses.replace_all(code, "");
    let split = |path: regex::Match<'_>| path.as_str().split("::").map(str::to_owned).collect();
    paths.extend(named.find_iter(&rest).map(split));
    paths
}

/// The paths of a `use` tree: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn expand(tree: &str) -> Vec<Vec<String>> {
    let Some((head, inner)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap();
        let parts = path.split("::").map(|part| part.trim().to_owned());
        return vec![parts.filter(|part| !part.is_empty()).collect()];
    };
    let prefix: Vec<String> = expand(head).remove(0);
    let inner = inner.rsplit_once('}').unwrap().0;
    let (mut depth, mut items) = (0_usize, vec![String::new()]);
    for letter in inner.chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(String::new());
                continue;
            }
            _ => {}
        }
        items.last_mut().unwrap().push(letter);
    }
    let items = items.iter().filter(|item| !item.trim().is_empty());
    items
        .flat_map(|item| expand(item))
        .map(|path| [prefix.clone(), path].concat())
        .collect()
}

fn root(of: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(of)
}

#[test]
fn no_folder_of_the_engine_imports_from_a_layer_above_it() {
    let sources = Sources::read(&root("src"));
    let layer = |module: &Module| {
        let folder = module.first()?;
        let at = LAYERS.iter().position(|layer| layer == folder);
        Some(at.unwrap_or_else(|| panic!("src/{folder} has no layer: add it to LAYERS")))
    };
    let folders: BTreeSet<_> = sources
        .0
        .keys()
        .filter_map(|module| module.first())
        .collect();
    let gone = LAYERS
        .iter()
        .find(|layer| !folders.contains(&layer.to_string()));
    assert_eq!(gone, None, "a layer without a folder or file in src");
    let mut upward = Vec::new();
    for module in sources.0.keys() {
        for import in sources.imports(module) {
            let (Some(own), Some(other)) = (layer(module), layer(&import)) else {
                continue;
            };
            if other < own {
                upward.push(format!("{} -> {}", module.join("::"), import.join("::")));
            }
        }
    }
    assert!(upward.is_empty(), "{upward:#?}");
}

#[test]
fn no_files_import_each_other_in_a_cycle() {
    for sources in ["src", "addons/src"] {
        assert_eq!(Sources::read(&root(sources)).cycle(), None, "{sources}");
    }
}

#[test]
fn a_cycle_and_an_import_through_a_folder_are_found() {
    let source = |path: &str, code: &str| (expand(path).remove(0), code.to_owned());
    let sources = |last: &str| {
        Sources(BTreeMap::from([
            (Vec::new(), String::new()),
            source("a", "mod x;\npub use x::{X, Y};"),
            source("a::x", "use crate::{b::B, c::{self, C}};"),
            source("b", "use crate::c::C;"),
            source("c", last),
        ]))
    };
    assert_eq!(sources("struct C;").cycle(), None);
    let cycle = sources("fn f() { crate::a::X::new() }").cycle().unwrap();
    assert!(cycle.contains(&"a::x".to_owned()), "{cycle:?}");
}
