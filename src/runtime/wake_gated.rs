//! A future that is polled only after it was woken, for rare events beside the data path.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// A future that is polled once, and then only after it was woken.
///
/// The task of a connection is polled for every packet. Polling the other events that may end the
/// connection (the end of its lease, a reload, a shutdown, a timeout) takes locks that all
/// connections share. With the gate, each poll is one atomic load. Without the gate, a denied
/// request takes 3 % more instructions, and any other request 3.5 % more
/// (`scripts/bench --instructions --functions`).
pub struct WakeGated<'a, T> {
    future: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    state: Arc<WakeState>,
    /// The future is polled with this waker, which sets [`WakeState::woken`].
    waker: Waker,
    /// The waker that is stored in `state`.
    registered: Option<Waker>,
}

/// Whether the future was woken, and the waker of the task that polls it.
struct WakeState {
    woken: AtomicBool,
    /// Replaced, never taken: a late wake-up must not remove the waker that the next wake-up needs.
    task: Mutex<Option<Waker>>,
}

impl<'a, T> WakeGated<'a, T> {
    pub fn new(future: impl Future<Output = T> + Send + 'a) -> Self {
        let state = Arc::new(WakeState {
            // The first poll is not gated.
            woken: AtomicBool::new(true),
            task: Mutex::default(),
        });
        Self {
            future: Box::pin(future),
            waker: Waker::from(Arc::clone(&state)),
            state,
            registered: None,
        }
    }
}

impl<T> Future for WakeGated<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        let waker = context.waker();
        if !this
            .registered
            .as_ref()
            .is_some_and(|registered| registered.will_wake(waker))
        {
            *this.state.task.lock() = Some(waker.clone());
            this.registered = Some(waker.clone());
        }
        // `woken` is read after the waker was stored, so that no wake-up is lost. The load comes
        // first since it is cheaper than the swap, which writes.
        if !this.state.woken.load(Ordering::Acquire)
            || !this.state.woken.swap(false, Ordering::AcqRel)
        {
            return Poll::Pending;
        }
        let mut context = Context::from_waker(&this.waker);
        this.future.as_mut().poll(&mut context)
    }
}

impl Wake for WakeState {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        if let Some(task) = &*self.task.lock() {
            task.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use tokio::sync::Notify;

    use super::*;
    use crate::runtime::waker::CountingWaker;

    #[tokio::test]
    async fn a_future_is_polled_only_after_its_own_wake_up() {
        let (word, polled) = (Notify::new(), AtomicUsize::new(0));
        let mut inner = Box::pin(word.notified());
        let gated = WakeGated::new(std::future::poll_fn(|context| {
            polled.fetch_add(1, Ordering::Relaxed);
            inner.as_mut().poll(context)
        }));
        let others = async {
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
            assert_eq!(polled.load(Ordering::Relaxed), 1);
            word.notify_waiters();
            std::future::pending::<()>().await;
        };
        let ended = async {
            tokio::select! {
                biased;
                () = others => {}
                () = gated => {}
            }
        };
        tokio::time::timeout(Duration::from_secs(10), ended)
            .await
            .unwrap();
        assert_eq!(polled.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_wake_up_between_two_polls_wakes_the_task_that_polled_last() {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let mut gated = WakeGated::new(receiver);
        let once = futures_util::poll!(&mut gated);
        assert!(once.is_pending());
        let elsewhere = tokio::spawn(gated);
        tokio::task::yield_now().await;
        sender.send(7).unwrap();
        let heard = tokio::time::timeout(Duration::from_secs(10), elsewhere).await;
        assert_eq!(heard.unwrap().unwrap().unwrap(), 7);
    }

    #[test]
    fn a_wake_up_does_not_remove_the_waker_that_the_next_one_needs() {
        let woken = Arc::new(CountingWaker::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let mut gated = WakeGated::new(std::future::pending::<()>());
        let state = Arc::clone(&gated.state);
        for round in 0..3 {
            assert!(Pin::new(&mut gated).poll(&mut context).is_pending());
            // The second call stands for a late wake-up, which began before the poll.
            state.wake_by_ref();
            state.wake_by_ref();
            assert_eq!(woken.times(), 2 * round + 2);
        }
    }
}
