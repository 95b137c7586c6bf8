//! The token, on both transports.

use testkit::each_row;

use crate::support::{Client, Sidecar};

const TCP: [(&str, &str); 2] = [("TCP_HOST", "127.0.0.1"), ("TCP_PORT", "0")];
const PATHS: [&str; 7] = ["/bash", "/read", "/write", "/edit", "/ls", "/find", "/grep"];

/// The status of an invalid request to `path`: 400 if the token was accepted.
fn status(client: &mut Client, path: &str, authorization: Option<&str>) -> u16 {
    let header =
        authorization.map_or_else(String::new, |value| format!("authorization: {value}\r\n"));
    client.request(path, &header, r#"{"no":1}"#);
    let response = client.response();
    assert_eq!(response.json()["ok"], false);
    if response.status == 401 {
        assert_eq!(response.header("www-authenticate"), Some("Bearer"));
    }
    response.status
}

#[test]
fn the_token_check_is_the_same_for_all_operations_on_both_transports() {
    // Required, header, status.
    let rows = [
        ("true", None, 401),
        ("true", Some("Bearer s3cret"), 400),
        ("true", Some("bearer s3cret"), 400),
        ("true", Some("Bearer wrong"), 401),
        ("true", Some("Bearer s3cre"), 401),
        ("true", Some("Basic czNjcmV0"), 401),
        ("true", Some("Bearer"), 401),
        ("false", None, 400),
        ("false", Some("Bearer s3cret"), 400),
        ("false", Some("Bearer wrong"), 401),
        ("false", Some(""), 401),
    ];
    for required in ["true", "false"] {
        let token = ("SIDECAR_AUTH_TOKEN", "s3cret");
        let sidecar = Sidecar::with(&[TCP[0], TCP[1], token, ("SIDECAR_REQUIRE_AUTH", required)]);
        let rows = rows.into_iter().filter(|row| row.0 == required);
        each_row(rows, |(_, header, expected)| {
            for path in PATHS {
                assert_eq!(
                    status(&mut sidecar.connect(), path, header),
                    expected,
                    "{path}"
                );
                assert_eq!(
                    status(&mut sidecar.connect_tcp(), path, header),
                    expected,
                    "{path}"
                );
            }
        });
    }
}

#[test]
fn health_needs_no_token_and_other_paths_reveal_nothing_without_it() {
    let token = ("SIDECAR_AUTH_TOKEN", "s3cret");
    let sidecar = Sidecar::with(&[TCP[0], TCP[1], token, ("SIDECAR_REQUIRE_AUTH", "true")]);
    for mut client in [sidecar.connect(), sidecar.connect_tcp()] {
        client.send("GET /health HTTP/1.1\r\nhost: s\r\nauthorization: Bearer wrong\r\n\r\n");
        assert_eq!(client.response().status, 200);
        client.send("GET /nothing HTTP/1.1\r\nhost: s\r\n\r\n");
        assert_eq!(client.response().status, 401);
        client.send("GET /bash HTTP/1.1\r\nhost: s\r\n\r\n");
        assert_eq!(client.response().status, 401);
    }
}

#[test]
fn a_token_for_a_sidecar_without_one_is_refused_with_the_reason() {
    let sidecar = Sidecar::start();
    let mut client = sidecar.connect();
    client.request("/ls", "authorization: Bearer s3cret\r\n", "{}");
    let response = client.response();
    assert_eq!(response.status, 401);
    let error = response.json()["error"].to_string();
    assert!(
        error.contains("SIDECAR_AUTH_TOKEN is not set on the sidecar"),
        "{error}"
    );
}

#[test]
fn a_body_is_not_read_without_the_token() {
    let token = ("SIDECAR_AUTH_TOKEN", "s3cret");
    let sidecar = Sidecar::with(&[token, ("SIDECAR_REQUIRE_AUTH", "true")]);
    let mut client = sidecar.connect();
    client.send("POST /write HTTP/1.1\r\nhost: s\r\ncontent-length: 1000\r\n\r\n");
    assert_eq!(client.response().status, 401);
}

#[test]
fn commands_cannot_read_the_token() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("root")).unwrap();
    let token = ("SIDECAR_AUTH_TOKEN", "hush-hush");
    let sidecar = Sidecar::in_folder(folder, &[token]);
    let run = sidecar.bash("env; tr '\\0' '\\n' < /proc/$PPID/environ; echo seen");
    assert!(run.stdout.contains("WORKSPACE_ROOT="), "{run:?}");
    assert!(run.stdout.ends_with("seen\n"), "{run:?}");
    assert!(!run.stdout.contains("hush"), "{run:?}");
    // The sidecar's environment contains the token. The sidecar makes itself not dumpable, so its
    // `/proc/PID/environ` belongs to root, and other processes of its user cannot read it.
    let environ = format!("/proc/{}/environ", sidecar.child.id());
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(environ).unwrap());
    assert_eq!(owner, 0);
}
