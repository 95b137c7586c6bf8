//! Judges of buffered bodies. The engine buffers a body within the configured limits (bytes, time,
//! JSON values, memory) and gives the bytes to the judges.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::body::BoxFuture;
use super::denial::{Code, Denial, Verdict};
use super::flow::Flow;
use super::waits::settle;
use crate::json::strict::{self, StrictJsonError};

/// Bodies up to this many bytes are inspected on the connection's thread, in less than 1 ms.
const INSPECTED_IN_PLACE: usize = 16 * 1024;

/// Bytes of memory reserved for one JSON value, besides its text. An object with one member, the
/// most expensive shape, takes twice as much and counts as two values.
const BYTES_PER_VALUE: usize = 320;

/// Judges a buffered body, or the beginning of one. `Head` is the type of the message's head:
/// [`Request`](super::Request) or [`Response`](super::Response).
///
/// A judge gets the decoded body and returns the bytes to send in its place. Until all judges have
/// passed the body, the request's host is not resolved, and no byte of the response is sent.
pub trait BodyJudge<Head>: Send {
    /// Name of the addon that judges, for its denials.
    fn addon(&self) -> &'static str;

    /// Whether the beginning of a request's body can be enough for this judge. A judge of a
    /// response always gets the whole body.
    ///
    /// If all judges return `true`, a body may announce more bytes than the limit. Such a body is
    /// denied only if the judges still need more when the limit is reached.
    fn may_judge_beginning(&self) -> bool {
        false
    }

    /// Whether the judge needs no more of a request's body. If all judges return `true`, the rest
    /// of the body streams after the bytes that the last judge returns.
    ///
    /// Called each time bytes of a client's body arrive, with all bytes buffered so far. Not called
    /// if an earlier judge needs more, or if the body has a content encoding: an encoded body is
    /// always buffered to its end.
    fn has_enough(&mut self, _beginning: &[u8]) -> Result<bool, Denial> {
        Ok(false)
    }

    /// Adapts a denial that the engine, or `has_enough`, made while the body was buffered. Many API
    /// clients show people only one member of an error response, such as `message`. A judge can add
    /// that member here.
    fn for_client(&self, denial: Denial) -> Denial {
        denial
    }

    /// Returns the bytes to send, or denies. May record facts in the flow, and may change the head,
    /// for example to add filters for the rest of the body.
    fn judge<'a>(
        self: Box<Self>,
        flow: &'a mut Flow,
        head: &'a mut Head,
        body: Buffered,
    ) -> BoxFuture<'a, Result<Bytes, Denial>>;
}

/// The judges of one body, in the order in which they were added.
pub struct Judges<Head> {
    limit: usize,
    judges: Vec<Box<dyn BodyJudge<Head>>>,
}

impl<Head> Judges<Head> {
    /// Appends a judge, which takes at most `limit` bytes, to the judges that run first.
    pub(super) fn with(
        earlier: Option<Self>,
        limit: usize,
        judge: impl BodyJudge<Head> + 'static,
    ) -> Self {
        let mut judges = earlier.unwrap_or(Self {
            limit,
            judges: Vec::new(),
        });
        judges.limit = judges.limit.min(limit);
        judges.judges.push(Box::new(judge));
        judges
    }

    /// The lowest of the judges' own limits, in bytes after decoding.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Lets each judge adapt a denial: see [`BodyJudge::for_client`].
    pub fn for_client(&self, denial: Denial) -> Denial {
        let judges = self.judges.iter();
        judges.fold(denial, |denial, judge| judge.for_client(denial))
    }

    /// Whether the beginning of the body can be enough for all judges.
    pub fn may_judge_beginning(&self) -> bool {
        self.judges.iter().all(|judge| judge.may_judge_beginning())
    }

