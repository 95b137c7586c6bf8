//! Reads `policies`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::command::evaluator;
use super::methods::methods;
use super::{Bundle, OnUnavailable, PoliciesSettings, PolicyServer, policy_servers, short_name};
use crate::contract::settings::{Fields, Setting};

/// Limit on the bundles of one file. It is low, since each call may have to wait for every bundle.
const MAX_BUNDLES: usize = 32;

pub(super) fn read(fields: &Fields<'_>) -> PoliciesSettings {
    let mut ids = BTreeSet::new();
    let bundles = fields.list("bundles", |at| {
        let bundle = bundle(&at)?;
        if !ids.insert(Arc::clone(&bundle.id)) {
            at.refuse(format!(
                "another bundle has the id {}, too: choose another id",
                bundle.id
            ));
        }
        Some(bundle)
    });
    if bundles.len() > MAX_BUNDLES {
        fields.refuse("bundles", format!("has more than {MAX_BUNDLES} bundles"));
    }
    let on_unavailable = fields.or("on_unavailable", OnUnavailable::Deny, |at| {
        let choice = at.one_of(&[
            ("deny", OnUnavailable::Deny),
            ("allow", OnUnavailable::Allow),
        ])?;
        if choice == OnUnavailable::Allow {
            let message =
                "on_unavailable: allow lets a message pass while its policies cannot be loaded";
            at.report().warn_at(at.place(), message);
        }
        Some(choice)
    });
    let (timeout, command) = evaluator(&fields.section("evaluator"), !bundles.is_empty());
    let servers = policy_servers::read(fields);
    let editable = fields.optional("editable", |at| editable(&at, &bundles));
    if let (None, true, Some(at)) = (
        &editable,
        servers.contains(&PolicyServer::Proposer),
        fields.find("servers"),
    ) {
        let message = "policy_proposer refuses every proposal: set policies.editable to the bundle \
                       that a proposal replaces";
        at.report().warn_at(at.place(), message);
    }
    PoliciesSettings {
        bundles,
        command,
        timeout,
        on_unavailable,
        servers,
        editable,
    }
}

/// Reads the id of the bundle that people may replace.
fn editable(at: &Setting<'_>, bundles: &[Bundle]) -> Option<Arc<str>> {
    let id = at.text()?;
    let found = bundles.iter().find(|bundle| &*bundle.id == id);
    if found.is_none() {
        at.refuse("must be the id of a bundle under policies.bundles");
    }
    found.map(|bundle| Arc::clone(&bundle.id))
}

fn bundle(at: &Setting<'_>) -> Option<Bundle> {
    let fields = at.fields()?;
    let (id, path, entrypoint) = (
        fields.need("id"),
        fields.need("path"),
        fields.need("entrypoint"),
    );
    let methods = methods(&fields);
    Some(Bundle {
        id: id?.parse(short_name)?,
        path: PathBuf::from(path?.text()?),
        entrypoint: entrypoint?.parse(entrypoint_path)?,
        methods,
        key: at.path().into(),
        place: at.place(),
    })
}

/// Reads the path of a package or rule: `mcp/authz` for `data.mcp.authz`.
fn entrypoint_path(text: &str) -> Result<Arc<str>, &'static str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_name = |part: &str| {
        let starts = part.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
        starts && part.bytes().all(fits)
    };
    if text.len() <= 256 && text.split('/').all(is_name) {
        return Ok(text.into());
    }
    Err("must be the path of a package or rule, such as mcp/authz")
}
