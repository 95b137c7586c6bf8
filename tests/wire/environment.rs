//! `unified-proxy env`: the variables that it prints make clients use the proxy and trust its CA.

use std::process::{Command, Output, Stdio};

use serde_json::Value;
use testkit::each_row;

use crate::support::{NODE_AGENT, Origin, Proxy, Setup, free_address};

/// Runs `sh` in an environment without proxy and CA variables. The shell evaluates the output of
/// `unified-proxy env`, and then runs the script.
fn shell(proxy: &Proxy, script: &str) -> Output {
    let evaluated = format!("eval \"$(\"$UNIFIED_PROXY\" env)\" || exit 99\n{script}");
    Command::new("sh")
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", proxy.path(""))
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("UNIFIED_PROXY", env!("CARGO_BIN_EXE_unified-proxy"))
        .env("UNIFIED_PROXY_SOCKET", proxy.path("api.sock"))
        .args(["-c", &evaluated])
        .current_dir(proxy.path(""))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn clients_with_the_variables_of_env_use_the_proxy() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    origin.create_repository("team/project");
    let fetch = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).status)";
    let node = "https.get({ host: 'api.example.com', path: '/echo', agent: new Tunnels() },
        (answer) => { answer.resume(); console.log(answer.statusCode); });";
    std::fs::write(proxy.path("fetch.py"), fetch).unwrap();
    std::fs::write(proxy.path("fetch.js"), format!("{NODE_AGENT}{node}")).unwrap();
    each_row(
        [
            ("curl -sSf http://plain.example.com/echo", 1),
            ("curl -sSf https://api.example.com/echo", 1),
            ("wget -nv -O - http://plain.example.com/echo", 1),
            // wget built with GnuTLS reads no variable for the CA, so the command names the file.
            (
                "wget -nv -O - --ca-certificate=\"$SSL_CERT_FILE\" https://api.example.com/echo",
                1,
            ),
            ("python3 fetch.py http://plain.example.com/echo", 1),
            ("python3 fetch.py https://api.example.com/echo", 1),
            ("node fetch.js", 1),
            (
                "git ls-remote --exit-code https://git.example.com/team/project.git || [ $? = 2 ]",
                1,
            ),
        ],
        |(client, requests)| {
            let before = (proxy.audit().len(), origin.seen().len());
            let output = shell(&proxy, client);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{client}: {said}");
            assert!(origin.seen().len() - before.1 >= requests, "{client}");
            crate::support::eventually("the request is audited", crate::support::SOON, || {
                proxy.audit().len() > before.0
            });
        },
    );
}

#[test]
fn servers_on_loopback_are_reached_without_the_proxy() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let port = origin.http.port();
    each_row(["localhost", "127.0.0.1"], |host| {
        let url = format!("http://{host}:{port}/echo");
        for client in [
            format!("curl -sSf {url}"),
            format!("wget -nv -O - {url}"),
            format!("python3 -c \"import urllib.request as u; u.urlopen('{url}')\""),
        ] {
            let output = shell(&proxy, &client);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{client}: {said}");
        }
    });
    assert_eq!(origin.seen().len(), 6);
    let requests = proxy.metric("proxy_requests_total", &[]);
    assert_eq!(requests, 0.0, "a request came through the proxy");
}

#[test]
fn env_prints_the_same_variables_for_sh_fish_and_json_and_uses_the_given_url_and_directory() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let json: Value = serde_json::from_str(&proxy.cli(&["env", "--shell", "json"]).ok()).unwrap();
    let json = json.as_object().unwrap();
    assert_eq!(json["HTTPS_PROXY"], proxy.url());
    assert_eq!(json["NO_PROXY"], "localhost,127.0.0.1,::1,unified-proxy");
    for (name, value) in json {
        let path = value.as_str().unwrap();
        if path.ends_with(".pem") {
            assert!(std::path::Path::new(path).is_file(), "{name}={path}");
        }
    }
    let store = proxy.path("certs/truststore.jks").display().to_string();
    assert!(std::path::Path::new(&store).is_file());
    let java = json["JAVA_TOOL_OPTIONS"].as_str().unwrap();
    assert!(
        java.contains(&format!("-Djavax.net.ssl.trustStore={store} ")),
        "{java}"
    );
    let sh = proxy.cli(&["env"]).ok();
    let fish = proxy.cli(&["env", "--shell", "fish"]).ok();
    for (name, value) in json {
        let value = value.as_str().unwrap();
        assert!(sh.contains(&format!("export {name}='{value}'\n")), "{name}");
        assert!(
            fish.contains(&format!("set -gx {name} '{value}'\n")),
            "{name}"
        );
    }
    assert_eq!(sh.lines().count(), json.len());

    assert_eq!(
        json.get("UNIFIED_PROXY_MCP_URL"),
        None,
        "the gateway is off, so it has no URL"
    );

    // With `--proxy` and `--certs`, `env` works without a running proxy, for example in the entry
    // point of an image.
    let output = Command::new(env!("CARGO_BIN_EXE_unified-proxy"))
        .args(["env", "--proxy", "http://proxy:8080", "--certs", "/certs"])
        .args(["--socket", "/nowhere"])
        .output()
        .unwrap();
    let sh = String::from_utf8(output.stdout).unwrap();
    assert!(sh.contains("export https_proxy='http://proxy:8080'\n"));
    assert!(sh.contains("export NODE_EXTRA_CA_CERTS='/certs/ca.pem'\n"));
}

#[test]
fn mcp_commands_use_the_gateway_of_the_environment() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    let gateway = free_address();
    setup.proxy["listen"]["mcp"] = serde_json::json!([gateway.to_string()]);
    let proxy = setup.start();
    let output = shell(
        &proxy,
        "echo $UNIFIED_PROXY_MCP_URL; \"$UNIFIED_PROXY\" mcp list",
    );
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, format!("http://{gateway}/mcp\nno tools\n"));
    let wrong = "UNIFIED_PROXY_MCP_URL=10.0.0.5:8090 \"$UNIFIED_PROXY\" mcp stdio";
    let output = shell(&proxy, wrong);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("UNIFIED_PROXY_MCP_URL=10.0.0.5:8090: the gateway's URL must be http://"),
        "{said}"
    );
    assert_eq!(output.status.code(), Some(64));
}

#[test]
fn certificates_md_shows_the_output_of_env() {
    let output = Command::new(env!("CARGO_BIN_EXE_unified-proxy"))
        .args(["env", "--proxy", "http://proxy:8080", "--certs", "/certs"])
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(root.join("docs/certificates.md")).unwrap();
    assert!(
        document.contains(&printed),
        "certificates.md lacks:\n{printed}"
    );
}
