//! Lists the changed files that the host would execute or obey.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::super::changes::Change;
use super::MAX_LINES;
use crate::cli::exit::printable;

/// The files of [`Protected::changes`](super::super::protected::Protected::changes), or the reason
/// why they are unknown.
pub type Changes = Result<Vec<(PathBuf, Change)>, String>;

/// The list of the files that the command made, changed or removed and that the host would execute
/// or obey; empty if there are none.
pub fn text_of_changes(changes: &Changes) -> String {
    let changes = match changes {
        Ok(changes) if changes.is_empty() => return String::new(),
        Ok(changes) => changes,
        Err(why) => {
            return format!(
                "unified-proxy: it is unknown which files the command made or changed ({}); look at the directory before you work in it\n",
                printable(why)
            );
        }
    };
    let mut text = "unified-proxy: files that git, a shell, an editor, an agent or a package manager may execute or obey were made or changed while the command ran; look at them before you work in the directory\n".to_owned();
    for (path, change) in changes.iter().take(MAX_LINES) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {}{change}", printable(&path.display().to_string()));
    }
    if let Some(more) = changes
        .len()
        .checked_sub(MAX_LINES)
        .filter(|more| *more > 0)
    {
        let _ = writeln!(text, "  and {more} more");
    }
    text
}
