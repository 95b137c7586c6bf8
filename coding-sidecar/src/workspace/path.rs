//! Paths of requests, before anything is opened.

use std::path::{Component, Path};

use super::Workspace;
use super::beneath::Resolver;
use crate::failure::Failure;

/// Most bytes of a path: Linux' `PATH_MAX` without its final NUL.
const PATH_BYTES_MAX: usize = 4_095;
/// Most bytes of one name in a path: Linux' `NAME_MAX`.
const NAME_BYTES_MAX: usize = 255;

/// A path of a request in the form that the kernel resolves relative to the root.
///
/// Only its text was judged; whether it stays below the root is for the kernel to say.
#[derive(Debug, Clone)]
pub(crate) struct WorkspacePath {
    requested: String,
    relative: String,
}

impl WorkspacePath {
    pub(super) fn parse(workspace: &Workspace, requested: &str) -> Result<Self, Failure> {
        check(requested)?;
        let relative = match below(workspace, requested) {
            Some(relative) => normal(relative),
            None if matches!(workspace.resolver, Resolver::Anywhere) => requested.to_owned(),
            None => {
                return Err(Failure::path(
                    requested,
                    format!(
                        "outside the workspace; name a path below {} or relative to it",
                        workspace.root().display()
                    ),
                ));
            }
        };
        Ok(Self {
            requested: requested.to_owned(),
            relative,
        })
    }

    /// The path as the request named it, for answers and errors.
    pub(crate) fn requested(&self) -> &str {
        &self.requested
    }

    /// The path relative to the root; `.` for the root.
    pub(crate) fn relative(&self) -> &[u8] {
        self.relative.as_bytes()
    }

    /// The path relative to the root, as a request may name it.
    pub(crate) fn shown(&self) -> String {
        self.relative.clone()
    }

    /// The path of something called `name` below this folder, as a request may name it.
    pub(crate) fn join(&self, name: &[u8]) -> String {
        let name = String::from_utf8_lossy(name);
        match self.relative.as_str() {
            "." => name.into_owned(),
            folder if folder.ends_with('/') => format!("{folder}{name}"),
            folder => format!("{folder}/{name}"),
        }
    }
}

fn check(requested: &str) -> Result<(), Failure> {
    let reason = if requested.is_empty() {
        "the path is empty".to_owned()
    } else if requested.contains('\0') {
        "the path contains a NUL byte".to_owned()
    } else if requested.len() > PATH_BYTES_MAX {
        format!(
            "the path is {} bytes long, the limit is {PATH_BYTES_MAX}",
            requested.len()
        )
    } else if let Some(name) = requested
        .split('/')
        .find(|name| name.len() > NAME_BYTES_MAX)
    {
        format!(
            "a name in the path is {} bytes long, the limit is {NAME_BYTES_MAX}",
            name.len()
        )
    } else {
        return Ok(());
    };
    Err(Failure::path(requested, reason))
}

/// `requested` relative to the root, which may be named with or without its symbolic links.
fn below<'a>(workspace: &Workspace, requested: &'a str) -> Option<&'a str> {
    if !requested.starts_with('/') {
        return Some(requested);
    }
    [workspace.root(), workspace.canonical()]
        .into_iter()
        .filter(|root| root.is_absolute())
        .find_map(|root| strip(root, requested))
}

/// What follows `root` in `requested`, with its final slash if there is one.
fn strip<'a>(root: &Path, requested: &'a str) -> Option<&'a str> {
    let mut rest = requested;
    for component in root.components() {
        rest = rest.trim_start_matches('/');
        while let Some(after) = rest.strip_prefix("./") {
            rest = after.trim_start_matches('/');
        }
        let Component::Normal(name) = component else {
            continue;
        };
        rest = rest.strip_prefix(name.to_str()?)?;
        if !rest.is_empty() && !rest.starts_with('/') {
            return None;
        }
    }
    Some(rest)
}

/// `relative` without empty and `.` components; a final slash stays, since it demands a folder.
fn normal(relative: &str) -> String {
    let mut normal = String::with_capacity(relative.len());
    for name in relative
        .split('/')
        .filter(|name| !name.is_empty() && *name != ".")
    {
        if !normal.is_empty() {
            normal.push('/');
        }
        normal.push_str(name);
    }
    if normal.is_empty() {
        normal.push('.');
    } else if relative.ends_with('/') || relative.ends_with("/.") {
        normal.push('/');
    }
    normal
}
