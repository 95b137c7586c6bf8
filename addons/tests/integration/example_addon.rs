//! The addon of docs/writing-an-addon.md: what the document shows compiles, and does what it says.

#[path = "example/freeze.rs"]
mod example;

use std::sync::Arc;

use addons::contract::{Code, Kind};
use example::{Freeze, Freezes};
use http::Method;

use crate::fixtures::{code, container, flow_of, request};

struct Frozen(&'static str);

impl Freezes for Frozen {
    fn is_frozen(&self, upstream: &str) -> bool {
        upstream == self.0
    }
}

fn ask(frozen: &'static str, method: Method) -> Option<Code> {
    use addons::contract::Addon;
    let addon = Freeze(Arc::new(Frozen(frozen)));
    let mut flow = flow_of(&container("web"), Kind::Http, "api.example.com");
    let mut request = request("/", &[]);
    request.method = method;
    code(addon.request(&mut flow, &mut request))
}

#[test]
fn a_write_to_a_frozen_upstream_is_denied() {
    assert_eq!(
        ask("api.example.com", Method::POST),
        Some(Code::WriteNotAllowed)
    );
    assert_eq!(ask("api.example.com", Method::GET), None);
    assert_eq!(ask("other.example.com", Method::POST), None);
}

#[test]
fn the_document_shows_the_addon_that_is_tested() {
    let document = include_str!("../../../docs/writing-an-addon.md");
    let code = include_str!("example/freeze.rs");
    assert!(document.contains(&format!("```rust\n{code}```")));
    assert!(code.lines().count() < 40);
}
