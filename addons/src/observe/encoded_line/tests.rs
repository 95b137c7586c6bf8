use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use serde_json::{Value, json};
use testkit::each_row;
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

use super::*;
use crate::contract::{FlowId, Host, Kind};
use crate::observe::line::Excerpt;

/// A line with only the members that every line has.
fn line() -> AuditLine<'static> {
    AuditLine {
        ts: UNIX_EPOCH,
        flow: FlowId::next(),
        kind: Kind::Dns,
        container_id: None,
        client: None,
        method: None,
        host: None,
        port: 53,
        path: None,
        status: None,
        outcome: "ok",
        code: None,
        addon: None,
        rule: None,
        cost: Cost::default(),
        upstream_addr: None,
        credential: None,
        mcp: None,
        approval: None,
        waited_ms: None,
    }
}

const MCP: McpLine<'static> = McpLine {
    server: None,
    tool: None,
    args_sha256: None,
    decision: None,
    reason: None,
    suspicious: false,
    agent_id: None,
    request_id: None,
    phase: None,
};

fn json(line: &AuditLine<'_>) -> String {
    String::from_utf8(line.encode().json).unwrap()
}

fn read(line: &AuditLine<'_>) -> Value {
    serde_json::from_str(&json(line)).unwrap()
}

fn whole(text: &str) -> Option<Excerpt<'_>> {
    let is_cut = false;
    Some(Excerpt { text, is_cut })
}

#[test]
fn absent_values_have_no_key() {
    let line = line();
    let expected = json!({
        "ts": "1970-01-01T00:00:00.000Z", "flow": line.flow.to_string(), "kind": "dns",
        "host": "*", "port": 53, "outcome": "ok",
        "bytes_in": 0, "bytes_out": 0, "duration_ms": 0,
    });
    assert_eq!(json(&line), expected.to_string());
}

#[test]
fn all_values_except_those_of_mcp_are_written_in_the_order_of_the_log() {
    let host = Host::Address("2001:db8::9".parse().unwrap());
    let line = AuditLine {
        kind: Kind::Websocket,
        container_id: Some("web-1_a.B"),
        client: Some("2001:db8::7".parse().unwrap()),
        method: whole("GET"),
        host: Some(&host),
        port: u16::MAX,
        path: whole("/v1"),
        status: Some(403),
        outcome: "denied",
        code: Some("domain_not_allowed"),
        addon: Some("policy"),
        rule: Some("allowlist"),
        cost: Cost {
            bytes_in: u64::MAX,
            bytes_out: 10,
            duration_ms: 1234567,
        },
        upstream_addr: Some("[2001:db8::9]:443".parse().unwrap()),
        credential: Some("anthropic"),
        ..line()
    };
    let expected = json!({
        "ts": "1970-01-01T00:00:00.000Z", "flow": line.flow.to_string(), "kind": "websocket",
        "container_id": "web-1_a.B", "client": "2001:db8::7", "method": "GET",
        "host": "[2001:db8::9]", "port": 65535, "path": "/v1", "status": 403,
        "outcome": "denied", "code": "domain_not_allowed", "addon": "policy",
        "rule": "allowlist", "bytes_in": u64::MAX, "bytes_out": 10, "duration_ms": 1234567,
        "upstream_addr": "[2001:db8::9]:443", "credential": "anthropic", "count": 7,
    });
    let folded = line.encode().foldable().encode(line.cost, 7);
    assert_eq!(String::from_utf8(folded).unwrap(), expected.to_string());
}

#[test]
fn the_line_of_a_tool_call_ends_with_its_mcp_values_and_its_approval() {
    let mcp = McpLine {
        server: Some("kb"),
        tool: whole("fetch"),
        args_sha256: Some("00ff"),
        decision: Some("deny_continue"),
        reason: Some("not \"today\""),
        suspicious: true,
        agent_id: None,
        request_id: Some("r1"),
        phase: Some("before"),
    };
    let json = json(&AuditLine {
        mcp: Some(mcp),
        approval: Some("0a"),
        waited_ms: Some(7),
        ..line()
    });
    let end = r#","duration_ms":0,"server":"kb","tool":"fetch","args_sha256":"00ff","decision":"deny_continue","reason":"not \"today\"","suspicious":true,"request_id":"r1","phase":"before","approval":"0a","waited_ms":7}"#;
    assert!(json.ends_with(end), "{json}");
}

