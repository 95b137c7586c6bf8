//! `health`: prints the health checks of a running server.

use http::StatusCode;
use serde_json::Value;

use super::Output;
use super::exit::{Failure, code};

pub(super) async fn run(output: &Output) -> Result<(), Failure> {
    let response = output.target.client().get("/internal/health").await?;
    output.print(response.body(), lines)?;
    match response.status() {
        StatusCode::OK => Ok(()),
        _ => Err(Failure::silent(code::SOFTWARE)),
    }
}

/// The status, with the number of failed checks, then each check. `healthy` alone means that no
/// check fails.
fn lines(body: &Value) -> String {
    let status = body.get("status").and_then(Value::as_str);
    let status = status.unwrap_or("unknown");
    let checks = body.get("checks").and_then(Value::as_object);
    let checks = checks.into_iter().flatten();
    let checks: Vec<_> = checks
        .map(|(name, ok)| (name, *ok == Value::Bool(true)))
        .collect();
    let failed = checks.iter().filter(|(_, passes)| !passes).count();
    let noun = if failed == 1 {
        "check fails"
    } else {
        "checks fail"
    };
    let mut lines = vec![match (failed, status) {
        (0, _) => status.to_owned(),
        (_, "healthy") => format!("healthy, but {failed} {noun}; flows are served"),
        _ => format!("{status}: {failed} {noun}"),
    }];
    lines.extend(checks.into_iter().map(|(name, passes)| {
        let word = if passes { "ok  " } else { "FAIL" };
        format!("  {word}  {name}")
    }));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testkit::each_row;

    use super::*;

    #[test]
    fn the_first_line_is_healthy_alone_only_if_no_check_fails() {
        each_row(
            [
                ("healthy", [true, true, true], "healthy"),
                (
                    "healthy",
                    [true, true, false],
                    "healthy, but 1 check fails; flows are served",
                ),
                (
                    "healthy",
                    [true, false, false],
                    "healthy, but 2 checks fail; flows are served",
                ),
                ("degraded", [false, true, true], "degraded: 1 check fails"),
                ("degraded", [false, true, false], "degraded: 2 checks fail"),
            ],
            |(status, [a, b, c], first)| {
                let body = json!({"status": status, "checks": {"a": a, "b": b, "c": c}});
                let text = lines(&body);
                assert_eq!(text.lines().next(), Some(first));
                assert_eq!(text.lines().count(), 4, "{text}");
                let failed = [a, b, c].iter().filter(|passes| !**passes).count();
                assert_eq!(text.matches("  FAIL  ").count(), failed, "{text}");
            },
        );
    }
}
