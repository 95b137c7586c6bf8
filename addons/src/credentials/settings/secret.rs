//! The sources of secrets in `credentials.yaml`.

use std::cell::RefCell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zeroize::Zeroizing;

use crate::contract::settings::{Scalar, Setting, Variable};
use crate::contract::{SecretFiles, SecretSource};

/// The source of a secret. Its `Debug` never shows a value.
#[derive(Clone, PartialEq, Eq)]
pub enum SecretSetting {
    /// Given in `credentials.yaml`, or by an environment variable.
    Value(Zeroizing<String>),
    /// Read from a file, and again whenever it changes.
    File(PathBuf),
}

impl SecretSetting {
    pub(in crate::credentials) fn source(&self, files: &dyn SecretFiles) -> Arc<dyn SecretSource> {
        match self {
            Self::Value(value) => Arc::new(Fixed(Arc::new(value.clone()))),
            Self::File(path) => files.source(path),
        }
    }
}

impl fmt::Debug for SecretSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(_) => f.write_str("Value(…)"),
            Self::File(path) => write!(f, "File({})", path.display()),
        }
    }
}

struct Fixed(Arc<Zeroizing<String>>);

impl SecretSource for Fixed {
    fn read(&self) -> Result<Arc<Zeroizing<String>>, String> {
        Ok(Arc::clone(&self.0))
    }

    fn version(&self) -> u64 {
        0
    }
}

/// Reads and records the secrets of one entry.
#[derive(Default)]
pub(in crate::credentials) struct SecretReader<'a>(RefCell<Vec<ReadSecret<'a>>>);

/// A secret, and the variables in its text or in the path of its file.
struct ReadSecret<'a> {
    setting: SecretSetting,
    variables: &'a [Variable],
}

impl<'a> SecretReader<'a> {
    /// Reads a text, or a mapping with `file` and a path.
    pub fn read(&self, at: &Setting<'a>) -> Option<SecretSetting> {
        if at.is_mapping() {
            let path = self.read_file(&at.fields()?.need("file")?)?;
            return Some(SecretSetting::File(path));
        }
        let scalar = at.scalar()?;
        let setting = SecretSetting::Value(scalar.text.clone());
        Some(self.keep(setting, scalar))
    }

    /// Reads a secret that is put into a header value without an encoding. Refuses a value with
    /// other characters than spaces and visible ASCII.
    pub fn read_for_header(&self, at: &Setting<'a>) -> Option<SecretSetting> {
        let setting = self.read(at)?;
        let fits = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
        if let SecretSetting::Value(value) = &setting
            && !value.bytes().all(fits)
        {
            at.refuse("has a character that a header must not contain (a line break at its end?)");
        }
        Some(setting)
    }

    /// Reads the path of a file that holds secrets.
    pub fn read_file(&self, at: &Setting<'a>) -> Option<PathBuf> {
        let scalar = at.scalar()?;
        let path = PathBuf::from(scalar.text.as_str());
        self.keep(SecretSetting::File(path.clone()), scalar);
        Some(path)
    }

    fn keep(&self, setting: SecretSetting, scalar: &'a Scalar) -> SecretSetting {
        self.0.borrow_mut().push(ReadSecret {
            setting: setting.clone(),
            variables: &scalar.variables,
        });
        setting
    }

    /// The names of the empty variables in empty secrets, joined with commas. An empty secret makes
    /// the entry inactive. `None` if no secret is empty.
    pub fn empty(&self) -> Option<String> {
        let secrets = self.0.borrow();
        let empty: Vec<_> = secrets.iter().filter(|s| s.is_empty()).collect();
        let mut variables: Vec<_> = empty
            .iter()
            .flat_map(|secret| secret.empty_variables())
            .collect();
        variables.dedup();
        (!empty.is_empty()).then(|| variables.join(", "))
    }

    /// Calls `each` with every file that holds a secret.
    pub fn each_file(&self, mut each: impl FnMut(&Path)) {
        for secret in self.0.borrow().iter() {
            if let SecretSetting::File(path) = &secret.setting {
                each(path);
            }
        }
    }
}

impl ReadSecret<'_> {
    /// Whether the secret, its file's path, or one of their variables is empty.
    fn is_empty(&self) -> bool {
        let nothing = match &self.setting {
            SecretSetting::Value(value) => value.trim().is_empty(),
            SecretSetting::File(path) => path.as_os_str().is_empty(),
        };
        nothing || self.empty_variables().next().is_some()
    }

    fn empty_variables(&self) -> impl Iterator<Item = &str> {
        let empty = self
            .variables
            .iter()
            .filter(|variable| variable.value.is_empty());
        empty.map(|variable| variable.name.as_str())
    }
}
