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

fn lines(body: &Value) -> String {
    let status = body.get("status").and_then(Value::as_str);
    let mut lines = vec![status.unwrap_or("unknown").to_owned()];
    let checks = body.get("checks").and_then(Value::as_object);
    for (name, ok) in checks.into_iter().flatten() {
        let word = match ok {
            Value::Bool(true) => "ok  ",
            _ => "FAIL",
        };
        lines.push(format!("  {word}  {name}"));
    }
    lines.join("\n")
}
