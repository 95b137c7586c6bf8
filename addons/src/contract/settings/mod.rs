//! The reader of configuration files, with which each addon decodes its own settings.
//!
//! A [`Document`] is a file as a tree whose nodes have a line and a column (module `tree`). Module
//! `expand` expands the variables in its scalars. [`Fields`] and [`Setting`] read values and
//! report every error with file, line, column and key path. Several readers may share a mapping:
//! each claims its keys, and keys that no reader claimed are refused at the end.

mod document;
mod expand;
mod fields;
mod hosts;
mod jsonc;
mod report;
mod requests;
mod setting;
mod tree;
mod units;

pub use document::{Document, check_version};
pub use expand::Env;
pub use fields::Fields;
pub use hosts::Passthrough;
pub use report::{ConfigError, ConfigErrors, FileReport, Place, Report};
pub use requests::{METHODS, PathPattern, parse_method};
pub use setting::{Setting, at_least_one};
pub use tree::{Key, Scalar, Variable};
pub use units::duration;

/// The files that addons read their settings from.
pub struct Files<'a> {
    /// `proxy.yaml`
    pub proxy: Document<'a>,
    /// `allowlist.yaml`
    pub allowlist: Document<'a>,
    /// `policy.yaml`
    pub policy: Document<'a>,
    /// `credentials.yaml`
    pub credentials: Document<'a>,
    /// `mcp.yaml`
    pub mcp: Document<'a>,
}

impl<'a> Files<'a> {
    /// The names of the files.
    pub const NAMES: [&'static str; 5] = [
        "proxy.yaml",
        "allowlist.yaml",
        "policy.yaml",
        "credentials.yaml",
        "mcp.yaml",
    ];

    /// Opens each file by its name.
    pub fn open(open: impl FnMut(&'static str) -> Document<'a>) -> Self {
        let [proxy, allowlist, policy, credentials, mcp] = Self::NAMES.map(open);
        Self {
            proxy,
            allowlist,
            policy,
            credentials,
            mcp,
        }
    }

    /// The documents in the order of [`Files::NAMES`].
    pub fn all(&self) -> [&Document<'a>; 5] {
        [
            &self.proxy,
            &self.allowlist,
            &self.policy,
            &self.credentials,
            &self.mcp,
        ]
    }

    /// Reports the keys that no reader claimed. Call it after all readers.
    pub fn refuse_unknown_keys(&self) {
        for document in self.all() {
            document.refuse_unknown_keys();
        }
    }
}
