//! What moves an HTTP/1.1 connection: whoever waits for it, in its own task.
//!
//! hyper wants each connection to be polled by somebody. A task of its own is the usual way, and
//! costs a change of tasks, often of cores, for the request, for the head of its answer and for
//! each piece of the body. One exchange at a time uses the connection, so the task of that
//! exchange polls it, between them nobody does, and what happened meanwhile is seen at the next
//! use. See ADR 007.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::future::select;
use futures_util::task::AtomicWaker;
use tokio_util::sync::CancellationToken;

use crate::runtime::WakeGated;

/// How often one turn goes back to the connection before others have theirs.
const ROUNDS: usize = 8;

/// A connection's future, which ends with the connection.
pub struct Driver {
    /// Gone once it ended, so that what it holds is closed.
    connection: Option<Connection>,
    call: Arc<Call>,
    /// What the connection calls with.
    caller: Waker,
    /// The lease's end, for a connection that goes on by itself. One that an exchange moves ends
    /// with that, and one that is kept with its client connection or its pool.
    lease_ended: CancellationToken,
}

type Connection = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Whether the connection asked to be polled, and who is to do it.
struct Call {
    called: AtomicBool,
    /// Somebody is at it and will look at `called` before leaving.
    attended: AtomicBool,
    task: AtomicWaker,
}

impl Driver {
    pub fn new(
        connection: impl Future<Output = ()> + Send + 'static,
        lease_ended: CancellationToken,
    ) -> Self {
        let call = Arc::new(Call {
            called: AtomicBool::new(true),
            attended: AtomicBool::new(false),
            task: AtomicWaker::new(),
        });
        Self {
            connection: Some(Box::pin(connection)),
            caller: Waker::from(Arc::clone(&call)),
            call,
            lease_ended,
        }
    }

    /// Polls for something that only this connection can bring about, and moves the connection
    /// for as long as that helps. `wanted` needs no waker of its own.
    pub fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        mut wanted: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        if self.connection.is_none() {
            return wanted(context);
        }
        let mut wanted = || wanted(&mut Context::from_waker(Waker::noop()));
        // What is at hand is had without a word to other cores.
        let at_hand = self.before_poll(&mut wanted);
        if at_hand.is_ready() {
            return at_hand;
        }
        self.call.task.register(context.waker());
        for _ in 0..ROUNDS {
            self.call.attended.store(true, Ordering::Relaxed);
            if self.call.called.swap(false, Ordering::SeqCst) {
                self.step();
                let brought = wanted();
                if brought.is_ready() {
                    self.call.attended.store(false, Ordering::Relaxed);
                    return brought;
                }
            }
            // Whoever calls either sees that nobody is there to look any more, or is seen below.
            self.call.attended.store(false, Ordering::SeqCst);
            if !self.call.called.load(Ordering::SeqCst) {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Does what makes the connection ask to be polled, when it will be polled right away.
    pub fn before_poll<T>(&self, act: impl FnOnce() -> T) -> T {
        self.call.attended.store(true, Ordering::Relaxed);
        let done = act();
        self.call.attended.store(false, Ordering::Relaxed);
        done
    }

    /// Sees what happened while nobody polled: a peer that closed, above all.
    pub fn look(&mut self) {
        if self.call.called.swap(false, Ordering::SeqCst) {
            self.step();
        }
    }

    /// Forgets the task that waited last.
    pub fn release(&self) {
        self.call.task.take();
    }

    /// Goes on by itself: for what lasts while its exchange waits for something else.
    pub fn detach(&mut self) {
        if let Some(connection) = self.connection.take() {
            let lease_ended = WakeGated::new(self.lease_ended.clone().cancelled_owned());
            tokio::spawn(select(connection, lease_ended));
        }
    }

    fn step(&mut self) {
        let mut context = Context::from_waker(&self.caller);
        let ended = |connection: &mut Connection| connection.as_mut().poll(&mut context).is_ready();
        if self.connection.as_mut().is_some_and(ended) {
            self.connection = None;
        }
    }
}

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.called.store(true, Ordering::SeqCst);
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
    fn what_the_connection_brings_about_at_once_wakes_nobody() {
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
    fn what_happens_while_nobody_polls_wakes_the_task_that_waited_last_until_it_is_released() {
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
    fn a_look_sees_that_the_peer_is_gone() {
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
    fn a_connection_that_never_rests_leaves_others_their_turn() {
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
    async fn one_that_was_let_go_answers_by_itself() {
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
    async fn one_that_was_let_go_ends_with_its_lease() {
        let (mut driver, asks, _answers) = counting();
        driver.detach();
        tokio::task::yield_now().await;
        assert!(!asks.is_closed());
        driver.lease_ended.cancel();
        let closed = tokio::time::timeout(Duration::from_secs(10), asks.closed());
        assert!(closed.await.is_ok());
    }
}
