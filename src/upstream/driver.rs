//! Polls an HTTP/1.1 connection in the task of the exchange that uses it.
//!
//! hyper leaves polling a connection to its user. Usually a separate task polls each connection.
//! Then the request, the response head and each piece of the body cost a task switch, often between
//! cores. Only one exchange at a time uses an HTTP/1.1 connection, so the task of that exchange
//! polls it. An idle connection is polled only when it is checked or used again, so a close by the
//! upstream is noticed only then. See ADR 007.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use tokio_util::sync::CancellationToken;

/// The most polls of the connection in one poll of the task; then the task yields.
const ROUNDS: usize = 8;

/// Owns the future of a connection, which is ready when the connection has ended.
pub struct Driver {
    /// `None` once the connection has ended or was detached. Dropping an ended connection closes
    /// its socket.
    connection: Option<Connection>,
    state: Arc<WakeState>,
    /// The connection is polled with this waker, which sets [`WakeState::woken`].
    waker: Waker,
    /// The lease's end, for a detached connection. Other connections end with their exchange, their
    /// client connection or their pool.
    lease_ended: CancellationToken,
}

type Connection = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Whether the connection was woken, and the waker of the task that polls it.
struct WakeState {
    woken: AtomicBool,
    /// A task is polling, or will poll next, and reads `woken` before it returns, so it need not be
    /// woken.
    attended: AtomicBool,
    task: AtomicWaker,
}

impl Driver {
    pub fn new(
        connection: impl Future<Output = ()> + Send + 'static,
        lease_ended: CancellationToken,
    ) -> Self {
        let state = Arc::new(WakeState {
            woken: AtomicBool::new(true),
            attended: AtomicBool::new(false),
            task: AtomicWaker::new(),
        });
        Self {
            connection: Some(Box::pin(connection)),
            waker: Waker::from(Arc::clone(&state)),
            state,
            lease_ended,
        }
    }

