//! Times at which the requests of a load are sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::Load;

/// Schedule of a worker.
pub enum Clock {
    /// Each request follows the previous response, until this instant. The other fields are the
    /// number of this worker's previous request (at first, the worker's index) and the step to the
    /// next one (the number of workers).
    Until(Instant, usize, usize),
    /// Each request follows the previous response. The fields are the number of requests that all
    /// workers together have begun, and the limit on that number.
    Count(Arc<AtomicU64>, u64),
    /// Requests are sent at fixed times, independent of earlier responses.
    Fixed(UnboundedReceiver<Instant>),
}

impl Clock {
    /// The time at which the next request is due, and its number, which is unique in the load
    /// except for [`Self::Fixed`], where it is always 0. `None` after the last request.
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

/// Schedules for all workers.
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

/// Schedules for workers that each send a request after the previous response: until all workers
/// together have sent `requests`, or, if that is `None`, until `end`.
pub fn unpaced(requests: Option<u64>, end: Instant, workers: usize) -> Vec<Clock> {
    let taken = Arc::default();
    let clock = |worker| match requests {
        Some(most) => Clock::Count(Arc::clone(&taken), most),
        None => Clock::Until(end, worker, workers),
    };
    (0..workers).map(clock).collect()
}

/// Sends each due time to the next worker. It blocks its thread, since the runtime's timer has a
/// resolution of only a millisecond.
fn pace(workers: &[UnboundedSender<Instant>], began: Instant, step: Duration, end: Instant) {
    let mut due = began;
    for worker in workers.iter().cycle() {
        if due >= end {
            return;
        }
        thread::sleep(due.saturating_duration_since(Instant::now()));
        // Sending fails only if the worker has failed; the worker reports its own error.
        let _ = worker.send(due);
        due += step;
    }
}
