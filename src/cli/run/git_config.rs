//! Reads git's configuration files, and finds the files that they name: included files, directories
//! of hooks, and programs.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;

use super::obeyed::read_start;
use crate::sandbox::machine::without_parents;

/// Limit on the bytes that are read of a configuration file. The rest is ignored.
const MAX_CONFIG: u64 = 1 << 20;
/// Limit on the files that are read of one configuration. git itself follows ten nested includes.
const MAX_FILES: usize = 200;
/// Sections whose values name no file that git executes or obeys.
const PLAIN_SECTIONS: &[&str] = &["author", "branch", "color", "committer", "user"];
/// Keys, in lower case, whose files contain data only.
const PLAIN_KEYS: &[&str] = &["excludesfile", "ignorerevsfile", "template"];

/// A file or directory that a configuration names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Named {
    /// An included file.
    Include(PathBuf),
    /// The directory of `core.hooksPath`.
    Hooks(PathBuf),
    /// A word of another value, as a path. git executes the file of that name if there is one.
    Program(PathBuf),
    /// Another work tree, of `core.worktree`.
    Tree(PathBuf),
}

/// A setting with the file that has it. Section and key are in lower case; the section is without
/// its subsection.
struct Setting {
    file: PathBuf,
    section: String,
    key: String,
    value: String,
}

/// Returns what configuration files, and the files that they include, name for a work tree and its
/// git directory. Conditional includes count always, since the command may change the branch on
/// which the condition depends. A file that is a symbolic link is read if `follows` returns true for
/// it.
pub fn named(
    files: impl IntoIterator<Item = PathBuf>,
    git: &Path,
    tree: &Path,
    follows: impl Fn(&Path) -> bool,
) -> BTreeSet<Named> {
    let mut named = BTreeSet::new();
    let mut known = BTreeSet::new();
    let mut next: Vec<PathBuf> = files.into_iter().collect();
    while let Some(file) = next.pop() {
        if known.len() >= MAX_FILES || !known.insert(file.clone()) {
            continue;
        }
        let target = follows(&file).then(|| fs::canonicalize(&file).ok());
        let target = target.flatten().unwrap_or_else(|| file.clone());
        let text = read_start(CWD, &target, MAX_CONFIG).unwrap_or_default();
        // The paths in a linked file begin beside the link.
        for setting in settings(&file, &text) {
            for named_here in setting.named(git, tree) {
                if let Named::Include(included) = &named_here {
                    next.push(included.clone());
                }
                named.insert(named_here);
            }
        }
    }
    named
}

/// The configuration files of this user and of the machine.
pub fn of_user() -> Vec<PathBuf> {
    let variable = |name| env::var_os(name).map(PathBuf::from);
    let global = match variable("GIT_CONFIG_GLOBAL") {
        Some(file) => vec![file],
        None => {
            let home = variable("HOME");
            let base = variable("XDG_CONFIG_HOME").or_else(|| Some(home.as_ref()?.join(".config")));
            let base = base.map(|base| base.join("git/config"));
            let own = home.map(|home| home.join(".gitconfig"));
            base.into_iter().chain(own).collect()
        }
    };
    let system = variable("GIT_CONFIG_SYSTEM").unwrap_or_else(|| "/etc/gitconfig".into());
    global.into_iter().chain([system]).collect()
}

impl Setting {
    /// What the value names. Relative paths begin at the including file, for a work tree at the git
    /// directory, else at the work tree, where git executes programs.
    fn named(&self, git: &Path, tree: &Path) -> Vec<Named> {
        let beside = self.file.parent().unwrap_or(git);
        match (&*self.section, &*self.key) {
            ("include" | "includeif", "path") => {
                vec![Named::Include(path(beside, &self.value))]
            }
            ("core", "hookspath") => vec![Named::Hooks(path(tree, &self.value))],
            ("core", "worktree") => vec![Named::Tree(path(git, &self.value))],
            (section, key) if PLAIN_SECTIONS.contains(&section) || PLAIN_KEYS.contains(&key) => {
                Vec::new()
            }
            // A program may follow its interpreter, as in `sh filter.sh`.
            _ => words(&self.value)
                .map(|word| Named::Program(path(tree, word)))
                .collect(),
        }
    }
}

/// The words of a command line that may be paths.
fn words(value: &str) -> impl Iterator<Item = &str> {
    let words = value.trim_start_matches('!').split(|c: char| {
        c.is_whitespace() || matches!(c, '\'' | '"' | ';' | '|' | '&' | '(' | ')' | '=')
    });
    // Programs without a slash are found in PATH, so words without slash and dot are no paths. They
    // may be names of branches, which are names of programs in the work tree too.
    words.filter(|word| word.contains(['/', '.']))
}

/// The path that a value names: in the home directory, absolute, or relative to `base`.
fn path(base: &Path, value: &str) -> PathBuf {
    let in_home = value.strip_prefix("~/").zip(env::var_os("HOME"));
    let path = match in_home {
        Some((rest, home)) => Path::new(&home).join(rest),
        None => base.join(value),
    };
    without_parents(&path)
}

