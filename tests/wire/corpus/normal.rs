//! The normal form of transcripts, in which placeholders replace text that differs from run to run.

/// Members of JSON objects whose values differ from run to run.
const VOLATILE: [&str; 4] = ["ts", "flow", "prev", "duration_ms"];

/// Replaces text that differs from run to run. `known` has pairs of a text, such as an address or a
/// folder, and its placeholder. If one text contains another, the longer one must come first.
pub fn normal(text: &str, known: &[(String, &'static str)]) -> String {
    let mut text = text.to_owned();
    for (volatile, placeholder) in known {
        text = text.replace(volatile, placeholder);
    }
    for name in VOLATILE {
        text = with_member(&text, name, |_| Some(format!("\"<{name}>\"")));
    }
    // A wait of 1 s, the minimum, is the same in each run; a longer one depends on the time.
    text = with_member(&text, "retry_after", |value| {
        (value != "1").then(|| "\"<seconds>\"".to_owned())
    });
    // Errors of rustls contain the current time and the time since a certificate expired.
    text = between(&text, "verification time ", " (UNIX)", "<now>");
    text = between(
        &text,
        "(UNIX), but certificate is not valid after 1580515200 (",
        " seconds ago)",
        "<age>",
    );
    let waits = text.split_once("Waiting for approval ");
    let approval = waits.and_then(|(_, rest)| Some(rest.split_once(':')?.0.to_owned()));
    if let Some(approval) = approval {
        text = text.replace(&approval, "<approval>");
    }
    let lines = text.lines().map(|line| match line.split_once(": ") {
        Some(("date", _)) => "date: <date>".to_owned(),
        Some(("retry-after", value)) if value != "1" => "retry-after: <seconds>".to_owned(),
        _ => line.to_owned(),
    });
    let mut lines: Vec<_> = lines.collect();
    lines.push(String::new());
    lines.join("\n")
}

/// Replaces the value of each member `name` of a JSON object with the result of `replace`; `None`
/// keeps the value. The value must have neither commas nor braces.
fn with_member(text: &str, name: &str, replace: impl Fn(&str) -> Option<String>) -> String {
    let key = format!("\"{name}\":");
    let mut pieces = text.split(key.as_str());
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let end = piece.find([',', '}']).unwrap_or(piece.len());
        let (value, rest) = piece.split_at(end);
        out += &key;
        out += &replace(value).unwrap_or_else(|| value.to_owned());
        out += rest;
    }
    out
}

/// Replaces the text between the first `before` and the next `after`, if both occur.
fn between(text: &str, before: &str, after: &str, placeholder: &str) -> String {
    let parts = text.split_once(before).and_then(|(left, rest)| {
        let (_volatile, right) = rest.split_once(after)?;
        Some([left, before, placeholder, after, right].concat())
    });
    parts.unwrap_or_else(|| text.to_owned())
}
