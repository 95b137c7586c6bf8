//! The user's entries in `/etc/passwd` and `/etc/group`. The accounts of a directory service (LDAP,
//! SSSD) are not in these files, and the service cannot be reached from a sandbox.

use std::env;
use std::fs;
use std::path::Path;

use rustix::process::{getgid, getuid};

use super::plain_file;
use crate::sandbox::Entry;

/// The names if the environment has none that can be used.
const USER: &str = "user";

/// Entries that add the user and the group of this process to the machine's files where they are
/// missing. `home` is the home directory inside.
pub fn missing(home: &Path) -> Vec<Entry> {
    let wanted = ["USER", "LOGNAME"].map(|variable| env::var(variable).unwrap_or_default());
    let shell = env::var("SHELL").unwrap_or_default();
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    let passwd = added("/etc/passwd", user, &wanted, |name| {
        let shell = Some(&*shell).filter(|shell| is_field(shell) && shell.starts_with('/'));
        let shell = shell.unwrap_or("/bin/sh");
        let home = home.to_str().filter(|home| is_field(home))?;
        Some(format!("{name}:x:{user}:{group}::{home}:{shell}\n"))
    });
    let group = added("/etc/group", group, &wanted, |name| {
        Some(format!("{name}:x:{group}:\n"))
    });
    passwd.into_iter().chain(group).collect()
}

/// The file with another line; `None` if it has an entry with this id, or cannot be read. The line's
/// name is the first of `wanted` that can be used and that no other entry has.
fn added(
    path: &str,
    id: u32,
    wanted: &[String],
    line: impl Fn(&str) -> Option<String>,
) -> Option<Entry> {
    let at = plain_file(Path::new(path))?;
    let text = fs::read_to_string(&at).ok()?;
    let text = with_entry(&text, id, wanted, line)?;
    Some(Entry::Replace { at, text })
}

fn with_entry(
    text: &str,
    id: u32,
    wanted: &[String],
    line: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let id = id.to_string();
    let has = |field: usize, value: &str| {
        let mut lines = text.lines();
        lines.any(|line| line.split(':').nth(field) == Some(value))
    };
    if has(2, &id) {
        return None;
    }
    let numbered = format!("{USER}{id}");
    let names = wanted.iter().map(String::as_str).chain([USER, &numbered]);
    let name = { names }.find(|name| is_name(name) && !has(0, name))?;
    let end = if text.is_empty() || text.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    Some(format!("{text}{end}{}", line(name)?))
}

fn is_name(name: &str) -> bool {
    // Names of directory services may be addresses.
    let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '@');
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && name.chars().all(is_letter)
}

/// Whether a text can be a field of the files.
fn is_field(text: &str) -> bool {
    !text.contains([':', '\n'])
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn an_entry_is_added_if_there_is_none_with_the_id_under_a_name_that_is_free() {
        let text = "root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh";
        each_row(
            [
                (1000, "bob", None),
                (0, "bob", None),
                (70_001, "bob", Some("bob")),
                (70_001, "bob@corp.example.com", Some("bob@corp.example.com")),
                (70_001, "root", Some("user")),
                (70_001, "ada", Some("user")),
                (70_001, "", Some("user")),
                (70_001, "a:x:0", Some("user")),
                (70_001, "a\nb", Some("user")),
            ],
            |(id, wanted, expected)| {
                let added = with_entry(text, id, &[wanted.to_owned()], |name| {
                    Some(format!("{name}!\n"))
                });
                let expected = expected.map(|name| format!("{text}\n{name}!\n"));
                assert_eq!(added, expected, "{id} {wanted}");
            },
        );
    }
}
