//! Decides which settings of a repository the host takes over from a command: those by which git
//! neither executes a program nor uses another repository of this machine. In the work tree, the
//! command could make a repository whose hooks a push of the host would execute.

use std::collections::{BTreeMap, BTreeSet};

/// Further settings, which tools write again and again.
const PLAIN: [(&str, &str); 1] = [("lfs.repositoryformatversion", "0")];

/// The settings of a configuration file, each key with its values.
#[derive(Debug, Default)]
pub struct Settings(BTreeMap<String, Vec<String>>);

/// A key whose values differ.
#[derive(Debug, PartialEq, Eq)]
pub struct Changed {
    pub key: String,
    /// The new values; empty if the key was removed.
    pub values: Vec<String>,
    pub is_harmless: bool,
}

impl Settings {
    /// Reads the output of `git config --list --null`.
    pub fn read(listed: &str) -> Self {
        let mut settings = Self::default();
        for setting in listed.split_terminator('\0') {
            let (key, value) = setting.split_once('\n').unwrap_or((setting, ""));
            let values = settings.0.entry(key.to_owned()).or_default();
            values.push(value.to_owned());
        }
        settings
    }

    /// The keys that differ in `later`. `branches` are the local branches that existed before.
    pub fn changed(&self, later: &Self, branches: &BTreeSet<String>) -> Vec<Changed> {
        let rules = Rules::new(self, later, branches);
        let keys: BTreeSet<_> = self.0.keys().chain(later.0.keys()).collect();
        let changed = keys.into_iter().filter_map(|key| {
            let values = later.0.get(key).cloned().unwrap_or_default();
            let is_changed = self.0.get(key).is_none_or(|before| *before != values);
            is_changed.then(|| Changed {
                is_harmless: rules.permit(key, &values),
                key: key.clone(),
                values,
            })
        });
        changed.collect()
    }

    /// The names of the remotes, each with the values of the URL.
    fn remotes(&self) -> impl Iterator<Item = (&str, &Vec<String>)> {
        self.0.iter().filter_map(|(key, values)| match split(key)? {
            ("remote", name, "url") => Some((name, values)),
            _ => None,
        })
    }
}

/// What the settings may refer to.
struct Rules<'a> {
    /// The remotes that existed before.
    known: BTreeSet<&'a str>,
    /// Those that did not, whose URL is harmless.
    new: BTreeSet<&'a str>,
    /// The branches that existed or had settings before, each with its remotes.
    branches: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Rules<'a> {
    fn new(before: &'a Settings, later: &'a Settings, branches: &'a BTreeSet<String>) -> Self {
        let branches = branches.iter().map(|name| (name.as_str(), BTreeSet::new()));
        let mut branches: BTreeMap<_, BTreeSet<_>> = branches.collect();
        for (key, values) in &before.0 {
            if let Some(("branch", branch, variable)) = split(key) {
                let remotes = branches.entry(branch).or_default();
                if ["remote", "pushremote"].contains(&variable) {
                    remotes.extend(values.iter().map(String::as_str));
                }
            }
        }
        let existed = |name: &str| {
            let section = format!("remote.{name}.");
            before.0.keys().any(|key| key.starts_with(&section))
        };
        let new = later.remotes().filter(|(name, urls)| {
            !existed(name) && is_name(name) && matches!(urls.as_slice(), [url] if is_url(url))
        });
        Self {
            known: before.remotes().map(|(name, _)| name).collect(),
            new: new.map(|(name, _)| name).collect(),
            branches,
        }
    }

    fn permit(&self, key: &str, values: &[String]) -> bool {
        let value = match values {
            [] => None,
            [value] => Some(value.as_str()),
            _ => return false,
        };
        match (split(key), value) {
            // Without it, git uses a remote with a URL or none. Without the settings of a remote, its
            // name would be the path of a repository.
            (Some(("branch", _, "merge" | "pushremote" | "rebase" | "remote")), None) => true,
            (Some(("branch", branch, variable)), Some(value)) => {
                is_name(branch) && self.permit_of_branch(branch, variable, value)
            }
            (Some(("remote", name, "url")), Some(_)) => self.new.contains(name),
            (Some(("remote", name, "fetch")), Some(value)) => {
                self.new.contains(name) && is_refspec(name, value)
            }
            // Objects of `git fetch --filter` need them.
            (Some(("remote", name, "promisor")), Some("true")) => self.known.contains(name),
            (Some(("remote", name, "partialclonefilter")), Some("blob:none" | "tree:0")) => {
                self.known.contains(name)
            }
            (_, Some(value)) => PLAIN.contains(&(key, value)),
            _ => false,
        }
    }

    fn permit_of_branch(&self, branch: &str, variable: &str, value: &str) -> bool {
        // Another value would be a path or a URL. A branch that existed keeps its remotes, or uses
        // the only one: the user's next push must not go to another server.
        let is_remote = match self.branches.get(branch) {
            Some(remotes) if remotes.is_empty() => self.known.iter().eq([&value]),
            Some(remotes) => remotes.contains(value) && self.known.contains(value),
            None => self.known.contains(value) || self.new.contains(value),
        };
        match variable {
            "remote" => value == "." || is_remote && is_name(value),
            "pushremote" => is_remote && is_name(value),
            "merge" => value.strip_prefix("refs/heads/").is_some_and(is_name),
            "rebase" => ["true", "false"].contains(&value),
            _ => false,
        }
    }
}

