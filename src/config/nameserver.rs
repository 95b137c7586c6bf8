//! Addresses of nameservers, in `upstream.nameservers` and in resolv.conf.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};

const DNS_PORT: u16 = 53;

/// Parses `10.0.0.2`, `10.0.0.2:5353`, `fe80::1%eth0` or `[fe80::1%eth0]:5353`. The zone is the
/// name or the number of a network interface, which a link-local address needs (RFC 4007).
pub fn parse_nameserver(text: &str) -> Result<SocketAddr, &'static str> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, DNS_PORT));
    }
    let (ip, zone, port) =
        zoned(text).ok_or("must be an address such as 10.0.0.2, or with a port 10.0.0.2:5353")?;
    let index = zone.parse().ok().or_else(|| interface(zone));
    let index = index.ok_or("names a network interface that does not exist")?;
    Ok(SocketAddrV6::new(ip, port, 0, index).into())
}

/// Splits `IP%ZONE` or `[IP%ZONE]:PORT`.
fn zoned(text: &str) -> Option<(Ipv6Addr, &str, u16)> {
    let (ip, rest) = text.split_once('%')?;
    let (ip, zone, port) = match ip.strip_prefix('[') {
        Some(ip) => {
            let (zone, port) = rest.split_once("]:")?;
            (ip, zone, port.parse().ok()?)
        }
        None => (ip, rest, DNS_PORT),
    };
    Some((ip.parse().ok()?, zone, port))
}

fn interface(name: &str) -> Option<u32> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    name_to_index(any, name).ok()
}

/// The nameservers of a resolv.conf. As the C library does, ignores lines that it cannot read.
pub fn nameservers_of(resolv_conf: &str) -> Vec<SocketAddr> {
    let words = resolv_conf.lines().map(str::split_ascii_whitespace);
    let named = words.filter_map(|mut words| match words.next()? {
        "nameserver" => parse_nameserver(words.next()?).ok(),
        _ => None,
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn a_link_local_address_has_the_interface_of_its_zone() {
        let at = |index, port| {
            let ip = "fe80::1".parse().unwrap();
            Ok(SocketAddrV6::new(ip, port, 0, index).into())
        };
        // The loopback interface has the number 1 in every network namespace.
        each_row(
            [
                ("fe80::1%lo", at(1, 53)),
                ("fe80::1%1", at(1, 53)),
                ("[fe80::1%lo]:5353", at(1, 5353)),
                ("[fe80::1%7]:5353", at(7, 5353)),
                (
                    "fe80::1%none",
                    Err("names a network interface that does not exist"),
                ),
            ],
            |(text, parsed)| assert_eq!(parse_nameserver(text), parsed, "{text}"),
        );
        each_row(
            [
                "",
                "dns.example",
                "10.0.0.1%lo",
                "fe80::1%",
                "[fe80::1%lo]",
                "[fe80::1%lo]:x",
            ],
            |text| assert!(parse_nameserver(text).is_err(), "{text}"),
        );
    }

    #[test]
    fn a_resolv_conf_lists_its_nameservers_in_their_order() {
        let text = "# nameserver 192.0.2.9\n; nameserver 192.0.2.8\nsearch example.com\n\
                    nameserver\t192.0.2.1 \nnameserver fe80::1%lo\nnameserver nonsense\n\
                    options ndots:2\nnameserver 2001:db8::1 # a comment\n";
        let read: Vec<String> = nameservers_of(text)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(read, ["192.0.2.1:53", "[fe80::1%1]:53", "[2001:db8::1]:53"]);
    }
}
