//! The ingresses (kinds of exchange, such as a CONNECT) on which each denial code is recorded, and
//! why it is not recorded on the others.

use std::collections::BTreeSet;

use addons::contract::Code;

use super::files::Recorded;
use super::request_spec::Ingress::{
    self, Connect, DnsHttp, DnsTcp, DnsUdp, Http1, Http2, InfoRefs, Plain, PushReport, PushStatus,
    Tls, WebSocket,
};

/// Denial codes that are recorded on the same ingresses, and why they are not recorded on the
/// others.
struct Row {
    codes: &'static [Code],
    recorded: &'static [Ingress],
    /// Ingresses on which the codes cannot occur or cannot be provoked, and the reason.
    elsewhere: &'static [(&'static [Ingress], &'static str)],
}

const CONNECT_FIRST: &str = "the proxy denies the CONNECT";
const HANDSHAKE: &str = "the proxy does not check this in the handshake";
const NO_BODY: &str = "the request has no body";
const NO_COMMANDS: &str =
    "push_denials applies to denied commands; this denial is the same with report and status";
const NO_HTTP: &str = "a DNS query is not an HTTP request";
const OWN_LISTENER: &str = "the listener of a lease and its connections end with the lease";
const ONLY_MCP: &str = "only an MCP message can get this code";
const NO_REQUEST: &str = "the proxy checks this for each request inside the tunnel";

