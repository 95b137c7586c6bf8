//! Reads `coding_sidecar`, a setting of a server in `mcp.yaml`.

use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::header::HeaderValue;

use super::{CodingEndpoint, CodingSettings, HiddenValue};
use crate::contract::settings::{Fields, Setting};
use crate::contract::{AuthorityError, Endpoint, Host, Scheme};

/// Default time limit of a call: longer than the 300 s that a command has by default, so that the
/// sidecar's response to a slow command still arrives.
pub(super) const TIMEOUT: Duration = Duration::from_secs(310);
/// Default of `waitForReadyMs`.
const WAIT_FOR_READY: u64 = 10_000;
/// The largest `waitForReadyMs`, below the 60 s within which a session must be open.
const MAX_WAIT_FOR_READY: u64 = 50_000;
/// The longest path of a Unix socket on Linux, in bytes.
const MAX_SOCKET_PATH: usize = 107;

/// Both spellings of the key.
const KEYS: [&str; 2] = ["coding_sidecar", "codingSidecar"];

/// Whether a server is a coding sidecar.
pub(super) fn is_sidecar(fields: &Fields<'_>) -> bool {
    KEYS.iter().any(|key| fields.has(key))
}

/// The `coding_sidecar` setting of a server, if present.
pub(super) fn find<'a>(fields: &Fields<'a>) -> Option<Setting<'a>> {
    either(fields, KEYS)
}

pub(super) fn read(at: &Setting<'_>) -> Option<CodingSettings> {
    let fields = at.fields()?;
    let wait = either(&fields, ["waitForReadyMs", "wait_for_ready_ms"]);
    let wait = wait.and_then(|at| at.number(0..=MAX_WAIT_FOR_READY));
    // Read before a return: a key that is not read is reported as unknown.
    let endpoint = endpoint(at, &fields);
    let auth = fields.section("auth");
    let token = auth.optional("token", token);
    let requires_token = auth.or("required", false, |at| at.boolean());
    if requires_token && token.is_none() {
        auth.refuse(
            "required",
            "is true, but auth.token is missing or empty: set it to the sidecar's SIDECAR_AUTH_TOKEN",
        );
        return None;
    }
    Some(CodingSettings {
        endpoint: endpoint?,
        wait_for_ready: Duration::from_millis(wait.unwrap_or(WAIT_FOR_READY)),
        token,
        requires_token,
    })
}

fn endpoint(at: &Setting<'_>, fields: &Fields<'_>) -> Option<CodingEndpoint> {
    let socket = either(fields, ["socketPath", "socket_path"]);
    match (socket, fields.find("tcp")) {
        (Some(path), None) => path.parse(socket_path).map(CodingEndpoint::Unix),
        (None, Some(tcp)) => {
            let fields = tcp.fields()?;
            let (host_at, port_at) = (fields.need("host"), fields.need("port"));
            let host = host_at?.parse(host);
            let port = port_at?.number(1..=u16::MAX);
            Some(CodingEndpoint::Tcp(Endpoint {
                scheme: Scheme::Http,
                host: host?,
                port: port?,
            }))
        }
        (None, None) => {
            at.refuse("needs socketPath, or tcp with host and port");
            None
        }
        (Some(_), Some(_)) => {
            at.refuse("has both socketPath and tcp: choose one");
            None
        }
    }
}

/// Reads a name or an address; an IPv6 address with or without brackets.
fn host(text: &str) -> Result<Host, AuthorityError> {
    match text.parse::<Ipv6Addr>() {
        Ok(address) => Host::parse(&format!("[{address}]")),
        Err(_) => Host::parse(text),
    }
}

fn socket_path(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    if !path.is_absolute() || text.contains('\0') {
        return Err("must be an absolute path".to_owned());
    }
    if text.len() > MAX_SOCKET_PATH {
        return Err(format!(
            "is longer than the {MAX_SOCKET_PATH} bytes that the path of a Unix socket may have"
        ));
    }
    Ok(path.to_owned())
}

fn token(at: Setting<'_>) -> Option<HiddenValue> {
    let text = at.any_text()?;
    let is_token = text.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_token || HeaderValue::from_str(text).is_err() {
        at.refuse(
            "has a character that is not valid in a token (a space, or a line break at its end?)",
        );
        return None;
    }
    Some(HiddenValue(text.to_owned().into()))
}

