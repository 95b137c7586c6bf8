//! Unix sockets of the host at every place that a sandbox might see, created before the sandbox
//! starts.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::attempts::check;
use crate::fixture::{Person, names};

/// Python code that tries to connect to every visible socket, and to every path and abstract name
/// in its arguments.
const CONNECT: &str = r#"
def connect(address, kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_UNIX, kind) as client:
        client.settimeout(5)
        client.connect(address)
        return address

own = os.path.abspath("own.sock")
found = 0
for directory, names, files in os.walk("/", followlinks=False):
    names[:] = [name for name in names if os.path.join(directory, name) != "/proc"]
    for name in files:
        path = os.path.join(directory, name)
        try:
            kind = os.lstat(path).st_mode
        except OSError:
            continue
        if stat.S_ISSOCK(kind):
            found += 1
            os.chdir(directory)
            fails(f"the socket {path}", lambda: connect(name))
report("walked", True, found)
for argument in sys.argv[1:]:
    address = "\0" + argument[1:] if argument.startswith("@") else argument
    fails(f"the address {argument}", lambda: connect(address))
    fails(f"the address {argument}, as a datagram", lambda: connect(address, socket.SOCK_DGRAM))

# Sockets that the command creates work.
listener = socket.socket(socket.AF_UNIX)
listener.bind(own)
listener.listen()
holds("a socket that the command created", lambda: connect(own))
os.unlink(own)
"#;

/// Listening sockets to which a client could connect; no server accepts the connections.
struct Listeners {
    kept: Vec<UnixListener>,
    addresses: Vec<String>,
}

impl Listeners {
    fn at(paths: &[PathBuf]) -> Self {
        let mut listeners = Self {
            kept: Vec::new(),
            addresses: Vec::new(),
        };
        for path in paths {
            listeners.kept.push(bind(path));
            listeners.addresses.push(path.display().to_string());
            assert!(UnixStream::connect(path).is_ok(), "{}", path.display());
        }
        listeners
    }

    fn add_abstract(&mut self, name: &str) {
        let address = SocketAddr::from_abstract_name(name).unwrap();
        self.kept.push(UnixListener::bind_addr(&address).unwrap());
        assert!(UnixStream::connect_addr(&address).is_ok());
        self.addresses.push(format!("@{name}"));
    }

    fn arguments(&self) -> Vec<&str> {
        self.addresses.iter().map(String::as_str).collect()
    }
}

fn bind(path: &Path) -> UnixListener {
    let listener = UnixListener::bind(path).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(path, mode).unwrap();
    listener
}

#[test]
fn no_socket_of_the_host_can_be_reached() {
    let Some(person) = Person::new() else { return };
    let (opened, shown) = (
        person.directory("opened/below"),
        person.directory("shown/below"),
    );
    for directory in [
        "project/sub/deep",
        "project/.git/fsmonitor",
        "project/.claude/run",
        "tool/bin",
        ".local/bin",
        ".ssh",
    ] {
        person.directory(directory);
    }
    person.write("project/.git/HEAD", "ref: refs/heads/main\n");
    person.directory("project/.git/objects");
    let in_tmp = tempfile::tempdir_in("/tmp").unwrap();
    let mut listeners = Listeners::at(&[
        person.home().join("in-home.sock"),
        person.home().join(".ssh/agent.sock"),
        person.home().join(".local/bin/agent.sock"),
        person.work().join("direct.sock"),
        person.work().join("sub/deep/socket"),
        person.work().join(".git/socket"),
        person.work().join(".git/fsmonitor/ipc"),
        person.work().join(".claude/run/socket"),
        opened.join("socket"),
        shown.join("socket"),
        person.base().join("beside.sock"),
        person.runtime().join("bus"),
        in_tmp.path().join("socket"),
    ]);
    let name = format!("of-the-host-{}", std::process::id());
    listeners.add_abstract(&name);
    let flags = [
        "--write",
        opened.parent().unwrap().to_str().unwrap(),
        "--read",
        shown.parent().unwrap().to_str().unwrap(),
    ]
    .map(str::to_owned);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    check(&person, &flags, CONNECT, &listeners.arguments(), 30);
}

/// The kernel lists a Unix socket under the path that was passed to `bind`. The path is relative
/// here, so the list does not show in which directory the socket is.
#[test]
fn a_socket_that_was_bound_by_a_relative_path_cannot_be_reached() {
    let Some(mut person) = Person::new() else {
        return;
    };
    let tools = person.directory("tools");
    person
        .env
        .push(("PATH".into(), format!("{}:/usr/bin:/bin", tools.display())));
    let paths =
        [".local/bin", ".rustup", "tools", "project/sub"].map(|name| person.directory(name));
    let mut servers = Vec::new();
    for path in &paths {
        let script = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind('relative.sock'); s.listen(); print('ready', flush=True); sys.stdin.read()";
        let mut server = person.outside("python3");
        server.args(["-c", script]).current_dir(path);
        server
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped());
        let mut server = server.spawn().unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(server.stdout.as_mut().unwrap(), &mut ready).unwrap();
        servers.push(server);
    }
    let addresses: Vec<String> = paths
        .iter()
        .map(|path| format!("{}/relative.sock", path.display()))
        .collect();
    for address in &addresses {
        assert!(UnixStream::connect(address).is_ok(), "{address}");
    }
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    check(&person, &[], CONNECT, &addresses, 8);
    for mut server in servers {
        drop(server.stdin.take());
        server.wait().unwrap();
    }
}

#[test]
fn a_command_cannot_make_the_directory_in_which_the_host_looks_for_a_server_of_dev() {
    let Some(person) = Person::new() else { return };
    let state = person.work().join(".unified-proxy");
    let script = "exec 2>/dev/null
        mkdir .unified-proxy && echo made; rmdir .unified-proxy && echo removed
        mv .unified-proxy away && echo moved; mkdir .unified-proxy/certs && echo made
        echo evil > .unified-proxy/api.sock && echo written
        python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\".unified-proxy/api.sock\")' && echo bound
        echo ready; read -r line; ls -A .unified-proxy
        python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\".unified-proxy/api.sock\")' && echo connected";
    let mut run = person.spawn(&["--quiet"], &["sh", "-c", script]);
    let mut said = [0; 6];
    let stdout = run.stdout.as_mut().unwrap();
    std::io::Read::read_exact(stdout, &mut said).unwrap();
    assert_eq!(&said, b"ready\n");
    assert_eq!(names(&state), [""; 0]);
    // A server that starts on the host during the run stays out of reach.
    let _listener = bind(&state.join("api.sock"));
    drop(run.stdin.take());
    let mut rest = String::new();
    std::io::Read::read_to_string(run.stdout.as_mut().unwrap(), &mut rest).unwrap();
    assert_eq!(rest, "");
    run.wait().unwrap();
    assert_eq!(names(&state), ["api.sock"]);
}
