//! Judging a body that is buffered for it. The engine buffers, within the limits of the
//! configuration (bytes, time, JSON values, memory); judges see bytes and nothing else.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::body::BoxFuture;
use super::denial::{Code, Denial, Verdict};
use super::flow::Flow;
use crate::strict_json::{self, StrictJsonError};

/// Bodies up to this many bytes are read on the connection's own thread: that takes less than a
/// millisecond.
const READ_IN_PLACE: usize = 16 * 1024;

/// Bytes of memory that one JSON value is charged with, besides its text: an object with one
/// member, the most expensive shape, takes twice that and counts as two values.
const BYTES_PER_VALUE: usize = 320;

/// Judges a buffered body, or the beginning of one. `Head` is a request's or a response's.
///
/// A judge sees the body decoded. What it returns is sent in place of what it was given. A
/// request is neither resolved nor dialled before its judges passed it; a response is not begun.
pub trait BodyJudge<Head>: Send {
    /// Name of the addon that judges, for its denials.
    fn addon(&self) -> &'static str;

    /// Whether the beginning of a body may be enough: its length may be over the limit then. By
    /// default a judge needs the whole body.
    fn needs_beginning_only(&self) -> bool {
        false
    }

    /// Whether the judge has seen as much of the body as it needs. Called after each arrival
    /// with everything that is buffered so far; what follows then streams on behind what the
    /// judge returns.
    fn has_enough(&mut self, _beginning: &[u8]) -> Result<bool, Denial> {
        Ok(false)
    }

    /// Adds to a denial that the engine made while it buffered the body what this body's clients
    /// show to people: many show one member of the JSON and nothing else.
    fn for_client(&self, denial: Denial) -> Denial {
        denial
    }

    /// Returns the bytes to send, or denies. May record facts in the flow, and may change the
    /// head: add filters for what follows, for example.
    fn judge<'a>(
        self: Box<Self>,
        flow: &'a mut Flow,
        head: &'a mut Head,
        body: Buffered,
    ) -> BoxFuture<'a, Result<Bytes, Denial>>;
}

/// The judges of one body, in the order of the addons that added them.
pub struct Judges<Head> {
    limit: usize,
    judges: Vec<Box<dyn BodyJudge<Head>>>,
}

