//! GitHub App installations: a token for each lease, limited to the lease's repositories.

mod installation;
mod jwt;
mod settings;
mod tokens;

pub use installation::Installation;
pub use settings::AppSettings;

pub(super) use tokens::AppTokens;