/// The section, the subsection and the variable of a key.
fn split(key: &str) -> Option<(&str, &str, &str)> {
    let (section, rest) = key.split_once('.')?;
    let (subsection, variable) = rest.rsplit_once('.')?;
    Some((section, subsection, variable))
}

/// Whether a text is an ordinary name of a branch or a remote.
fn is_name(text: &str) -> bool {
    let is_plain = |letter: char| letter.is_alphanumeric() || "._/+#@=,-".contains(letter);
    text.chars().all(is_plain)
        && text.starts_with(|letter: char| letter.is_alphanumeric() || letter == '_')
        && !text.ends_with(['/', '.'])
        && !["..", "//", "/.", "/-"]
            .iter()
            .any(|part| text.contains(part))
        // git refuses these names, and then every command.
        && !text.split('/').any(|part| part.ends_with(".lock"))
}

/// Whether a text is the refspec of a branch, or of all branches, of a remote.
fn is_refspec(remote: &str, text: &str) -> bool {
    let Some((from, to)) = text.strip_prefix('+').unwrap_or(text).split_once(':') else {
        return false;
    };
    let from = from.strip_prefix("refs/heads/");
    let to = to.strip_prefix(&format!("refs/remotes/{remote}/"));
    from == to && from.is_some_and(|from| from == "*" || is_name(from))
}

