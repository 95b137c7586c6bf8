//! Parses paths of requests.

use std::path::{Component, Path};

use super::Workspace;
use super::beneath::Resolver;
use crate::failure::Failure;

/// The most bytes of a path: Linux' `PATH_MAX` without the final NUL.
const PATH_BYTES_MAX: usize = 4_095;
/// The most bytes of a name in a path: Linux' `NAME_MAX`.
const NAME_BYTES_MAX: usize = 255;

/// The path of a request, in the form that the kernel resolves relative to the root.
///
/// Only the text of the path was checked. When the path is opened with [`Resolver::Beneath`], the
/// kernel checks whether it stays below the root.
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

    /// The path as in the request, for results and errors.
    pub(crate) fn requested(&self) -> &str {
        &self.requested
    }

    /// The path relative to the root; `.` for the root. An absolute path outside, which
    /// [`Resolver::Anywhere`] permits, is unchanged.
    pub(crate) fn relative(&self) -> &[u8] {
        self.relative.as_bytes()
    }

    /// Like [`Self::relative`], as text for results.
    pub(crate) fn shown(&self) -> String {
        self.relative.clone()
    }

    /// The path of `name` below this folder, such that a later request can use it.
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

/// The part of `requested` relative to the root. An absolute path may name the root with or without
/// its symbolic links; `None` if it is outside.
fn below<'a>(workspace: &Workspace, requested: &'a str) -> Option<&'a str> {
    if !requested.starts_with('/') {
        return Some(requested);
    }
    [workspace.root(), workspace.canonical()]
        .into_iter()
        .filter(|root| root.is_absolute())
        .find_map(|root| strip(root, requested))
}

/// The rest of `requested` after `root`; `None` if it does not begin with `root`.
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

/// Removes empty and `.` components. A final slash is kept, since it requires a folder.
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
