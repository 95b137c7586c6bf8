//! Secrets in the URLs of the configuration.

use serde_json::json;
use testkit::each_row;

use super::client::{Gateway, call};
use crate::support::{SOON, eventually};

const OF_SERVER: &str = "s3cret-of-server";
const OF_COLLECTOR: &str = "s3cret-of-collector";

#[test]
fn a_secret_in_the_path_of_a_configured_url_is_printed_nowhere() {
    let gateway = Gateway::start_with(|setup| {
        let path = setup.dir().join("config/mcp.yaml");
        let mcp = std::fs::read_to_string(&path).unwrap();
        let mcp = mcp.replace("/mcp\"", "/v1-${OF_SERVER}/mcp?key=${OF_SERVER}\"");
        assert!(mcp.contains("OF_SERVER"), "{mcp}");
        std::fs::write(path, mcp).unwrap();
        // Nothing listens on this port, so that the failure is logged.
        let collector = "http://127.0.0.1:1/${OF_COLLECTOR}";
        setup.proxy["tracing"] = json!({ "otlp_endpoint": collector });
        for (name, value) in [("OF_SERVER", OF_SERVER), ("OF_COLLECTOR", OF_COLLECTOR)] {
            setup.env.push((name.to_owned(), value.to_owned()));
        }
    });
    let session = gateway.session();
    let answer = gateway.post(&session, &call(1, "echo", json!({ "a": 1 })));
    assert!(answer.text().contains("content"), "{}", answer.text());
    // The server's failure is reported too.
    gateway.seen.leave(true);
    let failed = gateway.post(&session, &call(2, "echo", json!({}))).text();
    assert!(failed.contains("\"error\""), "{failed}");
    for path in ["/[REDACTED]/mcp", "/[REDACTED]/v1/traces"] {
        gateway
            .proxy
            .audited(json!({ "method": "POST", "path": path }));
    }
    eventually("the collector's failure is logged", SOON, || {
        gateway.proxy.log().contains("cannot export traces")
    });
    let proxy = &gateway.proxy;
    let get = |path| proxy.admin("GET", path, None).text();
    let audit = std::fs::read_to_string(proxy.path("data/audit.jsonl")).unwrap();
    let printed = [
        ("log", proxy.log()),
        ("audit", audit),
        ("flows", get("/internal/flows")),
        ("health", get("/internal/health")),
        ("metrics", get("/internal/metrics")),
        ("answer", failed),
    ];
    each_row(printed, |(name, text)| {
        assert!(!text.is_empty(), "{name}");
        for secret in [OF_SERVER, OF_COLLECTOR] {
            assert!(!text.contains(secret), "{name}: {text}");
        }
    });
}
