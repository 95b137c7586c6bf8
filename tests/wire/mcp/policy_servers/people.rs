//! People over the admin socket, and with tokens from loopback.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::each_row;
use time::OffsetDateTime;

use super::super::client::{Gateway, POST, modern, request, write_request};
use super::{ALLOW, DENIED, DENY, decided, gateway_with, person, policy, propose, state};
use crate::support::{Reply, UNKNOWN_SOURCE, connect_from, read_reply};

/// An issuer of tokens, with its file of keys.
struct Issuer {
    directory: TempDir,
    key: EncodingKey,
}

fn new_key() -> EncodingKey {
    let random = SystemRandom::new();
    let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    EncodingKey::from_ec_der(der.as_ref())
}

impl Issuer {
    fn new() -> Self {
        let issuer = Self {
            directory: tempfile::tempdir().unwrap(),
            key: new_key(),
        };
        let keys =
            json!({ "keys": [Jwk::from_encoding_key(&issuer.key, Algorithm::ES256).unwrap()] });
        let file = issuer.directory.path().join("jwks.json");
        fs::write(&file, keys.to_string()).unwrap();
        // Whatever the umask.
        fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
        issuer
    }

    fn settings(&self) -> Value {
        json!({ "tokens": { "human_jwt": {
            "jwks_file": self.directory.path().join("jwks.json"),
            "issuer": "https://issuer.example.com",
            "audience": "unified-proxy",
        } } })
    }

    fn token(&self, claims: &Value) -> String {
        encode(&Header::new(Algorithm::ES256), claims, &self.key).unwrap()
    }
}

fn claims() -> Value {
    json!({
        "iss": "https://issuer.example.com",
        "aud": "unified-proxy",
        "sub": "alice",
        "exp": OffsetDateTime::now_utc().unix_timestamp() + 600,
    })
}

/// The reply to a message with a token and further fields, from an address.
fn send(gateway: &Gateway, from: Ipv4Addr, token: &str, fields: &str, message: &Value) -> Reply {
    let mut stream = connect_from(from, gateway.address);
    let fields = format!("{POST}authorization: Bearer {token}\r\n{fields}");
    write_request(&mut stream, "POST /mcp", &fields, &message.to_string());
    read_reply(&mut stream).unwrap()
}

fn calls(tool: &str, arguments: Value) -> Value {
    request(
        1,
        "tools/call",
        json!({ "name": tool, "arguments": arguments }),
    )
}

#[test]
fn a_person_with_a_token_from_loopback_sets_a_proposed_policy_under_their_name() {
    let issuer = Issuer::new();
    let gateway = gateway_with(issuer.settings());
    let token = issuer.token(&claims());
    let ask = |message: &Value| {
        let reply = send(&gateway, UNKNOWN_SOURCE, &token, "", message);
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    };
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
    let initialized = ask(&request(1, "initialize", params));
    assert_eq!(initialized["result"]["protocolVersion"], "2025-11-25");
    let (fields, discover) = modern(request(1, "server/discover", json!({})));
    let reply = send(&gateway, UNKNOWN_SOURCE, &token, &fields, &discover).json();
    assert_eq!(reply["result"]["resultType"], "complete", "{reply}");
    let id = propose(&gateway, ALLOW);
    let message = calls("policy_approver_set_policy", json!({ "proposal_id": id }));
    let set = ask(&message);
    assert_eq!(
        set["result"]["structuredContent"]["state"], "approved",
        "{set}"
    );
    assert_eq!(policy(&gateway), ALLOW);
    assert_eq!(decided(&gateway), 0);
    let act = json!({ "method": "operator/set_policy", "rule": "operator: token alice" });
    gateway.proxy.audited(act);
    let unknown = ask(&calls(
        "policy_proposer_propose_policy",
        json!({ "source": DENY }),
    ));
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
}

