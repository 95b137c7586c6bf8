//! Host names, addresses and authorities in normal form.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use thiserror::Error;

/// A host in normal form: an address, or a lower-case A-label name without a trailing dot.
///
/// Policy, circuit breaker, credentials and the dialer compare values of this type, so no two of
/// them can read a name differently.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A DNS name.
    Name(Arc<str>),
    /// An address literal. An IPv4-mapped IPv6 address is converted to IPv4.
    Address(IpAddr),
}

/// A host and a port, as in a CONNECT line or a `Host` field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Authority {
    /// The host in normal form.
    pub host: Host,
    /// The port, never zero.
    pub port: u16,
}

/// Why a text is not a host or an authority.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum AuthorityError {
    /// The text is empty.
    #[error("the host is empty")]
    Empty,
    /// The A-label name is longer than 253 bytes, one of its labels is longer than 63 bytes, or the
    /// text is too long to convert.
    #[error("the host name is too long")]
    TooLong,
    /// A label has an underscore, which DNS permits but names of hosts do not have (RFC 952).
    #[error(
        "the host name has an underscore: the proxy takes only letters, digits, hyphens and dots, so the server needs another name"
    )]
    Underscore,
    /// One of:
    /// - a byte that is not allowed
    /// - a label that is empty, begins with a hyphen or ends with one
    /// - a name that IDNA refuses
    #[error("the host name has an invalid character or label")]
    BadName,
    /// One of:
    /// - a name whose last label is a number, but that is not an IPv4 address
    /// - brackets that do not close, or that do not hold an IPv6 address
    /// - text other than a port after the brackets
    #[error("the address is malformed")]
    BadAddress,
    /// The port is not a decimal number from 1 to 65535, or has a leading zero.
    #[error("the port is malformed")]
    BadPort,
    /// The port is missing although it is required.
    #[error("the port is missing")]
    NoPort,
    /// `user@host`.
    #[error("user information is not allowed in an authority")]
    UserInfo,
}

const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