impl<Head> Judges<Head> {
    /// The judges with one more, which takes at most `limit` bytes.
    pub(super) fn with(
        before: Option<Self>,
        limit: usize,
        judge: impl BodyJudge<Head> + 'static,
    ) -> Self {
        let mut judges = before.unwrap_or(Self {
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

    /// A denial of the engine's, as the clients of this body show it.
    pub fn for_client(&self, denial: Denial) -> Denial {
        let judges = self.judges.iter();
        judges.fold(denial, |denial, judge| judge.for_client(denial))
    }

    /// Whether the beginning of the body may be enough for all of them.
    pub fn need_beginning_only(&self) -> bool {
        self.judges.iter().all(|judge| judge.needs_beginning_only())
    }

    /// Whether every judge has seen as much as it needs; a judge that panics denies.
    pub fn have_enough(&mut self, beginning: &[u8]) -> Result<bool, Denial> {
        for judge in &mut self.judges {
            let asked = catch_unwind(AssertUnwindSafe(|| judge.has_enough(beginning)));
            let enough = asked.unwrap_or_else(|_| Err(Denial::internal().rule("panic")));
            if !enough.map_err(|denial| denial.by(judge.addon()))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Judges a body: each judge is given what the one before returned, and has `deadline` for
    /// it. A judge that panics or misses its deadline denies.
    pub async fn judge(
        self,
        flow: &mut Flow,
        head: &mut Head,
        mut body: Buffered,
        deadline: Duration,
    ) -> Result<Bytes, Denial> {
        for judge in self.judges {
            let addon = judge.addon();
            flow.enter(addon);
            let given = body.clone();
            let (flow, head) = (&mut *flow, &mut *head);
            // In a block, so that a panic is caught wherever in the judge it happens.
            let judging = async move { judge.judge(flow, head, given).await };
            let verdict = match timeout(deadline, AssertUnwindSafe(judging).catch_unwind()).await {
                Ok(Ok(verdict)) => verdict,
                Ok(Err(_panic)) => Err(Denial::internal().rule("panic")),
                Err(_elapsed) => Err(Denial::internal().rule("deadline")),
            };
            body.bytes = verdict.map_err(|denial| denial.by(addon))?;
        }
        Ok(body.bytes)
    }
}

/// Memory and threads for reading one buffered body; the engine implements it. What is not to be
/// had is denied with [`Code::InspectionBusy`].
pub trait InspectionBudget: Send + Sync {
    /// Reserves bytes beside those of the body itself, for as long as the budget is held.
    fn reserve(&self, bytes: usize) -> Verdict;

    /// The bytes, which hold the budget until their last reference is dropped.
    fn hold(self: Arc<Self>, bytes: Bytes) -> Bytes;

    /// Runs `work` where it keeps no connection waiting; resolves when it is done.
    fn run(&self, work: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, Verdict>;
}

/// A buffered body, with the bounds on reading it.
#[derive(Clone)]
pub struct Buffered {
    bytes: Bytes,
    max_values: usize,
    budget: Arc<dyn InspectionBudget>,
}

impl Buffered {
    /// A body with room from `budget`; JSON in it may have at most `max_values` values.
    #[must_use]
    pub fn new(bytes: Bytes, max_values: usize, budget: Arc<dyn InspectionBudget>) -> Self {
        Self {
            bytes,
            max_values,
            budget,
        }
    }

    /// A body that the appliance itself made, such as a look-up's: no stranger chose its
    /// size, so it is read in place and nothing is reserved.
    #[must_use]
    pub fn own(bytes: Bytes) -> Self {
        Self::new(bytes, usize::MAX, Arc::new(InPlace))
    }

    /// The bytes; of a body whose judges had enough early, its beginning.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Computes something in time linear to the body: in place where that is quick, and otherwise
    /// as [`Buffered::compute`] does.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Self) -> Result<T, Denial> + Send + 'static,
    ) -> Result<T, Denial> {
        if self.bytes.len() <= READ_IN_PLACE {
            return read(self);
        }
        self.compute(read).await
    }

    /// Computes something from the body on a thread that serves no connection. A panic there
    /// denies. Dropping the future does not stop a computation that has begun.
    pub async fn compute<T: Send + 'static>(
        &self,
        compute: impl FnOnce(&Self) -> Result<T, Denial> + Send + 'static,
    ) -> Result<T, Denial> {
        let (sender, receiver) = oneshot::channel();
        let body = self.clone();
        let work = move || {
            // Fails when the request was dropped, which makes the result useless.
            let _ = sender.send(compute(&body));
        };
        self.budget.run(Box::new(work)).await?;
        let computed = receiver.await;
        computed.unwrap_or_else(|_| Err(Denial::internal().rule("panic")))
    }

    /// Decodes JSON into a type, without a tree in between. Members that the type does not know
    /// are skipped: what is sent must be made of the type, not of the body.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Denial> {
        strict_json::count_values(self.max_values, &self.bytes).map_err(denied)?;
        self.reserve(self.bytes.len())?;
        serde_json::from_slice(&self.bytes).map_err(Denial::malformed)
    }

    /// The body as a JSON tree of at most `most` values, for which memory is reserved first.
    pub fn json_at_most(&self, most: usize) -> Result<Value, Denial> {
        let most = most.min(self.max_values);
        let values = strict_json::count_values(most, &self.bytes).map_err(denied)?;
        self.reserve(values.saturating_mul(BYTES_PER_VALUE) + self.bytes.len())?;
        strict_json::parse_at_most(most, &self.bytes).map_err(denied)
    }

    /// The body as a JSON tree, within the bound on values.
    pub fn json(&self) -> Result<Value, Denial> {
        self.json_at_most(usize::MAX)
    }

    /// Reserves memory that the judge is about to take beside the body.
    pub fn reserve(&self, bytes: usize) -> Verdict {
        self.budget.reserve(bytes)
    }

    /// Reserves memory for bytes that outlive the judge, such as an answer; it is given back with
    /// their last reference.
    pub fn hold(&self, bytes: Bytes) -> Result<Bytes, Denial> {
        self.reserve(bytes.len())?;
        Ok(Arc::clone(&self.budget).hold(bytes))
    }
}

fn denied(error: StrictJsonError) -> Denial {
    match error {
        StrictJsonError::TooMany(most) => {
            let sentence = format!("Body too large to inspect: more than {most} JSON values");
            Denial::new(Code::BodyTooLargeToInspect, sentence)
                .with("limit", "inspect_values")
                .with("limit_values", most)
                .rule("limits.inspect_values")
        }
        other => Denial::malformed(other),
    }
}

/// For what is small by construction.
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

    /// Has room for so many bytes, and keeps the threads that computations ran on.
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
            // A panic there is what the caller finds out by itself.
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
    fn a_tree_is_paid_for_before_it_is_built() {
        let text = || format!("[{}1]", "1,".repeat(99));
        let price = 101 * BYTES_PER_VALUE + text().len();
        let (whole, room) = body(text(), 1000, price);
        assert_eq!(code(whole.json()), None);
        assert_eq!(*room.left.lock(), 0);
        let (whole, _) = body(text(), 1000, price - 1);
        assert_eq!(code(whole.json()), Some(Code::InspectionBusy));
    }

    #[test]
    fn more_values_than_allowed_are_named_as_the_limit_however_the_body_is_read() {
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
    async fn what_takes_long_is_computed_elsewhere_and_a_panic_there_denies() {
        let here = std::thread::current().id();
        let (short, room) = body("1".repeat(READ_IN_PLACE), 1, 0);
        let thread = |_: &Buffered| Ok(std::thread::current().id());
        assert_eq!(short.read(thread).await.unwrap(), here);
        assert_ne!(short.compute(thread).await.unwrap(), here);
        let (long, _) = body("1".repeat(READ_IN_PLACE + 1), 1, 0);
        assert_ne!(long.read(thread).await.unwrap(), here);
        assert_eq!(room.threads.lock().len(), 1);
        let panics = |_: &Buffered| -> Result<(), Denial> { panic!("a judge's mistake") };
        assert_eq!(code(long.read(panics).await), Some(Code::InternalError));
    }
}
