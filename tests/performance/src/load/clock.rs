//! When the next request is due.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::Load;

/// A worker's clock.
pub enum Clock {
    /// As soon as the one before is answered, until this moment.
    Until(Instant, usize, usize),
    /// As soon as the one before is answered, so many among all workers.
    Count(Arc<AtomicU64>, u64),
    /// At fixed times, whatever became of the one before.
    Fixed(UnboundedReceiver<Instant>),
}

impl Clock {
    /// When the next one is due, and a number that no other request of the load has. `None`: no
    /// more.
    pub async fn next(&mut self) -> Option<(Instant, usize)> {
        let now = Instant::now();
        match self {
            Self::Until(end, number, step) => {
                *number += *step;
                (now < *end).then_some((now, *number))
            }
            Self::Count(taken, most) => {
                let number = taken.fetch_add(1, Ordering::Relaxed);
                (number < *most).then_some((now, number as usize))
            }
            Self::Fixed(due) => due.recv().await.map(|due| (due, 0)),
        }
    }
}

/// A clock for each worker.
pub fn clocks(load: &Load, workers: usize, began: Instant) -> Vec<Clock> {
    let end = began + Duration::from_secs_f64(load.seconds);
    if let Some(rate) = load.rate {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..workers).map(|_| unbounded_channel()).unzip();
        let step = Duration::from_secs_f64(1.0 / rate);
        thread::spawn(move || pace(&senders, began, step, end));
        return receivers.into_iter().map(Clock::Fixed).collect();
    }
    unpaced(load.requests, end, workers)
}

/// A clock for each worker, which sends as soon as it has an answer: so many requests among all
/// workers, or until this moment.
pub fn unpaced(requests: Option<u64>, end: Instant, workers: usize) -> Vec<Clock> {
    let taken = Arc::default();
    let clock = |worker| match requests {
        Some(most) => Clock::Count(Arc::clone(&taken), most),
        None => Clock::Until(end, worker, workers),
    };
    (0..workers).map(clock).collect()
}

/// In a thread of its own: the runtime's timer counts in milliseconds.
fn pace(workers: &[UnboundedSender<Instant>], began: Instant, step: Duration, end: Instant) {
    let mut due = began;
    for worker in workers.iter().cycle() {
        if due >= end {
            return;
        }
        thread::sleep(due.saturating_duration_since(Instant::now()));
        // A worker that failed says so itself.
        let _ = worker.send(due);
        due += step;
    }
}