#[test]
fn max_length_is_the_length_with_the_largest_numbers() {
    let line = line().encode().foldable();
    let most = Cost {
        bytes_in: u64::MAX,
        bytes_out: u64::MAX,
        duration_ms: u64::MAX,
    };
    assert_eq!(line.encode(most, u64::MAX).len(), line.max_length());
}

#[test]
fn a_foldable_line_of_one_flow_encodes_to_the_original_line() {
    let cost = Cost {
        bytes_out: 70_000,
        ..Cost::default()
    };
    let credential = Some("anthropic");
    each_row(
        [
            line(),
            AuditLine { cost, ..line() },
            AuditLine {
                credential,
                ..line()
            },
        ],
        |line| {
            let again = line.encode().foldable().encode(line.cost, 1);
            assert_eq!(String::from_utf8(again).unwrap(), json(&line));
        },
    );
}

#[test]
fn fold_keys_differ_if_anything_but_time_flow_and_cost_differs() {
    let key = |line: AuditLine<'_>| line.encode().foldable().key;
    let cost = Cost {
        bytes_in: 1,
        bytes_out: 22,
        duration_ms: 333,
    };
    let ts = SystemTime::now();
    assert_eq!(key(line()), key(AuditLine { ts, cost, ..line() }));
    let (name, other) = (
        Host::Name("a.example".into()),
        Host::Name("b.example".into()),
    );
    let with = |change: &dyn Fn(&mut AuditLine<'static>)| {
        let mut line = line();
        change(&mut line);
        key(line)
    };
    let mut all = vec![
        key(line()),
        key(AuditLine {
            host: Some(&name),
            ..line()
        }),
        key(AuditLine {
            host: Some(&other),
            ..line()
        }),
        with(&|line| line.kind = Kind::Http),
        with(&|line| line.container_id = Some("web")),
        with(&|line| line.client = Some([10, 0, 0, 7].into())),
        with(&|line| line.method = whole("GET")),
        with(&|line| line.port = 54),
        with(&|line| line.path = whole("/")),
        with(&|line| line.status = Some(200)),
        with(&|line| line.outcome = "failed"),
        with(&|line| line.code = Some("internal")),
        with(&|line| line.addon = Some("policy")),
        with(&|line| line.rule = Some("policy")),
        with(&|line| line.upstream_addr = Some(([10, 0, 0, 7], 53).into())),
        with(&|line| line.credential = Some("policy")),
        with(&|line| {
            line.mcp = Some(McpLine {
                server: Some("kb"),
                ..MCP
            })
        }),
        with(&|line| {
            line.mcp = Some(McpLine {
                tool: whole("kb"),
                ..MCP
            })
        }),
        with(&|line| {
            line.mcp = Some(McpLine {
                args_sha256: Some("kb"),
                ..MCP
            })
        }),
        with(&|line| {
            line.mcp = Some(McpLine {
                decision: Some("kb"),
                ..MCP
            })
        }),
        with(&|line| {
            line.mcp = Some(McpLine {
                reason: Some("kb"),
                ..MCP
            })
        }),
        with(&|line| line.approval = Some("kb")),
        with(&|line| line.waited_ms = Some(7)),
        with(&|line| {
            line.mcp = Some(McpLine {
                suspicious: true,
                ..MCP
            })
        }),
        with(&|line| {
            line.mcp = Some(McpLine {
                request_id: Some("kb"),
                ..MCP
            })
        }),
        with(&|line| {
            line.mcp = Some(McpLine {
                phase: Some("before"),
                ..MCP
            })
        }),
    ];
    let lines = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), lines);
}

#[test]
fn a_cut_text_ends_with_an_ellipsis_inside_its_string() {
    each_row(["/long", "/\"long\\", ""], |text| {
        let path = Some(Excerpt { text, is_cut: true });
        let line = AuditLine { path, ..line() };
        assert_eq!(read(&line)["path"], format!("{text}…"));
    });
}