    /// Polls `wanted` and the connection in turn, for as long as the connection makes progress.
    /// Only this connection may make `wanted` ready: `wanted` gets a waker without effect, and this
    /// driver wakes the task. Once the connection has ended or was detached, `wanted` gets the
    /// task's waker and must register it.
    pub fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        mut wanted: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        if self.connection.is_none() {
            return wanted(context);
        }
        let mut wanted = || wanted(&mut Context::from_waker(Waker::noop()));
        // If the result is ready already, the waker need not be registered, which saves an atomic
        // write.
        let ready = self.before_poll(&mut wanted);
        if ready.is_ready() {
            return ready;
        }
        self.state.task.register(context.waker());
        for _ in 0..ROUNDS {
            self.state.attended.store(true, Ordering::Relaxed);
            if self.state.woken.swap(false, Ordering::SeqCst) {
                self.step();
                let result = wanted();
                if result.is_ready() {
                    self.state.attended.store(false, Ordering::Relaxed);
                    return result;
                }
            }
            // A concurrent wake-up sets `woken`, then reads `attended`. Either it reads `false` and
            // wakes the task, or the load below sees `woken`.
            self.state.attended.store(false, Ordering::SeqCst);
            if !self.state.woken.load(Ordering::SeqCst) {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Runs `act`, which may make the connection ready for progress, for example by sending a
    /// request. This wakes no task, so the caller must call [`Driver::poll`] next.
    pub fn before_poll<T>(&self, act: impl FnOnce() -> T) -> T {
        self.state.attended.store(true, Ordering::Relaxed);
        let done = act();
        self.state.attended.store(false, Ordering::Relaxed);
        done
    }

    /// Polls an idle connection if it was woken, mostly because its peer closed it.
    pub fn look(&mut self) {
        if self.state.woken.swap(false, Ordering::SeqCst) {
            self.step();
        }
    }

    /// Drops the waker of the task that polled last.
    pub fn release(&self) {
        self.state.task.take();
    }

    /// Moves the connection to a separate task, for an exchange that stops polling it.
    pub fn detach(&mut self) {
        if let Some(connection) = self.connection.take() {
            let lease_ended = self.lease_ended.clone();
            tokio::spawn(lease_ended.run_until_cancelled_owned(connection));
        }
    }

    fn step(&mut self) {
        let mut context = Context::from_waker(&self.waker);
        let ended = |connection: &mut Connection| connection.as_mut().poll(&mut context).is_ready();
        if self.connection.as_mut().is_some_and(ended) {
            self.connection = None;
        }
    }
}

impl Wake for WakeState {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        if !self.attended.load(Ordering::SeqCst) {
            self.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;

    use super::*;
    use crate::runtime::waker::CountingWaker;

    /// A connection that answers each number with the next one.
    fn counting() -> (
        Driver,
        mpsc::UnboundedSender<u32>,
        mpsc::UnboundedReceiver<u32>,
    ) {
        let (asks, mut asked) = mpsc::unbounded_channel();
        let (answers, answered) = mpsc::unbounded_channel();
        let connection = async move {
            while let Some(number) = asked.recv().await {
                answers.send(number + 1).unwrap();
            }
        };
        let driver = Driver::new(connection, CancellationToken::new());
        (driver, asks, answered)
    }

    #[test]
    fn progress_within_one_poll_wakes_no_task() {
        let (mut driver, asks, mut answers) = counting();
        let woken = Arc::new(CountingWaker::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        for number in 0..3 {
            driver.before_poll(|| asks.send(number).unwrap());
            let answer = driver.poll(&mut context, |context| answers.poll_recv(context));
            assert_eq!(answer, Poll::Ready(Some(number + 1)));
        }
        assert_eq!(woken.times(), 0);
    }

    #[test]
    fn progress_between_polls_wakes_the_task_that_polled_last_until_release() {
        let (mut driver, asks, mut answers) = counting();
        let woken = Arc::new(CountingWaker::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let waits = driver.poll(&mut context, |context| answers.poll_recv(context));
        assert!(waits.is_pending());
        asks.send(1).unwrap();
        assert_eq!(woken.times(), 1);
        let answer = driver.poll(&mut context, |context| answers.poll_recv(context));
        assert_eq!(answer, Poll::Ready(Some(2)));
        driver.release();
        asks.send(2).unwrap();
        assert_eq!(woken.times(), 1);
    }

    #[test]
    fn look_notices_that_the_peer_is_gone() {
        let (mut driver, asks, mut answers) = counting();
        driver.look();
        drop(asks);
        assert!(answers.try_recv().is_err() && !answers.is_closed());
        driver.look();
        assert_eq!(
            answers.try_recv(),
            Err(mpsc::error::TryRecvError::Disconnected)
        );
    }

    #[test]
    fn a_connection_that_always_wakes_itself_yields() {
        let restless = std::future::poll_fn(|context| {
            context.waker().wake_by_ref();
            Poll::Pending
        });
        let mut driver = Driver::new(restless, CancellationToken::new());
        let woken = Arc::new(CountingWaker::default());
        let waker = Waker::from(Arc::clone(&woken));
        let waits = driver.poll(&mut Context::from_waker(&waker), |_| Poll::<()>::Pending);
        assert!(waits.is_pending());
        assert!(woken.times() > 0);
    }

    #[tokio::test]
    async fn a_detached_connection_answers_without_being_polled() {
        let (mut driver, asks, mut answers) = counting();
        driver.detach();
        asks.send(6).unwrap();
        let answer = std::future::poll_fn(|context| {
            driver.poll(context, |context| answers.poll_recv(context))
        });
        let answer = tokio::time::timeout(Duration::from_secs(10), answer).await;
        assert_eq!(answer.unwrap(), Some(7));
    }

    #[tokio::test]
    async fn a_detached_connection_ends_with_its_lease() {
        let (mut driver, asks, _answers) = counting();
        driver.detach();
        tokio::task::yield_now().await;
        assert!(!asks.is_closed());
        driver.lease_ended.cancel();
        let closed = tokio::time::timeout(Duration::from_secs(10), asks.closed());
        assert!(closed.await.is_ok());
    }
}
