//! GitHub App installations: a token for each lease, for its repositories alone.

mod installation;
mod jwt;
mod settings;
mod tokens;

pub use installation::Installation;
pub use settings::AppSettings;

pub(super) use tokens::{AppSource, AppTokens};
