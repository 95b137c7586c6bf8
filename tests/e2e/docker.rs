//! The docker back end of `scripts/sandbox`, with a container engine on the fixture's host.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::attempts::{Listeners, everything, reach};
use crate::engine::{Engine, MACHINE, Release, available};
use crate::escalations::{POSSIBLE, SCRIPT, privileged};
use crate::fixture::{Fixture, HOST, INTERNET, ran};
use crate::mcp::with_servers;
use crate::mcp_servers::{CLIENT, assert_reached};
use crate::redteam;
use crate::support::{Ran, SOON, eventually};

const IMAGE: &str = "sandbox:1";

/// `scripts/sandbox` with an engine.
struct Docker<'a> {
    fixture: &'a Fixture,
    engine: Engine,
}

impl<'a> Docker<'a> {
    fn start(fixture: &'a Fixture, release: &Release) -> Self {
        let engine = Engine::start(&fixture.host, release);
        engine.base_image(&[IMAGE]);
        Self { fixture, engine }
    }

    fn sandbox(&self, arguments: &[&str]) -> Ran {
        let mut command = self.fixture.script(arguments);
        self.engine.adjust(&mut command);
        ran(self.fixture.host.run(|| command.output().unwrap()))
    }

    /// Starts a sandbox that sees the host's programs.
    fn up(&self, name: &str, options: &[&str]) -> Ran {
        let read: Vec<_> = MACHINE.iter().flat_map(|dir| ["--read", *dir]).collect();
        let up = ["up", name, "--backend", "docker"];
        self.sandbox(&[&up[..], &read, options].concat())
    }

    fn exec(&self, name: &str, script: &str) -> Ran {
        self.sandbox(&["exec", name, "--", "bash", "-c", script])
    }
}

impl Drop for Docker<'_> {
    /// The fixture's own `down` would not find the engine.
    fn drop(&mut self) {
        for name in ["one", "two"] {
            self.sandbox(&["down", name]);
        }
    }
}

#[test]
fn a_container_of_the_docker_back_end_reaches_only_the_proxy_and_ends_before_its_registration() {
    let name = "a_container_of_the_docker_back_end_reaches_only_the_proxy_and_ends_before_its_registration";
    let Some(release) = available(name, Release::installed) else {
        return;
    };
    let (fixture, _servers) = with_servers();
    let docker = Docker::start(&fixture, &release);
    for name in ["one", "two"] {
        docker.up(name, &["--image", IMAGE]).ok();
    }
    let (a, b) = (fixture.find("one"), fixture.find("two"));
    let inside = docker.engine.machine("one");
    let neighbour = docker.engine.machine("two");
    let outside = [
        Listeners::on(&fixture.internet, true),
        Listeners::on(&fixture.host, false),
        Listeners::on(&neighbour, true),
    ];
    let received = || outside.each_ref().map(Listeners::received).concat();
    assert_eq!(reach(&fixture.host, &[INTERNET.into()]).len(), 5);
    received();

    // The test has all capabilities in the container's network namespace, a process of the container
    // has fewer.
    let others = [
        INTERNET,
        HOST,
        a.proxy,
        b.proxy,
        b.address,
        Ipv4Addr::new(172, 17, 0, 1),
    ];
    assert_eq!(reach(&inside, &others.map(IpAddr::V4)), [""; 0]);
    assert_eq!(received(), [""; 0]);
    let patience = Duration::from_secs(2);
    inside
        .run(|| TcpStream::connect_timeout(&(a.proxy, 8080).into(), patience))
        .unwrap();

    let status = |url: &str| {
        let script =
            format!("curl -s -m 5 -o /dev/null -w '%{{http_code}}/%{{http_connect}}' {url}");
        docker.exec("one", &script).stdout
    };
    assert_eq!(status("https://api.example.com/echo"), "200/200");
    assert_eq!(status("https://denied.example.org/"), "000/403");
    let names = docker
        .exec("one", "getent hosts unified-proxy api.example.com; dig denied.example.org; bash -lc 'echo $HTTPS_PROXY'")
        .ok();
    for part in [
        a.proxy.to_string(),
        INTERNET.to_string(),
        "status: NXDOMAIN".to_owned(),
        format!("http://{}:8080", a.proxy),
    ] {
        assert!(names.contains(&part), "{part} is not in {names}");
    }
    assert_reached(&docker.exec("one", CLIENT).ok());
    fixture
        .proxy
        .audited(json!({ "container_id": "one", "kind": "mcp", "method": "tools/call" }));
    let socket = fixture.proxy.path("api.sock");
    let hidden = format!("test -e {}", socket.display());
    assert_eq!(docker.exec("one", &hidden).code, Some(1));

    // Without the rules, packets arrive.
    let device = &a.device;
    fixture.host.sh(&format!(
        "nft delete table netdev {device}; nft delete table inet {device}"
    ));
    assert!(!reach(&inside, &[a.proxy.into()]).is_empty());
    let arrived = received();
    for packet in everything(a.address) {
        assert!(
            arrived.contains(&packet),
            "{packet} is not among {arrived:?}"
        );
    }

    // After the supervisor is killed, the container is removed before it is unregistered.
    let token = fixture.read("one", "token");
    let supervisor = token.split('.').next().unwrap().parse().unwrap();
    kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
    eventually("one is unregistered", SOON, || {
        fixture.registration("one").is_none()
    });
    let left = docker
        .engine
        .docker(&["ps", "--all", "--format", "{{.Names}}"]);
    assert_eq!(left.ok(), "two\n");
    eventually("the state of one is removed", SOON, || {
        !fixture.state_of("one").exists()
    });
    docker.sandbox(&["down", "two"]).ok();
    let left = fixture.host.sh("nft list tables; ip -brief link");
    assert!(
        !left.contains(device) && !left.contains(&b.device),
        "{left}"
    );
}

