//! Streams that outlive their connections.

use futures_util::StreamExt;
use tokio::time::{advance, timeout};

use super::*;

const SOON: Duration = Duration::from_millis(10);

fn stream(primed: bool) -> Arc<EventStream> {
    EventStream::new(3, true, primed, KeptBytes::default())
}

async fn push(stream: &EventStream, json: &str) {
    stream.push(json, &Memory::uncounted()).await.unwrap();
}

async fn read(reader: &mut Reader) -> String {
    let event = reader.next().await.unwrap();
    String::from_utf8(event.to_vec()).unwrap()
}

fn token() -> CancellationToken {
    CancellationToken::new()
}

#[tokio::test(start_paused = true)]
async fn a_reconnected_client_gets_the_events_after_its_last_event_id() {
    let stream = stream(true);
    let mut reader = stream.read(None, token());
    assert_eq!(read(&mut reader).await, "id: 3-0\nretry: 1000\ndata:\n\n");
    push(&stream, "{\"n\":1}").await;
    assert!(read(&mut reader).await.starts_with("id: 3-1\n"));
    drop(reader);
    push(&stream, "{\"n\":2}").await;
    stream.finish();
    let mut again = stream.read(Some(0), token());
    assert!(read(&mut again).await.contains("{\"n\":1}"));
    assert!(read(&mut again).await.contains("{\"n\":2}"));
    assert!(again.next().await.is_none());
    // Without an id, a reader continues after the last event that was read.
    let mut further = stream.read(None, token());
    assert!(further.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_second_reader_ends_the_first_and_a_writer_waits_for_a_slow_reader() {
    let stream = stream(false);
    let mut first = stream.read(None, token());
    let mut second = stream.read(None, token());
    assert!(first.next().await.is_none());
    drop(first);
    assert!(stream.has_reader());
    for _ in 0..MAX_EVENTS {
        timeout(SOON, push(&stream, "{}")).await.unwrap();
    }
    assert!(timeout(SOON, push(&stream, "{}")).await.is_err());
    read(&mut second).await;
    timeout(SOON, push(&stream, "{}")).await.unwrap();
    drop(second);
    for _ in 0..10 * MAX_EVENTS {
        timeout(SOON, push(&stream, "{}")).await.unwrap();
    }
    assert_eq!(stream.state.lock().events.len(), MAX_EVENTS);
}

#[tokio::test(start_paused = true)]
async fn kept_events_are_bounded_per_stream_and_per_lease() {
    let kept = KeptBytes::default();
    let long = format!("\"{}\"", "x".repeat(MAX_BYTES / 4));
    let streams: Vec<_> = (0..100)
        .map(|number| EventStream::new(number, true, false, Arc::clone(&kept)))
        .collect();
    for stream in &streams {
        for _ in 0..10 {
            push(stream, &long).await;
        }
        assert!(stream.state.lock().bytes <= MAX_BYTES);
    }
    assert!(kept.load(Ordering::Relaxed) <= MAX_LEASE_BYTES);
    // A message over the limit of kept bytes still reaches a connected client.
    let mut reader = streams[99].read(None, token());
    let huge = format!("\"{}\"", "x".repeat(2 * MAX_BYTES));
    push(&streams[99], &huge).await;
    let mut read_all = 0;
    while read_all < huge.len() {
        read_all = reader.next().await.unwrap().len();
    }
    drop((reader, streams));
    assert_eq!(kept.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn unread_events_of_a_lease_are_bounded_and_delay_no_client_that_reads() {
    let kept = KeptBytes::default();
    let short = format!("\"{}\"", "x".repeat(3 * 1024));
    let streams: Vec<_> = (0..100)
        .map(|number| EventStream::new(number, true, false, Arc::clone(&kept)))
        .collect();
    let mut readers: Vec<_> = streams.iter().map(|one| one.read(None, token())).collect();
    for stream in &streams {
        for _ in 0..MAX_EVENTS {
            let _ = timeout(SOON, push(stream, &short)).await;
        }
    }
    // Each stream keeps at least one event.
    let most = MAX_LEASE_BYTES + 2 * streams.len() * short.len();
    assert!(kept.load(Ordering::Relaxed) <= most);
    for _ in 0..10 {
        read(&mut readers[99]).await;
        timeout(SOON, push(&streams[99], &short)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_stream_sends_comments_and_an_unread_stream_is_abandoned() {
    let stream = stream(false);
    let began = Instant::now();
    let mut reader = stream.read(None, token());
    for count in 1..4 {
        assert_eq!(read(&mut reader).await, ":\n\n");
        assert_eq!(began.elapsed(), KEEP_ALIVE_INTERVAL * count);
    }
    assert!(
        timeout(2 * RESUME_WITHIN, stream.abandoned())
            .await
            .is_err()
    );
    drop(reader);
    advance(RESUME_WITHIN / 2).await;
    assert!(timeout(SOON, stream.abandoned()).await.is_err());
    timeout(RESUME_WITHIN, stream.abandoned()).await.unwrap();
    assert!(!stream.is_over());
    stream.finish();
    assert!(stream.is_over());
}

#[tokio::test(start_paused = true)]
async fn a_reader_ends_when_the_process_stops() {
    let (stream, stopping) = (stream(false), token());
    let mut reader = stream.read(None, stopping.clone());
    stopping.cancel();
    assert!(reader.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_message_is_charged_while_it_waits_for_a_slow_reader() {
    let long = "x".repeat(100_000);
    let memory = Memory::of_bytes(150_000);
    let stream = stream(false);
    let mut reader = stream.read(None, token());
    for _ in 0..MAX_EVENTS {
        push(&stream, "{}").await;
    }
    let waiting = async { timeout(SOON, stream.push(&long, &memory)).await };
    let meanwhile = async {
        tokio::task::yield_now().await;
        assert!(memory.reserve(long.len()).is_err());
        read(&mut reader).await;
    };
    let (pushed, ()) = tokio::join!(waiting, meanwhile);
    pushed.unwrap().unwrap();
}
