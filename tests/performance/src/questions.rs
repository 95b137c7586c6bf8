//! A load on a DNS server: many clients, each of which sends a query when its previous one was
//! answered or lost.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::bail;
use clap::{Args, ValueEnum};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::usage::Usage;

/// Time for which the clients send queries before a measurement of fixed duration.
const SETTLING: Duration = Duration::from_millis(200);

/// Timeout after which a query counts as lost.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Timeout of a query if the number of queries is given: the server may then run under callgrind,
/// which makes it slow.
const COUNTED_TIMEOUT: Duration = Duration::from_secs(30);

/// Number of lost or wrong answers for each 100 right ones at which a run still counts: a saturated
/// server drops some.
const TOLERATED_PERCENT: u64 = 1;

/// Number of names in the pool: so many that no cache still has a name when it is queried again.
const POOL: u64 = 100_000;

const NO_ERROR: u8 = 0;
const NX_DOMAIN: u8 = 3;

/// The names in the queries.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Names {
    /// One name, which is in every cache.
    Cached,
    /// Names that the server must deny.
    Denied,
    /// Names of a pool, whose answers have a TTL of 0.
    Forwarded,
    /// Every name once.
    Unique,
}

/// Sends DNS queries. Prints one line of figures.
#[derive(Args)]
pub struct Questions {
    #[arg(value_enum)]
    names: Names,
    #[arg(long)]
    server: SocketAddr,
    /// Pid of the server, whose CPU time is measured with that of its descendants.
    #[arg(long)]
    pid: u32,
    /// Number of clients; their addresses count up from 127.1.0.1.
    #[arg(long, default_value_t = 200)]
    clients: u8,
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Number of queries after which the load ends, instead of a time.
    #[arg(long)]
    questions: Option<u64>,
}

struct Run {
    names: Names,
    /// Part of the unique names; differs from run to run.
    id: u64,
    /// The number of queries after which the clients stop.
    most: u64,
    timeout: Duration,
    asked: AtomicU64,
    answered: AtomicU64,
    failed: AtomicU64,
}

impl Questions {
    pub async fn run(self) -> anyhow::Result<()> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let run = Arc::new(Run {
            names: self.names,
            id: since.as_millis() as u64,
            most: self.questions.unwrap_or(u64::MAX),
            timeout: self.questions.map_or(TIMEOUT, |_| COUNTED_TIMEOUT),
            asked: AtomicU64::default(),
            answered: AtomicU64::default(),
            failed: AtomicU64::default(),
        });
        let mut clients = Vec::new();
        for number in 1..=self.clients {
            let source = SocketAddrV4::new(Ipv4Addr::new(127, 1, 0, number), 0);
            let socket = UdpSocket::bind(source).await?;
            socket.connect(self.server).await?;
            clients.push(tokio::spawn(Arc::clone(&run).ask(socket)));
        }
        if self.questions.is_none() {
            tokio::time::sleep(SETTLING).await;
        }
        let (before, answered) = (Usage::of(self.pid)?, run.answered.load(Ordering::Relaxed));
        let began = Instant::now();
        if self.questions.is_some() {
            for client in &mut clients {
                client.await??;
            }
        } else {
            tokio::time::sleep(Duration::from_secs_f64(self.seconds)).await;
        }
        let (after, elapsed) = (Usage::of(self.pid)?, began.elapsed());
        let answered = run.answered.load(Ordering::Relaxed) - answered;
        let failed = run.failed.load(Ordering::Relaxed);
        clients.iter().for_each(tokio::task::JoinHandle::abort);
        if failed * 100 > answered * TOLERATED_PERCENT {
            bail!("{failed} answers were lost or wrong, {answered} were right");
        }
        let cpu = (after.cpu - before.cpu).as_secs_f64() * 1e6 / answered.max(1) as f64;
        let rate = answered as f64 / elapsed.as_secs_f64();
        println!("cpu_us_each={cpu:.2} per_second={rate:.0} failed={failed}");
        Ok(())
    }
}

impl Run {
    async fn ask(self: Arc<Self>, socket: UdpSocket) -> anyhow::Result<()> {
        let expected = match self.names {
            Names::Denied => NX_DOMAIN,
            _ => NO_ERROR,
        };
        let mut buffer = [0; 512];
        loop {
            let number = self.asked.fetch_add(1, Ordering::Relaxed);
            if number >= self.most {
                return Ok(());
            }
            let question = question(number as u16, &self.name(number));
            socket.send(&question).await?;
            let answer = timeout(self.timeout, socket.recv(&mut buffer)).await;
            let is_good = answer.is_ok_and(|read| {
                read.is_ok_and(|length| length >= question.len())
                    && buffer.first_chunk() == question.first_chunk::<2>()
                    && buffer[3] & 0x0f == expected
            });
            let counter = if is_good {
                &self.answered
            } else {
                &self.failed
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn name(&self, number: u64) -> String {
        match self.names {
            Names::Cached => "api.example.com".to_owned(),
            Names::Denied => format!("n{}.denied.example.net", number % 1000),
            Names::Forwarded => format!("pool{}.many.example.com", number % POOL),
            Names::Unique => format!("u{number}-{}.many.example.com", self.id),
        }
    }
}

/// A query for the A records of a name, with recursion desired.
fn question(id: u16, name: &str) -> Vec<u8> {
    let mut question = id.to_be_bytes().to_vec();
    question.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        question.push(label.len() as u8);
        question.extend(label.as_bytes());
    }
    question.extend([0, 0, 1, 0, 1]);
    question
}
