//! Denies dials to the proxy's own listeners, and dials to addresses outside the public internet.
//! `upstream.allow_private` opens ranges outside the public internet. The name that resolves to an
//! address does not matter.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use crate::contract::{OwnAddresses, fold_address};

/// The ranges that are not part of the public internet, and metadata services.
const SPECIAL: [IpNet; 25] = [
    v4([0, 0, 0, 0], 8),
    v4([10, 0, 0, 0], 8),
    v4([100, 64, 0, 0], 10), // also the metadata address 100.100.100.200
    v4([127, 0, 0, 0], 8),
    v4([168, 63, 129, 16], 32), // metadata, in a public range
    v4([169, 254, 0, 0], 16),
    v4([172, 16, 0, 0], 12),
    v4([192, 0, 0, 0], 24),
    v4([192, 0, 2, 0], 24),
    v4([192, 168, 0, 0], 16),
    v4([198, 18, 0, 0], 15),
    v4([198, 51, 100, 0], 24),
    v4([203, 0, 113, 0], 24),
    v4([224, 0, 0, 0], 4),
    v4([240, 0, 0, 0], 4),
    v6([0, 0, 0, 0], 128),
    v6([0, 0, 0, 1], 128),
    v6([0x64_ff9b, 0x0001_0000, 0, 0], 48), // NAT64 with a local prefix (RFC 8215)
    v6([0x0100_0000, 0, 0, 0], 64),         // discard-only (RFC 6666)
    v6([0x2001_0db8, 0, 0, 0], 32),
    v6([0xfc00_0000, 0, 0, 0], 7), // also the metadata addresses fd00:ec2::254 and fd20:ce::254
    v6([0xfe80_0000, 0, 0, 0], 10),
    v6([0xfec0_0000, 0, 0, 0], 10), // site-local: deprecated, and still routed inside sites
    v6([0xff00_0000, 0, 0, 0], 8),
    v6([0x3fff_0000, 0, 0, 0], 20), // documentation
];

/// The ranges in which operators have their own services.
const PRIVATE: [IpNet; 7] = [
    v4([10, 0, 0, 0], 8),
    v4([100, 64, 0, 0], 10),
    v4([127, 0, 0, 0], 8),
    v4([172, 16, 0, 0], 12),
    v4([192, 168, 0, 0], 16),
    v6([0, 0, 0, 1], 128),
    v6([0xfc00_0000, 0, 0, 0], 7),
];

/// Metadata services of clouds within the private ranges. They return a machine's credentials, so
/// [`AddressGuard::is_trusted_private`] leaves them out.
const METADATA: [IpNet; 3] = [
    v4([100, 100, 100, 200], 32),
    v6([0xfd00_0ec2, 0, 0, 0], 32),
    v6([0xfd20_00ce, 0, 0, 0], 32),
];

const fn v4(octets: [u8; 4], prefix: u8) -> IpNet {
    let [a, b, c, d] = octets;
    IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix)
}

const fn v6(words: [u32; 4], prefix: u8) -> IpNet {
    let [a, b, c, d] = words;
    let bits = (a as u128) << 96 | (b as u128) << 64 | (c as u128) << 32 | d as u128;
    IpNet::new_assert(IpAddr::V6(Ipv6Addr::from_bits(bits)), prefix)
}

/// Decides which addresses may be dialled.
pub(super) struct AddressGuard {
    allow_private: Vec<IpNet>,
    own: Arc<dyn OwnAddresses>,
}

impl AddressGuard {
    pub(super) fn new(allow_private: Vec<IpNet>, own: Arc<dyn OwnAddresses>) -> Self {
        Self { allow_private, own }
    }

    /// Whether the address, and every IPv4 address embedded in it, may be dialled.
    pub(super) fn may_dial(&self, address: SocketAddr) -> bool {
        let ours = |ip| self.own.is_ours(SocketAddr::new(ip, address.port()));
        all_forms(address.ip()).all(|form| !ours(form) && self.is_open(form))
    }