#[test]
fn a_token_from_a_container_or_a_browser_or_an_invalid_one_decides_nothing() {
    let issuer = Issuer::new();
    let gateway = gateway_with(issuer.settings());
    let id = propose(&gateway, ALLOW);
    let message = calls("policy_approver_set_policy", json!({ "proposal_id": id }));
    let valid = issuer.token(&claims());
    let with = |key: &str, value: Value| {
        let mut claims = claims();
        claims[key] = value;
        issuer.token(&claims)
    };
    let now = OffsetDateTime::now_utc().unix_timestamp();
    let other = encode(&Header::new(Algorithm::ES256), &claims(), &new_key()).unwrap();
    let secret = fs::read(issuer.directory.path().join("jwks.json")).unwrap();
    let secret = EncodingKey::from_secret(&secret).unwrap();
    let confused = encode(&Header::new(Algorithm::HS256), &claims(), &secret).unwrap();
    let body = valid.split('.').nth(1).unwrap();
    // `{"alg":"none"}`.
    let unsigned = format!("eyJhbGciOiJub25lIn0.{body}.");
    let local = Ipv4Addr::LOCALHOST;
    each_row(
        [
            ("a container's address", local, &valid, ""),
            (
                "a container that says otherwise",
                local,
                &valid,
                "x-forwarded-for: 127.0.0.9\r\n",
            ),
            (
                "a page in a browser",
                UNKNOWN_SOURCE,
                &valid,
                "origin: http://localhost\r\n",
            ),
            ("no signature", UNKNOWN_SOURCE, &unsigned, ""),
            ("a symmetric algorithm", UNKNOWN_SOURCE, &confused, ""),
            ("another key", UNKNOWN_SOURCE, &other, ""),
            (
                "expired",
                UNKNOWN_SOURCE,
                &with("exp", json!(now - 600)),
                "",
            ),
            (
                "another audience",
                UNKNOWN_SOURCE,
                &with("aud", json!("other")),
                "",
            ),
            (
                "another issuer",
                UNKNOWN_SOURCE,
                &with("iss", json!("other")),
                "",
            ),
            ("no subject", UNKNOWN_SOURCE, &with("sub", json!("")), ""),
        ],
        |(what, from, token, fields)| {
            let reply = send(&gateway, from, token, fields, &message);
            reply.assert_denied(
                403,
                "unknown_source",
                "The token of a person is not accepted",
            );
            assert_eq!(state(&gateway, &id), "pending", "{what}");
        },
    );
    // Without a token, an address without a container gets nothing.
    let mut stream = connect_from(UNKNOWN_SOURCE, gateway.address);
    write_request(&mut stream, "POST /mcp", POST, &message.to_string());
    let reply = read_reply(&mut stream).unwrap();
    reply.assert_denied(403, "unknown_source", "Unknown source IP");
    // Another path, and two tokens.
    let fields = format!("{POST}authorization: Bearer {valid}\r\n");
    for (head, fields, status) in [
        ("POST /message", fields.clone(), 405),
        ("GET /mcp", fields.clone(), 405),
        ("POST /mcp", fields.repeat(2), 400),
    ] {
        let mut stream = connect_from(UNKNOWN_SOURCE, gateway.address);
        write_request(&mut stream, head, &fields, &message.to_string());
        assert_eq!(read_reply(&mut stream).unwrap().status, status, "{head}");
    }
    assert_eq!(policy(&gateway), DENY);
    assert_eq!(decided(&gateway), DENIED);
    gateway
        .proxy
        .audited(json!({ "code": "unknown_source", "kind": "mcp" }));
    assert!(
        send(
            &gateway,
            UNKNOWN_SOURCE,
            &valid,
            "x-forwarded-for: 10.0.0.1\r\n",
            &message
        )
        .json()["result"]["isError"]
            .is_null()
    );
}

#[test]
fn the_admin_socket_answers_people_in_both_eras_and_names_errors_as_the_gateway_does() {
    let gateway = super::gateway();
    let (_, discover) = modern(request(1, "server/discover", json!({})));
    let reply = gateway
        .proxy
        .admin("POST", "/internal/mcp", Some(discover))
        .json();
    assert_eq!(reply["result"]["resultType"], "complete", "{reply}");
    let (_, list) = modern(request(1, "tools/list", json!({})));
    let reply = gateway
        .proxy
        .admin("POST", "/internal/mcp", Some(list))
        .json();
    assert_eq!(reply["result"]["cacheScope"], "private", "{reply}");
    each_row(
        [
            ("ping", json!({}), None),
            ("prompts/list", json!({}), Some(-32601)),
            ("tools/call", json!({}), Some(-32602)),
            (
                "tools/call",
                json!({ "name": "by-hand_echo" }),
                Some(-32602),
            ),
            (
                "tools/call",
                json!({ "name": "policy_approver_approve", "arguments": { "id": "0a" } }),
                Some(-32602),
            ),
            (
                "tools/call",
                json!({ "name": "policy_approver_approve", "arguments": [] }),
                Some(-32602),
            ),
            (
                "resources/read",
                json!({ "uri": "approvals://pending/0a" }),
                Some(-32002),
            ),
            (
                "tools/list",
                json!({ "_meta": { "io.modelcontextprotocol/protocolVersion": "1999-01-01" } }),
                Some(-32022),
            ),
        ],
        |(method, params, code)| {
            let reply = person(&gateway, method, params);
            assert_eq!(reply["error"]["code"].as_i64(), code, "{method}: {reply}");
        },
    );
    gateway
        .proxy
        .audited(json!({ "method": "operator/mcp", "path": "ping" }));
    for body in [
        json!([]),
        json!({ "jsonrpc": "2.0", "method": "ping" }),
        json!(1),
    ] {
        let reply = gateway.proxy.admin("POST", "/internal/mcp", Some(body));
        assert_eq!(reply.status, 400, "{}", reply.text());
    }
}
