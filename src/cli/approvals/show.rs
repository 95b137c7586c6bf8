//! Questions and grants as text. A container, a server or a policy chose most of it.

use addons::contract::QuestionKind;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::definition;
use super::indented::indented;
use crate::admin::{Approval, GrantEntry};
use crate::cli::exit::printable;
use crate::cli::table::table;

/// Digits of an id in tables, if they tell all ids apart.
const SHORT: usize = 8;
/// Lines of arguments, and characters of a line, that the watch shows: less than a screen.
const MAX_LINES: usize = 20;
const MAX_WIDTH: usize = 160;
/// The width of the labels of details.
pub(super) const LABEL: usize = 11;

/// The questions as a table.
pub(super) fn questions(all: &[&Approval], now: OffsetDateTime) -> String {
    if all.is_empty() {
        return "no question waits for a decision".to_owned();
    }
    let digits = digits(all.iter().map(|question| question.id.as_str()));
    let head = [
        "ID",
        "KIND",
        "CONTAINER",
        "AGE",
        "LEFT",
        "SUBJECT",
        "REASON",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    for question in all {
        let reason = question.reason.as_deref().unwrap_or("-");
        let cells = [&question.kind, &question.container_id];
        let [kind, container] = cells.map(|cell| printable(cell));
        rows.push([
            short(&question.id, digits),
            kind,
            container,
            since(&question.created_at, now),
            until(&question.expires_at, now),
            printable(&question.subject),
            printable(reason),
        ]);
    }
    table(&rows)
}

/// The grants as a table.
pub(super) fn grants(all: &[&GrantEntry], now: OffsetDateTime) -> String {
    if all.is_empty() {
        return "there is no grant".to_owned();
    }
    let digits = digits(all.iter().map(|grant| grant.id.as_str()));
    let head = [
        "ID",
        "KIND",
        "CONTAINER",
        "SCOPE",
        "LEFT",
        "LEVEL",
        "BY",
        "SUBJECT",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    for grant in all {
        let left = grant.expires_at.as_deref().map(|at| until(at, now));
        let cells = [&grant.kind, &grant.container_id, &grant.scope, &grant.level];
        let [kind, container, scope, level] = cells.map(|cell| printable(cell));
        rows.push([
            short(&grant.id, digits),
            kind,
            container,
            scope,
            left.unwrap_or_else(|| "-".to_owned()),
            level,
            printable(&grant.given_by),
            printable(&grant.subject),
        ]);
    }
    table(&rows)
}

/// Everything about a question. The arguments are whole.
pub(super) fn details(question: &Approval, now: OffsetDateTime) -> String {
    written(question, now, |arguments| arguments)
}

/// As [`details`], but short enough for a screen. Also returns whether the arguments are whole.
pub(super) fn brief(question: &Approval, now: OffsetDateTime) -> (String, bool) {
    let mut is_whole = true;
    let text = written(question, now, |arguments| {
        let cut = cut(&arguments);
        is_whole = cut == arguments;
        cut
    });
    (text, is_whole)
}

/// A text without what is beyond [`MAX_LINES`] and [`MAX_WIDTH`].
fn cut(text: &str) -> String {
    let mut rest = text.lines();
    let shown = rest.by_ref().take(MAX_LINES);
    let mut lines: Vec<_> = shown.map(|line| shortened(line, MAX_WIDTH)).collect();
    let more = rest.count();
    if more > 0 {
        lines.push(format!("… ({more} more lines)"));
    }
    lines.join("\n")
}

/// A line, or its first characters.
pub(super) fn shortened(line: &str, most: usize) -> String {
    match line.char_indices().nth(most) {
        None => line.to_owned(),
        Some((at, _)) => {
            let more = line.len().saturating_sub(at);
            format!(
                "{}… ({more} more bytes)",
                line.get(..at).unwrap_or_default()
            )
        }
    }
}

fn written(
    question: &Approval,
    now: OffsetDateTime,
    mut arguments_as: impl FnMut(String) -> String,
) -> String {
    let Approval {
        kind, state, level, ..
    } = question;
    let left = match state.as_str() {
        "pending" => format!(", {} left", until(&question.expires_at, now)),
        _ => String::new(),
    };
    let mut lines = Vec::new();
    let mut line =
        |name: &str, text: &str| lines.push(format!("{name:<LABEL$}{}", printable(text)));
    line("id", &question.id);
    line("kind", kind);
    line("state", &format!("{state}{left}"));
    line("container", &question.container_id);
    line("subject", &question.subject);
    if let Some(arguments) = &question.arguments {
        lines.push(arguments_as(shown(kind, arguments)));
    }
    let mut line =
        |name: &str, text: &str| lines.push(format!("{name:<LABEL$}{}", printable(text)));
    for (name, text) in [("rule", &question.rule), ("reason", &question.reason)] {
        if let Some(text) = text {
            line(name, text);
        }
    }
    line("level", level);
    line("asked", &asked(question, now));
    line("scopes", &question.scopes.join(", "));
    if let (Some(by), Some(at)) = (&question.decided_by, &question.decided_at) {
        line("decided", &format!("{at} by {by}"));
    }
    if let Some(comment) = &question.comment {
        line("comment", comment);
    }
    lines.join("\n")
}

/// How often a question was asked, and who waits.
pub(super) fn asked(question: &Approval, now: OffsetDateTime) -> String {
    let asked = match question.attempts {
        0 | 1 => "once".to_owned(),
        times => format!("{times} times"),
    };
    let waiting = match question.waiting {
        0 => "nobody waits for the answer".to_owned(),
        1 => "1 caller waits".to_owned(),
        callers => format!("{callers} callers wait"),
    };
    let age = since(&question.created_at, now);
    format!("{asked}, first {age} ago; {waiting}")
}

/// The arguments of a question: of a changed definition or a proposed policy, the lines that differ.
fn shown(kind: &str, arguments: &RawValue) -> String {
    let changes = match QuestionKind::parse(kind) {
        Some(QuestionKind::Definition) => definition::diff(arguments),
        Some(QuestionKind::Policy) => definition::policy_diff(arguments),
        _ => None,
    };
    match changes {
        Some(changes) => format!("{kind}\n{changes}"),
        None => format!(
            "{:<LABEL$}{}",
            "arguments",
            indented(arguments.get(), LABEL)
        ),
    }
}

/// The number of first digits that tells ids apart.
fn digits<'a>(ids: impl Iterator<Item = &'a str>) -> usize {
    let mut ids: Vec<_> = ids.collect();
    ids.sort_unstable();
    let pairs = ids.iter().zip(ids.iter().skip(1));
    let common = pairs.map(|(a, b)| {
        let equal = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b);
        equal.count().saturating_add(1)
    });
    common.max().unwrap_or_default().max(SHORT)
}

fn short(id: &str, digits: usize) -> String {
    printable(&id.chars().take(digits).collect::<String>())
}

/// The time since an RFC 3339 time, for example `5m`.
fn since(at: &str, now: OffsetDateTime) -> String {
    period(OffsetDateTime::parse(at, &Rfc3339).map(|at| now - at), at)
}

/// The time until an RFC 3339 time.
fn until(at: &str, now: OffsetDateTime) -> String {
    period(OffsetDateTime::parse(at, &Rfc3339).map(|at| at - now), at)
}

fn period(period: Result<time::Duration, time::error::Parse>, text: &str) -> String {
    let Ok(period) = period else {
        return printable(text);
    };
    let seconds = period.whole_seconds().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds.div_euclid(60)),
        7200..172_800 => format!("{}h", seconds.div_euclid(3600)),
        _ => format!("{}d", seconds.div_euclid(86_400)),
    }
}

#[cfg(test)]
mod tests;
