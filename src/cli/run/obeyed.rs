//! Recognizes, by their names, files and directories that tools on the host execute, or obey as
//! settings, without asking the user.
//!
//! Settings are recognized by their kind: tools keep them in hidden files and directories. So a
//! hidden name is compared unless it is listed as harmless here, and a tool that does not exist yet
//! is covered. Only what is read-only, and settings with other names, must be listed.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};

/// What a run does about a file or directory that the host may execute or obey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// It is read-only for the command. If it does not exist at the start, it is compared.
    Protected,
    /// The command may change it. Changes are listed at the end.
    Compared,
}

/// Names that shells, editors and agents that are running already may obey at once. At the top of a
/// writable directory they are read-only even if they are missing. Each has the text of its
/// placeholder file; `None` stands for an empty directory, which git does not track. OpenCode and
/// Crush do not start if a directory has the name of their settings file, so those names get a file.
pub const OBEYED_AT_ONCE: [(&str, Option<&str>); 15] = [
    (".aider.conf.yml", None),
    (".claude", None),
    (".codex", None),
    (".cursor", None),
    (".devcontainer", None),
    (".devcontainer.json", None),
    (".envrc", None),
    (".gemini", None),
    (".idea", None),
    (".mcp.json", None),
    (".opencode", None),
    (".vscode", None),
    ("crush.json", Some(NO_SETTINGS)),
    ("opencode.json", Some(NO_SETTINGS)),
    ("opencode.jsonc", Some(NO_SETTINGS)),
];
/// The text of a settings file without settings.
pub const NO_SETTINGS: &str = "{}\n";
/// Names that are read-only if they exist.
const PROTECTED: &[&str] = &[
    // Editors and debuggers.
    ".exrc",
    ".gdbinit",
    ".lldbinit",
    ".nvim.lua",
    ".nvimrc",
    ".zed",
    // Environment loaders.
    ".envrc*",
    ".mise",
    ".mise.*",
    "mise.*toml",
    // Hook runners.
    ".githooks",
    ".husky",
    ".pre-commit-config.yaml",
    // Package managers.
    ".yarnrc",
    ".yarnrc.yml",
];
/// Names in hidden directories that are read-only: lists of MCP servers, which agents and editors
/// start, whatever their name is; and what shells obey at every prompt, the settings of mise and the
/// environments that direnv keeps.
const PROTECTED_IN_HIDDEN: &[&str] = &[
    "*mcp*.json*",
    "*mcp*.toml",
    "flake-profile*",
    "mcp.y*ml",
    "nix-profile*",
];
/// Further names that are read-only where settings are, see [`Within::Settings`]. Deeper, code has
/// these names too.
const PROTECTED_IN_SETTINGS: &[&str] = &["mcp", "mcpServers", "mise"];
/// Names of settings that are not hidden. They are compared.
const SETTINGS: &[&str] = &[
    // Agents, and the instructions that they read.
    "*mcp*.json",
    "AGENT*.md",
    "CLAUDE*.md",
    "CRUSH*.md",
    "GEMINI*.md",
    "QWEN*.md",
    "WARP.md",
    // Editors.
    "*.code-workspace",
    "*.iml",
    "*.ipr",
    "*.sublime-project",
    // Environment loaders.
    "default.nix",
    "devbox.*",
    "devenv.*",
    "flake.*",
    "mise",
    "shell.nix",
    // Hook runners.
    "captainhook.json",
    "lefthook*.json",
    "lefthook*.toml",
    "lefthook*.y*ml",
    // Package managers.
    "bunfig.toml",
    "nuget.config",
    "pip.conf",
    "pnpm-workspace.yaml",
    "poetry.toml",
    "rust-toolchain*",
    "uv.toml",
    // Version control.
    "_darcs",
];
/// Hidden names that are not settings: caches, build results, and lists of ignored files.
const HARMLESS: &[&str] = &[
    ".*cache",
    ".*ignore",
    ".*.swp",
    ".DS_Store",
    ".coverage*",
    ".gitkeep",
    ".hypothesis",
    ".ipynb_checkpoints",
    ".keep",
    ".next",
    ".nuxt",
    ".nyc_output",
    ".svelte-kit",
    ".turbo",
    ".~lock*",
];
/// Directories with installed packages or build results. The host executes them as code, so their
/// settings matter no more than their code, and only repositories in them are protected.
const PACKAGES: &[&str] = &["node_modules", "site-packages", "target"];

/// Where a file or directory is in relation to a directory that the host obeys as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// In none.
    Nothing,
    /// Directly in one, or in its `settings` or `config`.
    Settings,
    Deep,
    /// Among installed programs, which the command may replace.
    Code,
}

