//! The images of the Dockerfile in a container engine.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::engine::{Engine, Release, available, write_public};
use crate::machine::Machine;
use crate::mcp_servers::TOOLS;
use crate::support::eventually;

/// The image's user.
const USER: u32 = 65_532;
/// Two intervals of the health check, with room for a busy machine.
const HEALTHY: Duration = Duration::from_secs(40);

fn run(engine: &Engine, options: &[&str]) {
    let options = [&["run", "--detach", "--name", "proxy"], options].concat();
    engine.docker(&options).ok();
    eventually("the container is healthy", HEALTHY, || {
        engine.inspect("proxy", "{{.State.Health.Status}}") == "healthy"
    });
}

/// Mode, owner and path of the directories of state in an image.
fn directories(engine: &Engine, image: &str) -> Vec<String> {
    let list = format!(
        "id=$(docker create {image}); docker export $id | tar -tv --numeric-owner | awk '{{ print $1, $2, $6 }}'
         docker rm $id >/dev/null"
    );
    let listed = engine.sh(&list).ok();
    let mut found: Vec<_> = listed
        .lines()
        .filter(|line| {
            let path = line.rsplit(' ').next().unwrap();
            [
                "certs/",
                "run/proxy/",
                "var/run/proxy/",
                "var/lib/unified-proxy/",
            ]
            .contains(&path)
        })
        .map(|line| line.replace(" var/run/", " run/"))
        .collect();
    found.sort();
    found
}

#[test]
fn the_images_are_healthy_without_privileges_and_exit_with_0() {
    let name = "the_images_are_healthy_without_privileges_and_exit_with_0";
    let Some(release) = available(name, Release::installed) else {
        return;
    };
    let host = Machine::new();
    let engine = Engine::start(&host, &release);
    engine.build_images(&["appliance", "tools"]);
    let appliance = "unified-proxy:appliance";
    for image in [appliance, "unified-proxy:tools"] {
        let expected = [
            "drwx------ 65532/65532 run/proxy/",
            "drwx------ 65532/65532 var/lib/unified-proxy/",
            "drwxr-xr-x 65532/65532 certs/",
        ];
        assert_eq!(directories(&engine, image), expected, "{image}");

        let confined = ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"];
        run(&engine, &[&confined[..], &[image]].concat());
        let processes = engine.docker(&["top", "proxy", "-eo", "pid,uid,cmd"]).ok();
        let process = processes.lines().nth(1).unwrap();
        let fields: Vec<_> = process.split_whitespace().collect();
        assert_eq!(fields[1..], ["65532", "/usr/bin/unified-proxy", "serve"]);
        engine.docker(&["stop", "proxy"]).ok();
        assert_eq!(engine.inspect("proxy", "{{.State.ExitCode}}"), "0");
        engine.docker(&["rm", "--volumes", "proxy"]).ok();
    }

    // With a read-only root, only volumes are writable. A new volume gets the owner of the image's
    // directory; a directory of the host keeps its own.
    let state = engine.dir().join("state");
    fs::create_dir(&state).unwrap();
    let data = format!("{}:/var/lib/unified-proxy", state.display());
    let data = ["--read-only", "--volume", &data];
    let socket = ["--volume", "socket:/var/run/proxy"];
    let ends = |options: &[&str], code: i32, why: &str| {
        let ended = engine.docker(&[&["run", "--rm"], options, &[appliance]].concat());
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(ended.stderr.contains(why), "{ended:?}");
    };
    let both = [&data[..], &socket].concat();
    ends(
        &both,
        78,
        "the data directory /var/lib/unified-proxy cannot be used",
    );
    chown(&state, Some(USER), Some(USER)).unwrap();
    ends(&data, 69, "cannot listen on /var/run/proxy/api.sock");
    run(&engine, &[&both[..], &[appliance]].concat());
}

#[test]
fn servers_and_runs_are_confined_in_the_tools_image_under_the_shipped_seccomp_profile() {
    let name = "servers_and_runs_are_confined_in_the_tools_image_under_the_shipped_seccomp_profile";
    let Some(release) = available(name, Release::installed) else {
        return;
    };
    let host = Machine::new();
    let engine = Engine::start(&host, &release);
    engine.build_images(&["tools"]);
    let (config, servers) = (engine.dir().join("config"), engine.dir().join("servers"));
    let (work, root) = (
        engine.dir().join("work"),
        Path::new(env!("CARGO_MANIFEST_DIR")),
    );
    for dir in [&config, &servers, &work] {
        fs::create_dir(dir).unwrap();
    }
    chown(&work, Some(USER), Some(USER)).unwrap();
    for file in ["proxy.yaml", "allowlist.yaml"] {
        fs::copy(root.join("config").join(file), config.join(file)).unwrap();
    }
    let notes = json!({ "command": "python3", "args": ["/srv/tools.py"], "read": ["/srv"] });
    let mcp = json!({ "mcpServers": { "notes": notes } });
    write_public(&config.join("mcp.yaml"), &mcp.to_string());
    write_public(&servers.join("tools.py"), TOOLS);
    let python = fs::canonicalize("/usr/bin/python3").unwrap();
    let volumes = [
        format!("{}:/etc/unified-proxy:ro", config.display()),
        format!("{}:/srv:ro", servers.display()),
        format!("{}:/work", work.display()),
        // Node's image and the packages of the stage have these.
        format!("{}:/usr/bin/python3:ro", python.display()),
        "/usr/lib:/usr/lib:ro".to_owned(),
    ];
    let volumes: Vec<&str> = volumes
        .iter()
        .flat_map(|of| ["--volume", of.as_str()])
        .collect();

    // The options that packaging/seccomp/README.md names.
    let readme = fs::read_to_string(root.join("packaging/seccomp/README.md")).unwrap();
    let (_, documented) = readme.split_once("docker run ").unwrap();
    let (documented, _) = documented.split_once('…').unwrap();
    let documented: Vec<_> = documented
        .replace('\\', "")
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    let documented: Vec<&str> = documented.iter().map(String::as_str).collect();
    assert_eq!(documented.len(), 6, "{documented:?}");
    let image = ["--cap-drop", "ALL", "unified-proxy:tools"];
    run(&engine, &[&documented[..], &volumes, &image].concat());

    let exec = |command: &[&str]| {
        let gateway = "UNIFIED_PROXY_MCP_URL=http://127.0.0.1:8090/mcp";
        let inside = [
            "exec",
            "--workdir",
            "/work",
            "--env",
            gateway,
            "proxy",
            "unified-proxy",
        ];
        engine.docker(&[&inside[..], command].concat())
    };
    exec(&["container", "add", "caller", "--ip", "127.0.0.1"]).ok();
    let said = exec(&["mcp", "call", "notes_echo", r#"{"text":"confined"}"#]).ok();
    assert!(said.contains("echo: confined"), "{said}");
    let said = exec(&["run", "--quiet", "--", "sh", "-c", "echo $$ in $PWD"]).ok();
    assert!(said.ends_with(" in /work\n"), "{said}");

    // The engine's own profile forbids the namespaces.
    let plain = ["run", "--rm", "--workdir", "/work"];
    let confined = ["unified-proxy:tools", "run", "--quiet", "--", "true"];
    let refused = engine.docker(&[&plain[..], &volumes, &confined].concat());
    assert_eq!(refused.code, Some(69), "{refused:?}");
}
