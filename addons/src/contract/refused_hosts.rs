//! The hosts that were refused to the parts of the appliance that work for a container.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::host::Host;

/// Limit on the hosts that are kept for one part. A process can ask for any number.
const MAX_HOSTS: usize = 16;

/// The hosts that were refused to each part of the appliance that works for a container, by the name
/// of the part. Belongs to the lease.
#[derive(Debug, Default)]
pub struct RefusedHosts(Mutex<BTreeMap<String, Vec<Refused>>>);

/// A host, and the port if the refused flow had one.
type Refused = (Host, Option<u16>);

impl RefusedHosts {
    /// Adds a host, unless enough are known.
    pub fn add(&self, part: &str, host: &Host, port: Option<u16>) {
        let mut all = self.0.lock();
        let known = all.entry(part.to_owned()).or_default();
        let refused = (host.clone(), port);
        if known.len() < MAX_HOSTS && !known.contains(&refused) {
            known.push(refused);
        }
    }

    /// The first hosts that were refused to a part.
    pub fn of(&self, part: &str) -> Vec<Refused> {
        self.0.lock().get(part).cloned().unwrap_or_default()
    }
}
