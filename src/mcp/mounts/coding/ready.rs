//! Waits until a sidecar is up and accepts the proxy's token.

use std::time::Duration;

use addons::mcp::CodingSettings;
use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout};

use super::super::MountError;
use super::answer::{Answered, drain, no_sidecar, read_whole};
use super::endpoint::{Failure, Response, SidecarEndpoint, name};
use super::operation::Operation;

/// Time limit of one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after the first failed attempt; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause. A shorter maximum would fill the audit log: over TCP, the requests of each
/// attempt are flows of the container.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// The longest response to `/health`, in bytes. A longer response counts as a failed attempt.
const MAX_HEALTH: usize = 4096;
/// Limit on the version that is relayed, in characters; the rest is cut off.
const MAX_VERSION: usize = 64;
/// Limit on the sidecar's reason for refusing the token, in characters; the rest is cut off.
const MAX_REASON: usize = 200;
/// The body of a request that only tests the token. The sidecar checks the token first, and then
/// rejects this body, which lacks the operation's arguments.
const NO_REQUEST: Bytes = Bytes::from_static(b"{}");

/// The response to `/health`.
#[derive(Deserialize)]
struct Health {
    ok: bool,
    version: Option<String>,
}

/// Why an attempt failed.
enum Unready {
    /// A later attempt may succeed.
    NotYet(String),
    /// Every further attempt would fail.
    Never(MountError),
}

impl From<Failure> for Unready {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unreachable(why) | Failure::BrokeOff(why) | Failure::Wrong(why) => {
                Self::NotYet(why)
            }
            Failure::Denied(denial) => Self::Never(MountError::Denied(denial)),
        }
    }
}

/// Waits until the sidecar is ready, and returns its version. Makes attempts for the time
/// `wait_for_ready`, and then fails with the reason of the last attempt. Fails at once in these
/// cases:
///
/// - A rule or a limit of the proxy denies a request.
/// - The sidecar refuses the configured token.
/// - The sidecar requires a token, and none is configured.
/// - The settings require a token, and the sidecar serves requests without one.
pub async fn until_ready(
    endpoint: &SidecarEndpoint,
    settings: &CodingSettings,
) -> Result<String, MountError> {
    let deadline = Instant::now() + settings.wait_for_ready;
    let mut pause = FIRST_PAUSE;
    loop {
        let checked = timeout(ATTEMPT_TIMEOUT, check(endpoint, settings)).await;
        let why = match checked {
            Ok(Ok(version)) => return Ok(version),
            Ok(Err(Unready::Never(error))) => return Err(error),
            Ok(Err(Unready::NotYet(why))) => why,
            Err(_elapsed) => "the sidecar does not answer".to_owned(),
        };
        if Instant::now() + pause > deadline {
            let at = name(&settings.endpoint);
            let sentence = format!("the coding sidecar at {at} is not ready: {why}");
            return Err(MountError::CannotStart(sentence));
        }
        sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

async fn check(endpoint: &SidecarEndpoint, settings: &CodingSettings) -> Result<String, Unready> {
    let response = endpoint.health().await?;
    let status = response.status;
    let limit = "the limit for /health";
    let text = read_whole(&endpoint.client, response.body, MAX_HEALTH, limit).await?;
    let health: Option<Health> = serde_json::from_slice(&text).ok();
    let health = health.filter(|health| health.ok && status == StatusCode::OK);
    let health = health.ok_or_else(|| no_sidecar(status))?;
    let read = Operation::Read.path();
    let response = endpoint.post(read, NO_REQUEST).await?;
    if response.status == StatusCode::UNAUTHORIZED {
        return Err(Unready::Never(refused(endpoint, response).await));
    }
    drain(response.body).await;
    if settings.requires_token {
        let response = endpoint.post_anonymously(read, NO_REQUEST).await?;
        let status = response.status;
        drain(response.body).await;
        if status != StatusCode::UNAUTHORIZED {
            return Err(Unready::Never(MountError::CannotStart(
                "auth.required is true, and the coding sidecar serves requests without a token: \
                 start it with SIDECAR_REQUIRE_AUTH=true and SIDECAR_AUTH_TOKEN"
                    .to_owned(),
            )));
        }
    }
    let version = health.version.unwrap_or_default();
    Ok(version.chars().take(MAX_VERSION).collect())
}

/// The error for status 401: the sidecar refuses the configured token, or none is configured.
pub async fn refused(endpoint: &SidecarEndpoint, response: Response) -> MountError {
    if !endpoint.has_token() {
        return MountError::CannotStart(
            "the coding sidecar requires a token, and mcp.yaml has none: set auth.token to the \
             sidecar's SIDECAR_AUTH_TOKEN"
                .to_owned(),
        );
    }
    let reason = match Answered::read(&endpoint.client, response).await {
        Ok(Answered::Failed(sentence)) => sentence.chars().take(MAX_REASON).collect(),
        _ => String::new(),
    };
    MountError::CannotStart(format!(
        "the coding sidecar refuses the token: auth.token in mcp.yaml must equal the sidecar's \
         SIDECAR_AUTH_TOKEN ({reason})"
    ))
}
