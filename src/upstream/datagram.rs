//! Asks one nameserver a question with one datagram each way, which settles nearly every look-up.
//!
//! After a timeout, a truncated answer or a failure, the caller asks again through
//! hickory-resolver. An answer is accepted only from the nameserver's address, at the question's
//! random port, with its random id and random letter case. After 2 s or 64 questions, a port sends
//! no further question.
//!
//! A forwarded question takes about 78,000 instructions, and about 160,000 through hickory-resolver
//! alone (`scripts/bench --instructions`).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use aws_lc_rs::rand;
use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::RecordType;
use parking_lot::Mutex;
use tokio::net::UdpSocket;
use tokio::time::timeout;

/// The longest time to wait for an answer. A nameserver that has the answer in its cache needs only
/// a fraction of this time.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// After this many consecutive questions without an answer, [`Datagrams::ask`] sends none for
/// [`REST`] and returns `None` at once. A single unanswered question is not enough: a container
/// that asks for a slow name must not slow down the other containers.
const SILENCES: u32 = 3;

/// How long [`Datagrams::ask`] sends no question to a nameserver that did not answer.
const REST: Duration = Duration::from_secs(5);

/// The most questions from one port. Opening a port for every question would double the cost of a
/// question.
const QUESTIONS_PER_PORT: u8 = 64;
/// The age after which a port sends no further question. A port in use for long would give an
/// off-path attacker time to find it.
const PORT_LIFETIME: Duration = Duration::from_secs(2);

/// Limit on the idle ports that are kept for the next questions; further ones are closed.
const IDLE_PORTS: usize = 64;

/// The EDNS payload size, which needs no fragmentation on today's networks (DNS flag day 2020).
const MAX_PAYLOAD: u16 = 1232;

const HEADER: usize = 12;
const CLASS_IN: u16 = 1;

/// Bytes of the OPT record with the payload size: a root name, type 41, and eight more.
const OPT: usize = 11;

/// The id (2 bytes), the choice of a port (1 byte), and a bit for each letter of the longest name
/// (32 bytes).
type Random = [u8; 35];

/// Sends questions to one nameserver, from a few ports that are reused.
pub(super) struct Datagrams {
    nameserver: SocketAddr,
    idle: Mutex<Vec<Port>>,
    silences: AtomicU32,
    rests_until: Mutex<Option<Instant>>,
}

struct Port {
    socket: UdpSocket,
    opened: Instant,
    questions: u8,
}

impl Datagrams {
    pub fn new(nameserver: SocketAddr) -> Self {
        Self {
            nameserver,
            idle: Mutex::default(),
            silences: AtomicU32::default(),
            rests_until: Mutex::default(),
        }
    }

    /// Returns the answer if it is complete and its code is `NoError` or `NXDomain`. If it returns
    /// `None`, the caller must ask through hickory-resolver.
    pub async fn ask(&self, name: &str, record_type: RecordType) -> Option<Message> {
        if self.rests() {
            return None;
        }
        let mut random: Random = [0; 35];
        rand::fill(&mut random).ok()?;
        let question = question(name, record_type, &random)?;
        let [_, _, choice, ..] = random;
        match timeout(ANSWER_TIMEOUT, self.exchange(&question, choice)).await {
            Ok(Ok(answer)) => {
                self.silences.store(0, Ordering::Relaxed);
                answer.filter(is_plain)
            }
            Ok(Err(_)) | Err(_) => {
                if self.silences.fetch_add(1, Ordering::Relaxed) + 1 >= SILENCES {
                    self.silences.store(0, Ordering::Relaxed);
                    *self.rests_until.lock() = Some(Instant::now() + REST);
                }
                None
            }
        }
    }

