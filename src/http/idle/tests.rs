use std::ops::ControlFlow::{Break, Continue};
use std::task::{Context, Waker};

use super::*;
use crate::runtime::waker::CountingWaker;
use testkit::each_row_async;
use tokio::time::advance;

const TIMEOUTS: Timeouts = Timeouts {
    header: Duration::from_secs(15),
    idle: Duration::from_secs(300),
};

fn over_in(idle: &IdleTracker) -> u64 {
    match idle.due(TIMEOUTS) {
        Continue(at) => (at - Instant::now()).as_secs(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_deadline_of_a_head_counts_from_its_first_byte() {
    let idle = IdleTracker::new();
    advance(Duration::from_secs(100)).await;
    assert_eq!(over_in(&idle), 200);
    idle.read();
    advance(Duration::from_secs(14)).await;
    idle.read();
    assert_eq!(over_in(&idle), 1);
    advance(Duration::from_secs(1)).await;
    assert_eq!(idle.due(TIMEOUTS), Break(Watched::Over));
}

#[tokio::test(start_paused = true)]
async fn the_watchdog_times_out_a_head_at_its_deadline_whenever_the_head_began() {
    each_row_async([0, 1, 20, 290], async |quiet| {
        let idle = IdleTracker::new();
        let began = Instant::now();
        let client = async {
            tokio::time::sleep(Duration::from_secs(quiet)).await;
            idle.read();
            idle.begin(Instant::now());
            idle.end(Instant::now());
            tokio::time::sleep(Duration::from_secs(5)).await;
            idle.read();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = client => {}
            () = idle.timed_out(TIMEOUTS) => {}
        }
        let took = began.elapsed().as_secs();
        assert_eq!(took, quiet + 5 + 15, "after {quiet} s");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_moving_body_restarts_the_idle_timeout() {
    let idle = IdleTracker::new();
    idle.read();
    idle.begin(Instant::now());
    advance(Duration::from_secs(299)).await;
    idle.moved();
    assert_eq!(over_in(&idle), 300);
    advance(Duration::from_secs(300)).await;
    assert_eq!(idle.due(TIMEOUTS), Break(Watched::Over));
}

#[tokio::test(start_paused = true)]
async fn waiting_for_an_upstream_suspends_the_idle_timeout() {
    let idle = IdleTracker::new();
    idle.begin(Instant::now());
    let waiting = idle.wait();
    advance(Duration::from_secs(1000)).await;
    assert_eq!(over_in(&idle), 300);
    drop(waiting);
    advance(Duration::from_secs(299)).await;
    assert_eq!(over_in(&idle), 1);
    advance(Duration::from_secs(1)).await;
    assert_eq!(idle.due(TIMEOUTS), Break(Watched::Over));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_phase_suspends_the_idle_timeout_and_has_its_client_checked_every_second() {
    let idle = IdleTracker::new();
    idle.begin(Instant::now());
    assert_eq!(idle.held(async { 1 }).await, 1);
    assert!(!idle.is_held());
    let phase = tokio::time::sleep(Duration::from_secs(1000));
    let mut watched = 0;
    let watching = async {
        loop {
            advance(Duration::from_secs(1)).await;
            assert!(idle.is_held());
            assert!(over_in(&idle) <= 1);
            watched += 1;
        }
    };
    tokio::select! {
        () = idle.held(phase) => {}
        () = watching => {}
    }
    assert!(watched > 990);
    assert!(!idle.is_held());
    assert_eq!(over_in(&idle), 300);
}

#[tokio::test(start_paused = true)]
async fn a_held_request_has_its_client_checked_at_most_twice_a_second() {
    let idle = Arc::new(IdleTracker::new());
    idle.begin(Instant::now());
    assert!(!idle.takes_client_check());
    for _ in 0..3 {
        let _held = idle.hold();
        assert!(idle.takes_client_check());
        assert!(!idle.takes_client_check());
        advance(Duration::from_millis(499)).await;
        assert!(!idle.takes_client_check());
        advance(Duration::from_millis(1)).await;
    }
    assert!(!idle.takes_client_check());
}

#[tokio::test(start_paused = true)]
async fn a_held_request_wakes_the_watchdog_unless_a_check_is_due_within_a_second() {
    let idle = Arc::new(IdleTracker::new());
    idle.begin(Instant::now());
    let waker = Arc::<CountingWaker>::default();
    let caller = Waker::from(Arc::clone(&waker));
    let mut watching = pin!(idle.watch(TIMEOUTS));
    let mut watch = || {
        let mut context = Context::from_waker(&caller);
        assert!(watching.as_mut().poll(&mut context).is_pending());
    };
    watch();
    drop(idle.hold());
    assert_eq!(waker.times(), 1);
    watch();
    let held = idle.hold();
    assert_eq!(waker.times(), 2);
    watch();
    drop((held, idle.hold()));
    assert_eq!(waker.times(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_streamed_response_suspends_the_idle_timeout_until_it_ends() {
    let idle = Arc::new(IdleTracker::new());
    idle.begin(Instant::now());
    let held = idle.hold();
    advance(Duration::from_secs(1000)).await;
    assert!(idle.is_held());
    assert!(over_in(&idle) <= 1);
    drop(held);
    assert!(!idle.is_held());
    assert_eq!(over_in(&idle), 300);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_a_response_is_timed_out_after_the_idle_timeout() {
    let idle = Arc::new(IdleTracker::new());
    idle.begin(Instant::now());
    let _held = idle.hold();
    advance(Duration::from_secs(1000)).await;
    idle.wrote(true);
    advance(Duration::from_secs(299)).await;
    idle.wrote(true);
    assert!(matches!(idle.due(TIMEOUTS), Continue(_)));
    idle.wrote(false);
    advance(Duration::from_secs(300)).await;
    assert!(matches!(idle.due(TIMEOUTS), Continue(_)));
    idle.wrote(true);
    advance(Duration::from_secs(300)).await;
    assert_eq!(idle.due(TIMEOUTS), Break(Watched::Over));
}

#[tokio::test(start_paused = true)]
async fn the_watchdog_releases_an_idle_connections_resources_once_after_two_seconds() {
    let idle = IdleTracker::new();
    idle.begin(Instant::now());
    advance(Duration::from_secs(10)).await;
    assert!(matches!(idle.due(TIMEOUTS), Continue(_)));
    idle.end(Instant::now());
    advance(Duration::from_millis(1900)).await;
    assert!(matches!(idle.due(TIMEOUTS), Continue(_)));
    advance(Duration::from_millis(200)).await;
    assert_eq!(idle.due(TIMEOUTS), Break(Watched::Idle));
    assert!(matches!(idle.due(TIMEOUTS), Continue(_)));
}

#[tokio::test(start_paused = true)]
async fn a_request_under_way_postpones_the_release_until_two_seconds_after_its_end() {
    let idle = IdleTracker::new();
    let requests = async {
        for _ in 0..2 {
            idle.begin(Instant::now());
            tokio::time::sleep(Duration::from_secs(60)).await;
            idle.end(Instant::now());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        std::future::pending::<()>().await;
    };
    let began = Instant::now();
    tokio::select! {
        () = requests => {}
        watched = idle.watch(TIMEOUTS) => assert_eq!(watched, Watched::Idle),
    }
    assert_eq!(began.elapsed().as_secs(), 60 + 1 + 60 + 2);
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_idle_without_a_request_and_without_pending_output() {
    let idle = IdleTracker::new();
    idle.read();
    assert!(idle.is_idle());
    idle.begin(Instant::now());
    assert!(!idle.is_idle());
    idle.wrote(true);
    idle.end(Instant::now());
    assert!(!idle.is_idle());
    idle.wrote(false);
    assert!(idle.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_handshake_without_a_request_is_recognised_within_the_given_time() {
    const SOON: Duration = Duration::from_secs(1);
    let idle = IdleTracker::new();
    idle.begin(Instant::now());
    idle.end(Instant::now());
    assert!(!idle.handshake_without_request(SOON));
    idle.handshake_done(false);
    advance(Duration::from_millis(999)).await;
    idle.read();
    assert!(idle.handshake_without_request(SOON));
    advance(Duration::from_millis(1)).await;
    assert!(!idle.handshake_without_request(SOON));
    idle.handshake_done(true);
    idle.begin(Instant::now());
    idle.end(Instant::now());
    assert!(!idle.handshake_without_request(SOON));
}

#[tokio::test(start_paused = true)]
async fn an_unfinished_head_is_timed_from_its_first_byte_or_the_last_activity() {
    let idle = IdleTracker::new();
    advance(Duration::from_secs(2)).await;
    idle.handshake_done(false);
    advance(Duration::from_secs(3)).await;
    assert_eq!(idle.since_head(), Duration::from_secs(3));
    idle.read();
    advance(Duration::from_secs(1)).await;
    idle.read();
    assert_eq!(idle.since_head(), Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn pings_do_not_restart_the_idle_timeout_of_an_http2_connection() {
    let idle = IdleTracker::new();
    idle.handshake_done(true);
    for _ in 0..30 {
        advance(Duration::from_secs(10)).await;
        idle.read();
    }
    assert_eq!(idle.due(TIMEOUTS), Break(Watched::Over));
}
