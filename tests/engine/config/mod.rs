//! Loading of configuration files: values, warnings and errors.

mod allowlist;
mod credentials;
mod directory;
mod errors;
mod hostile;
mod samples;
mod values;

use std::fs;

use unified_proxy::config::{Config, Profile, load_with};

pub fn env(name: &str) -> Option<String> {
    let value = match name {
        "SET" => "value",
        "EMPTY" => "",
        "PORT" => "8443",
        "YAML" => "x\"\n- \"*.evil.example\"\n- {a: 'b'} # &anchor *alias",
        "LINE_BREAK" => "s3cr3t\n",
        "SECRET" => "s3cr3t",
        _ => return None,
    };
    Some(value.to_owned())
}

pub fn load_files(files: &[(&str, &[u8])]) -> Result<Config, String> {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        fs::write(dir.path().join(name), content).unwrap();
    }
    load_with(dir.path(), Profile::Serve, &env).map_err(|errors| errors.to_string())
}

pub fn load_one(name: &str, content: &str) -> Result<Config, String> {
    load_files(&[(name, content.as_bytes())])
}
