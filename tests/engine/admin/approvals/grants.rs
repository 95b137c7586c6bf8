//! Grants without a question.

use super::*;

#[tokio::test]
async fn a_host_is_granted_to_a_registered_container_and_the_grant_revoked() {
    let server = Server::start();
    server
        .register(
            &json!({"container_id": "c1", "container_ip": "10.0.0.5", "repos": [],
        "allowed_domains": ["*.example.com"]}),
        )
        .await;
    let of = |host: &str, more: Value| {
        let mut body = json!({ "container": "c1", "host": host, "port": 443 });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    let host = "a.example.com";
    each_row_async(
        [
            (of(host, json!({})), 201, "for"),
            (of("A.Example.COM.", json!({ "for": "1h" })), 201, "for"),
            (of(host, json!({ "scope": "lease" })), 201, "lease"),
            (of(host, json!({ "scope": "always" })), 422, "1s to 24h"),
            (of(host, json!({ "scope": "once" })), 422, "1s to 24h"),
            (of(host, json!({ "for": "25h" })), 422, "1s to 24h"),
            (
                of(host, json!({ "for": "1h", "scope": "lease" })),
                400,
                "exclude",
            ),
            (of(host, json!({ "comment": "x" })), 400, "unknown field"),
            (of(host, json!({ "port": 65536 })), 400, "65536"),
            (of(host, json!({ "port": 0 })), 400, "1 to 65535"),
            (
                of(host, json!({ "container": "c2" })),
                404,
                "Container not found",
            ),
            (
                of(host, json!({ "container": "c/2" })),
                404,
                "Container not found",
            ),
            (of("b.example.org", json!({})), 422, "allowed_domains"),
            (of("10.0.0.1", json!({})), 422, "public host name"),
            (of("::1", json!({})), 422, "public host name"),
            (of("0x7f.1", json!({})), 422, "public host name"),
            (of("localhost", json!({})), 422, "public host name"),
            (of("co.uk", json!({})), 422, "public host name"),
            (of("*.example.com", json!({})), 422, "public host name"),
            (of("", json!({})), 422, "public host name"),
        ],
        async |(body, status, text)| {
            let answer = server.post("/internal/grants", &body).await;
            assert_eq!(answer.status, status, "{body}: {}", answer.body);
            let said = match status {
                201 => &answer.body["scope"],
                _ => &answer.body["error"],
            };
            assert!(said.as_str().unwrap().contains(text), "{body}: {said}");
        },
    )
    .await;
    let grants = server.get("/internal/grants").await.body;
    let grants = grants["grants"].as_array().unwrap();
    let shown: Vec<_> = grants
        .iter()
        .map(|grant| (&grant["subject"], &grant["scope"]))
        .collect();
    let subject = json!("a.example.com:443");
    let [lease, time] = [json!("lease"), json!("for")];
    assert_eq!(
        shown,
        [(&subject, &lease), (&subject, &time), (&subject, &time)]
    );
    assert_eq!(grants[0]["expires_at"], json!(null));
    let revoke = async |id: &str| {
        let path = format!("/internal/grants/{id}");
        server.call("DELETE", &path, "").await
    };
    let id = grants[0]["id"].as_str().unwrap();
    let revoked = revoke(id).await;
    assert_eq!((revoked.status.as_u16(), &revoked.body), (200, &grants[0]));
    assert_eq!(revoke(id).await.status, 410);
    assert_eq!(revoke(UNKNOWN).await.status, 404);
    assert_eq!(revoke("c1").await.status, 404);
    let left = server.get("/internal/grants").await.body;
    assert_eq!(left["grants"], json!(&grants[1..]));
}
