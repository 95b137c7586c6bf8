//! Stores the digests of tools' definitions (pins) in a file of the data directory.
//!
//! The first digest of a tool is accepted. With `on_definition_change: deny`, a different digest
//! blocks the tool until an operator accepts that digest or the server reverts the change. The
//! digests must outlive the process: without them, the first definition after a restart would be
//! accepted, even if it had changed.
//!
//! Short accepted definitions are stored too, so that a person sees what has changed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addons::contract::{
    AcceptedDefinitions, BoxFuture, Definitions, ListedDefinition, Pin, Unavailable,
};
use addons::mcp::{McpMetrics, accept_command};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::warnings::{Subject, warn};

/// The file's name in the data directory.
pub const FILE_NAME: &str = "mcp-definitions.json";
/// The most tools of one server that are stored. A further tool counts as changed.
const MAX_TOOLS_PER_SERVER: usize = 10_000;
/// The most bytes of definitions that are stored for one server. Without a definition, a person sees
/// only the new one.
const MAX_TEXT_PER_SERVER: usize = 256 << 10;
/// The largest file that is read, in bytes: enough for about 80 servers that each have
/// [`MAX_TOOLS_PER_SERVER`] changed tools with names of 128 bytes, and [`MAX_TEXT_PER_SERVER`]. A
/// larger file counts as unreadable.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// The accepted and changed digests of one server's tools, by name.
type Tools = BTreeMap<String, Pinned>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Pinned {
    /// SHA-256 in hexadecimal.
    accepted: String,
    /// The digest that waits to be accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    changed: Option<String>,
    /// The accepted definition; `None` until the server lists it again after it was accepted, and if
    /// there is no room for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    definition: Option<Box<str>>,
}

/// The room for the definitions of one server's tools, in bytes.
struct Room(usize);

impl Room {
    fn of(tools: &Tools) -> Self {
        let kept = tools
            .values()
            .filter_map(|pinned| pinned.definition.as_deref());
        let kept = kept.map(str::len).sum();
        Self(MAX_TEXT_PER_SERVER.saturating_sub(kept))
    }

    /// The definition, if there is room.
    fn take(&mut self, text: &str) -> Option<Box<str>> {
        self.0 = self.0.checked_sub(text.len())?;
        Some(text.into())
    }
}

/// Why a definition could not be accepted.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AcceptError {
    /// No digest of the tool is stored.
    #[error("server {server} never listed a tool {tool}")]
    Unknown { server: String, tool: String },
    /// The definition has not changed since it was accepted.
    #[error(
        "the definition of tool {tool} of server {server} has not changed since it was accepted"
    )]
    Unchanged { server: String, tool: String },
    /// The definition has changed since the operator saw its digest.
    #[error(
        "the definition of tool {tool} of server {server} has changed again, its digest is now {digest}"
    )]
    Superseded {
        server: String,
        tool: String,
        digest: String,
    },
    /// The file cannot be read or written.
    #[error("{0}")]
    Unwritten(String),
}

/// The digests of one tool's definition: SHA-256 in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digests {
    /// Of the accepted definition.
    pub accepted: String,
    /// Of the changed definition that waits to be accepted.
    pub changed: Option<String>,
}

/// The digests, in memory and on disk.
pub struct DefinitionFile {
    path: PathBuf,
    /// `None` if the file could not be read: then no tools can be listed, except those of coding
    /// sidecars, which are built in. Locked while the file is written, on a blocking thread.
    servers: Mutex<Option<BTreeMap<String, Tools>>>,
}

impl DefinitionFile {
    /// Reads the file of a data directory; blocks. An unreadable file is never overwritten.
    pub fn open(data_dir: &Path) -> Arc<Self> {
        let path = data_dir.join(FILE_NAME);
        let servers = read(&path)
            .inspect_err(|error| {
                let path = path.display();
                tracing::error!(%path, %error, "cannot read the accepted definitions of tools: every tool is blocked; restore the file and restart, or remove it and restart to accept the definitions that servers list then");
            })
            .ok();
        Arc::new(Self {
            path,
            servers: Mutex::new(servers),
        })
    }

    /// The digests of a tool. Blocks while the file is written.
    pub fn digests(&self, server: &str, tool: &str) -> Result<Digests, AcceptError> {
        let servers = self.servers.lock();
        let servers = servers.as_ref().ok_or_else(|| self.unreadable())?;
        let pinned = servers.get(server).and_then(|tools| tools.get(tool));
        let pinned = pinned.ok_or_else(|| AcceptError::Unknown {
            server: server.to_owned(),
            tool: tool.to_owned(),
        })?;
        Ok(Digests {
            accepted: pinned.accepted.clone(),
            changed: pinned.changed.clone(),
        })
    }

    /// Accepts the changed definition of a tool, and returns its digest. Fails if `seen` is given
    /// and differs from this digest. Blocks until the acceptance is on disk.
    pub fn accept(
        &self,
        server: &str,
        tool: &str,
        seen: Option<&str>,
    ) -> Result<String, AcceptError> {
        let mut servers = self.servers.lock();
        let mut changed = servers.clone().ok_or_else(|| self.unreadable())?;
        let (server, tool) = (server.to_owned(), tool.to_owned());
        let tools = changed.get_mut(&server);
        let Some(pinned) = tools.and_then(|tools| tools.get_mut(&tool)) else {
            return Err(AcceptError::Unknown { server, tool });
        };
        let Some(digest) = pinned.changed.take() else {
            return Err(AcceptError::Unchanged { server, tool });
        };
        if seen.is_some_and(|seen| seen != digest) {
            return Err(AcceptError::Superseded {
                server,
                tool,
                digest,
            });
        }
        pinned.accepted.clone_from(&digest);
        pinned.definition = None;
        self.write(&changed)
            .map_err(|error| AcceptError::Unwritten(error.to_string()))?;
        *servers = Some(changed);
        Ok(digest)
    }