const ROWS: &[Row] = &[
    Row {
        codes: &[Code::ClientAddressUnknown],
        recorded: &[],
        elsewhere: &[(
            &Ingress::ALL,
            "every connection has a peer address or a listener of its container",
        )],
    },
    Row {
        codes: &[Code::UnknownSource],
        recorded: &[
            Plain, Connect, WebSocket, PushReport, PushStatus, InfoRefs, DnsUdp, DnsTcp,
        ],
        elsewhere: &[
            (&[Http1, Http2, Tls], CONNECT_FIRST),
            (&[DnsHttp], OWN_LISTENER),
        ],
    },
    Row {
        codes: &[Code::ContainerIdMismatch],
        recorded: &[
            Plain, Connect, Http1, Http2, WebSocket, PushReport, PushStatus, InfoRefs, DnsHttp,
        ],
        elsewhere: &[
            (&[Tls], HANDSHAKE),
            (&[DnsUdp, DnsTcp], "a DNS query has no header fields"),
        ],
    },
    Row {
        codes: &[Code::RegistrationExpired],
        recorded: &[
            Plain, Connect, WebSocket, PushReport, InfoRefs, DnsUdp, DnsTcp,
        ],
        elsewhere: &[
            (&[Http1, Http2, Tls], "the tunnels of a lease end with it"),
            (&[PushStatus], NO_COMMANDS),
            (&[DnsHttp], OWN_LISTENER),
        ],
    },
    Row {
        codes: &[Code::RegistryUnavailable],
        recorded: &[
            Plain, Connect, Http1, Http2, WebSocket, PushReport, InfoRefs, DnsUdp, DnsTcp, DnsHttp,
        ],
        elsewhere: &[(&[Tls], HANDSHAKE), (&[PushStatus], NO_COMMANDS)],
    },
    Row {
        codes: &[Code::RateLimited],
        recorded: &[
            Plain, Connect, Http1, Http2, WebSocket, PushReport, InfoRefs, Tls, DnsUdp, DnsTcp,
            DnsHttp,
        ],
        elsewhere: &[(&[PushStatus], NO_COMMANDS)],
    },
    Row {
        codes: &[Code::TooManyConnections],
        recorded: &[Plain, Connect, WebSocket, PushReport, InfoRefs, DnsHttp],
        elsewhere: &[
            (
                &[Http1, Http2, Tls],
                "the proxy counts connections when it accepts them",
            ),
            (&[PushStatus], NO_COMMANDS),
            (&[DnsUdp], "UDP has no connections"),
            (
                &[DnsTcp],
                "the proxy closes a connection over the limit without a response",
            ),
        ],
    },
    Row {
        codes: &[Code::CircuitOpen],
        recorded: &[
            Plain, Connect, Http1, Http2, WebSocket, PushReport, InfoRefs,
        ],
        elsewhere: &[
            (&[PushStatus], NO_COMMANDS),
            (&[Tls], HANDSHAKE),
            (
                &[DnsUdp, DnsTcp, DnsHttp],
                "nameservers have no circuit breaker",
            ),
        ],
    },
    Row {
        codes: &[Code::DomainNotAllowed, Code::LevelExceeded],
        recorded: &[
            Plain, Connect, WebSocket, PushReport, PushStatus, InfoRefs, DnsUdp, DnsTcp, DnsHttp,
        ],
        elsewhere: &[(&[Http1, Http2, Tls], CONNECT_FIRST)],
    },
    Row {
        codes: &[Code::AddressNotAllowed],
        recorded: &[
            Plain, Connect, Http1, Http2, WebSocket, PushReport, PushStatus, InfoRefs, DnsUdp,
            DnsTcp, DnsHttp,
        ],
        elsewhere: &[(&[Tls], HANDSHAKE)],
    },
    Row {
        codes: &[Code::PortNotAllowed],
        recorded: &[Plain, Connect, WebSocket, PushReport, PushStatus, InfoRefs],
        elsewhere: &[
            (&[Http1, Http2, Tls], CONNECT_FIRST),
            (&[DnsUdp, DnsTcp, DnsHttp], "a DNS query has no port"),
        ],
    },
    Row {
        codes: &[Code::MethodNotAllowed],
        recorded: &[Plain, Http1, Http2, DnsHttp],
        elsewhere: &[
            (&[Connect], "CONNECT is a known method"),
            (
                &[WebSocket, InfoRefs],
                "the method of these requests is GET",
            ),
            (&[PushReport, PushStatus], "the method of a push is POST"),
            (&[Tls], HANDSHAKE),
            (&[DnsUdp, DnsTcp], NO_HTTP),
        ],
    },
    Row {
        codes: &[Code::WebsocketNotAllowed],
        recorded: &[WebSocket],
        elsewhere: &[(
            &[
                Plain, Connect, Http1, Http2, PushReport, PushStatus, InfoRefs, Tls, DnsUdp,
                DnsTcp, DnsHttp,
            ],
            "only the opening of a WebSocket can get this code",
        )],
    },
    Row {
        codes: &[Code::ClientRejectedCertificate],
        recorded: &[Tls],
        elsewhere: &[(
            &[
                Plain, Connect, Http1, Http2, WebSocket, PushReport, PushStatus, InfoRefs, DnsUdp,
                DnsTcp, DnsHttp,
            ],
            "only a handshake can get this code",
        )],
    },
    Row {
        codes: &[Code::RuleDenied, Code::ApprovalPending],
        recorded: &[
            Plain, Connect, Http1, Http2, WebSocket, PushReport, PushStatus, InfoRefs,
        ],
        elsewhere: &[
            (&[Tls], HANDSHAKE),
            (
                &[DnsUdp, DnsTcp, DnsHttp],
                "rules apply to requests and tunnels",
            ),
        ],
    },
    Row {
        codes: &[Code::ApprovalRejected],
        recorded: &[],
        elsewhere: &[(&Ingress::ALL, "a person must reject it: see `asking.rs`")],
    },
    Row {
        codes: &[Code::HostMismatch],
        recorded: &[
            Plain, Http1, Http2, WebSocket, PushReport, PushStatus, InfoRefs, Tls,
        ],
        elsewhere: &[
            (&[Connect], "the Host of a CONNECT is ignored"),
            (&[DnsUdp, DnsTcp, DnsHttp], "a DNS query has one name"),
        ],
    },
    Row {
        codes: &[Code::ProtocolNotAllowed],
        recorded: &[Plain, Http1, Tls],
        elsewhere: &[
            (&[Connect], "the proxy reads the tunnel after the 200"),
            (&[Http2], "HTTP/2 has no Upgrade"),
            (&[WebSocket], "an upgrade to WebSocket is permitted"),
            (
                &[PushReport, PushStatus, InfoRefs],
                "git requests no upgrade",
            ),
            (&[DnsUdp, DnsTcp, DnsHttp], NO_HTTP),
        ],
    },
    Row {
        codes: &[Code::ApiBlocked],
        recorded: &[Plain, Http1, Http2],
        elsewhere: &[
            (&[Connect], NO_REQUEST),
            (&[WebSocket], "blocked calls are writes"),
            (&[PushReport, PushStatus, InfoRefs], "a git host has no API"),
            (&[Tls], HANDSHAKE),
            (&[DnsUdp, DnsTcp, DnsHttp], NO_HTTP),
        ],
    },
    Row {
        codes: &[Code::WriteNotAllowed],
        recorded: &[Plain, Http1, Http2, WebSocket, PushReport, PushStatus],
        elsewhere: &[
            (&[Connect], NO_REQUEST),
            (&[InfoRefs], "the request only reads"),
            (&[Tls], HANDSHAKE),
            (&[DnsUdp, DnsTcp, DnsHttp], NO_HTTP),
        ],
    },
    Row {
        codes: &[Code::RepoNotAuthorized],
        recorded: &[
            Plain, Http1, Http2, WebSocket, PushReport, PushStatus, InfoRefs,
        ],
        elsewhere: &[
            (&[Connect], NO_REQUEST),
            (&[Tls], HANDSHAKE),
            (&[DnsUdp, DnsTcp, DnsHttp], NO_HTTP),
        ],
    },
    Row {
        codes: &[Code::BranchDeletionBlocked, Code::BotBranchRestricted],
        recorded: &[PushReport, PushStatus],
        elsewhere: &[(
            &[
                Plain, Connect, Http1, Http2, WebSocket, InfoRefs, Tls, DnsUdp, DnsTcp, DnsHttp,
            ],
            "only a push has commands",
        )],
    },
    Row {
        codes: &[Code::PushTooLarge],
        recorded: &[Plain, Http1, Http2, PushReport, PushStatus],
        elsewhere: &[
            (&[Connect, WebSocket, InfoRefs], NO_BODY),
            (&[Tls], HANDSHAKE),
            (&[DnsUdp, DnsTcp, DnsHttp], NO_HTTP),
        ],
    },
    Row {
        codes: &[
            Code::BodyTooLargeToInspect,
            Code::InspectionBusy,
            Code::BodyTimeout,
            Code::UnsupportedEncoding,
        ],
        recorded: &[Plain, Http1, Http2, PushReport, PushStatus, DnsHttp],
        elsewhere: &[
            (&[Connect, WebSocket, InfoRefs], NO_BODY),
            (&[Tls], HANDSHAKE),
            (&[DnsUdp, DnsTcp], NO_HTTP),
        ],
    },
    Row {
        codes: &[Code::MalformedRequest],
        recorded: &[
            Plain, Connect, Http1, Http2, WebSocket, PushReport, PushStatus, InfoRefs, Tls, DnsUdp,
            DnsTcp, DnsHttp,
        ],
        elsewhere: &[],
    },
    Row {
        codes: &[Code::CredentialUnavailable],
        recorded: &[Http1, Http2, WebSocket, PushReport, InfoRefs],
        elsewhere: &[
            (&[Plain], "the proxy sends secrets only over TLS"),
            (&[Connect], NO_REQUEST),
            (&[PushStatus], NO_COMMANDS),
            (&[Tls], HANDSHAKE),
            (&[DnsUdp, DnsTcp, DnsHttp], NO_HTTP),
        ],
    },
    Row {
        codes: &[Code::CredentialMisuse],
        recorded: &[
            Plain, Http1, Http2, WebSocket, PushReport, PushStatus, InfoRefs,
        ],
        elsewhere: &[
            (&[Connect], "no field of a CONNECT goes upstream"),
            (&[Tls], HANDSHAKE),
            (&[DnsUdp, DnsTcp, DnsHttp], NO_HTTP),
        ],
    },
    Row {
        codes: &[Code::UpstreamUnreachable, Code::UpstreamTimeout],
        recorded: &[
            Plain, Connect, Http1, Http2, WebSocket, PushReport, InfoRefs, DnsUdp, DnsTcp, DnsHttp,
        ],
        elsewhere: &[(&[PushStatus], NO_COMMANDS), (&[Tls], HANDSHAKE)],
    },
    Row {
        codes: &[Code::UpstreamTls],
        recorded: &[Http1, Http2, WebSocket, PushReport, InfoRefs],
        elsewhere: &[
            (&[Plain], "the upstream connection has no TLS"),
            (
                &[Connect],
                "the client, not the proxy, does the handshake with a passthrough host",
            ),
            (&[PushStatus], NO_COMMANDS),
            (&[Tls], HANDSHAKE),
            (&[DnsUdp, DnsTcp, DnsHttp], NO_HTTP),
        ],
    },
    Row {
        codes: &[
            Code::PolicyDenied,
            Code::PolicyDeniedContinue,
            Code::PolicyBackendReservedMisuse,
            Code::PolicyEvaluatorError,
            Code::ToolNotFound,
            Code::ToolUnavailable,
            Code::ToolTimeout,
            Code::NotImplemented,
        ],
        recorded: &[],
        elsewhere: &[(&Ingress::ALL, ONLY_MCP)],
    },
    Row {
        codes: &[Code::InternalError],
        recorded: &[],
        elsewhere: &[(
            &Ingress::ALL,
            "no request and no response of an upstream is known to provoke it",
        )],
    },
];

