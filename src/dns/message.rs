//! DNS packets: checks of the header before parsing, and writing of responses.

use hickory_proto::op::{Edns, Metadata, ResponseCode};
use hickory_proto::rr::Record;
use hickory_proto::serialize::binary::BinEncoder;
use hickory_resolver::net::xfer::Protocol;
use hickory_server::server::Request;
use hickory_server::zone_handler::MessageResponseBuilder;

/// Bytes of the header (RFC 1035, section 4.1.1).
const HEADER: usize = 12;

/// The longest name on the wire, in bytes (RFC 1035, section 3.1).
const MAX_NAME: usize = 255;

/// The largest payload in bytes that needs no fragmentation on today's networks (DNS flag day
/// 2020).
const MAX_UDP_PAYLOAD: u16 = 1232;

/// The largest payload in bytes for a client without EDNS (RFC 1035, section 4.2.1).
const PLAIN_UDP_PAYLOAD: u16 = 512;

/// The maximum number of additional records in a query: an OPT record, and a signature, which is
/// ignored. A query with more gets FORMERR.
const MAX_ADDITIONALS: u16 = 2;

/// A borrowed packet whose header and question have been located.
#[derive(Clone, Copy)]
pub(super) struct Packet<'a> {
    pub bytes: &'a [u8],
    /// The offset of the first byte after the question. If there is not exactly one well-formed
    /// question, the offset of the first byte after the header.
    question_end: usize,
}

impl<'a> Packet<'a> {
    /// Locates the end of header and question. `None` if the packet is too short for a header, or
    /// is a response: answering responses could loop.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let is_response = bytes.get(2)? & 0x80 != 0;
        if bytes.len() < HEADER || is_response {
            return None;
        }
        let question_end = question_end(bytes).unwrap_or(HEADER);
        Some(Self {
            bytes,
            question_end,
        })
    }

    /// The response code for an unsupported or malformed header or question; `None` if the packet
    /// may be parsed. The time to parse it is then bounded by its length.
    pub fn flaw(self) -> Option<ResponseCode> {
        let opcode = self.bytes.get(2).map_or(0, |byte| (byte >> 3) & 0x0f);
        if opcode != 0 {
            return Some(ResponseCode::NotImp);
        }
        let [_, answers, authorities, additionals] = counts(self.bytes);
        let plain = self.has_question()
            && answers == 0
            && authorities == 0
            && additionals <= MAX_ADDITIONALS;
        (!plain).then_some(ResponseCode::FormErr)
    }

    /// Whether there is exactly one well-formed question.
    pub fn has_question(self) -> bool {
        self.question_end > HEADER
    }

    /// A response that consists of a header and the packet's question only, so that it is never
    /// longer than the packet.
    pub fn reflect(self, code: ResponseCode) -> Vec<u8> {
        let mut answer = self
            .bytes
            .get(..self.question_end)
            .unwrap_or_default()
            .to_vec();
        let questions = u8::from(self.has_question());
        let flags = answer.get(2).copied().unwrap_or_default();
        // Only the opcode and RD are copied; QR and RA are set.
        let header = [0x80 | (flags & 0x79), 0x80 | (code.low() & 0x0f)];
        let counts = [0, questions, 0, 0, 0, 0, 0, 0];
        for (byte, value) in answer
            .iter_mut()
            .skip(2)
            .zip(header.into_iter().chain(counts))
        {
            *byte = value;
        }
        answer
    }
}

/// The numbers of questions, answers, authorities and additionals that the header claims.
fn counts(bytes: &[u8]) -> [u16; 4] {
    let mut counts = [0; 4];
    let pairs = bytes.iter().skip(4).zip(bytes.iter().skip(5)).step_by(2);
    for (count, (high, low)) in counts.iter_mut().zip(pairs) {
        *count = u16::from_be_bytes([*high, *low]);
    }
    counts
}

/// Returns the offset of the first byte after the question; `None` if there is not exactly one
/// well-formed question. A compression pointer is malformed here: there is no earlier name to point
/// to.
fn question_end(bytes: &[u8]) -> Option<usize> {
    if counts(bytes)[0] != 1 {
        return None;
    }
    let mut at = HEADER;
    loop {
        let label = usize::from(*bytes.get(at)?);
        if label > 63 || at + 1 - HEADER > MAX_NAME {
            return None;
        }
        at += 1 + label;
        if label == 0 {
            break;
        }
    }
    let end = at + 4;
    (end <= bytes.len()).then_some(end)
}