    /// Whether no judge needs more of the body. A judge that panics denies.
    pub fn have_enough(&mut self, beginning: &[u8]) -> Result<bool, Denial> {
        for judge in &mut self.judges {
            let asked = catch_unwind(AssertUnwindSafe(|| judge.has_enough(beginning)));
            let enough = asked.unwrap_or_else(|_| Err(Denial::panicked()));
            if !enough.map_err(|denial| denial.by(judge.addon()))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Runs the judges in turn. Each gets the bytes that the one before it returned, and has
    /// `deadline` to finish. A judge that panics or misses its deadline denies.
    pub async fn judge(
        self,
        flow: &mut Flow,
        head: &mut Head,
        mut body: Buffered,
        deadline: Duration,
    ) -> Result<Bytes, Denial> {
        for judge in self.judges {
            let addon = judge.addon();
            flow.set_note_author(|| addon);
            let given = body.clone();
            let (flow, head) = (&mut *flow, &mut *head);
            // In an async block, so that a panic before the future is made is caught too.
            let judging = async move { judge.judge(flow, head, given).await };
            let judged = settle(judging, Instant::now() + deadline).await;
            body.bytes = judged.map_err(|denial| denial.by(addon))?;
        }
        Ok(body.bytes)
    }
}

/// Memory and threads for parsing one buffered body, provided by the engine.
/// [`reserve`](Self::reserve) and [`run`](Self::run) deny with [`Code::InspectionBusy`] if no
/// memory or no thread is left.
pub trait InspectionBudget: Send + Sync {
    /// Reserves bytes besides those of the body, until the judges have passed the body or the
    /// budget is dropped.
    fn reserve(&self, bytes: usize) -> Verdict;

    /// Returns bytes that keep the budget alive until their last reference is dropped.
    fn hold(self: Arc<Self>, bytes: Bytes) -> Bytes;

    /// Runs `work` on a thread that serves no connection; for [`Buffered::unlimited`], on the
    /// calling thread. The future is ready when `work` is done.
    fn run(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, Verdict>;
}

/// Lets `budget` run `work`, and returns the result of `work`. A panic denies, except for
/// [`Buffered::unlimited`], where it unwinds to the caller. Dropping the future does not stop work
/// that has begun.
pub async fn run_on<T: Send + 'static>(
    budget: &dyn InspectionBudget,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Denial> {
    let (sender, receiver) = oneshot::channel();
    let work = move || {
        // Fails if the request was dropped or its time is over.
        let _ = sender.send(work());
    };
    budget.run(Box::new(work)).await?;
    receiver.await.map_err(|_panicked| Denial::panicked())
}

/// A buffered body, with the bounds on reading it.
#[derive(Clone)]
pub struct Buffered {
    bytes: Bytes,
    max_values: usize,
    budget: Arc<dyn InspectionBudget>,
}

impl Buffered {
    /// A body that takes memory from `budget`, and whose JSON may have at most `max_values` values.
    #[must_use]
    pub fn new(bytes: Bytes, max_values: usize, budget: Arc<dyn InspectionBudget>) -> Self {
        Self {
            bytes,
            max_values,
            budget,
        }
    }

    /// A body whose size the appliance itself bounds, such as the request of a look-up. It is
    /// parsed on the calling thread, its JSON values are not limited, and no memory is reserved.
    #[must_use]
    pub fn unlimited(bytes: Bytes) -> Self {
        Self::new(bytes, usize::MAX, Arc::new(InPlace))
    }

    /// The bytes of the body, or of its beginning if no judge needed more.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Runs `work` on the calling thread if the body has at most 16 KiB, otherwise like
    /// [`Buffered::inspect_on_worker`]. `work` must take time that is linear in the length of the
    /// body.
    pub async fn inspect<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, Denial> + Send + 'static,
    ) -> Result<T, Denial> {
        if self.bytes.len() <= INSPECTED_IN_PLACE {
            return work(self);
        }
        self.inspect_on_worker(work).await
    }

    /// Lets the body's budget run `work`: see [`run_on`].
    pub async fn inspect_on_worker<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, Denial> + Send + 'static,
    ) -> Result<T, Denial> {
        let body = self.clone();
        run_on(&*self.budget, move || work(&body)).await?
    }

    /// Decodes JSON into a type without an intermediate tree. Unknown members are skipped and so
    /// not judged: the caller must send a re-encoding of the value, never the body.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Denial> {
        strict::count_values(self.max_values, &self.bytes)
            .map_err(|error| self.unreadable(error))?;
        self.reserve(self.bytes.len())?;
        serde_json::from_slice(&self.bytes).map_err(Denial::malformed)
    }

    /// The body as a JSON tree of at most `most` values. Reserves the memory of the tree first.
    pub fn json_at_most(&self, most: usize) -> Result<Value, Denial> {
        let most = most.min(self.max_values);
        let denied = |error| self.unreadable(error);
        let values = strict::count_values(most, &self.bytes).map_err(denied)?;
        self.reserve(values.saturating_mul(BYTES_PER_VALUE) + self.bytes.len())?;
        strict::parse(&self.bytes).map_err(denied)
    }

    /// The body as a JSON tree of at most the `max_values` of [`Buffered::new`]. Reserves the
    /// memory of the tree first.
    pub fn json(&self) -> Result<Value, Denial> {
        self.json_at_most(usize::MAX)
    }

    fn unreadable(&self, error: StrictJsonError) -> Denial {
        let StrictJsonError::TooMany(most) = error else {
            return Denial::malformed(error);
        };
        let sentence = format!("Body too large to inspect: more than {most} JSON values");
        let denial = Denial::new(Code::BodyTooLargeToInspect, sentence)
            .with("limit", "inspect_values")
            .with("limit_values", most);
        // The limit is the judge's own and not a setting, so the denial names no rule.
        if most < self.max_values {
            return denial;
        }
        denial.rule("limits.inspect_values")
    }

