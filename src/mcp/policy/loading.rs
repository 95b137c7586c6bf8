//! Loads the policies of a configuration.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use addons::contract::Evaluator;
use addons::contract::settings::ConfigError;
use addons::mcp::{
    Bundle as BundleSettings, CommandPolicy, OnUnavailable, PoliciesSettings, Policy,
    bundles_revision,
};

use super::bundle::Bundle;
use super::command::{CommandEvaluator, LoadedCommand, MAX_VARIABLE_BYTES};
use super::error::LoadError;
use super::files::{BundleFiles, Files};
use super::program::Program;
use super::text;
use super::{LoadedBundle, PolicyParts, RegoEvaluator};
use crate::mcp::mounts::Machine;
use crate::snapshot::PolicyText;

/// The policies of one configuration.
pub struct Policies {
    pub(super) bundles: Vec<LoadedBundle>,
    /// The command that judges messages; then there are no bundles.
    command: Option<LoadedCommand>,
    /// The policies that could not be loaded.
    pub unloaded: Vec<Unloaded>,
    /// The files of all policies, as they were before the policies were read.
    pub files: BundleFiles,
    /// The text of the policies.
    pub text: Arc<PolicyText>,
}

/// A policy that could not be loaded.
#[derive(Debug)]
pub struct Unloaded {
    /// The policy's settings, with their place in the configuration.
    pub settings: Policy,
    /// Why the policy could not be loaded, and what to change.
    pub error: LoadError,
}

impl Policies {
    /// Reads the bundles and compiles them, or reads the source of the command; blocks. A policy that
    /// people stored in `data_dir` replaces the bundle that `policies.editable` names. `machine` is
    /// what the command may see.
    pub fn load(policies: &PoliciesSettings, data_dir: Option<&Path>, machine: &Machine) -> Self {
        let paths = policies.bundles.iter().map(|bundle| &bundle.path);
        let source = policies.command.iter().flat_map(|one| &one.source);
        let files = BundleFiles::of(paths.chain(source).cloned());
        let stored = text::read_stored(policies, data_dir);
        let (mut unloaded, mut texts) = (Vec::new(), Vec::new());
        let bundles = policies.bundles.iter().map(|settings| {
            let is_editable = policies.editable.as_ref() == Some(&settings.id);
            let read = match &stored {
                Some(Ok(stored)) if is_editable => Ok(Files::of_policy(&stored.source)),
                _ => Files::read(&settings.path),
            };
            if policies.shows_text() && (is_editable || policies.editable.is_none()) {
                texts.push((Arc::clone(&settings.id), text::of_files(read.as_ref())));
            }
            let failed = |error| {
                let settings = Policy::Bundle(settings.clone());
                unloaded.push(Unloaded { settings, error });
            };
            let program = read.and_then(|files| load(settings, files));
            let program = program.map_err(failed).ok();
            let settings = settings.clone();
            LoadedBundle { settings, program }
        });
        let mut bundles: Vec<_> = bundles.collect();
        let command = policies.command.as_ref().map(|settings| {
            let source = settings.source.as_deref().map(read_source).transpose();
            if policies.shows_text() {
                texts.push((CommandPolicy::ID.into(), text::of_source(source.as_ref())));
            }
            let loaded = source.and_then(|source| LoadedCommand::load(settings, source, machine));
            loaded.unwrap_or_else(|error| {
                let command = LoadedCommand::unloaded(settings);
                let settings = Policy::Command(settings.clone());
                unloaded.push(Unloaded { settings, error });
                command
            })
        });
        let problem = unloaded.iter().find(|one: &&Unloaded| {
            let editable = policies.editable.as_ref();
            editable.is_none_or(|id| **id == *one.settings.id())
        });
        let mut problem = problem.map(|one| one.error.to_string());
        let stored = stored.map(|stored| {
            let failed = |error: LoadError| {
                let settings = text::missing(policies, &error);
                let why = problem.insert(error.to_string());
                // What people replaced is not shown as the policy in force.
                texts = vec![(Arc::clone(&settings.id), Err(why.clone()))];
                unloaded.push(Unloaded {
                    settings: Policy::Bundle(settings.clone()),
                    error,
                });
                bundles.push(LoadedBundle {
                    settings,
                    program: None,
                });
            };
            stored.map_err(failed).ok()
        });
        Self {
            text: text::joined(policies, texts, stored, problem).into(),
            bundles,
            command,
            unloaded,
            files,
        }
    }

