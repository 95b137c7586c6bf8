//! The configuration, read once at start from environment variables.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use crate::access::{TOKEN_VARIABLE, Token};

const DEFAULT_SOCKET: &str = "/var/run/assistant/coding-sidecar.sock";
const DEFAULT_ROOT: &str = "/workspace";
/// Read and write for the owner only.
const DEFAULT_SOCKET_MODE: u32 = 0o600;

/// The variables that the sidecar reads, and their meanings with defaults in brackets, as `--help`
/// prints them.
pub const VARIABLES: [(&str, &str); 8] = [
    (
        "SOCKET_PATH",
        "Unix socket (/var/run/assistant/coding-sidecar.sock)",
    ),
    ("SOCKET_MODE", "mode of the socket file, octal (0600)"),
    (
        "WORKSPACE_ROOT",
        "folder to which file operations are confined (/workspace)",
    ),
    (
        "TCP_HOST",
        "TCP address to listen on besides the socket; needs TCP_PORT (none)",
    ),
    ("TCP_PORT", "port to listen on at TCP_HOST (none)"),
    (
        TOKEN_VARIABLE,
        "token that clients send as `Authorization: Bearer` (none)",
    ),
    (
        "SIDECAR_REQUIRE_AUTH",
        "true refuses requests without the token (false)",
    ),
    (
        "SIDECAR_ALLOW_OUTSIDE_WORKSPACE_ROOT",
        "true lifts the confinement of file operations (false)",
    ),
];

/// Whether a variable has the prefix `SIDECAR_` but is not a setting, so that it is probably
/// misspelt. Returns `false` for variables that Kubernetes sets for a service named `sidecar`.
pub fn is_misspelt(name: &str) -> bool {
    name.strip_prefix("SIDECAR_").is_some_and(|rest| {
        let known = VARIABLES.iter().any(|(known, _)| *known == name);
        !known && !rest.starts_with("SERVICE_") && !rest.starts_with("PORT")
    })
}

/// The validated configuration.
pub struct Config {
    /// The path of the Unix socket.
    pub socket_path: PathBuf,
    /// The permission bits of the socket's file.
    pub socket_mode: u32,
    /// The folder to which file operations are confined, and the working directory of commands.
    pub workspace_root: PathBuf,
    /// The TCP address to listen on besides the Unix socket.
    pub tcp: Option<TcpAddress>,
    /// The token that clients send.
    pub token: Option<Token>,
    /// Whether a request without a token is refused.
    pub require_auth: bool,
    /// Whether file operations are not confined to the root.
    pub allow_outside: bool,
}

/// A TCP address to listen on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TcpAddress {
    /// A host name, or an IP address without brackets.
    pub host: String,
    /// The port; 0 lets the kernel choose a free one.
    pub port: u16,
}

