//! Checks the names that the sources of `addons` use from the standard library, tokio, and each
//! other.

use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

/// Files, sockets, processes and their environment, threads and tasks. An import of a parent module
/// is forbidden as well, since code can name forbidden modules through it.
const FORBIDDEN: [&str; 19] = [
    "std::fs",
    "std::process",
    "std::env",
    "std::net::TcpListener",
    "std::net::TcpStream",
    "std::net::UdpSocket",
    "std::net::ToSocketAddrs",
    "std::os",
    "std::thread::spawn",
    "std::thread::Builder",
    "std::thread::scope",
    "std::thread::sleep",
    "tokio::fs",
    "tokio::net",
    "tokio::process",
    "tokio::runtime",
    "tokio::signal",
    "tokio::spawn",
    "tokio::task",
];

/// Methods that access the file system or resolve names.
const FORBIDDEN_METHODS: &str = r"\.(?:canonicalize|exists|try_exists|is_dir|is_file|is_symlink|metadata|read_dir|read_link|symlink_metadata|to_socket_addrs)\(";

/// The forbidden names in a source, without its tests.
fn forbidden(source: &str) -> Vec<String> {
    let source = without_comments(before_tests(source));
    let uses = Regex::new(r"\buse\s+([^;]+);").unwrap();
    let imported = uses.captures_iter(&source).flat_map(|found| {
        let mut paths = Vec::new();
        expand("", &found[1], &mut paths);
        paths
    });
    let imported = imported.filter(|path| names_forbidden(path) || leads_to_forbidden(path));
    let paths = Regex::new(r"\b(?:std|tokio)(?:\s*::\s*\w+)+").unwrap();
    let named = paths
        .find_iter(&source)
        .map(|found| squeezed(found.as_str()));
    let named = named.filter(|path| names_forbidden(path));
    let methods = Regex::new(FORBIDDEN_METHODS).unwrap();
    let called = methods
        .find_iter(&source)
        .map(|found| found.as_str().to_owned());
    let mut all: Vec<String> = imported.chain(named).chain(called).collect();
    all.sort();
    all.dedup();
    all
}

/// The source before its module of tests, which must be the last item of a file.
fn before_tests(source: &str) -> &str {
    let at = source.find("#[cfg(test)]\nmod ");
    &source[..at.unwrap_or(source.len())]
}

fn without_comments(source: &str) -> String {
    let lines = source.lines();
    let code = lines.filter(|line| !line.trim_start().starts_with("//"));
    code.collect::<Vec<_>>().join("\n")
}

/// Adds the paths of an import tree, without renamings.
fn expand(before: &str, tree: &str, paths: &mut Vec<String>) {
    let Some((stem, group)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        let path = squeezed(&format!("{before}{path}"));
        paths.push(path.trim_end_matches("::self").to_owned());
        return;
    };
    let group = group.trim_end();
    let group = group.strip_suffix('}').unwrap_or(group);
    let (mut depth, mut start) = (0, 0);
    for (at, byte) in group.bytes().chain([b',']).enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                let part = group[start..at].trim();
                if !part.is_empty() {
                    expand(&format!("{before}{}", stem.trim()), part, paths);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

fn squeezed(path: &str) -> String {
    path.split_whitespace().collect()
}

fn names_forbidden(path: &str) -> bool {
    FORBIDDEN.iter().any(|name| is_below(path, name))
}

/// Whether a path is a module that contains a forbidden name, or a glob import of such a module.
fn leads_to_forbidden(path: &str) -> bool {
    let module = path.trim_end_matches("::*").trim_start_matches("::");
    FORBIDDEN.iter().any(|name| is_below(name, module))
}

fn is_below(path: &str, module: &str) -> bool {
    let rest = path.trim_start_matches("::").strip_prefix(module);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let is_test = path.file_stem().is_some_and(|name| name == "tests");
        if path.is_dir() && !is_test {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") && !is_test {
            found.push(path);
        }
    }
}

#[test]
fn addons_open_no_file_or_socket_and_start_no_task_or_thread() {
    let mut files = Vec::new();
    sources(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut files,
    );
    assert!(files.len() > 100, "{files:?}");
    let found: Vec<String> = files
        .iter()
        .flat_map(|file| {
            let names = forbidden(&fs::read_to_string(file).unwrap());
            names
                .into_iter()
                .map(|name| format!("{}: {name}", file.display()))
        })
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The folders and files of the addons.
const ADDONS: [&str; 9] = [
    "circuit_breaker",
    "credentials",
    "git",
    "github",
    "identity",
    "mcp",
    "observe",
    "policy",
    "rate_limit",
];

#[test]
fn an_addon_imports_no_other() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let others = Regex::new(&format!(r"\bcrate::({})\b", ADDONS.join("|"))).unwrap();
    for addon in ADDONS {
        let mut files = vec![src.join(addon).with_extension("rs")];
        files.retain(|file| file.is_file());
        if src.join(addon).is_dir() {
            sources(&src.join(addon), &mut files);
        }
        assert!(!files.is_empty(), "no sources of the addon {addon}");
        for file in files {
            let source = without_comments(&fs::read_to_string(&file).unwrap());
            for found in others.captures_iter(&source) {
                assert_eq!(&found[1], addon, "{} imports another addon", file.display());
            }
        }
    }
}

#[test]
fn the_scan_finds_every_form_of_a_forbidden_name() {
    for (source, found) in [
        ("use std::fs;", "std::fs"),
        ("use std::fs::File;", "std::fs::File"),
        ("use std::{io, fs::{self, File}};", "std::fs"),
        ("use std::net::{IpAddr, TcpStream};", "std::net::TcpStream"),
        ("use std::net;", "std::net"),
        ("use std::thread::{self};", "std::thread"),
        (
            "use std::{\n    io,\n    net::{\n        IpAddr,\n        UdpSocket,\n    },\n};",
            "std::net::UdpSocket",
        ),
        ("use std::fs as files;", "std::fs"),
        ("use std::*;", "std::*"),
        ("use tokio as rt;", "tokio"),
        ("use ::tokio::net::TcpStream;", "::tokio::net::TcpStream"),
        (
            "pub(crate) use tokio::task::spawn_blocking;",
            "tokio::task::spawn_blocking",
        ),
        ("fn f() { std::fs::read(\"a\"); }", "std::fs::read"),
        ("fn f() { ::std::fs::read(\"a\"); }", "std::fs::read"),
        ("fn f() { tokio\n    ::spawn(g()); }", "tokio::spawn"),
        ("fn f() { std::thread::spawn(g); }", "std::thread::spawn"),
        ("fn f(path: &Path) -> bool { path.exists() }", ".exists("),
    ] {
        let all = forbidden(source);
        assert!(all.iter().any(|name| name == found), "{source}: {all:?}");
    }
}

#[test]
fn the_scan_accepts_pure_code_and_tests() {
    for source in [
        "use std::net::{IpAddr, SocketAddr};",
        "use std::path::{Path, PathBuf};",
        "use std::thread::available_parallelism;",
        "use tokio::sync::{Mutex as AsyncMutex, oneshot};",
        "use tokio::time::timeout;",
        "fn f() -> std::thread::Result<()> { Ok(()) }",
        "// std::fs::read would block.\nuse std::io;",
        "use std::io;\n\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}",
    ] {
        assert_eq!(forbidden(source), [""; 0], "{source}");
    }
}