/// What a run does about a file or directory with this name; `None` if the host does not obey it.
pub fn care_for(name: &str, within: Within) -> Option<Care> {
    let is_one_of = |patterns: &[&str]| patterns.iter().any(|pattern| matches(pattern, name));
    let is_protected = OBEYED_AT_ONCE.iter().any(|(obeyed, _)| *obeyed == name)
        || is_one_of(PROTECTED)
        || matches!(within, Within::Settings | Within::Deep) && is_one_of(PROTECTED_IN_HIDDEN)
        || within == Within::Settings && is_one_of(PROTECTED_IN_SETTINGS);
    let is_hidden = name.starts_with('.') && !is_one_of(HARMLESS);
    if is_protected {
        return Some(Care::Protected);
    }
    (within != Within::Nothing || is_hidden || is_one_of(SETTINGS)).then_some(Care::Compared)
}

/// Whether a directory with this name has installed packages or build results.
pub fn is_of_packages(name: &str) -> bool {
    PACKAGES.contains(&name)
}

/// Whether a name matches a pattern, in which `*` stands for any text.
pub fn matches(pattern: &str, name: &str) -> bool {
    // Most names of a large directory are compared with all patterns and differ here.
    let (wanted, first) = (pattern.bytes().next(), name.bytes().next());
    if wanted != first && wanted != Some(b'*') {
        return false;
    }
    let mut parts = pattern.split('*');
    let rest = name.strip_prefix(parts.next().unwrap_or_default());
    let last = parts.next_back();
    // The parts between two stars, each at the first place where it occurs.
    let rest = parts.try_fold(rest, |rest, part| Some(Some(rest?.split_once(part)?.1)));
    match (rest.flatten(), last) {
        (Some(rest), Some(last)) => rest.ends_with(last),
        (rest, _) => rest == Some(""),
    }
}

/// Whether a path is an empty directory, like a placeholder.
pub fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
}

/// Reads the first `most` bytes of a file; `None` if it is not a regular file or cannot be read. A
/// relative path begins at `directory`. A link at the end of the path is not followed.
pub fn read_start(directory: impl AsFd, path: &Path, most: u64) -> Option<String> {
    // Non-blocking, since opening a FIFO without a writer would block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(openat(directory, path, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn settings_are_recognized_by_kind_and_ordinary_files_are_not() {
        let (protected, compared) = (Some(Care::Protected), Some(Care::Compared));
        each_row(
            [
                (".envrc", protected),
                (".envrc.local", protected),
                ("mise.local.toml", protected),
                ("opencode.jsonc", protected),
                (".devcontainer.json", protected),
                (".npmrc", compared),
                (".tool-versions", compared),
                (".some-future-agent", compared),
                ("CLAUDE.local.md", compared),
                ("lefthook-local.yml", compared),
                ("mcp-servers.json", compared),
                (".gitignore", None),
                (".pytest_cache", None),
                (".eslintcache", None),
                ("Cargo.toml", None),
                ("mise.lock", None),
                ("main.rs", None),
            ],
            |(name, care)| assert_eq!(care_for(name, Within::Nothing), care, "{name}"),
        );
        each_row(
            [
                ("mcp.json", protected),
                ("mcp_servers.toml", protected),
                ("release-mcp.yml", compared),
                ("mise", protected),
                ("flake-profile-a5c1.rc", protected),
                ("settings.json", compared),
                (".gitignore", compared),
            ],
            |(name, care)| assert_eq!(care_for(name, Within::Settings), care, "{name}"),
        );
    }

    #[test]
    fn code_with_the_names_of_settings_is_not_read_only() {
        let (protected, compared) = (Some(Care::Protected), Some(Care::Compared));
        each_row(
            [
                ("mcp", Within::Deep, compared),
                ("mcpServers", Within::Deep, compared),
                ("mise", Within::Deep, compared),
                ("mcp.json", Within::Deep, protected),
                ("mcp", Within::Code, compared),
                ("mcp.json", Within::Code, compared),
                ("mise", Within::Code, compared),
                (".envrc", Within::Code, protected),
            ],
            |(name, within, care)| assert_eq!(care_for(name, within), care, "{name} {within:?}"),
        );
    }

    #[test]
    fn a_star_stands_for_any_text() {
        each_row(
            [
                ("a*", "a", true),
                ("a*c", "abc", true),
                ("a*c*e", "a-c-c-e", true),
                ("*b*", "abc", true),
                ("a*c", "abcd", false),
                ("ab*b", "ab", false),
                ("*", "", true),
                ("é*ü", "éxü", true),
            ],
            |(pattern, name, expected)| {
                assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
            },
        );
    }
}
