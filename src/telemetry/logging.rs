//! Logs to standard error. Texts in a log line may come from a container or a server: characters
//! that could begin another line or control a terminal are escaped in both formats.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::Logging;
use crate::runtime::{printable, printable_json};

/// Starts to log to standard error. Fails if the level is invalid, or if logging was already
/// started.
pub fn init(logging: &Logging) -> Result<(), String> {
    let filter = EnvFilter::try_new(directives(&logging.level))
        .map_err(|error| format!("logging.level {:?}: {error}", logging.level))?;
    let started = match logging.json {
        true => json(filter, io::stderr).try_init(),
        false => text(filter, io::stderr, io::stderr().is_terminal()).try_init(),
    };
    started.map_err(|error| error.to_string())
}

fn text<W>(filter: EnvFilter, writer: W, colour: bool) -> impl Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let fields = debug_fn(|out, field, value| {
        let value = printable(&format!("{value:?}"));
        match field.name() {
            "message" => out.write_str(&value),
            name => write!(out, "{name}={value}"),
        }
    });
    tracing_subscriber::fmt()
        .fmt_fields(fields.delimited(" "))
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(colour)
        .with_target(false)
        .finish()
}

fn json<W>(filter: EnvFilter, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(filter)
        .with_writer(Printable(writer))
        .with_target(false)
        .finish()
}

/// Escapes the characters that JSON does not need to escape and a terminal obeys.
struct Printable<W>(W);

impl<'w, W: MakeWriter<'w>> MakeWriter<'w> for Printable<W> {
    type Writer = Printable<W::Writer>;

    fn make_writer(&'w self) -> Self::Writer {
        Printable(self.0.make_writer())
    }
}

impl<W: Write> Write for Printable<W> {
    /// Writes a whole line, as the formatter passes it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        match printable_json(text.trim_end_matches('\n')) {
            Cow::Borrowed(_) => self.0.write_all(line)?,
            Cow::Owned(clean) => self.0.write_all((clean + "\n").as_bytes())?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Returns the filter for `logging.level`. A bare level applies to the crates of the product, and
/// all other crates log warnings and errors. Any other text is a filter already.
fn directives(level: &str) -> String {
    if level.parse::<tracing::Level>().is_ok() {
        format!("warn,unified_proxy={level},addons={level}")
    } else {
        level.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::Value;
    use testkit::each_row;

    use super::*;

    #[test]
    fn a_bare_level_applies_to_the_crates_of_the_product() {
        assert_eq!(directives("info"), "warn,unified_proxy=info,addons=info");
        let own = "info,unified_proxy=debug";
        assert_eq!(directives(own), own);
    }

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(line)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines that a format writes for a warning with this text in its message and fields.
    fn logged(is_json: bool, name: &str) -> String {
        let lines = Lines::default();
        let (filter, writer) = (EnvFilter::new("warn"), lines.clone());
        let writer = move || writer.clone();
        let log = || tracing::warn!(tool = %name, other = name, "MCP: {name} is left out");
        match is_json {
            true => tracing::subscriber::with_default(json(filter, writer), log),
            false => tracing::subscriber::with_default(text(filter, writer, false), log),
        }
        String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_text_of_a_server_neither_begins_a_line_nor_controls_the_terminal_in_any_format() {
        let names = [
            "a\n2026-01-01T00:00:00Z  WARN a forged line",
            "a\r\x1b[2K\x1b[1A",
            "\u{9b}2J\u{85}b",
            "a\u{202e}b\u{2028}c\u{7f}",
        ];
        each_row(names, |name| {
            for is_json in [true, false] {
                let line = logged(is_json, name);
                let line = line.strip_suffix('\n').unwrap();
                assert_eq!(printable(line), line, "json: {is_json}");
                assert!(
                    line.contains("WARN") && line.contains("is left out"),
                    "{line}"
                );
                if is_json {
                    let read: Value = serde_json::from_str(line).unwrap();
                    assert_eq!(
                        (&read["tool"], &read["other"]),
                        (&name.into(), &name.into())
                    );
                }
            }
        });
        let plain = logged(false, "kb_get");
        assert!(
            plain.ends_with("WARN MCP: kb_get is left out tool=kb_get other=\"kb_get\"\n"),
            "{plain}"
        );
    }
}
