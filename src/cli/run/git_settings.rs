//! Copies a few of the user's git settings, none of which names a program or contains a secret.

use std::path::Path;

use super::programs::output_of;

/// The pattern of the keys that are copied.
const KEYS: &str = "^(user\\.(name|email)|init\\.defaultbranch|pull\\.(rebase|ff)|push\\.(default|autosetupremote)|rebase\\.autostash|merge\\.conflictstyle|core\\.autocrlf|color\\.ui)$";

/// Makes the text of a `.gitconfig` for the home directory in the sandbox; `None` if the user has
/// none of these settings. `git` is the path of the program.
pub fn git_settings(git: &Path) -> Option<String> {
    let listed = output_of(
        git,
        &[
            "config",
            "--global",
            "--includes",
            "--null",
            "--get-regexp",
            KEYS,
        ],
    )?;
    let text: String = listed.split('\0').filter_map(setting).collect();
    (!text.is_empty()).then_some(text)
}

/// Formats a setting for the file, from `key\nvalue`; `None` if the value has a newline.
fn setting(listed: &str) -> Option<String> {
    let (key, value) = listed.split_once('\n')?;
    let (section, name) = key.split_once('.')?;
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    (!value.contains('\n')).then(|| format!("[{section}]\n\t{name} = \"{value}\"\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_quoted_for_git_and_left_out_if_it_has_a_newline() {
        assert_eq!(
            setting("user.name\nAda \"A\" L").unwrap(),
            "[user]\n\tname = \"Ada \\\"A\\\" L\"\n"
        );
        assert_eq!(setting("user.name\na\n[core]"), None);
    }
}
