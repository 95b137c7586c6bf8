//! Injection of credentials, and redaction of their echoes: responses that repeat an injected
//! secret. No secret appears in logs, files, metrics or the admin API.

use std::io::{Read, Write};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use testkit::each_row;

use crate::support::{Origin, Proxy, RawOrigin, Setup, eventually};

const HOST: &str = "api.example.com";
const SECRET: &str = "sk-live-4f9a1c7be02d58c36e";
const REDACTED: &str = "[REDACTED:vendor]";
const PLACEHOLDER: &str = "up-placeholder-0123456789abcdef0123456789abcdef";

fn start(origin: &Origin, credential: Value) -> Proxy {
    let mut setup = Setup::new(origin);
    setup.env.push(("VENDOR_KEY".into(), SECRET.into()));
    setup.credential(credential);
    setup.start()
}

fn vendor() -> Value {
    json!({
        "name": "vendor", "hosts": [HOST],
        "set_headers": { "x-api-key": "${VENDOR_KEY}" },
        "remove_headers": ["authorization"], "remove_query": ["key"], "remove_cookies": ["session"],
    })
}

#[test]
fn a_credential_replaces_every_credential_of_the_client() {
    let origin = Origin::start();
    let proxy = start(&origin, vendor());
    let brought = [
        "X-Api-Key: brought",
        "X-API-KEY: brought",
        "X_Api_Key: brought",
        "Authorization: Bearer brought",
        "Cookie: session=brought; theme=dark",
    ];
    let target = "/echo?key=brought&other=1&key=brought";
    assert_eq!(proxy.https_get(HOST, target, &brought).status, 200);
    let seen = origin.only();
    assert_eq!(seen.header("x-api-key"), Some(SECRET));
    assert_eq!(seen.header("cookie"), Some("theme=dark"));
    assert_eq!(seen.target, "/echo?other=1");
    assert!(!format!("{seen:?}").contains("brought"), "{seen:?}");
    assert_eq!(
        proxy.metric("proxy_credentials_injected_total", &["vendor"]),
        1.0
    );
    proxy.audited(json!({ "host": HOST, "status": 200, "credential": "vendor" }));
}

#[test]
fn a_credential_is_injected_over_http2_as_well() {
    let origin = Origin::start();
    let proxy = start(&origin, vendor());
    let request = http::Request::get(format!("https://{HOST}/echo"))
        .header("x-api-key", "brought")
        .header("x-api-key", "brought")
        .body("")
        .unwrap();
    assert_eq!(proxy.h2(HOST, request).unwrap().status, 200);
    assert_eq!(origin.only().header("x-api-key"), Some(SECRET));
}

#[test]
fn bearer_and_basic_credentials_replace_the_authorization_field() {
    each_row(
        [
            (
                json!({ "bearer": "${VENDOR_KEY}" }),
                format!("Bearer {SECRET}"),
            ),
            (
                json!({ "basic": { "username": "x-access-token", "password": "${VENDOR_KEY}" } }),
                format!(
                    "Basic {}",
                    STANDARD.encode(format!("x-access-token:{SECRET}"))
                ),
            ),
        ],
        |(form, value)| {
            let origin = Origin::start();
            let mut credential = json!({ "name": "vendor", "hosts": [HOST] });
            credential
                .as_object_mut()
                .unwrap()
                .extend(form.as_object().unwrap().clone());
            let proxy = start(&origin, credential);
            proxy.https_get(HOST, "/echo", &["Authorization: Bearer brought"]);
            assert_eq!(origin.only().header("authorization"), Some(value.as_str()));
        },
    );
}

#[test]
fn a_connection_field_cannot_remove_the_injected_credential() {
    let origin = Origin::start();
    let proxy = start(&origin, vendor());
    let fields = ["Connection: x-api-key, keep-alive", "X-Api-Key: brought"];
    proxy.https_get(HOST, "/echo", &fields);
    assert_eq!(origin.only().header("x-api-key"), Some(SECRET));
}

#[test]
fn a_credential_goes_only_to_its_host_and_ports_and_never_in_clear_text() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.env.push(("VENDOR_KEY".into(), SECRET.into()));
    setup.proxy["upstream"]["hosts"]["both.example.com"] = origin.http.to_string().into();
    setup.allow(json!({ "domain": "both.example.com", "ports": [80, 443] }));
    setup.proxy["upstream"]["hosts"][HOST] = origin.https.to_string().into();
    setup.allowlist["domains"]
        .as_array_mut()
        .unwrap()
        .retain(|name| name != HOST);
    setup.allow(json!({ "domain": HOST, "ports": [443, 8443] }));
    let mut credential = vendor();
    credential["hosts"] = json!([HOST, "both.example.com"]);
    setup.credential(credential);
    let proxy = setup.start();

    proxy.get("http://both.example.com/echo", &[]);
    proxy.https_get("other.example.com", "/echo", &[]);
    proxy.curl(&[&format!("https://{HOST}:8443/echo")]);
    let mut clear = proxy.tunnel("both.example.com:443");
    Write::write_all(
        &mut clear,
        b"GET /echo HTTP/1.1\r\nHost: both.example.com:443\r\n\r\n",
    )
    .unwrap();
    let _ = crate::support::read_reply(&mut clear);
    assert!(origin.seen().len() >= 3);
    for seen in origin.seen() {
        assert!(!format!("{seen:?}").contains(SECRET), "{seen:?}");
    }
    proxy.https_get(HOST, "/echo", &[]);
    assert_eq!(
        origin.seen().last().unwrap().header("x-api-key"),
        Some(SECRET)
    );
}