    /// Reserves memory for the judge, besides that of the body.
    pub fn reserve(&self, bytes: usize) -> Verdict {
        self.budget.reserve(bytes)
    }

    /// Reserves memory for bytes that outlive the judge, such as an answer. The memory is released
    /// when the last reference to the bytes is dropped.
    pub fn hold(&self, bytes: Bytes) -> Result<Bytes, Denial> {
        self.reserve(bytes.len())?;
        Ok(Arc::clone(&self.budget).hold(bytes))
    }
}

/// Runs work on the calling thread and reserves no memory, for bodies of bounded size.
struct InPlace;

impl InspectionBudget for InPlace {
    fn reserve(&self, _bytes: usize) -> Verdict {
        Ok(())
    }

    fn hold(self: Arc<Self>, bytes: Bytes) -> Bytes {
        bytes
    }

    fn run(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, Verdict> {
        work();
        Box::pin(std::future::ready(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use testkit::each_row;

    use super::*;

    /// A budget of `left` bytes. Runs each computation on a new thread and records the thread.
    #[derive(Default)]
    struct Room {
        left: Mutex<usize>,
        threads: Mutex<Vec<std::thread::ThreadId>>,
    }

    impl InspectionBudget for Room {
        fn reserve(&self, bytes: usize) -> Verdict {
            let mut left = self.left.lock();
            let busy = || Denial::new(Code::InspectionBusy, "busy");
            *left = left.checked_sub(bytes).ok_or_else(busy)?;
            Ok(())
        }

        fn hold(self: Arc<Self>, bytes: Bytes) -> Bytes {
            bytes
        }

        fn run(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, Verdict> {
            let thread = std::thread::spawn(work);
            self.threads.lock().push(thread.thread().id());
            // If `work` panics, its sender is dropped, so the caller gets an error.
            let _ = thread.join();
            Box::pin(std::future::ready(Ok(())))
        }
    }

    fn body(text: String, max_values: usize, room: usize) -> (Buffered, Arc<Room>) {
        let room = Arc::new(Room {
            left: Mutex::new(room),
            ..Room::default()
        });
        let given = Arc::clone(&room) as Arc<dyn InspectionBudget>;
        (Buffered::new(text.into(), max_values, given), room)
    }

    fn code<T>(result: Result<T, Denial>) -> Option<Code> {
        result.err().map(|denial| denial.code())
    }

    #[test]
    fn memory_of_a_tree_is_reserved_before_it_is_built() {
        let text = || format!("[{}1]", "1,".repeat(99));
        let price = 101 * BYTES_PER_VALUE + text().len();
        let (whole, room) = body(text(), 1000, price);
        assert_eq!(code(whole.json()), None);
        assert_eq!(*room.left.lock(), 0);
        let (whole, _) = body(text(), 1000, price - 1);
        assert_eq!(code(whole.json()), Some(Code::InspectionBusy));
    }

    #[test]
    fn each_parser_denies_a_body_with_too_many_values() {
        let (whole, _) = body("[1,2,3]".to_owned(), 3, usize::MAX);
        let denials = [
            whole.json().unwrap_err(),
            whole.decode::<Vec<u8>>().unwrap_err(),
        ];
        each_row(denials, |denial| {
            assert_eq!(denial.code(), Code::BodyTooLargeToInspect);
            assert_eq!(denial.to_json()["limit"], "inspect_values");
            assert_eq!(denial.to_json()["limit_values"], 3);
        });
        let (whole, _) = body("[1,2]".to_owned(), 3, usize::MAX);
        assert_eq!(whole.decode::<Vec<u8>>().unwrap(), [1, 2]);
    }

    #[tokio::test]
    async fn long_bodies_are_parsed_on_another_thread_where_a_panic_denies() {
        let here = std::thread::current().id();
        let (short, room) = body("1".repeat(INSPECTED_IN_PLACE), 1, 0);
        let thread = |_: &Buffered| Ok(std::thread::current().id());
        assert_eq!(short.inspect(thread).await.unwrap(), here);
        assert_ne!(short.inspect_on_worker(thread).await.unwrap(), here);
        let (long, _) = body("1".repeat(INSPECTED_IN_PLACE + 1), 1, 0);
        assert_ne!(long.inspect(thread).await.unwrap(), here);
        assert_eq!(room.threads.lock().len(), 1);
        let panics = |_: &Buffered| -> Result<(), Denial> { panic!("a judge's mistake") };
        assert_eq!(code(long.inspect(panics).await), Some(Code::InternalError));
    }
}
