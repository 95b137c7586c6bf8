//! Authorities, hosts and host patterns. The text of a parsed authority or pattern parses to the
//! same value. A host name has at most 253 bytes and only valid characters.
#![no_main]

use addons::contract::{Authority, Host, HostPattern};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(authority) = Authority::parse(text, Some(443)) {
        assert_eq!(
            Authority::parse(&authority.to_string(), None),
            Ok(authority)
        );
    }
    if let Ok(Host::Name(name)) = Host::parse(text) {
        let fits =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
        assert!(name.len() <= 253 && name.bytes().all(fits));
    }
    if let Ok(pattern) = HostPattern::parse(text) {
        assert_eq!(HostPattern::parse(&pattern.to_string()), Ok(pattern));
    }
});
