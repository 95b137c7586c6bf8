//! Hosts that people approved for every container.

use time::OffsetDateTime;

use super::approval::ApprovalId;
use super::entry::HostMap;
use super::host::Host;
use super::level::Level;

/// A host and port that a person approved for every container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedHost {
    /// The host.
    pub host: Host,
    /// The port.
    pub port: u16,
    /// The security level that was shown, up to which containers may reach the host.
    pub max_level: Level,
    /// Who approved it.
    pub author: Box<str>,
    /// When it was approved.
    pub time: OffsetDateTime,
    /// The approved question. Also the id of the entry: no other entry has it.
    pub question: ApprovalId,
}

/// The hosts that people approved for every container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Learned(HostMap<Vec<LearnedHost>>);

impl FromIterator<LearnedHost> for Learned {
    fn from_iter<I: IntoIterator<Item = LearnedHost>>(hosts: I) -> Self {
        let mut by_host: HostMap<Vec<LearnedHost>> = HostMap::default();
        for one in hosts {
            by_host.entry(one.host.clone()).or_default().push(one);
        }
        Self(by_host)
    }
}

impl Learned {
    /// The entries of a host, one for each port.
    pub fn of(&self, host: &Host) -> &[LearnedHost] {
        self.0.get(host).map(Vec::as_slice).unwrap_or_default()
    }

    /// Every entry, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &LearnedHost> {
        self.0.values().flatten()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
