//! The ingresses on which each denial code is recorded, and why it is not recorded on the others.

use std::collections::BTreeSet;

use addons::contract::Code;

use super::request_spec::Ingress::{
    self, Connect, DnsHttp, DnsTcp, DnsUdp, Http1, Http2, InfoRefs, Plain, PushReport, PushStatus,
    Tls, WebSocket,
};
use super::files::Recorded;

/// The ingresses on which a code is recorded, and why it is not recorded on the others.
struct Row {
    code: Code,
    recorded: &'static [Ingress],
    /// Ingresses on which the code cannot occur or cannot be provoked, and the reason.
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
        code: Code::ClientAddressUnknown,
        recorded: &[],
        elsewhere: &[(
            &Ingress::ALL,
            "every connection has a peer address or a listener of its container",
        )],
    },
    Row {
        code: Code::UnknownSource,
        recorded: &[
            Plain, Connect, WebSocket, PushReport, PushStatus, InfoRefs, DnsUdp, DnsTcp,
        ],
        elsewhere: &[
            (&[Http1, Http2, Tls], CONNECT_FIRST),
            (&[DnsHttp], OWN_LISTENER),
        ],
    },
    Row {
        code: Code::ContainerIdMismatch,
        recorded: &[
            Plain, Connect, Http1, Http2, WebSocket, PushReport, PushStatus, InfoRefs, DnsHttp,
        ],
        elsewhere: &[
            (&[Tls], HANDSHAKE),
            (&[DnsUdp, DnsTcp], "a DNS query has no header fields"),
        ],
    },
    Row {
        code: Code::RegistrationExpired,
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
        code: Code::RegistryUnavailable,
        recorded: &[
            Plain, Connect, Http1, Http2, WebSocket, PushReport, InfoRefs, DnsUdp, DnsTcp, DnsHttp,
        ],
        elsewhere: &[(&[Tls], HANDSHAKE), (&[PushStatus], NO_COMMANDS)],
    },
    Row {
        code: Code::RateLimited,
        recorded: &[
            Plain, Connect, Http1, Http2, WebSocket, PushReport, InfoRefs, Tls, DnsUdp, DnsTcp,
            DnsHttp,
        ],
        elsewhere: &[(&[PushStatus], NO_COMMANDS)],
    },
    Row {
        code: Code::TooManyConnections,
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
        code: Code::CircuitOpen,
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
        code: Code::DomainNotAllowed,
        recorded: &[
            Plain, Connect, WebSocket, PushReport, PushStatus, InfoRefs, DnsUdp, DnsTcp, DnsHttp,
        ],
        elsewhere: &[(&[Http1, Http2, Tls], CONNECT_FIRST)],
    },
    Row {
        code: Code::AddressNotAllowed,
        recorded: &[
            Plain, Connect, Http1, Http2, WebSocket, PushReport, PushStatus, InfoRefs, DnsUdp,
            DnsTcp, DnsHttp,
        ],
        elsewhere: &[(&[Tls], HANDSHAKE)],
    },
    Row {
        code: Code::PortNotAllowed,
        recorded: &[Plain, Connect, WebSocket, PushReport, PushStatus, InfoRefs],
        elsewhere: &[
            (&[Http1, Http2, Tls], CONNECT_FIRST),
            (&[DnsUdp, DnsTcp, DnsHttp], "a DNS query has no port"),
        ],
    },
    Row {
        code: Code::MethodNotAllowed,
        recorded: &[Plain, Http1, Http2, DnsHttp],
        elsewhere: &[
            (&[Connect], "CONNECT is a known method"),
            (&[WebSocket, InfoRefs], "its method is GET"),
            (&[PushReport, PushStatus], "its method is POST"),
            (&[Tls], HANDSHAKE),
            (&[DnsUdp, DnsTcp], NO_HTTP),
        ],
    },
    Row {
        code: Code::WebsocketNotAllowed,
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
        code: Code::ClientRejectedCertificate,
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
        code: Code::LevelExceeded,
        recorded: &[
            Plain, Connect, WebSocket, PushReport, PushStatus, InfoRefs, DnsUdp, DnsTcp, DnsHttp,
        ],
        elsewhere: &[(&[Http1, Http2, Tls], CONNECT_FIRST)],
    },
    Row {
        code: Code::RuleDenied,
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
        code: Code::ApprovalPending,
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
        code: Code::ApprovalRejected,
        recorded: &[],
        elsewhere: &[(&Ingress::ALL, "an approval cannot be rejected yet")],
    },
    Row {
        code: Code::HostMismatch,
        recorded: &[
            Plain, Http1, Http2, WebSocket, PushReport, PushStatus, InfoRefs, Tls,
        ],
        elsewhere: &[
            (&[Connect], "the Host of a CONNECT is ignored"),
            (&[DnsUdp, DnsTcp, DnsHttp], "a DNS query has one name"),
        ],
    },
    Row {
        code: Code::ProtocolNotAllowed,
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
        code: Code::ApiBlocked,
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
        code: Code::WriteNotAllowed,
        recorded: &[Plain, Http1, Http2, WebSocket, PushReport, PushStatus],
        elsewhere: &[
            (&[Connect], NO_REQUEST),
            (&[InfoRefs], "the request only reads"),
            (&[Tls], HANDSHAKE),
            (&[DnsUdp, DnsTcp, DnsHttp], NO_HTTP),
        ],
    },
    Row {
        code: Code::RepoNotAuthorized,
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
        code: Code::BranchDeletionBlocked,
        recorded: &[PushReport, PushStatus],
        elsewhere: &[(
            &[
                Plain, Connect, Http1, Http2, WebSocket, InfoRefs, Tls, DnsUdp, DnsTcp, DnsHttp,
            ],
            "only a push has commands",
        )],
    },
    Row {
        code: Code::BotBranchRestricted,
        recorded: &[PushReport, PushStatus],
        elsewhere: &[(
            &[
                Plain, Connect, Http1, Http2, WebSocket, InfoRefs, Tls, DnsUdp, DnsTcp, DnsHttp,
            ],
            "only a push has commands",
        )],
    },
    Row {
        code: Code::PushTooLarge,
        recorded: &[Plain, Http1, Http2, PushReport, PushStatus],
        elsewhere: &[
            (&[Connect, WebSocket, InfoRefs], NO_BODY),
            (&[Tls], HANDSHAKE),
            (&[DnsUdp, DnsTcp, DnsHttp], NO_HTTP),
        ],
    },
    Row {
        code: Code::BodyTooLargeToInspect,
        recorded: &[Plain, Http1, Http2, PushReport, PushStatus, DnsHttp],
        elsewhere: &[
            (&[Connect, WebSocket, InfoRefs], NO_BODY),
            (&[Tls], HANDSHAKE),
            (&[DnsUdp, DnsTcp], NO_HTTP),
        ],
    },
    Row {
        code: Code::InspectionBusy,
        recorded: &[Plain, Http1, Http2, PushReport, PushStatus, DnsHttp],
        elsewhere: &[
            (&[Connect, WebSocket, InfoRefs], NO_BODY),
            (&[Tls], HANDSHAKE),
            (&[DnsUdp, DnsTcp], NO_HTTP),
        ],
    },
    Row {
        code: Code::BodyTimeout,
        recorded: &[Plain, Http1, Http2, PushReport, PushStatus, DnsHttp],
        elsewhere: &[
            (&[Connect, WebSocket, InfoRefs], NO_BODY),
            (&[Tls], HANDSHAKE),
            (&[DnsUdp, DnsTcp], NO_HTTP),
        ],
    },
    Row {
        code: Code::UnsupportedEncoding,
        recorded: &[Plain, Http1, Http2, PushReport, PushStatus, DnsHttp],
        elsewhere: &[
            (&[Connect, WebSocket, InfoRefs], NO_BODY),
            (&[Tls], HANDSHAKE),
            (&[DnsUdp, DnsTcp], NO_HTTP),
        ],
    },
    Row {
        code: Code::MalformedRequest,
        recorded: &[
            Plain, Connect, Http1, Http2, WebSocket, PushReport, PushStatus, InfoRefs, Tls, DnsUdp,
            DnsTcp, DnsHttp,
        ],
        elsewhere: &[],
    },
    Row {
        code: Code::CredentialUnavailable,
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
        code: Code::CredentialMisuse,
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
        code: Code::UpstreamUnreachable,
        recorded: &[
            Plain, Connect, Http1, Http2, WebSocket, PushReport, InfoRefs, DnsUdp, DnsTcp, DnsHttp,
        ],
        elsewhere: &[(&[PushStatus], NO_COMMANDS), (&[Tls], HANDSHAKE)],
    },
    Row {
        code: Code::UpstreamTimeout,
        recorded: &[
            Plain, Connect, Http1, Http2, WebSocket, PushReport, InfoRefs, DnsUdp, DnsTcp, DnsHttp,
        ],
        elsewhere: &[(&[PushStatus], NO_COMMANDS), (&[Tls], HANDSHAKE)],
    },
    Row {
        code: Code::UpstreamTls,
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
        code: Code::PolicyDenied,
        recorded: &[],
        elsewhere: &[(&Ingress::ALL, ONLY_MCP)],
    },
    Row {
        code: Code::PolicyDeniedContinue,
        recorded: &[],
        elsewhere: &[(&Ingress::ALL, ONLY_MCP)],
    },
    Row {
        code: Code::PolicyBackendReservedMisuse,
        recorded: &[],
        elsewhere: &[(&Ingress::ALL, ONLY_MCP)],
    },
    Row {
        code: Code::PolicyEvaluatorError,
        recorded: &[],
        elsewhere: &[(&Ingress::ALL, ONLY_MCP)],
    },
    Row {
        code: Code::ToolNotFound,
        recorded: &[],
        elsewhere: &[(&Ingress::ALL, ONLY_MCP)],
    },
    Row {
        code: Code::ToolUnavailable,
        recorded: &[],
        elsewhere: &[(&Ingress::ALL, ONLY_MCP)],
    },
    Row {
        code: Code::ToolTimeout,
        recorded: &[],
        elsewhere: &[(&Ingress::ALL, ONLY_MCP)],
    },
    Row {
        code: Code::NotImplemented,
        recorded: &[],
        elsewhere: &[(&Ingress::ALL, ONLY_MCP)],
    },
    Row {
        code: Code::InternalError,
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
            let rows: Vec<_> = ROWS.iter().filter(|row| row.code == *code).collect();
            match rows.as_slice() {
                [row] => row.failures(&files),
                _ => vec![format!("{code:?} has {} rows in the table", rows.len())],
            }
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

impl Row {
    fn failures(&self, files: &BTreeSet<(String, Ingress)>) -> Vec<String> {
        let mut failures = Vec::new();
        for ingress in Ingress::ALL {
            let code = self.code.as_str();
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
