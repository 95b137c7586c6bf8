//! File descriptors: one for each connection of a client, one for each of an upstream.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that a connection of a client takes at most, its upstream's included.
const PER_CONNECTION: u64 = 2;

/// Raises the soft limit to the hard one: the soft one is as low as it is for the sake of
/// programs that count descriptors in a fixed table. Says so where even that is too few.
pub fn raise_limit(max_connections: usize) {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
    let needed = max_connections as u64 * PER_CONNECTION;
    if let Some(open) = getrlimit(Resource::Nofile)
        .current
        .filter(|open| *open < needed)
    {
        tracing::warn!(
            "only {open} files may be open, and limits.max_connections of {max_connections} would need {needed}: raise the hard limit (ulimit -Hn), or lower max_connections"
        );
    }
}
