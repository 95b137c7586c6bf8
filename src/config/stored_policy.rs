//! The policy that people set, in the data directory. Only the server writes it.

use std::io;
use std::path::Path;

use addons::contract::ApprovalId;
use addons::json::strict;
use serde::{Deserialize, Serialize};

use super::state_file::StateFile;

/// The file with the policy in force, in the data directory.
const IN_FORCE: &str = "policy.json";
/// The file with a proposed policy while its approval is recorded.
const PROPOSED: &str = "policy.proposed.json";

/// A policy that replaces a bundle.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StoredPolicy {
    /// The format of the file: 1.
    version: u8,
    /// The id of the bundle that it replaces.
    pub bundle: String,
    /// The text of the policy.
    pub source: String,
    /// Who set it, as in the audit.
    pub set_by: String,
    /// When it was set, as RFC 3339.
    pub set_at: String,
    /// The question about the proposal; absent if a person set the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposal: Option<String>,
}

impl StoredPolicy {
    /// The policy that a person sets now.
    pub fn new(
        bundle: &str,
        source: String,
        set_by: &str,
        set_at: String,
        proposal: Option<ApprovalId>,
    ) -> Self {
        Self {
            version: 1,
            bundle: bundle.to_owned(),
            source,
            set_by: set_by.to_owned(),
            set_at,
            proposal: proposal.map(|id| id.to_string()),
        }
    }
}

/// A file with a policy.
pub struct StoredPolicyFile(StateFile);

impl StoredPolicyFile {
    /// The file with the policy in force of a data directory.
    pub fn of(data_dir: &Path) -> Self {
        Self(StateFile::new(data_dir.join(IN_FORCE)))
    }

    /// The file with a proposed policy, which is in force only once it has replaced the other file.
    pub fn proposed(data_dir: &Path) -> Self {
        Self(StateFile::new(data_dir.join(PROPOSED)))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Reads the policy; `None` if no policy is stored. Fails if the file cannot be read or is
    /// damaged.
    pub fn read(&self) -> io::Result<Option<StoredPolicy>> {
        self.0.read()?.map(|bytes| parse(&bytes)).transpose()
    }

    /// Stores this policy; with `None`, removes the file. After an error, it may be done.
    pub fn write(&self, policy: Option<&StoredPolicy>) -> io::Result<()> {
        let text = policy.map(serde_json::to_vec).transpose()?;
        self.0.with(text.as_deref())?.commit()
    }

    /// Replaces another file with this one. After an error, it may be done.
    pub fn replace(&self, other: &Self) -> io::Result<()> {
        self.0.replace(&other.0)
    }
}

fn parse(bytes: &[u8]) -> io::Result<StoredPolicy> {
    let damaged = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    // A file with a key twice would be read in one of two ways.
    let value = strict::parse(bytes).map_err(|error| damaged(error.to_string()))?;
    let policy: StoredPolicy = match value.is_object() {
        true => serde_json::from_value(value).map_err(|error| damaged(error.to_string()))?,
        false => return Err(damaged("it is not an object".to_owned())),
    };
    match policy.version {
        1 => Ok(policy),
        other => Err(damaged(format!("its version is {other}, not 1"))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use testkit::each_row;

    use super::*;

    fn policy() -> StoredPolicy {
        let at = "2030-01-01T00:00:00Z".to_owned();
        StoredPolicy::new("main", "package a\n".to_owned(), "uid 0 (root)", at, None)
    }

    #[test]
    fn a_policy_is_stored_for_the_servers_user_alone_and_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let file = StoredPolicyFile::of(directory.path());
        assert_eq!(file.read().unwrap(), None);
        let proposed = StoredPolicyFile::proposed(directory.path());
        proposed.write(Some(&policy())).unwrap();
        assert_eq!(file.read().unwrap(), None);
        proposed.replace(&file).unwrap();
        assert_eq!(file.read().unwrap(), Some(policy()));
        assert_eq!(proposed.read().unwrap(), None);
        let mode = fs::metadata(file.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        file.write(None).unwrap();
        assert_eq!(file.read().unwrap(), None);
    }

    #[test]
    fn a_damaged_file_is_an_error_and_never_no_policy() {
        let whole = serde_json::to_string(&policy()).unwrap();
        assert!(parse(whole.as_bytes()).is_ok());
        let cut = &whole[..whole.len() - 1];
        let twice = whole.replace("\"source\"", "\"source\":\"package b\",\"source\"");
        let newer = whole.replace("\"version\":1", "\"version\":2");
        let unknown = whole.replace("\"version\"", "\"x\":1,\"version\"");
        let number = whole.replace("\"main\"", "1");
        each_row(
            [
                "", "null", "[]", "{}", cut, &twice, &newer, &unknown, &number,
            ],
            |text| assert!(parse(text.as_bytes()).is_err(), "{text}"),
        );
    }
}