#[test]
fn an_upstream_with_an_expired_certificate_never_gets_the_credential() {
    let origin = Origin::start();
    let mut credential = vendor();
    credential["hosts"] = json!(["expired.example.com"]);
    let proxy = start(&origin, credential);
    proxy
        .fetch("expired.example.com", "/echo")
        .assert_denied(502, "upstream_tls", "");
    assert!(origin.seen().is_empty());
}

#[test]
fn a_denied_request_is_not_sent_upstream_and_its_response_has_no_secret() {
    let origin = Origin::start();
    let proxy = start(&origin, vendor());
    let request = format!("TRACE /echo HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    let reply = proxy.https(HOST, request);
    assert_eq!(reply.status, 405);
    assert!(!format!("{reply:?}").contains(SECRET));
    assert!(origin.seen().is_empty());
}

#[test]
fn an_echo_of_the_secret_is_redacted_in_fields_body_chunks_and_trailers() {
    let origin = Origin::start();
    let proxy = start(&origin, vendor());
    each_row(
        [
            "header",
            "body",
            "split",
            "base64",
            "shifted-base64",
            "url",
            "trailer",
        ],
        |how| {
            let reply = proxy.https_get(HOST, &format!("/reflect/{how}"), &["TE: trailers"]);
            let shown = format!("{:?}{}", reply.headers, reply.text());
            assert_eq!(reply.status, 200, "{how}");
            assert_no_secret(&shown, how);
            // The proxy may drop trailers instead of redacting them.
            assert!(
                how == "trailer" || shown.contains(REDACTED),
                "{how}: {shown}"
            );
        },
    );
}

#[test]
fn trailers_are_redacted_after_every_kind_of_body() {
    let origin = Origin::start();
    let proxy = start(&origin, vendor());
    let mut failures = Vec::new();
    for (method, how, shown) in [
        ("GET", "trailer", true),
        ("GET", "short-trailer", true),
        ("GET", "lone-trailer", true),
        ("GET", "204-trailer", false),
        ("GET", "304-trailer", false),
        ("HEAD", "lone-trailer", false),
    ] {
        let uri = format!("https://{HOST}/reflect/{how}");
        let request = http::Request::builder().method(method).uri(uri);
        let reply = proxy.h2(HOST, request.header("te", "trailers").body("").unwrap());
        let reply = reply.unwrap();
        let trailers = format!("{:?}", reply.trailers);
        assert_no_secret(&format!("{trailers}{:?}", reply.headers), how);
        // The proxy may drop trailers after a response without a body.
        if shown && !trailers.contains(REDACTED) {
            failures.push((method, how, trailers));
        }
    }
    assert_eq!(failures, []);
}

#[test]
fn a_103_of_an_upstream_does_not_reach_the_client() {
    let origin = Origin::start();
    let upstream = RawOrigin::start(|mut stream| {
        let mut head = [0; 4096];
        let _ = stream.read(&mut head)?;
        write!(
            stream,
            "HTTP/1.1 103 Early Hints\r\nLink: <{SECRET}>\r\n\r\n\
             HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        )
    });
    let mut setup = Setup::new(&origin);
    setup.env.push(("VENDOR_KEY".into(), SECRET.into()));
    setup.host("hints.example.com", upstream.address);
    setup.credential(json!({
        "name": "vendor", "hosts": ["hints.example.com"], "bearer": "${VENDOR_KEY}",
    }));
    let proxy = setup.start();
    let reply = proxy.get("http://hints.example.com/", &[]);
    assert_eq!((reply.status, reply.text()), (200, "ok".to_owned()));
    assert_eq!(reply.header("link"), None);
}

#[test]
fn an_echo_of_the_basic_credential_is_redacted() {
    let origin = Origin::start();
    let basic = json!({ "username": "x-access-token", "password": "${VENDOR_KEY}" });
    let proxy = start(
        &origin,
        json!({ "name": "vendor", "hosts": [HOST], "basic": basic }),
    );
    let reply = proxy.https_get(HOST, "/reflect/body", &[]);
    assert_eq!(reply.status, 200);
    let encoded = STANDARD.encode(format!("x-access-token:{SECRET}"));
    assert!(!reply.text().contains(&encoded[8..]), "{}", reply.text());
    assert_no_secret(&reply.text(), "basic");
}

#[test]
fn a_compressed_echo_is_redacted_in_every_encoding() {
    let origin = Origin::start();
    let proxy = start(&origin, vendor());
    each_row(["gzip", "br", "zstd", "deflate"], |encoding| {
        let accept = format!("Accept-Encoding: {encoding}");
        let reply = proxy.https_get(HOST, &format!("/reflect/{encoding}"), &[&accept]);
        let seen = origin.seen().pop().unwrap();
        let asked = seen.header("accept-encoding").unwrap_or("identity");
        assert_eq!(asked, "identity", "Accept-Encoding at the upstream");
        assert_eq!(reply.header("content-encoding"), None, "{encoding}");
        assert_eq!(
            reply.text(),
            format!("before {REDACTED} after"),
            "{encoding}"
        );
    });
}

#[test]
fn no_secret_appears_in_logs_files_metrics_or_the_admin_api() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.proxy["logging"]["level"] = json!("trace");
    setup.env.push(("VENDOR_KEY".into(), SECRET.into()));
    setup.credential(vendor());
    let proxy = setup.start();
    proxy.https_get(
        HOST,
        "/reflect/header",
        &["Authorization: Bearer brought-by-client"],
    );
    proxy.fetch(HOST, "/reflect/body?token=brought-by-client");
    proxy.audited(json!({ "host": HOST, "kind": "http" }));
    let mut shown = proxy.log();
    for path in ["health", "metrics", "containers", "flows", "openapi.json"] {
        shown += &proxy
            .admin("GET", &format!("/internal/{path}"), None)
            .text();
    }
    for file in walk(&proxy.path("data")).chain(walk(&proxy.path("certs"))) {
        shown += &String::from_utf8_lossy(&std::fs::read(file).unwrap());
    }
    assert_no_secret(&shown, "the proxy's output");
    assert!(
        !shown.contains("brought-by-client"),
        "the client's secret is in the proxy's output"
    );
}

#[test]
fn a_placeholder_sent_to_another_host_is_denied_as_misuse() {
    let origin = Origin::start();
    let proxy = start(&origin, vendor());
    each_row(
        [
            format!("Authorization: Bearer {PLACEHOLDER}"),
            format!("X-Api-Key: {PLACEHOLDER}"),
            format!(
                "Authorization: Basic {}",
                STANDARD.encode(format!("x:{PLACEHOLDER}"))
            ),
        ],
        |field| {
            let reply = proxy.https_get("other.example.com", "/echo", &[&field]);
            reply.assert_denied(403, "credential_misuse", "");
        },
    );
    assert!(origin.seen().is_empty());
    proxy.audited(json!({ "host": "other.example.com", "code": "credential_misuse" }));
}

#[test]
fn a_changed_secret_file_is_read_again_and_requests_are_denied_once_it_is_missing() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    let file = setup.dir().join("secret");
    std::fs::write(&file, format!("{SECRET}\n")).unwrap();
    let mut credential = vendor();
    credential["set_headers"]["x-api-key"] = json!({ "file": file });
    setup.credential(credential);
    let proxy = setup.start();
    proxy.https_get(HOST, "/echo", &[]);
    assert_eq!(origin.only().header("x-api-key"), Some(SECRET));

    std::fs::write(&file, "sk-live-the-next-one\n").unwrap();
    eventually("the new value is used", Duration::from_secs(10), || {
        proxy.https_get(HOST, "/echo", &[]);
        origin.seen().last().unwrap().header("x-api-key") == Some("sk-live-the-next-one")
    });
    std::fs::remove_file(&file).unwrap();
    let denied = "requests are denied once the file is missing";
    eventually(denied, Duration::from_secs(10), || {
        proxy.https_get(HOST, "/echo", &[]).status == 502
    });
    let reply = proxy.https_get(HOST, "/echo", &[]);
    reply.assert_denied(502, "credential_unavailable", "");
    assert!(!reply.text().contains("sk-live"));
}

