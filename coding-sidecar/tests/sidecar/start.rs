//! Start of the sidecar (arguments, settings, listeners), and its end.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use testkit::each_row;

use crate::support::{STEP_TIMEOUT, Sidecar, processes, program, refused, unique_sleep, until};

#[test]
fn invalid_arguments_are_refused_and_help_names_the_variables() {
    let version = program().arg("--version").output().unwrap();
    let expected = format!("coding-sidecar {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8(version.stdout).unwrap(), expected);
    let help = program().arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for name in [
        "SOCKET_PATH",
        "SIDECAR_REQUIRE_AUTH",
        "TCP_PORT",
        "SOCKET_MODE",
    ] {
        assert!(help.contains(name), "{help}");
    }
    assert!(!help.contains("supervise"), "{help}");
    for arguments in [
        &["serve"][..],
        &["--version", "x"],
        &["supervise"],
        &["--port", "1"],
    ] {
        let output = program().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
    }
}

#[test]
fn all_invalid_settings_are_reported_at_once() {
    let output = refused(&[
        ("SOCKET_PATH", "s.sock"),
        ("TCP_PORT", "80"),
        ("SOCKET_MODE", "9"),
        ("SIDECAR_REQUIRE_AUTH", "true"),
    ]);
    assert_eq!(output.status.code(), Some(78));
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 4, "{text}");
    for name in [
        "SOCKET_PATH",
        "TCP_HOST",
        "SOCKET_MODE",
        "SIDECAR_AUTH_TOKEN",
    ] {
        assert!(text.contains(name), "{text}");
    }
}

#[test]
fn the_error_says_why_the_socket_the_root_or_the_port_cannot_be_opened() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    std::os::unix::fs::symlink("elsewhere", folder.path().join("link")).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let _listening = UnixListener::bind(folder.path().join("live")).unwrap();
    let long = "x".repeat(120);
    // Socket, root, port, part of the error.
    let rows = [
        ("missing/s.sock", "", "", "does not exist: make it"),
        ("file", "", "", "is not a socket"),
        ("link", "", "", "is not a socket"),
        ("file/s.sock", "", "", "cannot open the socket's folder"),
        ("live", "", "", "another server listens at"),
        (&long, "", "", "longer than the 107 bytes"),
        ("s.sock", "missing", "", "make the folder or mount it"),
        ("s.sock", "file", "", "name a folder"),
        ("s.sock", "", &port, "cannot listen on TCP_HOST 127.0.0.1"),
    ];
    each_row(rows, |(socket, root, port, part)| {
        let host = if port.is_empty() { "" } else { "127.0.0.1" };
        let output = refused(&[
            ("SOCKET_PATH", &format!("{place}/{socket}")),
            ("WORKSPACE_ROOT", &format!("{place}/{root}")),
            ("TCP_HOST", host),
            ("TCP_PORT", port),
        ]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(69), "{text}");
        assert!(text.contains(part), "{text}");
        assert!(!folder.path().join("s.sock").exists());
    });
}

#[test]
fn the_socket_has_its_mode_from_the_first_moment() {
    for (mode, expected) in [(None, 0o600), (Some("0660"), 0o660), (Some("666"), 0o666)] {
        let variables: Vec<_> = mode.iter().map(|mode| ("SOCKET_MODE", *mode)).collect();
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("root")).unwrap();
        let socket = folder.path().join("s.sock");
        let watch = std::thread::spawn(move || {
            let (mut seen, mut samples) = (BTreeSet::new(), 0);
            let deadline = std::time::Instant::now() + STEP_TIMEOUT;
            while (samples < 1000 || !seen.contains(&expected))
                && std::time::Instant::now() < deadline
            {
                if let Ok(metadata) = fs::symlink_metadata(&socket) {
                    seen.insert(metadata.permissions().mode() & 0o7777);
                    samples += 1;
                }
            }
            seen
        });
        let sidecar = Sidecar::in_folder(folder, &variables);
        let seen = watch.join().unwrap();
        assert!(seen.contains(&expected), "{seen:?}");
        // The umask of this test may be in force for a moment.
        assert!(seen.iter().all(|mode| mode & !expected == 0), "{seen:?}");
        // The umask is unchanged: commands inherit that of this test.
        sidecar.bash("umask > made");
        let inherited = fs::read_to_string(sidecar.root().join("made")).unwrap();
        let ours = Command::new("sh").args(["-c", "umask"]).output().unwrap();
        assert_eq!(inherited.as_bytes(), ours.stdout);
    }
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let mut first = Sidecar::start();
    let inode = fs::metadata(first.socket()).unwrap().ino();
    let socket = first.socket().display().to_string();
    let root = first.root().display().to_string();
    let variables = [
        ("SOCKET_PATH", socket.as_str()),
        ("WORKSPACE_ROOT", root.as_str()),
    ];
    let second = refused(&variables);
    assert_eq!(second.status.code(), Some(69));
    first.assert_serves();
    // A server that is stopped with SIGSTOP is alive too.
    first.signal("STOP");
    assert_eq!(refused(&variables).status.code(), Some(69));
    first.signal("CONT");
    assert_eq!(fs::metadata(&socket).unwrap().ino(), inode);

    first.signal("KILL");
    first.wait();
    assert!(fs::metadata(&socket).unwrap().file_type().is_socket());
    let folder = std::mem::replace(&mut first.folder, tempfile::tempdir().unwrap());
    let third = Sidecar::in_folder(folder, &[]);
    third.assert_serves();
}

