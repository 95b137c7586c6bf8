//! Tables of cases that report every row that fails, not only the first.
#![deny(missing_docs)]

use std::any::Any;
use std::fmt::Debug;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// Runs `check` on every row. A row that panics does not stop the following rows.
///
/// # Panics
///
/// Panics if at least one row panicked. The message lists each such row with its number, from 0,
/// and its panic.
#[track_caller]
pub fn each_row<R: Debug>(rows: impl IntoIterator<Item = R>, mut check: impl FnMut(R)) {
    let mut report = Report::default();
    for row in rows {
        let shown = show(&row);
        let outcome = catch_unwind(AssertUnwindSafe(|| check(row)));
        report.add(shown, outcome);
    }
    report.finish();
}

/// Like [`each_row`], for an asynchronous `check`. The rows run one after the other.
///
/// # Panics
///
/// Panics as [`each_row`] does.
pub async fn each_row_async<R: Debug>(
    rows: impl IntoIterator<Item = R>,
    mut check: impl AsyncFnMut(R),
) {
    let mut report = Report::default();
    for row in rows {
        let shown = show(&row);
        let outcome = {
            let mut running = pin!(check(row));
            poll_fn(|context| {
                let polled = catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(context)));
                match polled {
                    Ok(Poll::Pending) => Poll::Pending,
                    Ok(Poll::Ready(())) => Poll::Ready(Ok(())),
                    Err(panic) => Poll::Ready(Err(panic)),
                }
            })
            .await
        };
        report.add(shown, outcome);
    }
    report.finish();
}

/// Longest text of a row in the report, in bytes: some rows are bodies of a megabyte.
const SHOWN_BYTES: usize = 1000;

fn show(row: &impl Debug) -> String {
    let mut shown = format!("{row:?}");
    if shown.len() > SHOWN_BYTES {
        shown.truncate(shown.floor_char_boundary(SHOWN_BYTES));
        shown.push('…');
    }
    shown
}

#[derive(Default)]
struct Report {
    rows: usize,
    failed: Vec<String>,
}

impl Report {
    fn add(&mut self, row: String, outcome: Result<(), Box<dyn Any + Send>>) {
        if let Err(panic) = outcome {
            let number = self.rows;
            self.failed
                .push(format!("row {number}: {row}\n{}", message(&*panic)));
        }
        self.rows += 1;
    }

    #[track_caller]
    fn finish(self) {
        let failed = self.failed.len();
        assert!(
            failed == 0,
            "{failed} of {} rows failed\n{}",
            self.rows,
            self.failed.join("\n")
        );
    }
}

/// The message of a panic.
fn message(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "a panic without a text",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ROWS: [(&str, u8); 4] = [("a", 1), ("b", 2), ("c", 3), ("d", 4)];
    const REPORT: &str =
        "2 of 4 rows failed\nrow 1: (\"b\", 2)\nb is even\nrow 3: (\"d\", 4)\nd is even";

    #[test]
    fn every_row_runs_and_all_that_fail_are_reported() {
        let mut seen = Vec::new();
        let panic = catch_unwind(AssertUnwindSafe(|| {
            each_row(ROWS, |(name, number)| {
                seen.push(number);
                assert!(number % 2 == 1, "{name} is even");
            });
        }));
        assert_eq!(message(&*panic.unwrap_err()), REPORT);
        assert_eq!(seen, [1, 2, 3, 4]);
        each_row([1, 3], |number| assert!(number % 2 == 1));
    }

    #[test]
    fn a_long_row_is_cut_in_the_report() {
        let panic = catch_unwind(|| each_row(["é".repeat(1000)], |_| panic!("no")));
        let report = message(&*panic.unwrap_err()).to_owned();
        assert!(report.ends_with("é…\nno"), "{report}");
        assert!(report.len() < SHOWN_BYTES + 50, "{} bytes", report.len());
    }

    #[test]
    fn rows_of_an_async_check_are_reported_like_others() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let mut seen = Vec::new();
        let panic = catch_unwind(AssertUnwindSafe(|| {
            runtime.block_on(each_row_async(ROWS, async |(name, number)| {
                tokio::time::sleep(Duration::from_millis(1)).await;
                seen.push(number);
                assert!(number % 2 == 1, "{name} is even");
            }));
        }));
        assert_eq!(message(&*panic.unwrap_err()), REPORT);
        assert_eq!(seen, [1, 2, 3, 4]);
        runtime.block_on(each_row_async([1, 3], async |number| {
            assert!(number % 2 == 1);
        }));
    }
}