    /// The revision of the loaded policies for a method.
    pub fn revision(&self, method: &str) -> String {
        let bundles = self.bundles.iter().filter(|bundle| bundle.is_for(method));
        let bundles = bundles.filter_map(|bundle| {
            let program = bundle.program.as_ref()?;
            Some((&*bundle.settings.id, program.revision()))
        });
        let command = self.command.as_ref();
        let command = command.filter(|command| command.is_for(method));
        let command = command.and_then(|command| Some((CommandPolicy::ID, command.revision()?)));
        bundles_revision(bundles.chain(command))
    }

    /// The evaluator of these policies. `on_unavailable` decides on a message if a policy for its
    /// method could not be loaded.
    pub fn evaluator(
        self,
        on_unavailable: OnUnavailable,
        parts: &PolicyParts,
    ) -> Arc<dyn Evaluator> {
        let metrics = Arc::clone(&parts.metrics);
        // A stored policy that cannot be in force is the only bundle beside a command.
        let is_denied = !self.bundles.is_empty() && on_unavailable == OnUnavailable::Deny;
        match self.command {
            Some(command) if !is_denied => {
                let runner = Arc::clone(&parts.commands);
                let evaluator = CommandEvaluator::new(command, on_unavailable, runner, metrics);
                Arc::new(evaluator)
            }
            _ => {
                let threads = Arc::clone(&parts.threads);
                let bundles = self.bundles;
                let evaluator = RegoEvaluator::new(bundles, on_unavailable, threads, metrics);
                Arc::new(evaluator)
            }
        }
    }
}

impl Unloaded {
    /// The error at the place of the policy's entry in `mcp.yaml`.
    pub fn config_error(&self) -> ConfigError {
        let place = self.settings.place();
        ConfigError {
            file: "mcp.yaml".into(),
            line: place.line,
            column: place.column,
            key: self.settings.key().to_owned(),
            message: self.error.to_string(),
        }
    }
}

/// Compiles one bundle.
fn load(settings: &BundleSettings, files: Files) -> Result<Program, LoadError> {
    let bundle = Bundle::of(files)?;
    let program = Program::compile(&bundle, &settings.entrypoint)?;
    tracing::info!(
        bundle = %settings.id,
        revision = bundle.manifest.revision,
        policies = bundle.policies.len(),
        "policy bundle loaded"
    );
    Ok(program)
}

/// Reads the policy that a command gets in a variable of its environment.
fn read_source(path: &Path) -> Result<Arc<str>, LoadError> {
    let unreadable = |error: io::Error| LoadError::Unreadable(path.display().to_string(), error);
    let refused = |why: String| LoadError::File(path.display().to_string(), why);
    // Opening a pipe would block.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(refused("is not a regular file".to_owned()));
    }
    let limit = u64::try_from(MAX_VARIABLE_BYTES).unwrap_or(u64::MAX);
    let mut text = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    let read = file.take(limit.saturating_add(1)).read_to_end(&mut text);
    if read.map_err(unreadable)? > MAX_VARIABLE_BYTES {
        return Err(refused(format!(
            "has more than {MAX_VARIABLE_BYTES} bytes, and the command gets it in a variable of \
             its environment: name the file in `command` instead, and its directory in `read`"
        )));
    }
    let text = String::from_utf8(text).map_err(|_| refused("is not UTF-8".to_owned()))?;
    if text.contains('\0') {
        return Err(refused("contains a NUL character".to_owned()));
    }
    Ok(text.into())
}

/// Compiles a policy in place of a bundle, without an effect. Blocks.
pub fn check(settings: &BundleSettings, source: &str) -> Result<(), LoadError> {
    let bundle = Bundle::of(Files::of_policy(source))?;
    Program::compile(&bundle, &settings.entrypoint).map(drop)
}
