//! Compares `docs/compatibility.md` with the results of the test, or writes it.

use std::fs;
use std::path::Path;

use super::clients::CLIENTS;
use super::tools::Tools;
use crate::support::installed::{recorded_line, recorded_today};

/// Variable that makes the test write the document instead of comparing it.
const RECORD: &str = "RECORD_COMPATIBILITY";

const HEAD: &str = "\
# Compatibility

The table lists clients that work with the variables of `unified-proxy env` ([certificates.md](certificates.md)), further settings that they need,
and what they show for a host that is not on the allowlist. `tests/compatibility` makes this table: it runs each client with only these variables,
over TLS, against a stand-in for the server that the client uses, and fails when a line differs.
`RECORD_COMPATIBILITY=1 ./scripts/test compatibility::` writes the table again, if every client is installed.

The response to a denied CONNECT has the sentence of the denial as its reason phrase, `Domain not allowed: NAME`. A client that shows only the
status hides the reason; `unified-proxy tail --denied` shows it for every client. The response to a request that is denied inside a tunnel
has the sentence in its body.

## Requests and responses

The proxy does what curl and nginx do, except where a rule of [security.md](security.md) forbids it.

| what | how the proxy handles it |
| --- | --- |
| `GET https://…` to the proxy, as axios up to 1.15 sends it | served: TLS to the upstream, judged as a request in a tunnel. Between client and proxy, it is clear text |
| header lines over HTTP/1.1 | up to 256; a request with more gets 431, a response with more is 502 `upstream_unreachable`. A connection reads over 100 lines only once it needs to: the first request with more gets 431 if it follows a request with a body, or precedes the previous response. After a host's first response with more, the proxy sends a GET again; a POST is 502 `upstream_unreachable`, at most once for each open connection to the host. All lines together: `limits.max_header_bytes` |
| a URL | path and query up to 8 KiB; longer ones get 400 `malformed_request` |
| a host name with an underscore | 400: it is no valid host name, and programs read it in different ways. Give the server a name of letters, digits and hyphens |
| an `Upgrade` other than to WebSocket, as of `curl --http2 http://…` | 403 `protocol_not_allowed` ([security.md](security.md)): requests over the other protocol would not be judged. curl works with `--http1.1`, its default for `http://` |
| a status without a registered name, such as 529 | passed on, over HTTP/1.1 with an empty reason phrase |
| `Expect: 100-continue` | the proxy asks for the body itself. If the upstream refuses the request early and closes, the client gets the refusal |
| a kept connection that the upstream closes as a request arrives | an idempotent request without a body is sent once more, on a new connection, if nothing of a response arrived. Other requests get 502 |
| a response that breaks off, or ends without a length and without TLS's close_notify | the part that arrived is delivered, then the client's connection or stream is aborted. With its whole length, the response is complete |
| a wrong `Content-Encoding` on a host with a credential | UTF-8 text that is labelled gzip or zstd is delivered as text, and so is a body whose label names no encoding (`utf-8`, `none`). Other bodies that cannot be decoded are refused, since their echoes of secrets could not be found |
| a nameserver with a link-local address | `fe80::1%eth0` in resolv.conf and in `upstream.nameservers`, with a port `[fe80::1%eth0]:5353` |
| a server with TLS 1.1 or older, or TLS 1.2 with only CBC ciphers or RSA key exchange | 502 `upstream_tls`; under `tls.passthrough`, the client's own TLS decides |
| a self-signed certificate in `tls.upstream_ca` | accepted as the certificate of a server only with CA:FALSE ([certificates.md](certificates.md#upstreams)) |

## Clients

";

const TABLE: &str = "\
| client | an allowed host | a denied host |
| --- | --- | --- |
";

/// Compares the document with the lines of the clients that ran and with the pinned versions, or
/// writes it. The comparison ignores the lines of other clients, the date and the versions of the
/// machine's programs.
pub fn compare(rows: &[(&str, String)], tools: &Tools) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/compatibility.md");
    let recorded = fs::read_to_string(&path).unwrap_or_default();
    let is_recording = std::env::var_os(RECORD).is_some();
    assert!(
        !is_recording || rows.len() == CLIENTS.len(),
        "clients are missing: {rows:?}"
    );
    let versions = match is_recording {
        true => recorded_today(&tools.of_the_machine()),
        false => recorded_line(&recorded),
    };
    let installed = format!("Installed by the tests: {}.", Tools::pinned());
    let names = CLIENTS.iter().map(|client| client.name);
    let lines = names.map(|name| {
        let ran = rows.iter().find(|(ran, _)| *ran == name);
        let start = format!("| {name} |");
        let kept = || recorded.lines().find(|line| line.starts_with(&start));
        ran.map(|(_, line)| line.as_str())
            .or_else(kept)
            .unwrap_or_default()
            .to_owned()
            + "\n"
    });
    let lines: String = lines.collect();
    let found = format!("{HEAD}{versions}\n{installed}\n\n{TABLE}{lines}");
    if is_recording {
        return fs::write(path, found).unwrap();
    }
    for line in found
        .lines()
        .filter(|line| !recorded.lines().any(|old| old == *line))
    {
        println!("docs/compatibility.md lacks: {line}");
    }
    assert!(
        found == recorded,
        "docs/compatibility.md differs: {RECORD}=1 writes it again"
    );
}