#[test]
fn every_red_team_attempt_is_prevented_in_a_container() {
    let name = "every_red_team_attempt_is_prevented_in_a_container";
    let Some(release) = available(name, Release::installed) else {
        return;
    };
    let fixture = Fixture::start();
    let docker = Docker::start(&fixture, &release);
    let listeners = Listeners::on(&fixture.internet, true);
    docker.up("one", &["--image", IMAGE]).ok();
    let mut command =
        fixture.script(&["exec", "one", "--", "bash", "-s", "--", "--kind", "docker"]);
    docker.engine.adjust(&mut command);
    command.args(redteam::options()).stdin(redteam::script());
    let ran = ran(fixture.host.run(|| command.output().unwrap()));
    redteam::assert_held(&ran, &listeners, redteam::ATTEMPTS_IN_A_CONTAINER);
}

#[test]
fn root_in_a_container_leaves_no_privileged_file_in_a_writable_path() {
    let name = "root_in_a_container_leaves_no_privileged_file_in_a_writable_path";
    let Some(release) = available(name, Release::installed) else {
        return;
    };
    let fixture = Fixture::start();
    let docker = Docker::start(&fixture, &release);
    let project = fixture.proxy.path("project");
    fs::create_dir(&project).unwrap();
    fs::write(project.join("escalations.py"), SCRIPT).unwrap();
    let path = project.to_str().unwrap();
    docker.up("one", &["--image", IMAGE, "--write", path]).ok();
    // Files can be written as usual, by root and with the project as working directory.
    let work = "id -u; umask; mkdir d; echo 1 >d/f; chmod 1777 d; chmod 0640 d/f; chown 5:6 d/f; cp -p d/f d/g; stat -c '%a %u:%g' d d/g";
    assert_eq!(
        docker.exec("one", work).ok(),
        "0\n0022\n1777 0:0\n640 5:6\n"
    );

    // The attempts succeed on the host.
    let free = fixture.proxy.path("free");
    fs::create_dir(&free).unwrap();
    let attempt = format!("python3 {path}/escalations.py");
    let succeeded = fixture
        .host
        .sh(&format!("cd {}; {attempt}", free.display()));
    assert!(succeeded.lines().count() >= POSSIBLE, "{succeeded}");
    assert_eq!(privileged(&free), succeeded.lines().count());

    let inside = docker.exec("one", &format!("{attempt}; echo over >>d/f"));
    assert_eq!(inside.ok(), "");
    assert_eq!(privileged(&project), 0);

    // A file with such a bit, which root could overwrite through a memory map, is not shown.
    let old = project.join("old");
    fs::write(&old, "").unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o4755)).unwrap();
    let refused = docker.up("two", &["--image", IMAGE, "--write", path]);
    assert!(
        refused.stderr.contains("has a file with a set-user-ID"),
        "{refused:?}"
    );
    assert!(fixture.registration("two").is_none());
}

#[test]
fn placeholders_belong_to_the_user_of_the_image() {
    let name = "placeholders_belong_to_the_user_of_the_image";
    let Some(release) = available(name, Release::installed) else {
        return;
    };
    let fixture = Fixture::with(|setup| {
        let file = setup.dir().join("login.json");
        let login = json!({ "claudeAiOauth": {
            "accessToken": "real", "refreshToken": "real", "expiresAt": 4_102_444_800_000_u64,
            "scopes": ["user:inference"],
        } });
        fs::write(&file, login.to_string()).unwrap();
        setup.credential(json!({
            "name": "claude", "hosts": ["api.anthropic.com"],
            "oauth": { "provider": "claude", "token_file": file },
        }));
    });
    let docker = Docker::start(&fixture, &release);
    let user = format!(
        "docker export $(docker create {IMAGE} sh) | docker import --change 'USER node' - user:1"
    );
    docker.engine.sh(&user).ok();
    let owners = "stat -c '%a %u:%g' .claude .claude/.credentials.json && grep -o up-placeholder- .claude/.credentials.json | head -1";
    let expected = |user: u32| format!("700 {user}:{user}\n600 {user}:{user}\nup-placeholder-\n");
    docker.up("one", &["--image", "user:1"]).ok();
    assert_eq!(
        docker.exec("one", &format!("cd; {owners}")).ok(),
        expected(1000)
    );
    docker
        .up("two", &["--image", IMAGE, "--home", "/home/other"])
        .ok();
    assert_eq!(
        docker
            .exec("two", &format!("cd /home/other; {owners}"))
            .ok(),
        expected(0)
    );
    docker.sandbox(&["down", "one"]).ok();
    let unwritable = docker.up("one", &["--image", "user:1", "--home", "/root"]);
    assert!(unwritable.stderr.contains("give --home"), "{unwritable:?}");
    assert!(fixture.registration("one").is_none());
}
