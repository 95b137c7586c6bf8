//! Networks, as in Go's package `net`: an IPv6 address that stands for an IPv4 address is that
//! IPv4 address.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use regorus::Value;

use super::{Outcome, Stop, string, unsupported};

/// Limit on the addresses that `net.cidr_expand` lists.
const MAX_ADDRESSES: u128 = 1 << 16;

/// A network: its first and its last address. If the first address stands for an IPv4 address, then
/// both are IPv4 addresses. The last address of another network may stand for one.
struct Network {
    first: IpAddr,
    last: IpAddr,
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let is_number = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix: u32 = prefix.parse().ok().filter(|_| is_number)?;
        let (bits, length) = match address.parse().ok()? {
            IpAddr::V4(address) => (address.to_ipv6_mapped().to_bits(), 32_u32),
            IpAddr::V6(address) => (address.to_bits(), 128),
        };
        let hosts = length.checked_sub(prefix)?;
        let hosts = u128::MAX.checked_shr(128 - hosts).unwrap_or(0);
        let first = IpAddr::from(Ipv6Addr::from_bits(bits & !hosts)).to_canonical();
        let last = IpAddr::from(Ipv6Addr::from_bits(bits | hosts));
        Some(Self {
            first,
            last: if first.is_ipv4() {
                last.to_canonical()
            } else {
                last
            },
        })
    }

    fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.first.is_ipv4() == address.is_ipv4() && (self.first..=self.last).contains(&address)
    }
}

pub fn cidr_is_valid(cidr: &Value) -> Outcome {
    let valid = string(cidr).is_ok_and(|cidr| Network::parse(cidr).is_some());
    Ok(Value::from(valid))
}

pub fn cidr_contains(cidr: &Value, other: &Value) -> Outcome {
    let network = Network::parse(string(cidr)?).ok_or(Stop::Undefined)?;
    let other = string(other)?;
    if let Ok(address) = other.parse::<IpAddr>() {
        return Ok(Value::from(network.contains(address)));
    }
    let other = Network::parse(other).ok_or(Stop::Undefined)?;
    let contained = network.contains(other.first) && network.contains(other.last);
    Ok(Value::from(contained))
}

pub fn cidr_expand(cidr: &Value) -> Outcome {
    let Network { first, last } = Network::parse(string(cidr)?).ok_or(Stop::Undefined)?;
    let bits = |address| match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    if bits(last).saturating_sub(bits(first)) >= MAX_ADDRESSES {
        return unsupported(format!(
            "the network has more than {MAX_ADDRESSES} addresses"
        ));
    }
    let addresses = (bits(first)..=bits(last)).map(|bits| match (first, u32::try_from(bits)) {
        (IpAddr::V4(_), Ok(bits)) => Ipv4Addr::from_bits(bits).to_string(),
        _ => Ipv6Addr::from_bits(bits).to_string(),
    });
    let addresses: BTreeSet<_> = addresses.map(Value::from).collect();
    Ok(Value::from(addresses))
}
