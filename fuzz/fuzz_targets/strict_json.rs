//! Strict JSON: an accepted text has the same value for a lenient parser.
#![no_main]

use addons::strict_json;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(value) = strict_json::parse(bytes) {
        let lenient: serde_json::Value = serde_json::from_slice(bytes).unwrap();
        assert_eq!(value, lenient);
    }
});
