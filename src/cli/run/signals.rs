//! Signals that are passed on to the command.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::sandbox::Signalled;

/// What a key sends to everything in the foreground.
const OF_KEYS: [Number; 4] = [Number::INT, Number::QUIT, Number::TSTP, Number::CONT];
/// What is sent to one process.
const OF_PROCESSES: [Number; 4] = [Number::HUP, Number::TERM, Number::USR1, Number::USR2];

/// What arrived.
pub enum Passed {
    /// The terminal has another size.
    Size,
    /// To be sent to the command.
    Signal { number: i32, to: Signalled },
}

/// The signals that this process waits for.
pub struct Signals(Vec<(Number, Signal)>);

impl Signals {
    /// Begins to listen; until then they end this process. Needs a runtime.
    pub fn listen() -> io::Result<Self> {
        let all = OF_KEYS.into_iter().chain(OF_PROCESSES);
        let all = all.chain([Number::WINCH]);
        let listening = all.map(|number| {
            let kind = SignalKind::from_raw(number.as_raw());
            Ok((number, signal(kind)?))
        });
        listening.collect::<io::Result<_>>().map(Self)
    }

    /// Waits for one that ends a process before its command has started; answers with its exit
    /// code.
    pub async fn interrupted(&mut self) -> u8 {
        let ends = [Number::HUP, Number::INT, Number::QUIT, Number::TERM];
        loop {
            if let Passed::Signal { number, .. } = self.next().await
                && ends.iter().any(|end| end.as_raw() == number)
            {
                return u8::try_from(number).unwrap_or(0).saturating_add(128);
            }
        }
    }

    /// The next one. Cancellation-safe.
    pub async fn next(&mut self) -> Passed {
        let number = poll_fn(|context| {
            for (number, signal) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await;
        let to = match OF_KEYS.contains(&number) {
            true => Signalled::Foreground,
            false => Signalled::Command,
        };
        match number {
            Number::WINCH => Passed::Size,
            number => Passed::Signal {
                number: number.as_raw(),
                to,
            },
        }
    }
}
