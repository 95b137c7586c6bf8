//! Loads the bundles of a configuration.

use addons::contract::settings::ConfigError;
use addons::mcp::{Bundle as BundleSettings, bundles_revision};

use super::LoadedBundle;
use super::bundle::Bundle;
use super::error::LoadError;
use super::files::BundleFiles;
use super::program::Program;

/// The bundles of one configuration.
#[derive(Default)]
pub struct Bundles {
    pub(super) all: Vec<LoadedBundle>,
    /// The bundles that could not be loaded.
    pub unloaded: Vec<Unloaded>,
    /// The files of all bundles, as they were before the bundles were read.
    pub files: BundleFiles,
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
    /// Reads the bundles and compiles their policies; blocks.
    pub fn load(settings: &[BundleSettings]) -> Self {
        let files = BundleFiles::of(settings.iter().map(|bundle| bundle.path.clone()));
        let mut unloaded = Vec::new();
        let all = settings.iter().map(|bundle| {
            let failed = |error| {
                let settings = bundle.clone();
                unloaded.push(Unloaded { settings, error });
            };
            let program = load(bundle).map_err(failed).ok();
            let settings = bundle.clone();
            LoadedBundle { settings, program }
        });
        Self {
            all: all.collect(),
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
