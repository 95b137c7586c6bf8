//! The text of policies, for agents and people.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use addons::json::sha256_hex;
use addons::mcp::PoliciesSettings;

use super::command::Source;
use super::error::LoadError;
use super::files::Files;
use crate::config::{StoredPolicy, StoredPolicyFile};
use crate::snapshot::PolicyText;

/// The longest text of policies that is kept, in bytes. A proposal must fit into a question together
/// with the text that it replaces.
const MAX_TEXT: usize = 256 << 10;

/// The policy in the data directory that replaces a bundle, or why it cannot be read.
pub(super) struct Stored(Result<StoredPolicy, (PathBuf, std::io::Error)>);

impl Stored {
    /// Reads the policy that replaces the editable bundle; `None` if there is none.
    pub fn read(policies: &PoliciesSettings, data_dir: Option<&Path>) -> Option<Self> {
        let (editable, data_dir) = (policies.editable.as_ref(), data_dir?);
        let read = match StoredPolicyFile::of(data_dir).read() {
            Ok(policy) => Ok(policy?),
            Err(error) => Err((data_dir.join("policy"), error)),
        };
        match &read {
            Ok(policy) if editable.is_none_or(|id| **id != *policy.bundle) => {
                tracing::warn!(
                    bundle = policy.bundle,
                    set_by = policy.set_by,
                    "the policy that people set is not in force: it replaces another bundle than \
                     policies.editable in mcp.yaml names"
                );
                None
            }
            Err(_) if editable.is_none() => None,
            Ok(policy) => {
                let digest = sha256_hex(&policy.source);
                tracing::info!(
                    bundle = policy.bundle,
                    set_by = policy.set_by,
                    set_at = policy.set_at,
                    digest,
                    "a policy that people set replaces the bundle"
                );
                Some(Self(read))
            }
            Err(_) => Some(Self(read)),
        }
    }

    /// The policy as the files of a bundle.
    pub fn files(&self) -> Result<Files, LoadError> {
        match &self.0 {
            Ok(policy) => Ok(Files::of_policy(&policy.source)),
            Err((path, error)) => {
                let error = std::io::Error::new(error.kind(), error.to_string());
                Err(LoadError::Stored(path.display().to_string(), error))
            }
        }
    }

    fn policy(self) -> Option<StoredPolicy> {
        self.0.ok()
    }
}

/// The text of a bundle: of a sole file, its content; of several, each below its path.
pub(super) fn of_files(files: Result<&Files, &LoadError>) -> Result<String, String> {
    let files = files.map_err(ToString::to_string)?;
    let length: usize = files.content.values().map(Vec::len).sum();
    if length > MAX_TEXT {
        return Err(format!(
            "the policy is {length} bytes long; texts of up to {MAX_TEXT} bytes are shown"
        ));
    }
    let is_sole = files.content.len() == 1;
    let mut text = String::new();
    for (path, content) in &files.content {
        let content = std::str::from_utf8(content);
        let content = content.map_err(|_| format!("{path} is not UTF-8"))?;
        if !is_sole {
            text.push_str(&format!("# file {path}\n"));
        }
        text.push_str(content);
        if !is_sole && !content.ends_with('\n') {
            text.push('\n');
        }
    }
    Ok(text)
}

/// The text of a command's policy: its source.
pub(super) fn of_source(source: Result<&Source, &LoadError>) -> Result<String, String> {
    let source = source.map_err(ToString::to_string)?;
    let source = source.as_deref().map(str::to_owned);
    source.ok_or_else(|| "a command without a source decides: see policies.evaluator".to_owned())
}

/// The text of a configuration's policies. `texts` has that of the editable bundle, or of all
/// bundles.
pub(super) fn joined(
    policies: &PoliciesSettings,
    texts: Vec<(Arc<str>, Result<String, String>)>,
    stored: Option<Stored>,
    problem: Option<String>,
) -> PolicyText {
    let text = match texts.len() {
        0 => return PolicyText::default(),
        1 => texts.into_iter().map(|(_, text)| text).collect(),
        _ => texts
            .into_iter()
            .map(|(id, text)| Ok(format!("# bundle {id}\n{}\n", text?)))
            .collect::<Result<String, String>>(),
    };
    let text = match text {
        Ok(text) if text.len() > MAX_TEXT => Err(format!(
            "the policies are longer than the {MAX_TEXT} bytes that are shown"
        )),
        text => text,
    };
    PolicyText {
        editable: policies.editable.clone(),
        digest: text.as_deref().map(sha256_hex).unwrap_or_default(),
        text: text.map(Into::into),
        is_stored: stored.is_some(),
        stored: stored.and_then(Stored::policy),
        problem,
    }
}
