//! A sign of life while a command waits for servers.

use std::io::{self, IsTerminal, Write};
use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

/// How long a command waits in silence.
const SILENCE: Duration = Duration::from_secs(1);

/// Awaits `work`. If it takes long and standard error is a terminal, says there what the command
/// waits for.
pub async fn waiting<T>(what: &str, work: impl Future<Output = T>) -> T {
    let tell = || {
        // A write error is ignored: there is no other output for the line.
        let _ = writeln!(io::stderr(), "unified-proxy: {what}");
    };
    match io::stderr().is_terminal() {
        true => tell_if_slow(tell, work).await,
        false => work.await,
    }
}

async fn tell_if_slow<T>(tell: impl FnOnce(), work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    match timeout(SILENCE, work.as_mut()).await {
        Ok(done) => done,
        Err(_elapsed) => {
            tell();
            work.await
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use testkit::each_row_async;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_long_wait_is_told_about() {
        each_row_async(
            [(0, false), (900, false), (1100, true)],
            async |(millis, expected)| {
                let told = Cell::new(false);
                let work = sleep(Duration::from_millis(millis));
                tell_if_slow(|| told.set(true), work).await;
                assert_eq!(told.get(), expected, "{millis}");
            },
        )
        .await;
    }
}
