//! The queue, and threads whose job does not end.

use std::sync::mpsc;
use std::time::Instant;

use super::*;

const LIMIT: Duration = Duration::from_millis(50);

/// Work that ends when the sender is dropped.
fn stuck() -> (mpsc::Sender<()>, impl FnOnce() + Send + 'static) {
    let (sender, receiver) = mpsc::channel();
    (sender, move || {
        let _ = receiver.recv();
    })
}

#[tokio::test]
async fn work_runs_on_a_policy_thread() {
    let threads = PolicyThreads::with(1).unwrap();
    let name = || std::thread::current().name().map(str::to_owned);
    let name = threads.run(LIMIT, 0, name).await.unwrap();
    assert_eq!(name.as_deref(), Some("policy-0"));
}

#[tokio::test]
async fn a_panic_fails_one_evaluation_and_does_not_end_the_thread() {
    let threads = PolicyThreads::with(1).unwrap();
    let failed = threads
        .run(Duration::from_secs(5), 0, || -> u8 { panic!("in a test") })
        .await;
    assert!(
        matches!(failed, Err(EvaluatorError::Failed(_))),
        "{failed:?}"
    );
    let again = threads.run(Duration::from_secs(5), 0, || 7).await;
    assert_eq!(again.unwrap(), 7);
}

#[tokio::test]
async fn another_thread_replaces_one_whose_job_does_not_end() {
    let threads = PolicyThreads::with(1).unwrap();
    let (release, work) = stuck();
    let begun = Instant::now();
    let result = threads.run(LIMIT, 0, work).await;
    assert!(
        matches!(result, Err(EvaluatorError::TimedOut)),
        "{result:?}"
    );
    assert!(begun.elapsed() >= LIMIT);
    let name = || std::thread::current().name().map(str::to_owned);
    let by = threads.run(Duration::from_secs(5), 0, name).await.unwrap();
    assert_eq!(by.as_deref(), Some("policy-standin"));
    // The stuck thread ends once its job has ended, and the number of replacements falls.
    drop(release);
    let ended = || threads.0.standins.load(Ordering::Acquire) == 0;
    let begun = Instant::now();
    while !ended() && begun.elapsed() < Duration::from_secs(5) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(ended());
}

#[tokio::test]
async fn the_number_of_threads_that_replace_others_is_limited() {
    let threads = PolicyThreads::with(1).unwrap();
    let mut releases = Vec::new();
    for _ in 0..MAX_STANDINS + 3 {
        let (release, work) = stuck();
        releases.push(release);
        let result = threads.run(LIMIT, 0, work).await;
        assert!(
            matches!(result, Err(EvaluatorError::TimedOut)),
            "{result:?}"
        );
    }
    assert_eq!(threads.0.standins.load(Ordering::Acquire), MAX_STANDINS);
}

#[tokio::test]
async fn a_full_queue_refuses_work_and_cancelled_work_never_begins() {
    let threads = Arc::new(PolicyThreads::with(1).unwrap());
    let (release, work) = stuck();
    let (began, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let limit = Duration::from_secs(60);
    let run = |bytes, work: Box<dyn FnOnce() + Send>| {
        let threads = Arc::clone(&threads);
        tokio::spawn(async move { threads.run(limit, bytes, work).await })
    };
    let (started, mut starts) = tokio::sync::mpsc::unbounded_channel();
    let first = move || {
        started.send(()).unwrap();
        work();
    };
    let first = run(0, Box::new(first));
    starts.recv().await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..MAX_QUEUED {
        let began = began.clone();
        waiting.push(run(0, Box::new(move || began.send(()).unwrap())));
    }
    let full = || threads.0.queue.lock().jobs.len() == MAX_QUEUED;
    while !full() {
        tokio::task::yield_now().await;
    }
    let refused = threads.run(limit, 0, || ()).await;
    assert!(matches!(refused, Err(EvaluatorError::Busy)), "{refused:?}");
    for task in waiting {
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }
    drop((release, began));
    first.await.unwrap().unwrap();
    threads.run(limit, 0, || ()).await.unwrap();
    assert_eq!(begins.recv().await, None);
}

#[tokio::test]
async fn inputs_that_wait_are_bounded_in_bytes() {
    let threads = PolicyThreads::with(1).unwrap();
    let refused = threads.run(LIMIT, MAX_QUEUED_BYTES + 1, || ()).await;
    assert!(matches!(refused, Err(EvaluatorError::Busy)), "{refused:?}");
    assert_eq!(threads.0.queue.lock().bytes, 0);
    threads.run(LIMIT, MAX_QUEUED_BYTES, || ()).await.unwrap();
    assert_eq!(threads.0.queue.lock().bytes, 0);
}