impl Host {
    /// Parses a name (converted to A-labels by IDNA), an IPv4 address in any `inet_aton` form, or
    /// an IPv6 address in brackets.
    pub fn parse(text: &str) -> Result<Self, AuthorityError> {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or(AuthorityError::BadAddress)?;
            // `Ipv6Addr` refuses zone ids, which have no meaning beyond this machine.
            let address: Ipv6Addr = inner.parse().map_err(|_| AuthorityError::BadAddress)?;
            return Ok(Self::Address(fold_address(IpAddr::V6(address))));
        }
        let text = text.strip_suffix('.').unwrap_or(text);
        // Fast path for dotted decimal, which `inet_aton` reads as the same address.
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(IpAddr::V4(address)));
        }
        if text.is_empty() {
            return Err(AuthorityError::Empty);
        }
        // Bounds the cost of IDNA.
        if text.len() > 4 * MAX_NAME {
            return Err(AuthorityError::TooLong);
        }
        let plain = text.is_ascii() && !has_a_label(text);
        let name: Arc<str> = if plain && !text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            text.into()
        } else if plain {
            text.to_ascii_lowercase().into()
        } else {
            let name = idna::domain_to_ascii_cow(text.as_bytes(), idna::AsciiDenyList::URL)
                .map_err(|_| AuthorityError::BadName)?;
            name.as_ref().into()
        };
        check_name(&name)?;
        if ends_in_number(&name) {
            let address = inet_aton(&name).ok_or(AuthorityError::BadAddress)?;
            return Ok(Self::Address(IpAddr::V4(address)));
        }
        Ok(Self::Name(name))
    }

    /// The name; `None` for an address.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            Self::Address(_) => None,
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl Authority {
    /// Parses `host:port`, or `host` alone if `default_port` is given.
    pub fn parse(text: &str, default_port: Option<u16>) -> Result<Self, AuthorityError> {
        if text.contains('@') {
            return Err(AuthorityError::UserInfo);
        }
        let after_host = match text.strip_prefix('[') {
            Some(rest) => {
                let end = rest.find(']').ok_or(AuthorityError::BadAddress)?;
                end + 2
            }
            None => text.find(':').unwrap_or(text.len()),
        };
        let (host, rest) = text
            .split_at_checked(after_host)
            .ok_or(AuthorityError::BadAddress)?;
        let host = Host::parse(host)?;
        let port = match rest.strip_prefix(':') {
            Some(digits) => parse_port(digits)?,
            None if rest.is_empty() => default_port.ok_or(AuthorityError::NoPort)?,
            None => return Err(AuthorityError::BadAddress),
        };
        Ok(Self { host, port })
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Converts an IPv4-mapped IPv6 address to IPv4; returns any other address unchanged.
#[must_use]
pub fn fold_address(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

fn has_a_label(name: &str) -> bool {
    let mut labels = name.as_bytes().split(|byte| *byte == b'.');
    labels.any(|label| {
        label
            .get(..4)
            .is_some_and(|p| p.eq_ignore_ascii_case(b"xn--"))
    })
}

fn check_name(name: &str) -> Result<(), AuthorityError> {
    if name.len() > MAX_NAME {
        return Err(AuthorityError::TooLong);
    }
    for label in name.as_bytes().split(|byte| *byte == b'.') {
        if label.len() > MAX_LABEL {
            return Err(AuthorityError::TooLong);
        }
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if label.contains(&b'_') {
            return Err(AuthorityError::Underscore);
        }
        let hyphen_at_end = label.starts_with(b"-") || label.ends_with(b"-");
        if label.is_empty() || hyphen_at_end || !label.iter().copied().all(fits) {
            return Err(AuthorityError::BadName);
        }
    }
    Ok(())
}

/// Whether the last label is a number, so that some resolvers take the name for an address.
fn ends_in_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let all_digits = last.bytes().all(|byte| byte.is_ascii_digit());
    all_digits
        || last
            .strip_prefix("0x")
            .is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// The address as `inet_aton` reads it: one to four parts, decimal, octal or hexadecimal. `None` if
/// there are more parts, or if one is malformed or too large.
fn inet_aton(text: &str) -> Option<Ipv4Addr> {
    let mut parts = Vec::with_capacity(4);
    for part in text.split('.') {
        if parts.len() == 4 {
            return None;
        }
        parts.push(inet_aton_part(part)?);
    }
    let last = parts.pop()?;
    let mut address: u64 = 0;
    for (index, part) in parts.iter().enumerate() {
        if *part > 255 {
            return None;
        }
        address |= part << (24 - 8 * index);
    }
    let room = 32 - 8 * parts.len();
    if last >= 1 << room {
        return None;
    }
    u32::try_from(address | last).ok().map(Ipv4Addr::from)
}

fn inet_aton_part(part: &str) -> Option<u64> {
    if let Some(hex) = part.strip_prefix("0x") {
        if hex.is_empty() {
            return Some(0);
        }
        return u64::from_str_radix(hex, 16).ok();
    }
    if part.len() > 1 && part.starts_with('0') {
        return u64::from_str_radix(part, 8).ok();
    }
    part.parse().ok()
}

fn parse_port(digits: &str) -> Result<u16, AuthorityError> {
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !plain || digits.starts_with('0') {
        return Err(AuthorityError::BadPort);
    }
    digits.parse().map_err(|_| AuthorityError::BadPort)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use testkit::each_row;

    fn host(text: &str) -> String {
        match Host::parse(text) {
            Ok(Host::Name(name)) => name.to_string(),
            Ok(Host::Address(address)) => format!("address {address}"),
            Err(error) => format!("refused: {error:?}"),
        }
    }

    #[test]
    fn names_have_one_normal_form() {
        assert_eq!(host("GitHub.COM"), "github.com");
        assert_eq!(host("github.com."), "github.com");
        assert_eq!(host("bücher.example"), "xn--bcher-kva.example");
        assert_eq!(host("XN--BCHER-KVA.example"), "xn--bcher-kva.example");
    }

    #[test]
    fn invalid_characters_and_labels_are_refused_and_never_stripped() {
        each_row(
            [
                "",
                ".",
                "a..b",
                "a.example..",
                "git hub.com",
                "github.com\0",
                "git_hub.com",
                "github%2ecom",
                "-a.example",
                "a-.example",
                "a/b",
                "a\\b",
                "xn--zzzzzz-.example",
                "XN--ZZZZZZ-.example",
                "a,b",
                "*.example.com",
            ],
            |text| {
                assert!(
                    host(text).starts_with("refused"),
                    "{text:?} became {}",
                    host(text)
                );
            },
        );
        assert_eq!(host("my_service.example.com"), "refused: Underscore");
        assert_eq!(host(&"a".repeat(64)), "refused: TooLong");
        assert_eq!(host(&"a.".repeat(200)), "refused: TooLong");
    }

    #[test]
    fn every_inet_aton_form_is_read_as_an_address_and_malformed_addresses_are_refused() {
        each_row(
            [
                "127.0.0.1",
                "0177.0.0.1",
                "0x7f.0.0.1",
                "127.1",
                "2130706433",
                "0x7f000001",
                "127.0.1",
                "0X7F.1",
            ],
            |text| {
                assert_eq!(host(text), "address 127.0.0.1", "{text}");
            },
        );
        assert_eq!(host("[::1]"), "address ::1");
        assert_eq!(host("[::ffff:127.0.0.1]"), "address 127.0.0.1");
        each_row(
            [
                "256.0.0.1",
                "1.2.3.4.5",
                "0x1ffffffff",
                "08.0.0.1",
                "a.1",
                "[fe80::1%eth0]",
                "[::1",
                "[127.0.0.1]",
                "::1",
            ],
            |text| {
                assert!(
                    host(text).starts_with("refused"),
                    "{text} became {}",
                    host(text)
                );
            },
        );
    }

    #[test]
    fn ports_are_plain_decimal_and_user_information_is_refused() {
        assert_eq!(
            Authority::parse("a.example:443", None).map(|a| a.port),
            Ok(443)
        );
        assert_eq!(Authority::parse("[::1]:443", None).map(|a| a.port), Ok(443));
        assert_eq!(
            Authority::parse("a.example", Some(80)).map(|a| a.port),
            Ok(80)
        );
        each_row(
            [
                "a.example:",
                "a.example:0",
                "a.example:00443",
                "a.example:+443",
                "a.example:65536",
                "a.example:1:2",
                "a.example: 443",
            ],
            |text| {
                assert_eq!(
                    Authority::parse(text, Some(443)),
                    Err(AuthorityError::BadPort),
                    "{text}"
                );
            },
        );
        assert_eq!(
            Authority::parse("a.example", None),
            Err(AuthorityError::NoPort)
        );
        assert_eq!(
            Authority::parse("u@a.example:443", None),
            Err(AuthorityError::UserInfo)
        );
    }

    proptest! {
        #[test]
        fn the_normal_form_is_idempotent(text in "\\PC{0,80}") {
            if let Ok(host) = Host::parse(&text) {
                prop_assert_eq!(Host::parse(&host.to_string()), Ok(host));
            }
        }

        #[test]
        fn the_normal_form_holds_only_host_characters(text in "[a-zA-Z0-9.%_ü\\-]{0,60}") {
            if let Ok(Host::Name(name)) = Host::parse(&text) {
                prop_assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'.' || b == b'-'));
            }
        }

        #[test]
        fn a_displayed_authority_parses_to_itself(text in "\\PC{0,60}") {
            if let Ok(authority) = Authority::parse(&text, Some(443)) {
                prop_assert_eq!(Authority::parse(&authority.to_string(), None), Ok(authority));
            }
        }
    }
}
