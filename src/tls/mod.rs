//! TLS on both sides: the interception CA towards clients, certificate verification towards
//! upstreams.

mod authority;
mod ca_disk;
mod ca_error;
mod ca_files;
mod provider;
mod signatures;
mod trusted;
mod upstream;
mod variables;

pub use authority::Authority;
pub use ca_error::{CaError, rfc3339};
pub use ca_files::{CaFiles, ROTATION_GRACE};
pub use provider::provider;
pub use trusted::TRUST_STORE_PASSWORD;
pub use upstream::UpstreamTls;
pub(crate) use variables::{GATEWAY_VARIABLE, variables};