#[test]
fn of_several_concurrent_starts_exactly_one_serves() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s.sock");
    drop(UnixListener::bind(&socket).unwrap());
    let mut all: Vec<_> = (0..8)
        .map(|_| {
            program()
                .env("SOCKET_PATH", &socket)
                .env("WORKSPACE_ROOT", folder.path())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut refused = 0;
    until("seven sidecars have ended", || {
        all.retain_mut(|child| match child.try_wait().unwrap() {
            None => true,
            Some(status) => {
                assert_eq!(status.code(), Some(69));
                refused += 1;
                false
            }
        });
        refused == 7
    });
    std::os::unix::net::UnixStream::connect(&socket).unwrap();
    all[0].kill().unwrap();
    all[0].wait().unwrap();
}

#[test]
fn risky_and_misspelt_settings_cause_a_warning() {
    let tcp = |host| vec![("TCP_HOST", host), ("TCP_PORT", "0")];
    let with = |mut list: Vec<_>, more: &[_]| {
        list.extend_from_slice(more);
        list
    };
    let required = [
        ("SIDECAR_AUTH_TOKEN", "s3cret"),
        ("SIDECAR_REQUIRE_AUTH", "true"),
    ];
    let optional = [("SIDECAR_AUTH_TOKEN", "s3cret")];
    let rows = [
        (vec![], ""),
        (tcp("127.0.0.1"), ""),
        (tcp("::1"), ""),
        (tcp("localhost"), ""),
        (tcp("0.0.0.0"), "not a loopback address"),
        (tcp("::"), "not a loopback address"),
        (with(tcp("0.0.0.0"), &optional), "not a loopback address"),
        (with(tcp("0.0.0.0"), &required), ""),
        (
            vec![("SOCKET_MODE", "0666")],
            "lets every user run commands",
        ),
        (vec![("SOCKET_MODE", "0660")], ""),
        (
            vec![("SIDECAR_ALLOW_OUTSIDE_WORKSPACE_ROOT", "true")],
            "reach everything",
        ),
    ];
    each_row(rows, |(variables, part)| {
        let log = Sidecar::with(&variables).log();
        let warnings: Vec<_> = log.iter().filter(|line| line.contains("WARNING")).collect();
        assert_eq!(warnings.len(), usize::from(!part.is_empty()), "{log:?}");
        assert!(warnings.iter().all(|line| line.contains(part)), "{log:?}");
    });
    let misspelt = [("SIDECAR_REQUIRE_AUHT", "true"), ("SOCKET_PATH", "none")];
    let text = String::from_utf8(refused(&misspelt).stderr).unwrap();
    assert!(
        text.contains("WARNING: SIDECAR_REQUIRE_AUHT is not a setting"),
        "{text}"
    );
}

#[test]
fn a_signal_ends_the_sidecar_and_its_commands_and_removes_its_socket() {
    for signal in ["TERM", "INT"] {
        let mut sidecar = Sidecar::start();
        let mark = unique_sleep();
        let mut client = sidecar.connect();
        client.begin(&format!("echo begun; setsid sleep {mark} & sleep {mark}"));
        client.chunk().unwrap();
        until("the command runs", || processes(&mark).len() >= 2);
        let idle = sidecar.connect();
        sidecar.signal(signal);
        let last = String::from_utf8(client.chunk().unwrap()).unwrap();
        assert!(last.contains("shutting down"), "{last}");
        assert!(sidecar.wait().success());
        assert!(processes(&mark).is_empty());
        assert!(!sidecar.socket().exists());
        drop(idle);
    }
}

#[test]
fn a_socket_that_replaced_the_socket_of_the_sidecar_is_kept() {
    let mut sidecar = Sidecar::start();
    fs::remove_file(sidecar.socket()).unwrap();
    let _other = UnixListener::bind(sidecar.socket()).unwrap();
    sidecar.signal("TERM");
    assert!(sidecar.wait().success());
    assert!(sidecar.socket().exists());
}

#[test]
fn an_unprivileged_user_can_run_the_sidecar_without_revealing_its_environment() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(folder.path(), open).unwrap();
    let binary = folder.path().join("coding-sidecar");
    fs::copy(env!("CARGO_BIN_EXE_coding-sidecar"), &binary).unwrap();
    let socket = folder.path().join("s.sock");
    let mut child = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&binary)
        .env("SOCKET_PATH", &socket)
        .env("WORKSPACE_ROOT", folder.path())
        .env("SIDECAR_AUTH_TOKEN", "hush-hush")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the sidecar listens", || {
        std::os::unix::net::UnixStream::connect(&socket).is_ok()
    });
    let output = crate::support::bash_at(
        &socket,
        &format!(
            "id -u; cat /proc/{}/environ || echo hidden; setsid sleep 600 &",
            child.id()
        ),
    );
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(output.stdout, "65534\nhidden\n", "{output:?}");
    assert_eq!(output.last["exitCode"], 0, "{output:?}");
}
