//! Prints the figures of a load on one line.

use std::time::Duration;

use crate::usage::Usage;

/// Prints the figures of a measurement, or nothing if no request was completed, as on a machine
/// that was suspended.
pub fn print(mut latencies: Vec<Duration>, elapsed: Duration, before: &Usage, after: &Usage) {
    if latencies.is_empty() {
        return;
    }
    latencies.sort_unstable();
    let at = |share: f64| {
        let index = (latencies.len() as f64 * share) as usize;
        let latency = latencies.get(index).or(latencies.last());
        latency.map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
    };
    let done = latencies.len() as f64;
    let cpu = (after.cpu - before.cpu).as_secs_f64() * 1e6 / done;
    println!(
        "cpu_us_each={cpu:.1} per_second={:.0} p50_ms={:.3} p99_ms={:.3} p999_ms={:.3} resident_kib={}",
        done / elapsed.as_secs_f64(),
        at(0.5),
        at(0.99),
        at(0.999),
        after.resident_kib,
    );
}

/// Prints the added memory and descriptors of each of `count` idle connections or streams, and the
/// resident memory.
pub fn print_idle(count: usize, before: &Usage, after: &Usage) {
    let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / count as f64;
    println!(
        "kib_each={:.1} descriptors_each={:.2} resident_kib={}",
        each(before.resident_kib, after.resident_kib),
        each(before.descriptors, after.descriptors),
        after.resident_kib,
    );
}
