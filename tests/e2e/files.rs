//! Environment and placeholders in a sandbox, and paths of the host that options open to the
//! sandbox.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};

use serde_json::json;

use crate::escalations::{SCRIPT, privileged};
use crate::fixture::Fixture;
use crate::summary::can_run;

const SECRET: &str = "sk-ant-real-4f9a1c7be02d58c36e";
/// A user of the host who owns a project and has no processes.
const USER: u32 = 64_123;

#[test]
fn a_sandbox_has_the_environment_and_placeholders_and_no_secret() {
    if !can_run("a_sandbox_has_the_environment_and_placeholders_and_no_secret") {
        return;
    }
    let fixture = Fixture::with(|setup| {
        let file = setup.dir().join("login.json");
        let login = json!({ "claudeAiOauth": {
            "accessToken": SECRET, "refreshToken": SECRET, "expiresAt": 4_102_444_800_000_u64,
            "scopes": ["user:inference"],
        } });
        fs::write(&file, login.to_string()).unwrap();
        setup.credential(json!({
            "name": "claude", "hosts": ["api.anthropic.com"],
            "oauth": { "provider": "claude", "token_file": file },
        }));
        setup.credential(json!({
            "name": "openai", "hosts": ["api.openai.com"], "bearer": SECRET,
        }));
    });
    let sandbox = fixture.up("a", &[]);
    let proxy = format!("http://{}:8080", sandbox.proxy);
    let environment = fixture.exec("a", "env").ok();
    for line in [
        format!("HTTPS_PROXY={proxy}"),
        format!("http_proxy={proxy}"),
        format!("UNIFIED_PROXY_HOST={}", sandbox.proxy),
        "UNIFIED_PROXY_PORT=8080".to_owned(),
        "SSL_CERT_FILE=/run/unified-proxy/certs/ca-bundle.pem".to_owned(),
        "HOME=/home/agent".to_owned(),
    ] {
        assert!(
            environment.lines().any(|found| found == line),
            "{line} is not in {environment}"
        );
    }
    assert!(
        environment.contains("OPENAI_API_KEY=sk-up-placeholder-"),
        "{environment}"
    );
    assert!(
        !environment.contains(SECRET) && !environment.contains("api.sock"),
        "{environment}"
    );

    // A login shell with an empty environment sets the same variables.
    let login = fixture
        .exec(
            "a",
            "env -i HOME=$HOME bash -lc 'echo $HTTPS_PROXY $UNIFIED_PROXY_PORT $no_proxy'",
        )
        .ok();
    assert!(
        login.starts_with(&format!("{proxy} 8080 localhost,127.0.0.1")),
        "{login}"
    );
    let file = fixture
        .exec(
            "a",
            "cat ~/.claude/.credentials.json && test -w ~/.claude/.credentials.json",
        )
        .ok();
    assert!(
        file.contains("up-placeholder-") && !file.contains(SECRET),
        "{file}"
    );
    let names = fixture
        .exec("a", "cat /etc/resolv.conf; getent hosts unified-proxy")
        .ok();
    assert!(
        names.starts_with(&format!("nameserver {}\n{}", sandbox.proxy, sandbox.proxy)),
        "{names}"
    );
    let unwritable = "touch /run/unified-proxy/certs/x || touch /etc/x || touch /usr/x";
    assert_eq!(fixture.exec("a", unwritable).code, Some(1));
}

#[test]
fn write_and_read_options_open_only_their_paths() {
    if !can_run("write_and_read_options_open_only_their_paths") {
        return;
    }
    let fixture = Fixture::start();
    let project = fixture.proxy.path("project with a space");
    let reference = fixture.proxy.path("reference");
    for dir in [&project, &reference] {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join("there"), "text").unwrap();
    }
    chown(&project, Some(USER), Some(USER)).unwrap();
    let (write, read) = (project.to_str().unwrap(), reference.to_str().unwrap());
    let user = format!("{USER}:{USER}");
    fixture.up("a", &["--user", &user, "--write", write, "--read", read]);
    assert_eq!(
        fixture.exec("a", "pwd; cat there; echo new >made").ok(),
        format!("{write}\ntext")
    );
    assert_eq!(fs::metadata(project.join("made")).unwrap().uid(), USER);
    let reading = fixture.exec("a", &format!("cat {read}/there && echo >{read}/made"));
    assert_eq!((reading.stdout.as_str(), reading.code), ("text", Some(1)));
    let config = fixture.proxy.path("config");
    assert_eq!(
        fixture.exec("a", &format!("ls {}", config.display())).code,
        Some(2)
    );
}

#[test]
fn a_sandbox_leaves_no_set_user_id_file_in_a_writable_path() {
    if !can_run("a_sandbox_leaves_no_set_user_id_file_in_a_writable_path") {
        return;
    }
    let fixture = Fixture::start();
    let project = fixture.proxy.path("project");
    fs::create_dir(&project).unwrap();
    fs::write(project.join("escalations.py"), SCRIPT).unwrap();
    chown(&project, Some(USER), Some(USER)).unwrap();
    let user = format!("{USER}:{USER}");
    fixture.up(
        "a",
        &["--user", &user, "--write", project.to_str().unwrap()],
    );
    fixture.exec("a", "python3 escalations.py").ok();
    assert_eq!(privileged(&project), 0);
    fixture.host.sh(&format!(
        "cd '{}'; rm -r */
         setpriv --reuid {USER} --regid {USER} --clear-groups /usr/bin/python3 escalations.py",
        project.display()
    ));
    assert!(
        privileged(&project) > 10,
        "without the filter, attempts succeed"
    );
    let usual = "umask; mkdir d; echo 1 >d/f; chmod 1777 d; chmod 0640 d/f; cp -p d/f d/g; stat -c %a d d/g";
    assert_eq!(fixture.exec("a", usual).ok(), "0022\n1777\n640\n");
}
