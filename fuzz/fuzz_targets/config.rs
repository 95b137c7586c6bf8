//! Configuration files: each text is loaded, or refused with errors that each name a file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use unified_proxy::config::{Profile, load_with};

const FILES: [&str; 5] = [
    "proxy.yaml",
    "allowlist.yaml",
    "policy.yaml",
    "credentials.yaml",
    "mcp.yaml",
];

fuzz_target!(|input: (u8, &[u8])| {
    let (file, text) = input;
    let Some(name) = FILES.get(usize::from(file) % FILES.len()) else {
        return;
    };
    let Ok(dir) = tempfile::tempdir() else {
        return;
    };
    if std::fs::write(dir.path().join(name), text).is_err() {
        return;
    }
    let env = |name: &str| (name == "SET").then(|| "value".to_owned());
    if let Err(errors) = load_with(dir.path(), Profile::Serve, &env) {
        assert!(!errors.0.is_empty());
        for error in &errors.0 {
            assert!(error.to_string().contains(".yaml"), "{error}");
        }
    }
});