    /// Whether the address is in a private range and is neither one of the proxy's own listeners
    /// nor a metadata service.
    pub(super) fn is_trusted_private(&self, address: SocketAddr) -> bool {
        let ip = fold_address(address.ip());
        let within = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&ip));
        within(&PRIVATE)
            && !within(&METADATA)
            && !self.own.is_ours(SocketAddr::new(ip, address.port()))
    }

    /// Whether a DNS answer may contain the address. `ports` are the ports at which the host may be
    /// dialled. An address at which the proxy itself listens on one of these ports is refused.
    pub(super) fn may_answer(&self, address: IpAddr, ports: &[u16]) -> bool {
        let ours = |ip| {
            let mut ports = ports.iter();
            ports.any(|port| self.own.is_ours(SocketAddr::new(ip, *port)))
        };
        all_forms(address).all(|form| !ours(form) && self.is_open(form))
    }

    fn is_open(&self, address: IpAddr) -> bool {
        let within = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&address));
        !within(&SPECIAL) || within(&self.allow_private)
    }
}

/// The address, and the IPv4 addresses that a translator or tunnel extracts from it.
fn all_forms(address: IpAddr) -> impl Iterator<Item = IpAddr> {
    let address = fold_address(address);
    let inner = match address {
        IpAddr::V4(_) => [None; 4],
        IpAddr::V6(v6) => embedded(v6),
    };
    std::iter::once(address).chain(inner.into_iter().flatten().map(IpAddr::V4))
}