    fn rests(&self) -> bool {
        let until = *self.rests_until.lock();
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Sends the question and waits for a datagram with its id; `None` if that datagram is not a
    /// DNS message that repeats the question. Dropping the future closes the port.
    async fn exchange(&self, question: &[u8], choice: u8) -> io::Result<Option<Message>> {
        let mut port = match self.take(choice) {
            Some(port) => port,
            None => Port::open(self.nameserver).await?,
        };
        port.questions += 1;
        port.socket.send(question).await?;
        loop {
            port.socket.readable().await?;
            let mut buffer = [0; MAX_PAYLOAD as usize];
            let length = match port.socket.try_recv(&mut buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            };
            let answer = buffer.get(..length).unwrap_or_default();
            if answer.first_chunk::<2>() != question.first_chunk() {
                continue;
            }
            self.put_back(port);
            let is_ours = echo(answer, question.len()) == echo(question, question.len());
            let read = is_ours.then(|| Message::from_vec(answer).ok());
            return Ok(read.flatten());
        }
    }

    /// Takes an idle port that may send another question; `None` if there is none. Discards the
    /// datagrams that have arrived at the port.
    fn take(&self, choice: u8) -> Option<Port> {
        let mut idle = self.idle.lock();
        let port = loop {
            let at = usize::from(choice).checked_rem(idle.len())?;
            let port = idle.swap_remove(at);
            if port.is_fresh() {
                break port;
            }
        };
        drop(idle);
        let mut stale = [0; 1];
        while port.socket.try_recv(&mut stale).is_ok() {}
        Some(port)
    }

    fn put_back(&self, port: Port) {
        let mut idle = self.idle.lock();
        if port.is_fresh() && idle.len() < IDLE_PORTS {
            idle.push(port);
        }
    }
}

impl Port {
    /// Opens a random port, and connects it so that the kernel drops datagrams from other
    /// addresses.
    async fn open(nameserver: SocketAddr) -> io::Result<Self> {
        let any: SocketAddr = match nameserver {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any).await?;
        socket.connect(nameserver).await?;
        Ok(Self {
            socket,
            opened: Instant::now(),
            questions: 0,
        })
    }

    fn is_fresh(&self) -> bool {
        self.questions < QUESTIONS_PER_PORT && self.opened.elapsed() < PORT_LIFETIME
    }
}

/// Whether the message is a response that is not truncated, with `NoError` or `NXDomain`.
fn is_plain(answer: &Message) -> bool {
    let head = &answer.metadata;
    let code = head.response_code;
    let is_response = head.message_type == MessageType::Response && head.op_code == OpCode::Query;
    is_response
        && !head.truncation
        && matches!(code, ResponseCode::NoError | ResponseCode::NXDomain)
}

/// Returns the question section of a message, which an answer must repeat byte for byte; `None`
/// unless the message has exactly one question. `length` is the length of the question message,
/// with its OPT record.
fn echo(message: &[u8], length: usize) -> Option<&[u8]> {
    let [_, _, _, _, 0, 1, ..] = message else {
        return None;
    };
    message.get(HEADER..length.checked_sub(OPT)?)
}

/// Encodes a question with a random id and a random letter case; `None` if `name` is not a valid
/// DNS name.
fn question(name: &str, record_type: RecordType, random: &Random) -> Option<Vec<u8>> {
    let [first, second, _, case @ ..] = random;
    let mut question = Vec::with_capacity(HEADER + name.len() + 2 + 4 + OPT);
    // Recursion desired; one question, one additional record.
    question.extend([*first, *second, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1]);
    let mut letters = 0;
    for label in name.split('.') {
        let length = u8::try_from(label.len()).ok();
        question.push(length.filter(|length| (1..=63).contains(length))?);
        for byte in label.bytes() {
            let bits: u8 = case.get(letters / 8).copied()?;
            let flipped = byte.is_ascii_alphabetic() && bits >> (letters % 8) & 1 == 1;
            question.push(if flipped { byte ^ 0x20 } else { byte });
            letters += 1;
        }
    }
    question.push(0);
    question.extend(u16::from(record_type).to_be_bytes());
    question.extend(CLASS_IN.to_be_bytes());
    let [high, low] = MAX_PAYLOAD.to_be_bytes();
    question.extend([0, 0, 41, high, low, 0, 0, 0, 0, 0, 0]);
    Some(question)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "api.example.com";

    /// Returns the datagrams that answer a question.
    type Answers = fn(&[u8]) -> Vec<Vec<u8>>;

    /// Starts a nameserver that sends these datagrams for every question.
    async fn nameserver(answers: Answers) -> Datagrams {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let datagrams = Datagrams::new(socket.local_addr().unwrap());
        tokio::spawn(async move {
            let mut buffer = [0; 512];
            while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
                for answer in answers(&buffer[..length]) {
                    socket.send_to(&answer, peer).await.unwrap();
                }
            }
        });
        datagrams
    }