/// Panics unless the table has each code once, each row has every ingress once, and the recorded
/// files are exactly those of the table.
pub fn check(recorded: &Recorded) {
    let files = recorded.paths().filter_map(|path| {
        let (code, file) = path.strip_suffix(".txt")?.split_once('/')?;
        Some((code.to_owned(), Ingress::of_file(file)?))
    });
    let files: BTreeSet<_> = files.collect();
    let failures: Vec<_> = Code::ALL
        .iter()
        .flat_map(|code| {
            let rows: Vec<_> = ROWS.iter().filter(|row| row.codes.contains(code)).collect();
            match rows.as_slice() {
                [row] => row.failures(code.as_str(), &files),
                _ => vec![format!("{code:?} has {} rows in the table", rows.len())],
            }
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

impl Row {
    fn failures(&self, code: &str, files: &BTreeSet<(String, Ingress)>) -> Vec<String> {
        let mut failures = Vec::new();
        for ingress in Ingress::ALL {
            let elsewhere = self
                .elsewhere
                .iter()
                .flat_map(|(ingresses, _why)| *ingresses);
            let all = self.recorded.iter().chain(elsewhere);
            let times = all.filter(|one| **one == ingress).count();
            if times != 1 {
                failures.push(format!("the table has {code} on {ingress:?} {times} times"));
            }
            let says = self.recorded.contains(&ingress);
            let is = files.contains(&(code.to_owned(), ingress));
            if says != is {
                failures.push(format!(
                    "{code} on {ingress:?}: recorded: {is}, according to the table: {says}"
                ));
            }
        }
        failures
    }
}