proptest! {
    #[test]
    fn every_text_is_escaped(texts in any::<[String; 5]>(), any_bytes in "[\0-\x7f\u{80}é𝄞]*") {
        let [method, path, rule, credential, host] = texts.map(|text| text + &any_bytes);
        let mcp = McpLine { tool: whole(&path), reason: Some(&rule), ..MCP };
        let name = Host::Name((*host).into());
        let line = AuditLine {
            method: whole(&method),
            path: whole(&path),
            rule: Some(&rule),
            credential: Some(&credential),
            host: Some(&name),
            mcp: Some(mcp),
            ..line()
        };
        let value = read(&line);
        prop_assert_eq!(&value["tool"], &path);
        prop_assert_eq!(&value["reason"], &rule);
        prop_assert_eq!(&value["method"], &method);
        prop_assert_eq!(&value["path"], &path);
        prop_assert_eq!(&value["rule"], &rule);
        prop_assert_eq!(&value["credential"], &credential);
        prop_assert_eq!(&value["host"], &host);
        prop_assert_eq!(value.to_string(), json(&line));
    }

    #[test]
    fn numbers_are_written_in_full(small: u8, large: u64, port: u16, status in 1..1000_u16) {
        let cost = Cost {
            bytes_in: small.into(),
            bytes_out: large,
            duration_ms: large >> (small % 64),
        };
        let status = Some(status);
        let value = read(&AuditLine { cost, port, status, ..line() });
        prop_assert_eq!(&value["bytes_in"], cost.bytes_in);
        prop_assert_eq!(&value["bytes_out"], cost.bytes_out);
        prop_assert_eq!(&value["duration_ms"], cost.duration_ms);
        prop_assert_eq!(&value["port"], port);
        prop_assert_eq!(value["status"].as_u64(), status.map(u64::from));
    }

    /// A line feed inside a line would let a client forge a line.
    #[test]
    fn a_line_has_no_newline(path in "(?s).*", is_cut: bool) {
        let path = Some(Excerpt { text: &path, is_cut });
        let json = json(&AuditLine { path, ..line() });
        prop_assert!(!json.contains('\n'), "{}", json);
    }

    #[test]
    fn addresses_and_ids_are_written_in_their_display_form(v4: [u8; 4], v6: [u8; 16], port: u16) {
        for address in [IpAddr::from(v4), IpAddr::from(v6)] {
            let upstream = SocketAddr::new(address, port);
            let host = Host::Address(address);
            let line = AuditLine {
                client: Some(address),
                host: Some(&host),
                upstream_addr: Some(upstream),
                ..line()
            };
            let json = read(&line);
            prop_assert_eq!(&json["client"], &address.to_string());
            prop_assert_eq!(&json["host"], &host.to_string());
            prop_assert_eq!(&json["upstream_addr"], &upstream.to_string());
            prop_assert_eq!(&json["flow"], &line.flow.to_string());
        }
    }

    /// Up to the end of the year 9999, the last year that RFC 3339 can express.
    #[test]
    fn times_are_written_as_rfc_3339(second in 0..253_402_300_800_u64, millisecond in 0..1000_u64) {
        const RFC_3339: &[BorrowedFormatItem<'_>] = format_description!(
            "[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z"
        );
        let ts = UNIX_EPOCH + Duration::from_millis(second * 1000 + millisecond);
        let expected = OffsetDateTime::from(ts).format(RFC_3339).unwrap();
        prop_assert_eq!(&read(&AuditLine { ts, ..line() })["ts"], &expected);
    }
}

#[test]
fn times_are_truncated_to_milliseconds() {
    let at = |nanos| {
        let ts = UNIX_EPOCH + Duration::from_nanos(nanos);
        read(&AuditLine { ts, ..line() })["ts"].clone()
    };
    // Around the leap day of 2000.
    assert_eq!(at(951_782_399_999_999_999), "2000-02-28T23:59:59.999Z");
    assert_eq!(at(951_782_400_000_000_000), "2000-02-29T00:00:00.000Z");
    assert_eq!(at(951_868_799_009_999_999), "2000-02-29T23:59:59.009Z");
    assert_eq!(at(951_868_800_010_000_000), "2000-03-01T00:00:00.010Z");
}
