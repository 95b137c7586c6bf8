//! Strict JSON: an accepted text is the same value to the reader of received texts.
#![no_main]

use addons::json::{Node, strict};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(value) = strict::parse(bytes) {
        let text = std::str::from_utf8(bytes).unwrap();
        let tree = Node::parse(text).unwrap().to_json();
        assert_eq!(serde_json::from_str::<Value>(&tree).unwrap(), value);
    }
});