    /// Makes an answer without records from a question.
    fn answer(question: &[u8]) -> Vec<u8> {
        let mut answer = question[..question.len() - OPT].to_vec();
        answer[2] = 0x81;
        answer[11] = 0;
        answer
    }

    fn changed(question: &[u8], at: usize, value: impl Fn(u8) -> u8) -> Vec<u8> {
        let mut answer = answer(question);
        answer[at] = value(answer[at]);
        answer
    }

    #[tokio::test]
    async fn a_plain_answer_is_returned_and_its_port_is_reused() {
        let datagrams = nameserver(|question| vec![answer(question)]).await;
        for _ in 0..QUESTIONS_PER_PORT {
            assert!(datagrams.ask(NAME, RecordType::A).await.is_some());
            assert!(datagrams.idle.lock().len() <= 1);
        }
        assert!(datagrams.idle.lock().is_empty(), "the port is used up");
    }

    #[tokio::test]
    async fn an_answer_with_another_id_is_ignored() {
        let datagrams =
            nameserver(|question| vec![changed(question, 0, |byte| !byte), answer(question)]);
        assert!(datagrams.await.ask(NAME, RecordType::A).await.is_some());
    }

    #[tokio::test]
    async fn an_unusable_answer_returns_none_and_does_not_stop_datagrams() {
        let unusable: [Answers; 7] = [
            |question| vec![changed(question, 2, |flags| flags & 0x7f)],
            |question| vec![changed(question, 2, |flags| flags | 0x08)],
            |question| vec![changed(question, 2, |flags| flags | 2)],
            |question| vec![changed(question, 3, |_| 2)],
            |question| vec![changed(question, 5, |_| 2)],
            |question| vec![changed(question, HEADER + 1, |letter| letter ^ 0x20)],
            |question| vec![changed(question, HEADER + 1, |_| b'z')],
        ];
        for answers in unusable {
            let datagrams = nameserver(answers).await;
            assert!(datagrams.ask(NAME, RecordType::A).await.is_none());
            assert!(!datagrams.rests());
        }
    }

    #[tokio::test]
    async fn a_nameserver_that_does_not_answer_gets_no_further_datagram() {
        let datagrams = nameserver(|_| Vec::new()).await;
        for _ in 0..SILENCES {
            assert!(!datagrams.rests());
            assert!(datagrams.ask(NAME, RecordType::A).await.is_none());
        }
        let begun = Instant::now();
        assert!(datagrams.ask(NAME, RecordType::A).await.is_none());
        assert!(begun.elapsed() < ANSWER_TIMEOUT / 2);
    }

    #[tokio::test]
    async fn unanswered_questions_for_one_slow_name_do_not_stop_other_datagrams() {
        // The length of the first label distinguishes the two names.
        let datagrams = nameserver(|question| match question[HEADER] {
            4 => Vec::new(),
            _ => vec![answer(question)],
        })
        .await;
        for _ in 0..SILENCES {
            assert!(
                datagrams
                    .ask("slow.example.com", RecordType::A)
                    .await
                    .is_none()
            );
            assert!(datagrams.ask(NAME, RecordType::A).await.is_some());
        }
        assert!(!datagrams.rests());
    }

    #[tokio::test]
    async fn a_datagram_that_arrived_before_the_question_is_discarded() {
        let datagrams = nameserver(|question| vec![answer(question), answer(question)]).await;
        assert!(datagrams.ask(NAME, RecordType::A).await.is_some());
        let idle = datagrams.idle.lock().pop().unwrap();
        idle.socket.readable().await.unwrap();
        datagrams.put_back(idle);
        let port = datagrams.take(0).unwrap();
        let left = port.socket.try_recv(&mut [0]).map_err(|error| error.kind());
        assert_eq!(left, Err(io::ErrorKind::WouldBlock));
    }

    #[test]
    fn a_question_has_the_name_in_random_letter_case() {
        let question = question(NAME, RecordType::AAAA, &[0xff; 35]).unwrap();
        assert_eq!(
            question,
            b"\xff\xff\x01\0\0\x01\0\0\0\0\0\x01\x03API\x07EXAMPLE\x03COM\0\0\x1c\0\x01\0\0\x29\x04\xd0\0\0\0\0\0\0"
        );
    }
}
