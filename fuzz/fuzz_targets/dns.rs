//! DNS packets of known containers. Each is read as a question with a normalized name, or refused.
//! A refusal sends nothing, or a DNS response with the packet's id.
#![no_main]

use addons::contract::Host;
use libfuzzer_sys::fuzz_target;
use unified_proxy::dns::{Protocol, read_question};

fuzz_target!(|packet: &[u8]| {
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        match read_question(packet, protocol) {
            Ok((_, query)) => assert_eq!(Host::parse(&query.name.to_string()), Ok(query.name)),
            Err(refused) => {
                let answer = refused.answer;
                assert!(answer.is_empty() || answer.len() >= 12);
                assert_eq!(
                    answer.get(..2).unwrap_or_default(),
                    packet
                        .get(..2)
                        .filter(|_| !answer.is_empty())
                        .unwrap_or_default()
                );
                assert!(answer.get(2).is_none_or(|flags| flags & 0x80 != 0));
            }
        }
    }
});
