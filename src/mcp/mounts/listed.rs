//! An entry of `tools/list`.

use std::sync::Arc;

use addons::contract::{Annotations, Definition, Pin};
use aws_lc_rs::digest::{SHA256, digest};
use serde::Deserialize;
use serde_json::value::RawValue;

pub(super) struct ListedTool {
    name: Arc<str>,
    raw: Box<RawValue>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

impl ListedTool {
    pub fn read(raw: Box<RawValue>) -> Result<Self, serde_json::Error> {
        let Named { name } = serde_json::from_str(raw.get())?;
        Ok(Self {
            name: name.into(),
            raw,
        })
    }

    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub fn digest(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, self.raw.get().as_bytes()).as_ref());
        bytes
    }

    pub fn pinned(self, pin: Pin) -> Definition {
        Definition {
            name: self.name,
            raw: self.raw,
            annotations: Annotations::default(),
            pin,
        }
    }
}
