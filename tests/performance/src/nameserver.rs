//! A nameserver with minimal CPU cost: every name has one address.

use std::net::{SocketAddr, UdpSocket};

const HEADER: usize = 12;
const A: u16 = 1;

/// Prefix of names whose answers must not be cached: their TTL is 0.
const FLEETING: &[u8] = b"pool";

pub fn run(listen: SocketAddr) -> anyhow::Result<()> {
    let socket = UdpSocket::bind(listen)?;
    let mut buffer = [0; 512];
    loop {
        let (length, peer) = socket.recv_from(&mut buffer)?;
        if let Some(answer) = buffer.get(..length).and_then(answer) {
            let _ = socket.send_to(&answer, peer);
        }
    }
}

fn answer(question: &[u8]) -> Option<Vec<u8>> {
    let mut end = HEADER;
    loop {
        match *question.get(end)? {
            0 => break,
            label => end += 1 + usize::from(label),
        }
    }
    end += 5;
    let mut answer = question.get(..end)?.to_vec();
    let record_type = u16::from_be_bytes([*question.get(end - 4)?, *question.get(end - 3)?]);
    let answers = u8::from(record_type == A);
    answer
        .get_mut(2..HEADER)?
        .copy_from_slice(&[0x85, 0x80, 0, 1, 0, answers, 0, 0, 0, 0]);
    if answers == 1 {
        let first = question.get(HEADER + 1..HEADER + 1 + FLEETING.len());
        let fleeting = first.is_some_and(|first| first.eq_ignore_ascii_case(FLEETING));
        let ttl: u32 = if fleeting { 0 } else { 300 };
        answer.extend([0xc0, HEADER as u8, 0, 1, 0, 1]);
        answer.extend(ttl.to_be_bytes());
        answer.extend([0, 4, 93, 184, 216, 34]);
    }
    Some(answer)
}
