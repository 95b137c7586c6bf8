//! Exit codes: the command's, and those of runs that do not start.

use std::fs;

use testkit::each_row;

use crate::fixture::Person;
use crate::support::Ran;

#[test]
fn the_exit_code_is_the_commands_or_128_plus_its_signal() {
    let Some(person) = Person::new() else { return };
    each_row(
        [
            ("exit 0", 0),
            ("exit 7", 7),
            ("exit 64", 64),
            ("exit 255", 255),
            ("kill -TERM $$", 143),
            ("kill -KILL $$", 137),
            ("kill -SEGV $$", 139),
            ("no-such-program", 127),
        ],
        |(script, code)| {
            let ran = person.sh(&[], script);
            assert_eq!(ran.code, Some(code), "{ran:?}");
        },
    );
}

#[test]
fn run_exits_with_64_on_wrong_usage_and_names_the_cause() {
    let Some(person) = Person::new() else { return };
    let home = person.home();
    let own = person.write("project/own", "#!/bin/sh\n");
    let socket = person.base().join("none.sock");
    let (home, own, socket) = (
        home.to_str().unwrap(),
        own.to_str().unwrap(),
        socket.to_str().unwrap(),
    );
    each_row(
        [
            (vec![], vec!["no-such-program"], "--read DIRECTORY"),
            (vec![], vec![own], "cannot be started"),
            (vec![], vec![], "required"),
            (vec!["--no-such-flag"], vec!["true"], "--no-such-flag"),
            (vec!["--mode", "admin"], vec!["true"], "user"),
            (vec!["--allow", "*.com"], vec!["true"], "public suffix"),
            (vec!["--allow", "a b"], vec!["true"], "a b"),
            (vec!["--repo", "nothing"], vec!["true"], "nothing"),
            (
                vec!["--read", "/no/such/place"],
                vec!["true"],
                "/no/such/place",
            ),
            (vec!["--write", "/proc/self"], vec!["true"], "its own /proc"),
            (vec!["--write", "/"], vec!["true"], "home directory"),
            (vec!["--write", home], vec!["true"], "home directory"),
            (
                vec!["--learn", "/no/such/file"],
                vec!["true"],
                "/no/such/file",
            ),
            (
                vec!["--server", socket, "--allow", "a.example.com"],
                vec!["true"],
                "--server",
            ),
            (
                vec!["--server", socket, "--with-logins"],
                vec!["true"],
                "--server",
            ),
            (
                vec!["--server", socket, "--config", "/etc"],
                vec!["true"],
                "--server",
            ),
        ],
        |(flags, command, part)| {
            let ran = Ran::of(&mut person.bare(&flags, &command));
            assert_eq!(ran.code, Some(64), "{ran:?}");
            assert!(ran.stderr.contains(part), "{ran:?}");
        },
    );
}

#[test]
fn a_working_directory_that_holds_the_home_directory_is_refused() {
    let Some(person) = Person::new() else { return };
    each_row(
        [person.home(), person.base().to_owned(), "/".into()],
        |directory| {
            let ran = Ran::of(person.bare(&[], &["true"]).current_dir(&directory));
            assert_eq!(ran.code, Some(64), "{ran:?}");
            assert!(ran.stderr.contains("holds the home directory"), "{ran:?}");
        },
    );
}

#[test]
fn without_user_namespaces_the_exit_code_is_69_and_the_setting_is_named() {
    let Some(person) = Person::new() else { return };
    let binary = person.binary();
    let script = format!(
        "echo 0 > /proc/sys/user/max_user_namespaces && exec {} run -- true",
        binary.display()
    );
    let nested = [
        "--user",
        "--map-current-user",
        "--keep-caps",
        "sh",
        "-c",
        &script,
    ];
    let ran = Ran::of(person.outside("unshare").args(nested));
    assert_eq!(ran.code, Some(69), "{ran:?}");
    assert!(
        ran.stderr.contains("user.max_user_namespaces is 0"),
        "{ran:?}"
    );
}

#[test]
fn run_in_a_sandbox_says_that_it_is_one_and_what_to_do() {
    let Some(person) = Person::new() else { return };
    each_row(
        [
            "unified-proxy run -- true",
            "mkdir new; cd new; unified-proxy run -- true",
            "env -i PATH=$PATH unified-proxy run -- true",
            "unified-proxy run --server /no/such.sock -- true",
        ],
        |script| {
            let ran = person.sh(&["--quiet"], script);
            assert_eq!(ran.code, Some(69), "{ran:?}");
            for part in [
                "sandbox of unified-proxy already",
                "without `unified-proxy run`",
            ] {
                assert!(ran.stderr.contains(part), "{ran:?}");
            }
        },
    );
}

#[test]
fn run_exits_with_69_if_the_server_is_unreachable() {
    let Some(person) = Person::new() else { return };
    let ran = Ran::of(&mut person.bare(&["--server", "/no/such.sock"], &["true"]));
    assert_eq!(ran.code, Some(69), "{ran:?}");
    assert!(ran.stderr.contains("/no/such.sock"), "{ran:?}");
}

#[test]
fn run_exits_with_78_if_the_configuration_is_unusable() {
    let Some(person) = Person::new() else { return };
    let unknown = person.directory("unknown");
    fs::write(unknown.join("allowlist.yaml"), "version: 1\ndomain: []\n").unwrap();
    let inside = person.directory("project/config");
    fs::write(inside.join("allowlist.yaml"), "version: 1\ndomains: []\n").unwrap();
    each_row(
        [
            ("/no/such/directory".into(), "/no/such/directory"),
            (unknown, "allowlist.yaml:2:1"),
            (inside, "could change its own configuration"),
        ],
        |(config, part)| {
            let flags = ["--config", config.to_str().unwrap()];
            let ran = Ran::of(&mut person.bare(&flags, &["touch", "started"]));
            assert_eq!(ran.code, Some(78), "{ran:?}");
            assert!(ran.stderr.contains(part), "{ran:?}");
            assert!(!person.work().join("started").exists());
        },
    );
    // The working directory has only `config`, and no placeholder.
    let left: Vec<_> = fs::read_dir(person.work()).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn errors_of_the_default_configuration_name_its_directory_and_the_remedy() {
    let Some(person) = Person::new() else { return };
    let file = person.write(
        ".config/unified-proxy/allowlist.yaml",
        "version: 1\ndomain: []\n",
    );
    let ran = Ran::of(&mut person.bare(&[], &["true"]));
    assert_eq!(ran.code, Some(78), "{ran:?}");
    let directory = file.parent().unwrap().display().to_string();
    for part in ["allowlist.yaml:2:1", &directory, "--config DIR"] {
        assert!(ran.stderr.contains(part), "{part}: {ran:?}");
    }
}