/// All errors of the configuration, one sentence for each.
#[derive(Debug, Eq, PartialEq)]
pub struct ConfigErrors(Vec<String>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

impl Config {
    /// Reads the configuration; `variable` returns the value of a variable. An empty value counts
    /// as unset, since Compose passes the empty string for a variable that is not set.
    ///
    /// # Errors
    ///
    /// Every invalid or missing setting.
    pub fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, ConfigErrors> {
        let mut reader = Reader {
            variable,
            errors: Vec::new(),
        };
        let config = Self {
            socket_path: reader.path("SOCKET_PATH", DEFAULT_SOCKET),
            socket_mode: reader.mode("SOCKET_MODE"),
            workspace_root: reader.path("WORKSPACE_ROOT", DEFAULT_ROOT),
            tcp: reader.tcp(),
            token: reader.token(),
            require_auth: reader.switch("SIDECAR_REQUIRE_AUTH"),
            allow_outside: reader.switch("SIDECAR_ALLOW_OUTSIDE_WORKSPACE_ROOT"),
        };
        if config.require_auth && config.token.is_none() && !reader.is_set(TOKEN_VARIABLE) {
            reader.errors.push(format!(
                "SIDECAR_REQUIRE_AUTH is true and {TOKEN_VARIABLE} is not set: set it to the \
                 token that clients send"
            ));
        }
        if reader.errors.is_empty() {
            Ok(config)
        } else {
            Err(ConfigErrors(reader.errors))
        }
    }
}

struct Reader<V> {
    variable: V,
    errors: Vec<String>,
}

impl<V: Fn(&str) -> Option<OsString>> Reader<V> {
    fn raw(&self, name: &str) -> Option<OsString> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    fn is_set(&self, name: &str) -> bool {
        self.raw(name).is_some()
    }

    fn text(&mut self, name: &str) -> Option<String> {
        match self.raw(name)?.into_string() {
            Ok(text) => Some(text),
            Err(_) => self.refuse(format!("{name} is not UTF-8")),
        }
    }

    /// Records an error, and returns `None`, since the setting has no valid value.
    fn refuse<T>(&mut self, error: String) -> Option<T> {
        self.errors.push(error);
        None
    }

    fn path(&mut self, name: &str, default: &str) -> PathBuf {
        let path = self.raw(name).map_or_else(|| default.into(), PathBuf::from);
        if !path.is_absolute() {
            self.errors.push(format!(
                "{name} is {}: write an absolute path",
                path.display()
            ));
        }
        path
    }

    fn switch(&mut self, name: &str) -> bool {
        match self.text(name).as_deref() {
            None | Some("false") => false,
            Some("true") => true,
            Some(other) => {
                self.errors
                    .push(format!("{name} is {other:?}: write true or false"));
                false
            }
        }
    }

    fn mode(&mut self, name: &str) -> u32 {
        let Some(text) = self.text(name) else {
            return DEFAULT_SOCKET_MODE;
        };
        let digits = text.strip_prefix("0o").unwrap_or(&text);
        let octal = !digits.is_empty() && digits.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
        match u32::from_str_radix(digits, 8) {
            Ok(mode) if octal && mode <= 0o777 => mode,
            _ => {
                self.errors.push(format!(
                    "{name} is {text:?}: write an octal mode up to 0777, for example 0660"
                ));
                DEFAULT_SOCKET_MODE
            }
        }
    }

    fn tcp(&mut self) -> Option<TcpAddress> {
        let (host, port) = (self.text("TCP_HOST"), self.text("TCP_PORT"));
        let only = |set: &str, unset: &str| {
            format!("{set} is set and {unset} is not: set both or neither")
        };
        match (host, port) {
            (None, None) => None,
            (Some(host), Some(port)) => match port.parse() {
                Ok(port) => Some(TcpAddress { host, port }),
                Err(_) => self.refuse(format!(
                    "TCP_PORT is {port:?}: write a number from 0 to 65535"
                )),
            },
            (Some(_), None) => self.refuse(only("TCP_HOST", "TCP_PORT")),
            (None, Some(_)) => self.refuse(only("TCP_PORT", "TCP_HOST")),
        }
    }

    fn token(&mut self) -> Option<Token> {
        let text = self.text(TOKEN_VARIABLE)?;
        // The message does not quote the value, which is a secret even if it is damaged.
        Token::new(&text).or_else(|| {
            self.refuse(format!(
                "{TOKEN_VARIABLE} has a blank, a control or a non-ASCII character, which the header \
                 Authorization must not contain"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Config, String> {
        Config::read(|name| {
            let (_, value) = variables.iter().find(|(set, _)| *set == name)?;
            Some(value.into())
        })
        .map_err(|errors| errors.to_string())
    }

    #[test]
    fn without_variables_the_defaults_apply_and_tcp_is_off() {
        for variables in [&[][..], &[("TCP_HOST", ""), ("TCP_PORT", "")]] {
            let config = read(variables).ok().unwrap();
            assert_eq!(config.socket_path.to_str(), Some(DEFAULT_SOCKET));
            assert_eq!(config.workspace_root.to_str(), Some(DEFAULT_ROOT));
            assert_eq!(config.socket_mode, 0o600);
            assert_eq!(config.tcp, None);
            assert!(config.token.is_none() && !config.require_auth && !config.allow_outside);
        }
    }

    #[test]
    fn every_variable_is_read() {
        let config = read(&[
            ("SOCKET_PATH", "/run/s.sock"),
            ("SOCKET_MODE", "0660"),
            ("WORKSPACE_ROOT", "/srv/code"),
            ("TCP_HOST", "::1"),
            ("TCP_PORT", "8765"),
            ("SIDECAR_AUTH_TOKEN", "abc-123"),
            ("SIDECAR_REQUIRE_AUTH", "true"),
            ("SIDECAR_ALLOW_OUTSIDE_WORKSPACE_ROOT", "true"),
        ])
        .ok()
        .unwrap();
        assert_eq!(config.socket_path.to_str(), Some("/run/s.sock"));
        assert_eq!(config.workspace_root.to_str(), Some("/srv/code"));
        assert_eq!(config.socket_mode, 0o660);
        let address = TcpAddress {
            host: "::1".to_owned(),
            port: 8765,
        };
        assert_eq!(config.tcp, Some(address));
        assert!(config.token.is_some() && config.require_auth && config.allow_outside);
    }

    #[test]
    fn a_wrong_setting_is_reported_in_one_line() {
        const ROWS: [(&str, &str, &str); 15] = [
            (
                "SOCKET_PATH",
                "s.sock",
                "SOCKET_PATH is s.sock: write an absolute path",
            ),
            (
                "WORKSPACE_ROOT",
                "code",
                "WORKSPACE_ROOT is code: write an absolute path",
            ),
            ("SOCKET_MODE", "rw", "SOCKET_MODE is \"rw\""),
            ("SOCKET_MODE", "+600", "SOCKET_MODE is \"+600\""),
            ("SOCKET_MODE", "1777", "up to 0777"),
            ("SOCKET_MODE", "0o", "SOCKET_MODE is \"0o\""),
            (
                "TCP_HOST",
                "127.0.0.1",
                "TCP_HOST is set and TCP_PORT is not",
            ),
            ("TCP_PORT", "8765", "TCP_PORT is set and TCP_HOST is not"),
            ("SIDECAR_REQUIRE_AUTH", "yes", "write true or false"),
            ("SIDECAR_REQUIRE_AUTH", "True", "write true or false"),
            (
                "SIDECAR_REQUIRE_AUTH",
                "true",
                "SIDECAR_AUTH_TOKEN is not set",
            ),
            (
                "SIDECAR_ALLOW_OUTSIDE_WORKSPACE_ROOT",
                "1",
                "write true or false",
            ),
            ("SIDECAR_AUTH_TOKEN", "abc\n", "control"),
            ("SIDECAR_AUTH_TOKEN", "a b", "blank"),
            ("SIDECAR_AUTH_TOKEN", "ü", "non-ASCII"),
        ];
        each_row(ROWS, |(name, value, part)| {
            let error = read(&[(name, value)]).err().unwrap();
            assert!(error.contains(part), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        });
    }

    #[test]
    fn unknown_variables_with_the_prefix_sidecar_count_as_misspelt_except_those_of_kubernetes() {
        const ROWS: [(&str, bool); 7] = [
            ("SIDECAR_REQUIRE_AUHT", true),
            ("SIDECAR_TOKEN", true),
            ("SIDECAR_REQUIRE_AUTH", false),
            ("SIDECAR_SERVICE_HOST", false),
            ("SIDECAR_PORT_8765_TCP", false),
            ("TCP_HOSTS", false),
            ("PATH", false),
        ];
        each_row(ROWS, |(name, misspelt)| {
            assert_eq!(is_misspelt(name), misspelt)
        });
    }

    #[test]
    fn all_wrong_settings_are_reported_at_once_and_no_error_shows_the_token() {
        let error = read(&[
            ("SOCKET_PATH", "s.sock"),
            ("TCP_HOST", "localhost"),
            ("TCP_PORT", "70000"),
            ("SIDECAR_REQUIRE_AUTH", "true"),
            ("SIDECAR_AUTH_TOKEN", "hush hush"),
        ])
        .err()
        .unwrap();
        assert_eq!(error.lines().count(), 3, "{error}");
        assert!(!error.contains("hush"), "{error}");
    }
}
