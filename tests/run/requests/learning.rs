//! `--learn`, which writes an allowlist of the requested hosts.

use std::fs;
use std::os::unix::fs::symlink;

use crate::fixture::Person;
use crate::support::{Ran, Setup};

const ASK: &str = "curl -sf https://api.example.com/zen; curl -s https://packages.example.org/;\
    curl -s https://git.example.org:8443/; true";

#[test]
fn the_learned_allowlist_has_the_requested_hosts_and_is_valid() {
    let Some(person) = Person::new() else { return };
    let file = person.home().join("learned.yaml");
    let ran = person.sh(&["--learn", file.to_str().unwrap()], ASK);
    // `--learn` allows no host.
    assert!(
        ran.stderr.contains("--allow packages.example.org"),
        "{ran:?}"
    );
    let text = fs::read_to_string(&file).unwrap();
    for part in [
        "api.example.com\"\n",
        "packages.example.org\"  # was denied",
        "ports: [8443]",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let other = Setup::new(&person.origin);
    other.write();
    fs::copy(&file, other.dir().join("config/allowlist.yaml")).unwrap();
    let (code, said) = other.run("check");
    assert_eq!(code, 0, "{said}");
}

#[test]
fn a_link_that_the_command_puts_at_the_learned_file_is_replaced() {
    let Some(person) = Person::new() else { return };
    let victim = person.write("victim", "untouched\n");
    let file = person.work().join("learned.yaml");
    let flags = ["--learn", file.to_str().unwrap()];
    let script = format!(
        "{ASK}; rm -f learned.yaml; ln -s {} learned.yaml; sleep 0.1",
        victim.display()
    );
    let ran = person.sh(&flags, &script);
    assert_eq!(
        fs::read_to_string(&victim).unwrap(),
        "untouched\n",
        "{ran:?}"
    );

    // A link that an earlier command left there is replaced as well.
    fs::remove_file(&file).unwrap();
    symlink(&victim, &file).unwrap();
    person.sh(&flags, ASK).ok();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched\n");
    assert!(fs::read_to_string(&file).unwrap().contains("packages"));
}

#[test]
fn learned_names_that_look_like_yaml_are_quoted() {
    let Some(person) = Person::new() else { return };
    let file = person.home().join("learned.yaml");
    let script = "curl -s -x http://127.0.0.1:3128 'http://null/' 'http://true/' 'http://1e3.example.org/' \
        'http://x.example.org%0a%20%20-%20evil.example.org/'; true";
    let ran =
        Ran::of(&mut person.command(&["--learn", file.to_str().unwrap()], &["sh", "-c", script]));
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.starts_with("domains:"))
        .skip(1)
        .collect();
    assert!(!lines.is_empty(), "{ran:?}");
    for line in lines {
        assert!(
            line.starts_with("  - \"") || line.starts_with("  - { domain: \""),
            "{line}"
        );
        assert!(!line.contains("evil"), "{line}");
    }
}
