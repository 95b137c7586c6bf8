//! Hosts in settings.

use super::{Fields, Files, Setting};
use crate::contract::{EntryMap, Host, HostPattern, Origin};

impl<'a> Setting<'a> {
    /// Reads a mapping from host patterns to values. Reports malformed and duplicate patterns.
    pub fn by_host<T>(&self, read: impl Fn(&Fields<'a>) -> T) -> Option<EntryMap<T>> {
        let mut map = EntryMap::default();
        for (key, value) in self.entries()? {
            let read = value.fields().map(|fields| read(&fields));
            match HostPattern::parse(&key.name) {
                Ok(pattern) => {
                    if let Some(read) = read
                        && map.insert(pattern, read).is_some()
                    {
                        value.refuse_key(key, "duplicate host");
                    }
                }
                Err(error) => value.refuse_key(key, error.to_string()),
            }
        }
        Some(map)
    }
}

/// `tls.passthrough` in `proxy.yaml`: hosts whose TLS the proxy tunnels without decryption. Addons
/// judge the tunnel, but do not see the requests in it.
pub struct Passthrough<'a>(Vec<(HostPattern, Setting<'a>)>);

impl<'a> Passthrough<'a> {
    /// Reads the list.
    pub fn read(files: &'a Files<'_>) -> Self {
        let mut seen = EntryMap::default();
        let tls = files.proxy.fields().section("tls");
        Self(tls.list("passthrough", |at| {
            let pattern = at.parse(HostPattern::parse)?;
            if let Some(line) = seen.insert(pattern.clone(), at.place().line) {
                at.refuse(format!("{pattern} is listed already, in line {line}"));
            }
            Some((pattern, at))
        }))
    }

    /// The host patterns, and the file and line of each.
    pub fn hosts(&self) -> EntryMap<Origin> {
        let hosts = self.0.iter();
        hosts
            .map(|(pattern, at)| (pattern.clone(), at.origin()))
            .collect()
    }

    /// Reports an error for each pattern that matches `host`; `reason` says why requests to the
    /// host must be decrypted.
    pub fn refuse_host(&self, host: &Host, reason: &str) {
        let host = HostPattern::Exactly(host.clone());
        self.refuse_if(|pattern| {
            let matches = pattern.overlaps(&host);
            matches.then(|| {
                format!(
                    "{host} {reason}, so its requests must be decrypted: remove this pattern from \
                     tls.passthrough"
                )
            })
        });
    }

    /// Reports an error for each pattern for which `reason` returns a message.
    pub fn refuse_if(&self, reason: impl Fn(&HostPattern) -> Option<String>) {
        for (pattern, at) in &self.0 {
            if let Some(reason) = reason(pattern) {
                at.refuse(reason);
            }
        }
    }
}
