//! Copies a child's standard error to the log, line by line.

use tokio::io::{AsyncRead, AsyncReadExt};
use zeroize::Zeroizing;

use crate::mcp::mounts::pace::Pace;

/// Maximum length of a logged line, in bytes; the rest of the line is dropped.
const MAX_LINE: usize = 4096;
/// Maximum number of lines logged per child and second; further ones are dropped and counted.
const MAX_LINES: u32 = 50;
/// The shortest value that counts as a secret, in bytes.
const MIN_SECRET: usize = 8;
/// Minimum length, in bytes, of a secret's prefix that is removed from the end of a cut line.
const MIN_PARTIAL: usize = 4;
const REDACTED: &str = "[REDACTED]";

/// Values that must not appear in the log.
pub struct Secrets(Vec<Zeroizing<String>>);

impl Secrets {
    /// Collects the values of at least [`MIN_SECRET`] bytes. Shorter ones, such as `debug`, are
    /// likely in ordinary text and would be redacted there. Of a value with several lines, such as
    /// a private key, each line counts as a value, since the log is redacted line by line.
    pub fn among<'v>(values: impl Iterator<Item = &'v str>) -> Self {
        let mut secrets: Vec<_> = values
            .flat_map(str::lines)
            .filter(|value| value.len() >= MIN_SECRET)
            .map(|value| Zeroizing::new(value.to_owned()))
            .collect();
        // A secret may contain another, so `redact` must replace the longer one first.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self(secrets)
    }

    fn longest(&self) -> usize {
        self.0.first().map_or(0, |secret| secret.len())
    }

    /// Redacts a line and cuts it to [`MAX_LINE`] bytes. `is_cut` says that the end of the line was
    /// dropped, so that `line` may end within a secret.
    pub fn redact(&self, line: &[u8], is_cut: bool) -> String {
        let mut text = String::from_utf8_lossy(line).into_owned();
        for secret in &self.0 {
            text = text.replace(secret.as_str(), REDACTED);
        }
        if is_cut {
            let begins = |secret: &Zeroizing<String>| {
                let lengths = (MIN_PARTIAL..secret.len()).rev();
                let mut starts = lengths.filter_map(|length| secret.get(..length));
                starts.find(|start| text.ends_with(start)).map(str::len)
            };
            let partial = self.0.iter().filter_map(begins).max().unwrap_or(0);
            text.truncate(text.len().saturating_sub(partial));
        }
        text.truncate(text.floor_char_boundary(MAX_LINE));
        // Control characters could be terminal escape sequences.
        text.replace(|c: char| c.is_control() && c != '\t', " ")
    }
}

/// Copies the child's stderr to `log`, redacted and limited in rate, until its end or a read error.
pub async fn follow(
    mut stderr: impl AsyncRead + Unpin,
    secrets: Secrets,
    log: impl Fn(&str) + Send,
) {
    let kept = MAX_LINE.saturating_add(secrets.longest());
    let mut line = Vec::new();
    let mut is_cut = false;
    let mut budget = Budget::new();
    let mut chunk = vec![0; 8192];
    while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
        for byte in chunk.get(..read).unwrap_or_default() {
            match byte {
                b'\n' => {
                    if let Some(skipped) = budget.take() {
                        if skipped > 0 {
                            log(&format!("({skipped} lines left out)"));
                        }
                        log(&secrets.redact(&line, is_cut));
                    }
                    line.clear();
                    is_cut = false;
                }
                byte if line.len() < kept => line.push(*byte),
                _ => is_cut = true,
            }
        }
    }
    if !line.is_empty() && budget.take().is_some() {
        log(&secrets.redact(&line, is_cut));
    }
}

/// Limits lines per second.
struct Budget {
    pace: Pace,
    skipped: u64,
}

impl Budget {
    fn new() -> Self {
        Self {
            pace: Pace::new(MAX_LINES),
            skipped: 0,
        }
    }

    /// Counts a line. Returns the number of lines dropped since the last logged one, or `None` if
    /// this second's limit is reached and the line must be dropped.
    fn take(&mut self) -> Option<u64> {
        if self.pace.pause().is_some() {
            self.skipped = self.skipped.saturating_add(1);
            return None;
        }
        self.pace.count();
        Some(std::mem::take(&mut self.skipped))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};
    use std::time::Duration;

    use parking_lot::Mutex;
    use proptest::prelude::*;
    use tokio::io::ReadBuf;

    use super::*;

