//! Loads the bundles of a configuration.

use std::path::Path;
use std::sync::Arc;

use addons::contract::settings::ConfigError;
use addons::mcp::{Bundle as BundleSettings, PoliciesSettings, bundles_revision};

use super::LoadedBundle;
use super::bundle::Bundle;
use super::error::LoadError;
use super::files::{BundleFiles, Files};
use super::program::Program;
use super::text::{self, Stored};
use crate::snapshot::PolicyText;

/// The bundles of one configuration.
pub struct Bundles {
    pub(super) all: Vec<LoadedBundle>,
    /// The bundles that could not be loaded.
    pub unloaded: Vec<Unloaded>,
    /// The files of all bundles, as they were before the bundles were read.
    pub files: BundleFiles,
    /// The text of the policies.
    pub text: Arc<PolicyText>,
}

/// A bundle that could not be loaded.
#[derive(Debug)]
pub struct Unloaded {
    /// The bundle's settings, with their place in the configuration.
    pub settings: BundleSettings,
    /// Why the bundle could not be loaded, and what to change.
    pub error: LoadError,
}

impl Bundles {
    /// Reads the bundles and compiles their policies; blocks. A policy that people stored in
    /// `data_dir` replaces the bundle that `policies.editable` names.
    pub fn load(policies: &PoliciesSettings, data_dir: Option<&Path>) -> Self {
        let settings = &policies.bundles;
        let files = BundleFiles::of(settings.iter().map(|bundle| bundle.path.clone()));
        let stored = Stored::read(policies, data_dir);
        let (mut unloaded, mut texts) = (Vec::new(), Vec::new());
        let all = settings.iter().map(|bundle| {
            let is_editable = policies.editable.as_ref() == Some(&bundle.id);
            let read = match &stored {
                Some(stored) if is_editable => stored.files(),
                _ => Files::read(&bundle.path),
            };
            if policies.shows_text() && (is_editable || policies.editable.is_none()) {
                texts.push((Arc::clone(&bundle.id), text::of_files(read.as_ref())));
            }
            let failed = |error| {
                let settings = bundle.clone();
                unloaded.push(Unloaded { settings, error });
            };
            let program = read.and_then(|files| load(bundle, files));
            let program = program.map_err(failed).ok();
            let settings = bundle.clone();
            LoadedBundle { settings, program }
        });
        let all = all.collect();
        let problem = unloaded.iter().find(|one: &&Unloaded| {
            let editable = policies.editable.as_ref();
            editable.is_none_or(|id| *id == one.settings.id)
        });
        let problem = problem.map(|one| one.error.to_string());
        Self {
            text: text::joined(policies, texts, stored, problem).into(),
            all,
            unloaded,
            files,
        }
    }
}

impl Bundles {
    /// The revision of the loaded bundles for a method.
    pub fn revision(&self, method: &str) -> String {
        let bundles = self.all.iter().filter(|bundle| bundle.is_for(method));
        bundles_revision(bundles.filter_map(|bundle| {
            let program = bundle.program.as_ref()?;
            Some((&*bundle.settings.id, program.revision()))
        }))
    }
}

impl Unloaded {
    /// The error at the place of the bundle's entry in `mcp.yaml`.
    pub fn config_error(&self) -> ConfigError {
        ConfigError {
            file: "mcp.yaml".into(),
            line: self.settings.place.line,
            column: self.settings.place.column,
            key: self.settings.key.to_string(),
            message: self.error.to_string(),
        }
    }

    /// Whether `other` has the same settings, wherever they are in the file.
    pub fn is_of(&self, other: &BundleSettings) -> bool {
        let mut moved = other.clone();
        moved.key.clone_from(&self.settings.key);
        moved.place = self.settings.place;
        moved == self.settings
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

/// Compiles a policy in place of a bundle, without an effect. Blocks.
pub fn check(settings: &BundleSettings, source: &str) -> Result<(), LoadError> {
    let bundle = Bundle::of(Files::of_policy(source))?;
    Program::compile(&bundle, &settings.entrypoint).map(drop)
}
