//! Receives the signals that are forwarded to the command.

use std::fs;
use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::sandbox::{Ending, Signalled};

/// Signals that are usually sent to the whole foreground process group: by the terminal for a key,
/// or by a shell for job control.
const TO_FOREGROUND: [Number; 4] = [Number::INT, Number::QUIT, Number::TSTP, Number::CONT];
/// Signals that are usually sent to one process.
const TO_COMMAND: [Number; 4] = [Number::HUP, Number::TERM, Number::USR1, Number::USR2];

/// A signal that arrived.
pub enum SignalEvent {
    /// The size of the terminal has changed.
    Size,
    /// A signal to forward to the command.
    Signal { number: i32, to: Signalled },
}

/// The handlers of the signals that this process forwards, and of SIGWINCH.
pub struct Signals(Vec<(Number, Signal)>);

impl Signals {
    /// Installs the handlers. A signal other than SIGWINCH that was ignored when this process
    /// started, as under `nohup`, stays ignored; the command ignores it too. Must be called within
    /// a runtime.
    pub fn listen() -> io::Result<Self> {
        let ignored = ignored(&fs::read_to_string("/proc/self/status")?);
        let all = TO_FOREGROUND.into_iter().chain(TO_COMMAND);
        let all = all.filter(|number| !is_in(ignored, *number));
        let all = all.chain([Number::WINCH]);
        let listening = all.map(|number| {
            let kind = SignalKind::from_raw(number.as_raw());
            Ok((number, signal(kind)?))
        });
        listening.collect::<io::Result<_>>().map(Self)
    }

    /// Waits for SIGHUP, SIGINT, SIGQUIT or SIGTERM, which end a run whose command has not started
    /// yet. Drops other signals. Returns the exit code of the run, 128 + the number of the signal.
    pub async fn interrupted(&mut self) -> u8 {
        let ends = [Number::HUP, Number::INT, Number::QUIT, Number::TERM];
        loop {
            if let SignalEvent::Signal { number, .. } = self.next().await
                && ends.iter().any(|end| end.as_raw() == number)
            {
                return Ending::Signal(number).exit_code();
            }
        }
    }

    /// Waits for the next signal. Cancel safe.
    pub async fn next(&mut self) -> SignalEvent {
        let number = poll_fn(|context| {
            for (number, signal) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await;
        let to = match TO_FOREGROUND.contains(&number) {
            true => Signalled::Foreground,
            false => Signalled::Command,
        };
        match number {
            Number::WINCH => SignalEvent::Size,
            number => SignalEvent::Signal {
                number: number.as_raw(),
                to,
            },
        }
    }
}

/// The mask of ignored signals in the text of a `status` file (proc(5)).
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0)
}

fn is_in(mask: u64, number: Number) -> bool {
    // The numbers of signals are 1 to 64.
    (mask >> (number.as_raw() - 1)) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_mask() {
        let mask = ignored("Name:\tx\nSigIgn:\t0000000180000003\nSigCgt:\t0\n");
        assert!(is_in(mask, Number::HUP) && is_in(mask, Number::INT));
        assert!(!is_in(mask, Number::QUIT) && !is_in(mask, Number::TERM));
        assert_eq!(ignored("Name:\tx\n"), 0);
    }
}