    async fn logged(text: impl AsyncRead + Unpin, values: &[&str]) -> Vec<String> {
        let lines = Mutex::new(Vec::new());
        follow(text, Secrets::among(values.iter().copied()), |line| {
            lines.lock().push(line.to_owned())
        })
        .await;
        lines.into_inner()
    }

    /// Reads a text in chunks of these sizes.
    struct Chunks<'t, S> {
        rest: &'t [u8],
        sizes: S,
    }

    impl<S: Iterator<Item = usize> + Unpin> AsyncRead for Chunks<'_, S> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            let size = self.sizes.next().unwrap();
            let size = size.min(self.rest.len()).min(buffer.remaining());
            let (chunk, rest) = self.rest.split_at(size);
            buffer.put_slice(chunk);
            self.rest = rest;
            Poll::Ready(Ok(()))
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Secrets consist of digits, and all other text contains no digits. A digit in the log is
        /// therefore a part of a secret. A long text before a secret moves the secret to the point
        /// at which the line is cut.
        // Feature: unified-sidecar, Property 14: Secret Redaction in Logs
        #[test]
        fn at_most_three_bytes_of_a_secret_are_logged(
            secrets in prop::collection::vec("[0-9]{8,60}(\n[0-9]{8,60})?", 1..4),
            pieces in prop::collection::vec(
                (prop_oneof![0..40_usize, MAX_LINE - 70..MAX_LINE + 70], 0..4_usize, any::<bool>()),
                0..12,
            ),
            sizes in prop::collection::vec(1..3000_usize, 1..8),
        ) {
            let mut text = String::new();
            for (length, secret, ends_line) in pieces {
                text.push_str(&"x".repeat(length));
                text.push_str(secrets.get(secret).map_or("é", String::as_str));
                text.push(if ends_line { '\n' } else { ' ' });
            }
            let values: Vec<_> = secrets.iter().map(String::as_str).collect();
            let chunks = Chunks { rest: text.as_bytes(), sizes: sizes.into_iter().cycle() };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            for line in runtime.unwrap().block_on(logged(chunks, &values)) {
                let digits = line.split(|c: char| !c.is_ascii_digit());
                let longest = digits.map(str::len).max().unwrap();
                prop_assert!(longest < MIN_PARTIAL && line.len() <= MAX_LINE, "{line}");
            }
        }
    }

    #[tokio::test]
    async fn secrets_are_replaced_and_short_values_are_not() {
        let text = b"key=s3cret-value! and s3cret-value!-longer in debug\x1b[31m\nlast";
        let lines = logged(
            &text[..],
            &["s3cret-value!", "s3cret-value!-longer", "debug"],
        )
        .await;
        assert_eq!(
            lines,
            ["key=[REDACTED] and [REDACTED] in debug [31m", "last"]
        );
    }

    #[tokio::test]
    async fn each_line_of_a_secret_with_several_lines_is_replaced() {
        let key = "-----BEGIN KEY-----\r\nMIIEvQIBADANBg\nkqhk\n";
        let lines = logged(format!("key: {key}").as_bytes(), &[key]).await;
        assert_eq!(lines, ["key: [REDACTED] ", "[REDACTED]", "kqhk"]);
    }

    #[tokio::test]
    async fn the_beginning_of_a_cut_secret_is_removed() {
        let secret = "0123456789abcdef".repeat(8);
        for lead in [MAX_LINE - 60, MAX_LINE - 3, MAX_LINE, MAX_LINE + 60] {
            let text = format!("{}{secret}{}", "x".repeat(lead), "y".repeat(MAX_LINE));
            let lines = logged(text.as_bytes(), &[&secret]).await;
            let line = lines.first().unwrap();
            assert!(line.len() <= MAX_LINE && !line.contains("01234"), "{lead}");
        }
    }

    /// The redaction of the first secret shortens the line. Without removal, the beginning of the
    /// second secret would then be logged.
    #[tokio::test]
    async fn the_beginning_of_a_cut_secret_is_removed_after_a_redacted_secret() {
        let secret = "0123456789abcdef".repeat(8);
        let between = "x".repeat(MAX_LINE - 60);
        let text = format!("{secret}{between}{secret}");
        let lines = logged(text.as_bytes(), &[&secret]).await;
        let line = lines.first().unwrap();
        assert!(
            line.starts_with(REDACTED) && !line.contains("0123"),
            "{line}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn lines_are_limited_per_second_and_skipped_lines_are_counted() {
        let lines = logged("line\n".repeat(5000).as_bytes(), &[]).await;
        assert_eq!(lines.len(), MAX_LINES as usize);
        let mut budget = Budget::new();
        while budget.take().is_some() {}
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(budget.take(), Some(1));
    }
}
