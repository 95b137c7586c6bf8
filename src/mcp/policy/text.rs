//! The text of policies, for agents and people.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use addons::contract::settings::Place;
use addons::json::sha256_hex;
use addons::mcp::{Bundle, PoliciesSettings};

use super::command::Source;
use super::error::LoadError;
use super::files::Files;
use crate::config::{StoredPolicy, StoredPolicyFile};
use crate::snapshot::PolicyText;

/// The longest text of policies that is kept, in bytes. A proposal must fit into a question together
/// with the text that it replaces.
const MAX_TEXT: usize = 256 << 10;

/// The policy that people stored in the data directory, or why it cannot be in force; `None` if none
/// is stored. It is in force only if `policies.editable` names the bundle that it replaces: otherwise,
/// a change of mcp.yaml could bring back a more permissive bundle that people have replaced.
pub(super) fn read_stored(
    policies: &PoliciesSettings,
    data_dir: Option<&Path>,
) -> Option<Result<StoredPolicy, LoadError>> {
    let file = StoredPolicyFile::of(data_dir?);
    let policy = match file.read() {
        Ok(policy) => policy?,
        Err(error) => {
            let path = file.path().display().to_string();
            return Some(Err(LoadError::Stored(path, error)));
        }
    };
    if policies.editable.as_deref() != Some(&*policy.bundle) {
        return Some(Err(LoadError::Orphaned(policy.bundle)));
    }
    tracing::info!(
        bundle = policy.bundle,
        set_by = policy.set_by,
        set_at = policy.set_at,
        digest = sha256_hex(&policy.source),
        "a policy that people set replaces the bundle"
    );
    Some(Ok(policy))
}

/// Stands for a stored policy that cannot be in force: a policy that is not loaded. It judges what the
/// replaced bundle judges; if that is unknown, all messages.
pub(super) fn missing(policies: &PoliciesSettings, error: &LoadError) -> Bundle {
    let id = match error {
        LoadError::Orphaned(bundle) => bundle,
        _ => policies.editable.as_deref().unwrap_or("stored"),
    };
    let mut bundles = policies.bundles.iter();
    let replaced = bundles.find(|bundle| *bundle.id == *id);
    Bundle {
        id: id.into(),
        path: PathBuf::new(),
        entrypoint: "".into(),
        methods: match replaced {
            Some(bundle) => bundle.methods.clone(),
            None => PoliciesSettings::METHODS.map(Arc::from).to_vec(),
        },
        key: "policies.editable".into(),
        place: replaced.map_or(Place { line: 0, column: 0 }, |bundle| bundle.place),
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
    stored: Option<Option<StoredPolicy>>,
    problem: Option<String>,
) -> PolicyText {
    let text = match texts.len() {
        0 => PolicyText::default().text.map(|text| text.to_string()),
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
        stored: stored.flatten(),
        problem,
    }
}
