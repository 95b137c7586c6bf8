//! `health`: prints the health checks of a running server.

use serde_json::Value;

use super::Output;
use super::exit::{Failure, code};
use crate::admin::{HEALTHY, HealthBody};

pub(super) async fn run(output: &Output) -> Result<(), Failure> {
    let health = output.target.client().health().await?;
    output.print(&health, lines)?;
    match health.status == HEALTHY {
        true => Ok(()),
        false => Err(Failure::silent(code::SOFTWARE)),
    }
}

/// The status, with the number of failed checks, then each check. `healthy` alone means that no
/// check fails.
fn lines(HealthBody { status, checks }: &HealthBody) -> String {
    let checks = checks
        .iter()
        .map(|(name, ok)| (name, *ok == Value::Bool(true)));
    let checks: Vec<_> = checks.collect();
    let failed = checks.iter().filter(|(_, passes)| !passes).count();
    let noun = if failed == 1 {
        "check fails"
    } else {
        "checks fail"
    };
    let mut lines = vec![match failed {
        0 => status.clone(),
        _ if status == HEALTHY => format!("healthy, but {failed} {noun}; flows are served"),
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
                let text = lines(&serde_json::from_value(body).unwrap());
                assert_eq!(text.lines().next(), Some(first));
                assert_eq!(text.lines().count(), 4, "{text}");
                let failed = [a, b, c].iter().filter(|passes| !**passes).count();
                assert_eq!(text.matches("  FAIL  ").count(), failed, "{text}");
            },
        );
    }
}
