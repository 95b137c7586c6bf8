//! Classifies the first bytes inside a tunnel.

/// The protocol of the first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sniffed {
    /// Undecided: more bytes are needed.
    NeedMore,
    /// A TLS handshake record.
    Tls,
    /// A request line of HTTP/1.
    Http,
    /// Anything else, HTTP/2 in clear text included.
    Refused,
}

/// The longest method in bytes; every registered one is shorter.
const MAX_METHOD: usize = 20;
/// The longest request line in bytes: a target of 8 KiB, the method and the version.
const MAX_LINE: usize = 8 * 1024 + 64;

/// Classifies the bytes that have arrived. More bytes never change a result other than
/// [`Sniffed::NeedMore`], so that the result does not depend on how the bytes were cut.
#[must_use]
pub fn sniff(bytes: &[u8]) -> Sniffed {
    match bytes {
        [] | [0x16] | [0x16, 0x03] => Sniffed::NeedMore,
        // A first record carries a legacy version from 3.0 to 3.3.
        [0x16, 0x03, 0..=3, ..] => Sniffed::Tls,
        _ => sniff_http(bytes),
    }
}

/// Checks both ends of the request line: SMTP, for example, begins with a word in capitals too.
fn sniff_http(bytes: &[u8]) -> Sniffed {
    let method_length = bytes
        .iter()
        .take_while(|byte| byte.is_ascii_uppercase())
        .count();
    let method = bytes.get(..method_length).unwrap_or_default();
    match bytes.get(method_length) {
        _ if method_length > MAX_METHOD => return Sniffed::Refused,
        None => return Sniffed::NeedMore,
        Some(b' ') if method_length > 0 && method != b"PRI" => {}
        Some(_) => return Sniffed::Refused,
    }
    let head = bytes.get(..MAX_LINE.min(bytes.len())).unwrap_or_default();
    match head.iter().position(|byte| *byte == b'\n') {
        Some(end) => {
            let line = head.get(..end).unwrap_or_default();
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let is_http = line.ends_with(b" HTTP/1.1") || line.ends_with(b" HTTP/1.0");
            if is_http {
                Sniffed::Http
            } else {
                Sniffed::Refused
            }
        }
        None if bytes.len() < MAX_LINE => Sniffed::NeedMore,
        // Too long, but a target in origin form: the HTTP server answers what is wrong.
        None if bytes.get(method_length + 1) == Some(&b'/') => Sniffed::Http,
        None => Sniffed::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use testkit::each_row;

    #[test]
    fn tls_and_http_are_distinguished_from_other_protocols() {
        each_row(
            [
                (&b"\x16\x03\x01\x02\x00"[..], Sniffed::Tls),
                (b"GET / HTTP/1.1\r\n", Sniffed::Http),
                (b"GET / HTTP/1.0\n", Sniffed::Http),
                (b"BREW /pot HTTP/1.1\r\n", Sniffed::Http),
                (b"BREW /pot", Sniffed::NeedMore),
                (b"EHLO mail.example.com\r\n", Sniffed::Refused),
                (b"GET / HTTP/2.0\r\n", Sniffed::Refused),
                (b"GET /\r\n", Sniffed::Refused),
                (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Sniffed::Refused),
                (b"SSH-2.0-OpenSSH_9.2\r\n", Sniffed::Refused),
                (b"\x16\x02\x00", Sniffed::Refused),
                (b"\x80\x2e\x01\x03\x01", Sniffed::Refused),
                (b"get / HTTP/1.1", Sniffed::Refused),
                (b" GET /", Sniffed::Refused),
                (b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", Sniffed::Refused),
                (b"\x00", Sniffed::Refused),
                (b"", Sniffed::NeedMore),
                (b"GE", Sniffed::NeedMore),
            ],
            |(bytes, expected)| {
                assert_eq!(sniff(bytes), expected, "{bytes:?}");
            },
        );
    }

    #[test]
    fn a_line_that_does_not_end_within_the_limit_is_http_only_if_a_path_follows_the_method() {
        each_row(
            [
                (&b"GET /"[..], Sniffed::Http),
                (b"GET ", Sniffed::Refused),
                (b"EHLO mail.example.com ", Sniffed::Refused),
            ],
            |(start, expected)| {
                let long = [start, &vec![b'a'; MAX_LINE]].concat();
                assert_eq!(sniff(&long), expected);
                assert_eq!(sniff(&long[..MAX_LINE - 1]), Sniffed::NeedMore);
            },
        );
    }

    proptest! {
        #[test]
        fn the_result_does_not_depend_on_how_the_bytes_were_cut(bytes: Vec<u8>, prefix in "(GET / HTTP/1.1\r|GET |PRI |SSH|\u{16}\u{3}\u{1})?") {
            let all = [prefix.as_bytes(), &bytes].concat();
            let whole = sniff(&all);
            let first = (0..=all.len()).map(|end| sniff(&all[..end])).find(|v| *v != Sniffed::NeedMore);
            prop_assert_eq!(first.unwrap_or(Sniffed::NeedMore), whole);
        }
    }
}
