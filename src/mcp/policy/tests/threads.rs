//! The queue, its turns, and evaluations that run for long.

use std::sync::mpsc;

use super::super::turns::{MAX_BYTES, MAX_BYTES_OF_CONTAINER, MAX_OF_CONTAINER};
use super::*;

const LIMIT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(60);

fn container(name: &str) -> ContainerId {
    ContainerId::parse(name).unwrap()
}

/// Work that ends when the sender is dropped.
fn stuck() -> (mpsc::Sender<()>, impl FnOnce() + Send + 'static) {
    let (sender, receiver) = mpsc::channel();
    (sender, move || {
        let _ = receiver.recv();
    })
}

impl PolicyThreads {
    /// Runs work without input, in a task.
    fn spawn<T: Send + 'static>(
        self: &Arc<Self>,
        of: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> tokio::task::JoinHandle<Result<T, EvaluatorError>> {
        let (this, of) = (Arc::clone(self), container(of));
        tokio::spawn(async move { this.run(&of, LONG, 0, work).await })
    }

    async fn reaches(&self, what: &str, reached: impl Fn(&Queue) -> bool) {
        let begun = Instant::now();
        while !reached(&self.0.queue.lock()) {
            assert!(begun.elapsed() < LONG, "{what}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

fn one() -> Arc<PolicyThreads> {
    Arc::new(PolicyThreads::with(1).unwrap())
}

#[tokio::test]
async fn work_runs_on_a_policy_thread() {
    let name = || std::thread::current().name().map(str::to_owned);
    let name = one().run(&container("a"), LONG, 0, name).await.unwrap();
    assert_eq!(name.as_deref(), Some("policy"));
}

#[tokio::test]
async fn a_panic_fails_one_evaluation_and_does_not_end_the_thread() {
    let threads = one();
    let failed = threads.spawn("a", || -> u8 { panic!("in a test") });
    let failed = failed.await.unwrap();
    assert!(
        matches!(failed, Err(EvaluatorError::Failed(_))),
        "{failed:?}"
    );
    assert_eq!(threads.spawn("a", || 7).await.unwrap().unwrap(), 7);
}

#[tokio::test]
async fn an_evaluation_that_does_not_end_times_out_and_keeps_only_its_own_container_waiting() {
    let threads = one();
    let (release, work) = stuck();
    let result = threads.run(&container("a"), LIMIT, 0, work).await;
    assert!(
        matches!(result, Err(EvaluatorError::TimedOut)),
        "{result:?}"
    );
    let own = threads.run(&container("a"), LIMIT, 0, || ()).await;
    assert!(matches!(own, Err(EvaluatorError::TimedOut)), "{own:?}");
    threads.spawn("b", || ()).await.unwrap().unwrap();
    drop(release);
    threads.spawn("a", || ()).await.unwrap().unwrap();
    threads
        .reaches("the slow thread has ended", |queue| queue.slow == 0)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_thread_serves_the_queue_while_a_slow_one_has_a_low_priority() {
    let threads = one();
    let (release, work) = stuck();
    let (tell, told) = mpsc::channel();
    let slow = threads.spawn("slow", move || {
        tell.send(gettid()).unwrap();
        work();
    });
    let thread = told.recv().unwrap();
    threads.spawn("b", || ()).await.unwrap().unwrap();
    let nice = rustix::process::getpriority_process(Some(thread)).unwrap();
    assert_eq!(nice, SLOW_NICE);
    drop(release);
    slow.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_number_of_threads_with_slow_evaluations_is_limited() {
    let threads = one();
    let mut releases = Vec::new();
    for number in 0..MAX_SLOW + 3 {
        let (release, work) = stuck();
        releases.push(release);
        threads.spawn(&number.to_string(), work);
    }
    let full = |queue: &Queue| queue.slow == MAX_SLOW && queue.running.len() == MAX_SLOW + 1;
    threads.reaches("the limit is reached", full).await;
    let waits = threads.run(&container("b"), LIMIT, 0, || ()).await;
    assert!(matches!(waits, Err(EvaluatorError::TimedOut)), "{waits:?}");
    releases.clear();
    threads.spawn("b", || ()).await.unwrap().unwrap();
}

#[tokio::test]
async fn containers_take_turns() {
    let threads = one();
    let (release, work) = stuck();
    // At the limit of slow evaluations, no other thread takes over.
    threads.0.queue.lock().slow = MAX_SLOW;
    let first = threads.spawn("a", work);
    let running = |queue: &Queue| queue.running.len() == 1;
    threads.reaches("the first evaluation runs", running).await;
    let (tell, told) = mpsc::channel();
    let mut tasks = Vec::new();
    for (waiting, name) in ["a", "a", "a", "b", "c", "b"].into_iter().enumerate() {
        let tell = tell.clone();
        tasks.push(threads.spawn(name, move || tell.send(name).unwrap()));
        let queued = |queue: &Queue| queue.turns.load.jobs == waiting + 2;
        threads.reaches("the evaluation waits", queued).await;
    }
    drop((release, tell));
    first.await.unwrap().unwrap();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(
        told.iter().collect::<Vec<_>>(),
        ["b", "c", "a", "b", "a", "a"]
    );
}

#[tokio::test]
async fn a_container_over_its_share_is_refused_and_cancelled_work_never_begins() {
    let threads = one();
    let (release, work) = stuck();
    let first = threads.spawn("a", work);
    let (began, begins) = mpsc::channel();
    let mut waiting = Vec::new();
    for _ in 1..MAX_OF_CONTAINER {
        let began = began.clone();
        waiting.push(threads.spawn("a", move || began.send(()).unwrap()));
    }
    let full = |queue: &Queue| queue.turns.load.jobs == MAX_OF_CONTAINER;
    threads.reaches("the share is used up", full).await;
    let refused = threads.spawn("a", || ()).await.unwrap();
    assert!(matches!(refused, Err(EvaluatorError::Busy)), "{refused:?}");
    threads.spawn("b", || ()).await.unwrap().unwrap();
    for task in waiting {
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }
    drop((release, began));
    first.await.unwrap().unwrap();
    let empty = |queue: &Queue| queue.turns.load.jobs == 0;
    threads.reaches("cancelled work is dropped", empty).await;
    threads.spawn("a", || ()).await.unwrap().unwrap();
    assert_eq!(begins.recv().ok(), None);
}

#[tokio::test]
async fn inputs_are_bounded_in_bytes_for_a_container_and_in_all() {
    let threads = one();
    let a = container("a");
    let refused = threads.run(&a, LIMIT, MAX_BYTES_OF_CONTAINER + 1, || ());
    let refused = refused.await;
    assert!(matches!(refused, Err(EvaluatorError::Busy)), "{refused:?}");
    let (releases, tasks): (Vec<_>, Vec<_>) = (0..MAX_BYTES / MAX_BYTES_OF_CONTAINER)
        .map(|number| {
            let (release, work) = stuck();
            let (this, of) = (Arc::clone(&threads), container(&number.to_string()));
            let task = async move { this.run(&of, LONG, MAX_BYTES_OF_CONTAINER, work).await };
            (release, tokio::spawn(task))
        })
        .unzip();
    let full = |queue: &Queue| queue.turns.load.bytes == MAX_BYTES;
    threads.reaches("the memory is used up", full).await;
    let refused = threads.run(&a, LIMIT, 1, || ()).await;
    assert!(matches!(refused, Err(EvaluatorError::Busy)), "{refused:?}");
    drop(releases);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let empty = |queue: &Queue| queue.turns.load.bytes == 0 && queue.turns.lanes.is_empty();
    threads.reaches("nothing is held", empty).await;
}