/// Whether a text is a URL of HTTPS or SSH, also in the form `USER@HOST:PATH`.
fn is_url(text: &str) -> bool {
    let schemes = ["https://", "ssh://"];
    let (place, path) = match schemes.iter().find_map(|scheme| text.strip_prefix(scheme)) {
        Some(rest) => rest.split_once('/').unwrap_or((rest, "")),
        None => match text.split_once(':') {
            Some((place, path)) if place.contains('@') => (place, path),
            _ => return false,
        },
    };
    let (user, place) = match place.split_once('@') {
        Some((user, place)) => (user, place),
        None => ("git", place),
    };
    let (host, port) = place.split_once(':').unwrap_or((place, "0"));
    let is_word = |text: &str| {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        // A dash at the beginning would make an option of ssh of it.
        text.chars().all(is_plain)
            && text.starts_with(|letter: char| letter.is_ascii_alphanumeric())
    };
    let is_of_path = |letter: char| letter.is_ascii_alphanumeric() || "._~/+%@=,-".contains(letter);
    is_word(user)
        && is_word(host)
        && port.parse::<u16>().is_ok()
        && path.chars().all(is_of_path)
        && !path.starts_with('-')
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    const BEFORE: &str = "core.bare\nfalse\0remote.origin.url\nhttps://example.com/a\0remote.origin.fetch\n\
        +refs/heads/*:refs/remotes/origin/*\0branch.main.remote\norigin\0branch.main.merge\nrefs/heads/main\0";

    /// The changed keys after settings were added to those of `BEFORE`, each with whether it is
    /// harmless.
    fn changed(added: &str) -> Vec<(String, bool)> {
        let added: String = added
            .split_terminator('|')
            .map(|line| format!("{}\0", line.replacen(' ', "\n", 1)))
            .collect();
        let (before, later) = (
            Settings::read(BEFORE),
            Settings::read(&format!("{BEFORE}{added}")),
        );
        let changed = before.changed(&later, &BTreeSet::new()).into_iter();
        changed
            .map(|changed| (changed.key, changed.is_harmless))
            .collect()
    }

    #[test]
    fn tracking_and_new_remotes_are_harmless() {
        each_row(
            [
                "branch.f.remote origin|branch.f.merge refs/heads/f",
                "branch.Ada/fix-1.2.remote .|branch.Ada/fix-1.2.merge refs/heads/main|branch.Ada/fix-1.2.rebase true",
                "remote.fork.url https://example.com:8443/b/c.git|remote.fork.fetch +refs/heads/*:refs/remotes/fork/*|branch.f.pushremote fork",
                "remote.f.url git@example.com:b/c.git|branch.f.remote f",
                "remote.f.url ssh://git@example.com:22/~b/c|remote.f.fetch +refs/heads/b:refs/remotes/f/b",
                "lfs.repositoryformatversion 0",
                "remote.origin.promisor true|remote.origin.partialclonefilter blob:none",
            ],
            |added| {
                let found = changed(added);
                assert_eq!(found.len(), added.split('|').count(), "{found:?}");
                assert!(
                    found.iter().all(|(_, is_harmless)| *is_harmless),
                    "{found:?}"
                );
            },
        );
    }

    #[test]
    fn what_git_executes_and_what_leads_to_repositories_of_this_machine_is_not_harmless() {
        let programs = [
            "core.fsmonitor",
            "core.sshcommand",
            "core.hookspath",
            "core.pager",
            "core.editor",
            "core.worktree",
            "alias.st",
            "filter.x.clean",
            "include.path",
            "includeif.gitdir:/.path",
            "credential.helper",
            "url.ext::sh.insteadof",
            "uploadpack.packobjectshook",
            "diff.external",
            "http.proxy",
            "remote.origin.uploadpack",
            "remote.origin.receivepack",
            "remote.origin.vcs",
            "remote.origin.proxy",
            "remote.pushdefault",
            "remote.origin.pushurl",
            "branch.main.mergeoptions",
            "branch.main.description",
            "submodule.x.update",
            "extensions.worktreeconfig",
            "user.email",
        ];
        each_row(programs, |key| {
            assert_eq!(
                changed(&format!("{key} true")),
                [(key.to_owned(), false)],
                "{key}"
            );
        });
        each_row(
            [
                "remote.origin.url https://example.com/b",
                "remote.origin.fetch +refs/heads/x:refs/remotes/origin/x",
                "remote.f.url ext::sh -c true",
                "remote.f.url sub/evil.git",
                "remote.f.url /tmp/evil",
                "remote.f.url file:///tmp/evil",
                "remote.f.url ssh://-oProxyCommand=x/a",
                "remote.f.url -oProxyCommand=x@example.com:a",
                "remote.f.url git@-oProxyCommand=x:a",
                "remote.f.url git@example.com:-x",
                "remote.f.url git@example.com::x",
                "remote.f.url https://example.com/a\n[core]",
                "remote.f.url https://user:word@example.com/a",
                "remote.f.url https:///tmp/a",
                "remote.f.url http://example.com/a",
                "remote.f.url",
                "remote...url https://example.com/a",
                "remote.a::b.url https://example.com/a",
                "remote.f.fetch +refs/heads/*:refs/remotes/f/*",
                "remote.a.lock.url https://example.com/a",
                "remote.origin.partialclonefilter sparse:path=x",
                "branch.f.merge refs/heads/x.lock",
                "branch.f.remote ../evil",
                "branch.f.remote evil",
                "branch.f.remote https://example.com/a",
                "branch.f.pushremote .",
                "branch.f.merge main",
                "branch.f.merge refs/heads/-x",
                "branch.f.rebase interactive",
                "branch.-f.remote origin",
                "branch.f.remote",
                "lfs.repositoryformatversion 1",
            ],
            |added| {
                let found = changed(added);
                assert!(
                    !found.is_empty() && found.iter().all(|(_, is_harmless)| !is_harmless),
                    "{added}: {found:?}"
                );
            },
        );
        // The next push of a branch must not go to another server than before.
        let before = Settings::read(BEFORE);
        let later = BEFORE.replace("branch.main.remote\norigin", "branch.main.remote\nf");
        let later =
            "branch.main.pushremote\nf\0remote.f.url\nhttps://example.com/a\0".to_owned() + &later;
        let found = before.changed(&Settings::read(&later), &BTreeSet::new());
        let harmless = found.iter().map(|one| (&*one.key, one.is_harmless));
        let expected = [
            ("branch.main.pushremote", false),
            ("branch.main.remote", false),
            ("remote.f.url", true),
        ];
        assert_eq!(harmless.collect::<Vec<_>>(), expected);
        // A branch may not use a remote whose URL is not taken over.
        let found = changed("remote.f.url ../evil|branch.f.remote f");
        assert!(
            found.iter().all(|(_, is_harmless)| !is_harmless),
            "{found:?}"
        );
        // A second value may replace the first.
        let found = changed("remote.f.url https://example.com/a|remote.f.url ../evil");
        assert_eq!(found, [("remote.f.url".to_owned(), false)]);
    }

    #[test]
    fn a_branch_that_existed_gets_no_other_remote_than_the_only_one() {
        const TWO: &str = "remote.f.url\nhttps://example.com/f\0";
        let branches = BTreeSet::from(["old".to_owned(), "main".to_owned()]);
        each_row(
            [
                ("", "branch.old.remote\norigin\0", true),
                ("", "branch.new.remote\norigin\0", true),
                (TWO, "branch.old.remote\norigin\0", false),
                (TWO, "branch.old.remote\nf\0", false),
                (TWO, "branch.old.pushremote\nf\0", false),
                (TWO, "branch.main.pushremote\nf\0", false),
                (TWO, "branch.main.pushremote\norigin\0", true),
                (TWO, "branch.new.remote\nf\0", true),
            ],
            |(remotes, added, is_harmless)| {
                let before = format!("{BEFORE}{remotes}");
                let later = Settings::read(&format!("{before}{added}"));
                let found = Settings::read(&before).changed(&later, &branches);
                let found: Vec<_> = found.iter().map(|one| one.is_harmless).collect();
                assert_eq!(found, [is_harmless], "{remotes:?} {added:?}");
            },
        );
    }

    #[test]
    fn the_settings_of_a_branch_may_be_removed_and_those_of_a_remote_may_not() {
        let changed = Settings::read(BEFORE).changed(&Settings::default(), &BTreeSet::new());
        let changed: Vec<_> = changed
            .iter()
            .map(|changed| (&*changed.key, changed.is_harmless))
            .collect();
        let expected = [
            ("branch.main.merge", true),
            ("branch.main.remote", true),
            ("core.bare", false),
            ("remote.origin.fetch", false),
            ("remote.origin.url", false),
        ];
        assert_eq!(changed, expected);
    }
}