    /// The accepted definition of a tool, if it is stored. Blocks while the file is written.
    fn accepted_text(&self, server: &str, tool: &str) -> Option<Box<str>> {
        let servers = self.servers.lock();
        servers.as_ref()?.get(server)?.get(tool)?.definition.clone()
    }

    fn unreadable(&self) -> AcceptError {
        AcceptError::Unwritten(format!("{} cannot be read", self.path.display()))
    }

    /// Compares the digests of tools with the stored ones, and stores new and changed digests, and
    /// accepted definitions.
    /// Blocks. Also returns the number of changed digests that were not stored yet. Fails if
    /// [`DefinitionFile::open`] could not read the file, or if the file cannot be written.
    fn compare(
        &self,
        server: &str,
        tools: &[ListedDefinition],
    ) -> Result<(Vec<Pin>, usize), Unavailable> {
        let mut servers = self.servers.lock();
        let all = servers.as_mut().ok_or(Unavailable)?;
        let present = all.get(server).cloned().unwrap_or_default();
        let mut updated = present.clone();
        let mut room = Room::of(&present);
        let mut changes = 0;
        let pins = tools.iter().map(|listed| {
            let ListedDefinition { tool, digest, text } = listed;
            let digest = hex(digest);
            let is_full = updated.len() >= MAX_TOOLS_PER_SERVER;
            match updated.get_mut(&**tool) {
                Some(pinned) if pinned.accepted == digest => {
                    // The server reverted the change.
                    pinned.changed = None;
                    if pinned.definition.is_none() {
                        pinned.definition = room.take(text);
                    }
                    Pin::Accepted
                }
                Some(pinned) => {
                    if pinned.changed.as_ref() != Some(&digest) {
                        warn(server, Subject::Definition, |left_out| {
                            let command = accept_command(server, tool);
                            tracing::warn!(server, left_out, %tool, digest, "the definition of an MCP tool changed; an operator accepts it with: {command}");
                        });
                        changes += 1;
                    }
                    pinned.changed = Some(digest);
                    Pin::Changed
                }
                None if is_full => Pin::Changed,
                None => {
                    let pinned = Pinned {
                        accepted: digest,
                        changed: None,
                        definition: room.take(text),
                    };
                    updated.insert(tool.to_string(), pinned);
                    Pin::Accepted
                }
            }
        });
        let pins = pins.collect();
        if updated != present {
            all.insert(server.to_owned(), updated);
            if let Err(error) = self.write(all) {
                let path = self.path.display();
                warn(server, Subject::List, |left_out| {
                    tracing::error!(%path, %error, server, left_out, "cannot write the accepted definitions of tools: the tools of the server cannot be listed");
                });
                all.insert(server.to_owned(), present);
                return Err(Unavailable);
            }
        }
        Ok((pins, changes))
    }

    /// Replaces the file atomically: the new one is on disk before it is renamed.
    fn write(&self, servers: &BTreeMap<String, Tools>) -> io::Result<()> {
        let directory = self.path.parent().unwrap_or(Path::new("."));
        let mut file = BufWriter::new(tempfile::NamedTempFile::new_in(directory)?);
        serde_json::to_writer(&mut file, servers)?;
        let file = file.into_inner()?;
        file.as_file().sync_all()?;
        file.persist(&self.path).map_err(|error| error.error)?;
        fs::File::open(directory)?.sync_all()
    }
}

fn read(path: &Path) -> io::Result<BTreeMap<String, Tools>> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
        Ok(data) if data.len() > MAX_FILE_BYTES => {
            return Err(io::Error::other("it is larger than 256 MiB"));
        }
        Ok(_) => {}
    }
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads accepted definitions, on blocking threads.
pub struct StoredDefinitions(pub Arc<DefinitionFile>);

impl AcceptedDefinitions for StoredDefinitions {
    fn accepted<'a>(
        &'a self,
        server: &'a str,
        tool: &'a str,
    ) -> BoxFuture<'a, Result<Option<Box<str>>, Unavailable>> {
        let (file, server, tool) = (Arc::clone(&self.0), server.to_owned(), tool.to_owned());
        Box::pin(async move {
            let read = tokio::task::spawn_blocking(move || file.accepted_text(&server, &tool));
            read.await.map_err(|_| Unavailable)
        })
    }
}

/// Implements [`Definitions`] with a [`DefinitionFile`], on blocking threads.
pub struct PinnedDefinitions {
    pub file: Arc<DefinitionFile>,
    /// Counts changed definitions.
    pub metrics: McpMetrics,
}

impl Definitions for PinnedDefinitions {
    fn pin<'a>(
        &'a self,
        server: &'a str,
        tools: Vec<ListedDefinition>,
    ) -> BoxFuture<'a, Result<Vec<Pin>, Unavailable>> {
        let (file, named) = (Arc::clone(&self.file), server.to_owned());
        Box::pin(async move {
            let compared = tokio::task::spawn_blocking(move || file.compare(&named, &tools));
            let (pins, changes) = compared.await.unwrap_or(Err(Unavailable))?;
            for _ in 0..changes {
                self.metrics.definition_changed(server);
            }
            Ok(pins)
        })
    }
}

#[cfg(test)]
mod tests;
