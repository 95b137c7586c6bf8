//! Runs `git http-backend`, git's server side of smart HTTP, as a CGI program of the test origin.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Response, StatusCode};

use super::routes::{Body, full, text};

pub async fn git(root: &Path, parts: &Parts, body: Bytes) -> Response<Body> {
    let header = |name: &str| {
        let value = parts
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let mut backend = Command::new("git");
    backend
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REQUEST_METHOD", parts.method.as_str())
        .env("PATH_INFO", parts.uri.path())
        .env("QUERY_STRING", parts.uri.query().unwrap_or_default())
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("GIT_PROTOCOL", header("git-protocol"))
        .env("REMOTE_USER", "tester")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let output = tokio::task::spawn_blocking(move || {
        let mut child = backend.spawn()?;
        let mut stdin = child.stdin.take().unwrap();
        // Another thread writes the body while this one reads the output: otherwise both pipes
        // could fill up, and git and this process would wait for each other.
        std::thread::spawn(move || stdin.write_all(&body));
        child.wait_with_output()
    });
    match output.await.unwrap() {
        Ok(output) => parse(&output.stdout),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn parse(output: &[u8]) -> Response<Body> {
    let end = output.windows(4).position(|four| four == b"\r\n\r\n");
    let Some(end) = end else {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "no response from git");
    };
    let mut response = Response::new(full(output[end + 4..].to_vec()));
    for line in String::from_utf8_lossy(&output[..end]).lines() {
        let (name, value) = line.split_once(": ").unwrap();
        if name == "Status" {
            *response.status_mut() = value[..3].parse().unwrap();
        } else {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            let value = HeaderValue::from_str(value).unwrap();
            response.headers_mut().insert(name, value);
        }
    }
    response
}