#[test]
fn a_credential_is_not_injected_for_containers_that_it_does_not_list() {
    let origin = Origin::start();
    let mut credential = vendor();
    credential["containers"] = json!(["somebody-else"]);
    let proxy = start(&origin, credential);
    proxy.https_get(HOST, "/echo", &[]);
    assert!(!format!("{:?}", origin.seen()).contains(SECRET));
}

/// Asserts that `text` contains the secret neither as it is nor in base64. The base64 form depends
/// on the secret's offset in the encoded bytes, modulo 3. For each of the three offsets, the check
/// searches for the part of the form that does not depend on adjacent bytes.
#[track_caller]
fn assert_no_secret(text: &str, what: &str) {
    assert!(!text.contains(SECRET), "{what}: {text}");
    for offset in 0..3 {
        let encoded = STANDARD.encode(format!("{}{SECRET}", "x".repeat(offset)));
        let core = &encoded[4..encoded.len() - 4];
        assert!(
            !text.contains(core),
            "{what}: the secret is in base64 at offset {offset}"
        );
    }
}

fn walk(dir: &std::path::Path) -> impl Iterator<Item = std::path::PathBuf> {
    let files = std::fs::read_dir(dir).unwrap().flatten();
    files.map(|file| file.path()).filter(|path| path.is_file())
}
