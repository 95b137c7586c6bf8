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
use super::command::{CommandEvaluator, LoadedCommand, MAX_VARIABLE_BYTES, Source};
use super::error::LoadError;
use super::files::BundleFiles;
use super::program::Program;
use super::{LoadedBundle, PolicyParts, RegoEvaluator};
use crate::mcp::mounts::find_program;

/// The policies of one configuration.
#[derive(Default)]
pub struct Policies {
    pub(super) bundles: Vec<LoadedBundle>,
    /// The command that judges messages; then there are no bundles.
    command: Option<LoadedCommand>,
    /// The policies that could not be loaded.
    pub unloaded: Vec<Unloaded>,
    /// The files of all policies, as they were before the policies were read.
    pub files: BundleFiles,
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
    /// Reads the bundles and compiles them, or reads the source of the command; blocks.
    pub fn load(settings: &PoliciesSettings) -> Self {
        let bundles = settings.bundles.iter().map(|bundle| &bundle.path);
        let source = settings.command.iter().flat_map(|one| &one.source);
        let files = BundleFiles::of(bundles.chain(source).cloned());
        let mut unloaded = Vec::new();
        let mut failed = |settings, error| unloaded.push(Unloaded { settings, error });
        let bundles = settings.bundles.iter().map(|bundle| {
            let program = load(bundle)
                .map_err(|error| failed(Policy::Bundle(bundle.clone()), error))
                .ok();
            let settings = bundle.clone();
            LoadedBundle { settings, program }
        });
        let bundles = bundles.collect();
        let command = settings.command.as_ref().map(|command| {
            let source = load_command(command)
                .map_err(|error| failed(Policy::Command(command.clone()), error))
                .ok();
            LoadedCommand::new(command.clone(), source)
        });
        Self {
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
        match self.command {
            Some(command) => {
                let runner = Arc::clone(&parts.commands);
                let evaluator = CommandEvaluator::new(command, on_unavailable, runner, metrics);
                Arc::new(evaluator)
            }
            None => {
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

/// Reads and compiles one bundle.
fn load(settings: &BundleSettings) -> Result<Program, LoadError> {
    let bundle = Bundle::read(&settings.path)?;
    let program = Program::compile(&bundle, &settings.entrypoint)?;
    tracing::info!(
        bundle = %settings.id,
        revision = bundle.manifest.revision,
        policies = bundle.policies.len(),
        "policy bundle loaded"
    );
    Ok(program)
}

/// Checks that the command's program exists, and reads its source.
fn load_command(settings: &CommandPolicy) -> Result<Source, LoadError> {
    let program = settings.command.first().map_or("", |word| word.0.as_str());
    if find_program(program, settings.work_dir.as_deref()).is_none() {
        return Err(LoadError::NoProgram(program.to_owned()));
    }
    let source = settings.source.as_deref().map(read_source).transpose()?;
    Ok(source.map(Arc::from))
}

/// Reads the policy that a command gets in a variable of its environment.
fn read_source(path: &Path) -> Result<String, LoadError> {
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
    Ok(text)
}