/// Finds a key in either spelling. Reports an error if both spellings are present.
fn either<'a>(fields: &Fields<'a>, [key, other]: [&'static str; 2]) -> Option<Setting<'a>> {
    match (fields.find(key), fields.find(other)) {
        (Some(_), Some(again)) => {
            again.refuse(format!(
                "cannot be combined with {key}, which means the same"
            ));
            None
        }
        (one, another) => one.or(another),
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::super::tests::read_with;
    use super::super::{McpSettings, ServerKind};
    use super::*;

    fn text(sidecar: &str) -> String {
        format!("version: 1\nmcpServers: {{ c: {{ coding_sidecar: {sidecar} }} }}")
    }

    fn only(settings: &McpSettings) -> &CodingSettings {
        match &settings.servers["c"].kind {
            ServerKind::CodingSidecar(settings) => settings,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_sidecar_with_only_a_socket_has_defaults() {
        let (settings, _, warnings) = read_with(&text("{ socketPath: /run/c.sock }"), &[]).unwrap();
        assert_eq!(warnings, Vec::<String>::new());
        let expected = CodingSettings {
            endpoint: CodingEndpoint::Unix("/run/c.sock".into()),
            wait_for_ready: Duration::from_secs(10),
            token: None,
            requires_token: false,
        };
        assert_eq!(only(&settings), &expected);
        assert_eq!(settings.servers["c"].timeout, TIMEOUT);
    }

    #[test]
    fn either_spelling_of_each_key_is_read() {
        let camel = "version: 1\nmcpServers: { c: { codingSidecar: { tcp: { host: \"::1\", port: 8765 }, \
                     waitForReadyMs: 5, auth: { token: \"${T}\", required: true } }, timeout: 60s } }";
        let snake = camel
            .replace("codingSidecar", "coding_sidecar")
            .replace("waitForReadyMs", "wait_for_ready_ms");
        each_row([camel, &snake], |text| {
            let settings = read_with(text, &[("T", "s3cret")]).unwrap().0;
            let read = only(&settings);
            let CodingEndpoint::Tcp(endpoint) = &read.endpoint else {
                panic!("{read:?}");
            };
            assert_eq!(endpoint.authority(), "[::1]:8765");
            assert_eq!(read.wait_for_ready, Duration::from_millis(5));
            assert_eq!(read.token.as_ref().unwrap().0.as_str(), "s3cret");
            assert!(read.requires_token);
            assert_eq!(settings.servers["c"].timeout, Duration::from_secs(60));
        });
        let snake = text("{ socket_path: /run/c.sock }");
        assert!(read_with(&snake, &[]).is_ok());
    }

    #[test]
    fn an_empty_token_is_read_as_none() {
        let sidecar = "{ socketPath: /c, auth: { token: \"${T:-}\" } }";
        let settings = read_with(&text(sidecar), &[]).unwrap().0;
        assert_eq!(only(&settings).token, None);
    }

    #[test]
    fn errors_name_their_place() {
        let at = "mcpServers.c.coding_sidecar";
        let long = format!("{{ socketPath: /{} }}", "x".repeat(107));
        each_row(
            [
                ("{}", "", "needs socketPath, or tcp with host and port"),
                (
                    "{ socketPath: /c, tcp: { host: h, port: 1 } }",
                    "",
                    "has both socketPath and tcp: choose one",
                ),
                (
                    "{ socketPath: c }",
                    ".socketPath",
                    "must be an absolute path",
                ),
                (
                    &long,
                    ".socketPath",
                    "is longer than the 107 bytes that the path of a Unix socket may have",
                ),
                ("{ tcp: { host: h } }", ".tcp.port", "is missing"),
                (
                    "{ tcp: { host: h, port: 0 } }",
                    ".tcp.port",
                    "must be a whole number from 1 to 65535",
                ),
                (
                    "{ socketPath: /c, waitForReadyMs: 60000 }",
                    ".waitForReadyMs",
                    "must be a whole number from 0 to 50000",
                ),
                (
                    "{ socketPath: /c, auth: { required: true } }",
                    ".auth.required",
                    "is true, but auth.token is missing or empty: set it to the sidecar's SIDECAR_AUTH_TOKEN",
                ),
                (
                    "{ socketPath: /c, auth: { token: \"a b\" } }",
                    ".auth.token",
                    "has a character that is not valid in a token (a space, or a line break at its end?)",
                ),
                (
                    "{ socketPath: /c, socket_path: /d }",
                    ".socket_path",
                    "cannot be combined with socketPath, which means the same",
                ),
                ("{ socketPath: /c, command: x }", ".command", "unknown key"),
            ],
            |(sidecar, key, message)| {
                let errors = read_with(&text(sidecar), &[]).unwrap_err();
                let wanted = format!("{at}{key}: {message}");
                assert!(
                    errors.iter().any(|error| error.contains(&wanted)),
                    "{wanted}: {errors:?}"
                );
            },
        );
        // A key that was not read because of another one's error is not an unknown key.
        for sidecar in [
            "{ tcp: { host: h, port: 1 }, auth: { required: true } }",
            "{ tcp: { port: 1 } }",
        ] {
            let errors = read_with(&text(sidecar), &[]).unwrap_err();
            assert_eq!(errors.len(), 1, "{errors:?}");
        }
        let both =
            "version: 1\nmcpServers: { c: { coding_sidecar: { socketPath: /c }, command: x } }";
        let errors = read_with(both, &[]).unwrap_err();
        assert!(
            errors[0].ends_with(
                "mcpServers.c: has both coding_sidecar and a command or a url: choose one"
            ),
            "{errors:?}"
        );
    }
}