fn settings(file: &Path, text: &str) -> Vec<Setting> {
    let text = text.trim_start_matches('\u{feff}');
    let mut settings = Vec::new();
    let mut section = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let mut line = line.trim_start();
        if let Some(header) = line.strip_prefix('[') {
            let (name, rest) = split_header(header);
            let name = name.split(|c: char| !c.is_alphanumeric()).next();
            section = name.unwrap_or_default().to_ascii_lowercase();
            line = rest.trim_start();
        }
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        let (key, mut raw) = line.split_once('=').unwrap_or((line, ""));
        let mut value = Value::default();
        while value.read(raw) == LineEnd::Continues {
            raw = lines.next().unwrap_or_default();
        }
        settings.push(Setting {
            file: file.to_owned(),
            section: section.clone(),
            key: key.trim().to_ascii_lowercase(),
            value: value.text.trim().to_owned(),
        });
    }
    settings
}

/// Splits the text after the `[` of a section header at its `]`. A quoted subsection may contain
/// brackets.
fn split_header(text: &str) -> (&str, &str) {
    let mut is_quoted = false;
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => drop(letters.next()),
            '"' => is_quoted = !is_quoted,
            ']' if !is_quoted => {
                let (name, rest) = text.split_at(at);
                return (name, rest.trim_start_matches(']'));
            }
            _ => {}
        }
    }
    (text, "")
}

/// A value, read line by line.
#[derive(Default)]
struct Value {
    text: String,
    is_quoted: bool,
}

#[derive(PartialEq, Eq)]
enum LineEnd {
    /// The line ends with a backslash, so the next line belongs to the value.
    Continues,
    Ends,
}

impl Value {
    fn read(&mut self, line: &str) -> LineEnd {
        let mut letters = line.chars();
        while let Some(letter) = letters.next() {
            match letter {
                '"' => self.is_quoted = !self.is_quoted,
                '#' | ';' if !self.is_quoted => break,
                '\\' => match letters.next() {
                    None => return LineEnd::Continues,
                    Some('n') => self.text.push('\n'),
                    Some('t') => self.text.push('\t'),
                    Some(escaped) => self.text.push(escaped),
                },
                letter => self.text.push(letter),
            }
        }
        LineEnd::Ends
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn includes_are_followed_and_hooks_and_programs_are_found_in_every_included_file() {
        let work = tempfile::tempdir().unwrap();
        let (tree, git) = (work.path(), work.path().join(".git"));
        fs::create_dir_all(git.join("more")).unwrap();
        for (file, text) in [
            (
                ".git/config",
                "[core]\n\thooksPath = .hooks # ours\n[include] path = ../.gitconfig\n[user]\n\tname = Ada/L\n\
                 [remote \"a]\\\"b\"] url = x.git\n",
            ),
            (
                ".gitconfig",
                "[includeIf \"onbranch:other/**\"]\n  Path = \".git/more/a;b\" ; comment\n\
                 [filter \"f\"] clean = sh \\\n tools/clean.sh %f\n",
            ),
            (
                ".git/more/a;b",
                "[CORE] FSMonitor = \"tools/fs\\\\monitor\"\nworktree = ../other\n[include]\npath = ../../.gitconfig\n",
            ),
        ] {
            fs::write(tree.join(file), text).unwrap();
        }
        let found = named([git.join("config")], &git, tree, |_| false);
        let expected = [
            Named::Include(tree.join(".gitconfig")),
            Named::Include(tree.join(".git/more/a;b")),
            Named::Hooks(tree.join(".hooks")),
            Named::Program(tree.join("tools/clean.sh")),
            Named::Program(tree.join("tools/fs\\monitor")),
            Named::Tree(tree.join("other")),
        ];
        for expected in expected {
            assert!(found.contains(&expected), "{expected:?}: {found:?}");
        }
        let is_of_user =
            |named: &Named| matches!(named, Named::Program(path) if path.ends_with("Ada/L"));
        assert!(!found.iter().any(is_of_user));
    }

    #[test]
    fn linked_files_are_read_and_their_includes_begin_beside_the_link_unless_it_is_writable() {
        let work = tempfile::tempdir().unwrap();
        let at = |name: &str| work.path().join(name);
        fs::create_dir(at("dotfiles")).unwrap();
        fs::write(at("dotfiles/first"), "[include]\npath = more\n").unwrap();
        fs::write(at("dotfiles/second"), "[core]\nhooksPath = hooks\n").unwrap();
        symlink("dotfiles/first", at(".gitconfig")).unwrap();
        symlink("dotfiles/second", at("more")).unwrap();
        for (writable, finds) in [("none", true), (".gitconfig", false), ("more", false)] {
            let follows = |file: &Path| !file.ends_with(writable);
            let found = named([at(".gitconfig")], &at(".git"), work.path(), follows);
            let hooks = Named::Hooks(at("hooks"));
            assert_eq!(found.contains(&hooks), finds, "{writable}: {found:?}");
        }
    }
}