fn embedded(address: Ipv6Addr) -> [Option<Ipv4Addr>; 4] {
    let words = address.segments();
    let pair = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    let [_, first, second, third, ..] = words;
    let [.., before_last, last] = words;
    let tail = pair(before_last, last);
    match words {
        // IPv4-compatible, IPv4-translated (SIIT), and NAT64 with the well-known prefix.
        [0, 0, 0, 0, 0, 0, ..] | [0, 0, 0, 0, 0xffff, 0, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => {
            [Some(tail), None, None, None]
        }
        // NAT64 with a local prefix: RFC 6052, section 2.2, puts the IPv4 address after 48, 56, 64
        // or 96 bits and leaves out the ninth byte. The length of the prefix is unknown here, so
        // all four places are judged. A place that begins with a zero byte is skipped: nearly every
        // address has such a place, and no host has an address in 0.0.0.0/8.
        [0x64, 0xff9b, 1, ..] => {
            let [.., a, b, _, c, d, e, f, _, _, _] = address.octets();
            let real = |inner: Ipv4Addr| (inner.octets()[0] != 0).then_some(inner);
            [
                real(Ipv4Addr::new(a, b, c, d)),
                real(Ipv4Addr::new(b, c, d, e)),
                real(Ipv4Addr::new(c, d, e, f)),
                real(tail),
            ]
        }
        // 6to4.
        [0x2002, ..] => [Some(pair(first, second)), None, None, None],
        // Teredo: the server's address, and the client's with its bits inverted.
        [0x2001, 0, ..] => {
            let client = Ipv4Addr::from_bits(!tail.to_bits());
            [Some(pair(second, third)), Some(client), None, None]
        }
        _ => [None; 4],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use testkit::each_row;

    use super::*;

    struct Ours(SocketAddr);

    impl OwnAddresses for Ours {
        fn is_ours(&self, address: SocketAddr) -> bool {
            self.0 == address
        }
    }

    fn guard(allow_private: &[&str]) -> AddressGuard {
        let nets = allow_private.iter().map(|net| net.parse().unwrap());
        AddressGuard::new(
            nets.collect(),
            Arc::new(Ours("10.9.9.9:8080".parse().unwrap())),
        )
    }

    fn may_dial(guard: &AddressGuard, address: &str) -> bool {
        guard.may_dial(SocketAddr::new(address.parse().unwrap(), 443))
    }

    #[test]
    fn special_ranges_are_not_dialled_by_default() {
        each_row(
            [
                "0.0.0.0",
                "0.1.2.3",
                "10.0.0.1",
                "10.255.255.255",
                "100.64.0.1",
                "100.127.255.255",
                "100.100.100.200",
                "127.0.0.1",
                "127.255.0.1",
                "168.63.129.16",
                "169.254.169.254",
                "172.16.0.1",
                "172.31.255.255",
                "192.0.0.1",
                "192.0.2.1",
                "192.168.1.1",
                "198.18.0.1",
                "198.19.255.255",
                "198.51.100.1",
                "203.0.113.1",
                "224.0.0.1",
                "239.255.255.255",
                "240.0.0.1",
                "255.255.255.255",
                "::",
                "::1",
                "fc00::1",
                "fd00:ec2::254",
                "fd20:ce::254",
                "fe80::1",
                "febf::1",
                "fec0::1",
                "ff02::1",
                "2001:db8::1",
                "100::1",
            ],
            |address| {
                assert!(!may_dial(&guard(&[]), address), "{address}");
            },
        );
    }

    #[test]
    fn the_public_internet_is_dialled() {
        each_row(
            [
                "1.1.1.1",
                "8.8.8.8",
                "100.63.255.255",
                "100.128.0.1",
                "168.63.129.17",
                "172.15.255.255",
                "172.32.0.1",
                "192.0.1.1",
                "198.17.0.1",
                "198.20.0.1",
                "223.255.255.255",
                "2606:4700::1111",
                "2a00:1450:4001::200e",
                "64:ff9b::8.8.8.8",
                "2002:808:808::1",
                "::ffff:8.8.8.8",
            ],
            |address| {
                assert!(may_dial(&guard(&[]), address), "{address}");
            },
        );
    }

    #[test]
    fn addresses_that_embed_a_guarded_address_are_not_dialled() {
        each_row(
            [
                "::ffff:10.0.0.1",
                "::ffff:169.254.169.254",
                "::10.0.0.1",
                "::ffff:0:10.0.0.1",
                "64:ff9b::10.0.0.1",
                "64:ff9b::169.254.169.254",
                "2002:a00:1::1",
                "2002:7f00:1::",
                // Teredo: 10.0.0.1 as the server, then as the client of a public server.
                "2001:0:a00:1::f5ff:fffe",
                "2001:0:808:808::f5ff:fffe",
            ],
            |address| {
                assert!(!may_dial(&guard(&[]), address), "{address}");
            },
        );
    }

    #[test]
    fn nat64_with_a_local_prefix_is_judged_for_every_prefix_length() {
        let open = guard(&["64:ff9b:1::/48"]);
        assert!(!may_dial(&guard(&[]), "64:ff9b:1::8.8.8.8"));
        assert!(may_dial(&open, "64:ff9b:1::8.8.8.8"));
        each_row(
            [
                "64:ff9b:1::10.0.0.1",
                "64:ff9b:1:a00:0:100::",
                "64:ff9b:1:a00:0:100:808:808",
                "64:ff9b:1:a:0:1::",
                "64:ff9b:1:0:a:0:100:0",
            ],
            |address| {
                assert!(!may_dial(&open, address), "{address}");
            },
        );
    }

    #[test]
    fn allow_private_opens_its_ranges_but_not_the_addresses_embedded_in_them() {
        let open = guard(&["10.0.0.0/8", "fd00::/8"]);
        assert!(may_dial(&open, "10.0.0.1"));
        assert!(may_dial(&open, "fd00::1"));
        assert!(may_dial(&open, "64:ff9b::10.0.0.1"));
        assert!(!may_dial(&open, "192.168.0.1"));
        assert!(!may_dial(&guard(&["64:ff9b::/96"]), "64:ff9b::10.0.0.1"));
    }

    #[test]
    fn our_own_listeners_are_never_dialled_whatever_allow_private_says() {
        let open = guard(&["0.0.0.0/0", "::/0"]);
        let at = |address: &str| open.may_dial(address.parse().unwrap());
        assert!(!at("10.9.9.9:8080"));
        assert!(!at("[::ffff:10.9.9.9]:8080"));
        assert!(!at("[64:ff9b::10.9.9.9]:8080"));
        assert!(!at("[2002:a09:909::1]:8080"));
        assert!(at("10.9.9.9:443"));
        assert!(!open.may_answer("10.9.9.9".parse().unwrap(), &[443, 8080]));
        assert!(open.may_answer("10.9.9.9".parse().unwrap(), &[443]));
    }

    proptest! {
        #[test]
        fn an_embedded_ipv4_address_is_judged_like_the_plain_one(inner in any::<u32>()) {
            let guard = guard(&[]);
            let inner = Ipv4Addr::from_bits(inner);
            let open = guard.may_dial(SocketAddr::new(inner.into(), 443));
            let [a, b, c, d] = inner.octets();
            let word = |high: u8, low: u8| u16::from_be_bytes([high, low]);
            let (high, low) = (word(a, b), word(c, d));
            for wrapped in [
                inner.to_ipv6_mapped(),
                Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
                Ipv6Addr::new(0x2001, 0, 0x808, 0x808, 0, 0, !high, !low),
                Ipv6Addr::new(0x2001, 0, high, low, 0, 0, !0x808, !0x808),
            ] {
                prop_assert_eq!(guard.may_dial(SocketAddr::new(wrapped.into(), 443)), open, "{}", wrapped);
            }
        }
    }
}