/// Writes a response with the request's id and question, and with EDNS if the request has it. If
/// the records do not all fit, the response has none of them and sets TC, so that the client
/// retries over TCP.
pub(super) fn encode(request: &Request, code: ResponseCode, records: &[Record]) -> Vec<u8> {
    let edns = request.edns.as_ref().map(|_| {
        let mut edns = Edns::new();
        edns.set_max_payload(MAX_UDP_PAYLOAD);
        edns
    });
    let room = match (request.protocol(), &request.edns) {
        (Protocol::Udp, None) => PLAIN_UDP_PAYLOAD,
        (Protocol::Udp, Some(edns)) => edns.max_payload().clamp(PLAIN_UDP_PAYLOAD, MAX_UDP_PAYLOAD),
        _ => u16::MAX,
    };
    let mut metadata = Metadata::response_from_request(&request.metadata);
    metadata.recursion_available = true;
    metadata.response_code = code;
    let write = |metadata: Metadata, records: &[Record]| {
        let mut bytes = Vec::with_capacity(usize::from(PLAIN_UDP_PAYLOAD));
        let mut encoder = BinEncoder::new(&mut bytes);
        encoder.set_max_size(room);
        let response = MessageResponseBuilder::new(&request.queries, edns.as_ref()).build(
            metadata,
            records,
            [],
            [],
            [],
        );
        let written = response.destructive_emit(&mut encoder);
        written.ok().map(|info| (info.truncation, bytes))
    };
    let written = match write(metadata, records) {
        Some((true, _)) => {
            metadata.truncation = true;
            write(metadata, &[])
        }
        written => written,
    };
    written.map_or_else(
        || reflect(request.as_slice(), ResponseCode::ServFail),
        |(_, bytes)| bytes,
    )
}

/// A response to an admitted packet that cannot be parsed or whose response cannot be encoded.
pub(super) fn reflect(bytes: &[u8], code: ResponseCode) -> Vec<u8> {
    Packet::new(bytes).map_or_else(Vec::new, |packet| packet.reflect(code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const QUESTION: &[u8] = b"\x12\x34\x01\x20\0\x01\0\0\0\0\0\0\x01a\x07ExamPle\0\0\x01\0\x01";

    #[test]
    fn a_reflected_packet_keeps_only_the_id_the_opcode_rd_and_the_question() {
        let mut packet = QUESTION.to_vec();
        packet[11] = 1;
        packet.extend_from_slice(b"\0\0\x29\x10\0\0\0\0\0\0\0");
        let answer = Packet::new(&packet).unwrap().reflect(ResponseCode::Refused);
        let mut expected = QUESTION.to_vec();
        expected[2] = 0x81;
        expected[3] = 0x85;
        assert_eq!(answer, expected);
    }

    #[test]
    fn flaws_of_the_header_and_the_question_are_found_before_parsing() {
        let changed = |at: usize, value: u8| {
            let mut packet = QUESTION.to_vec();
            packet[at] = value;
            Packet::new(&packet).map(Packet::flaw)
        };
        let form_err = Some(Some(ResponseCode::FormErr));
        assert_eq!(changed(0, 0), Some(None), "another id");
        assert_eq!(changed(2, 0x80), None, "a response");
        assert_eq!(changed(2, 0x28), Some(Some(ResponseCode::NotImp)), "update");
        assert_eq!(changed(5, 0), form_err, "no question");
        assert_eq!(changed(5, 2), form_err, "two questions");
        assert_eq!(changed(4, 0xff), form_err, "many questions");
        assert_eq!(changed(7, 1), form_err, "an answer record");
        assert_eq!(changed(10, 0xff), form_err, "many additionals");
        assert_eq!(changed(12, 0xc0), form_err, "a compression pointer");
        assert_eq!(changed(12, 63), form_err, "a label beyond the end");
    }

    proptest! {
        #[test]
        fn reflections_are_never_longer_than_the_packet(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            if let Some(packet) = Packet::new(&bytes) {
                let answer = packet.reflect(ResponseCode::Refused);
                prop_assert!(answer.len() <= bytes.len());
                prop_assert!(answer.len() >= HEADER);
                let _ = packet.flaw();
            }
        }
    }
}
