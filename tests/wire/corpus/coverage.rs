//! Which denial is recorded on which ingress, and why not on the others.

use std::collections::BTreeSet;

use addons::contract::Code;

use super::ask::Ingress::{
    self, Connect, DnsHttp, DnsTcp, DnsUdp, Http1, Http2, InfoRefs, Plain, PushReport, PushStatus,
    Tls, WebSocket,
};
use super::files::Recorded;

/// The ingresses on which a code is recorded, and why it is not on the others.
struct Row {
    code: Code,
    recorded: &'static [Ingress],
    /// Ingresses where it cannot occur or cannot be provoked, and why.
    elsewhere: &'static [(&'static [Ingress], &'static str)],
}

const CONNECT_FIRST: &str = "the CONNECT is denied before";
const HANDSHAKE: &str = "the handshake is not judged for it";
const NO_BODY: &str = "it has no body";
const NO_COMMANDS: &str = "push_denials is about denied commands; this is answered as under report";
const NO_HTTP: &str = "a question is no request";
const OWN_LISTENER: &str = "the listener of a lease and its connections end with it";
const ONLY_MCP: &str = "only messages of MCP are judged for it";
const NO_REQUEST: &str = "the request inside is judged for it";

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
            (&[DnsUdp, DnsTcp], "a question has no fields"),
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
                "connections are counted when they are accepted",
            ),
            (&[PushStatus], NO_COMMANDS),
            (&[DnsUdp], "there is no connection"),
            (
                &[DnsTcp],
                "what is over the limit is closed without an answer",
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
                "circuits are of upstreams, not of nameservers",
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
            (&[DnsUdp, DnsTcp, DnsHttp], "a question has no port"),
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
            "only the opening of a WebSocket has it",
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
            "only the handshake has it",
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
                "rules are for requests and tunnels",
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
                "rules are for requests and tunnels",
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
            (&[DnsUdp, DnsTcp, DnsHttp], "a question has one name"),
        ],
    },
    Row {
        code: Code::ProtocolNotAllowed,
        recorded: &[Plain, Http1, Tls],
        elsewhere: &[
            (&[Connect], "the tunnel is read after the answer"),
            (&[Http2], "HTTP/2 has no Upgrade"),
            (&[WebSocket], "it is the upgrade that passes"),
            (
                &[PushReport, PushStatus, InfoRefs],
                "git asks for no upgrade",
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
            (&[InfoRefs], "it reads"),
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
            (&[Plain], "a secret goes over TLS alone"),
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
            (&[Plain], "the upstream is spoken to in clear text"),
            (
                &[Connect],
                "the client itself shakes hands with a passthrough host",
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
            "no request and no answer of an upstream breaks a part of the proxy",
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
                    "{code} on {ingress:?}: recorded {is}, by the table {says}"
                ));
            }
        }
        failures
    }
}
