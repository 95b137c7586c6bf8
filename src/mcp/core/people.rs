//! Calls that wait for a person's decision.

use std::convert::Infallible;
use std::time::Duration;

use addons::contract::{Denial, LiveFlow};
use addons::json::Members;
use addons::mcp::OpenQuestion;
use serde_json::value::RawValue;
use tokio::time::interval;

use super::judged_call::Refused;
use super::lease::Lease;
use super::params::{Progress, quote};
use super::{ClientRequest, Core, Event};

/// How often a client that gave a progress token learns that its call goes on. Some clients give up
/// after 60 s without progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

impl Core {
    /// Waits until a person decides about a request, or as long as its client reads. Returns the flow of an approved
    /// request, which must be judged again. Records any other outcome as the end of the flow.
    pub(super) async fn wait_for_person(
        &self,
        request: &ClientRequest,
        asked: Box<Refused>,
    ) -> Result<Box<LiveFlow>, Denial> {
        let Refused { mut live, denial } = *asked;
        let waited = match live.flow.take_slot::<OpenQuestion>() {
            Some(question) => self.wait_for(request, question, &mut live, denial).await,
            None => Err(denial),
        };
        match waited {
            Ok(()) => Ok(Box::new(live)),
            Err(denial) => Err(Refused { live, denial }.end()),
        }
    }

    /// `denial` is for a call that cannot wait.
    async fn wait_for(
        &self,
        request: &ClientRequest,
        question: OpenQuestion,
        live: &mut LiveFlow,
        denial: Denial,
    ) -> Result<(), Denial> {
        let lease = Lease::of(&request.caller.container);
        let Ok(_permit) = lease.waits.try_acquire() else {
            return Err(denial);
        };
        let token = progress_token(request);
        let client = token.as_ref().and_then(|_| client_name(request));
        let limit = (self.rules)().settings.waits.of(client.as_deref());
        let text = quote(&format!(
            "waits for a person (approval {})",
            question.approval()
        ));
        let deciding = question.decision(&mut live.flow, limit);
        tokio::select! {
            biased;
            () = request.events.left.cancelled() => Err(denial),
            decided = deciding => decided.unwrap_or(Err(denial)),
            never = report(request, token.as_deref(), &text) => match never {},
        }
    }
}

/// Sends the client progress, the first at once, so that it gets the head of the response. The
/// values stay below those that a server sends later.
async fn report(request: &ClientRequest, token: Option<&str>, text: &str) -> Infallible {
    let Some(token) = token else {
        return std::future::pending().await;
    };
    let mut ticks = interval(PROGRESS_INTERVAL);
    let mut sent = 0_u32;
    loop {
        ticks.tick().await;
        let params =
            format!("{{\"progressToken\":{token},\"progress\":0.{sent:06},\"message\":{text}}}");
        let params = RawValue::from_string(params).ok();
        // A client that does not read misses progress.
        let _ = request.events.try_send(Event::Notification {
            method: "notifications/progress".into(),
            params: params.map(Into::into),
        });
        sent = sent.saturating_add(1);
    }
}

/// The progress token of a request, as JSON.
fn progress_token(request: &ClientRequest) -> Option<Box<str>> {
    let params = Members::read(request.params.as_deref()?).ok()?;
    Some(Progress::of(&params.members("_meta").ok()??)?.original)
}

/// The client's name, as it describes itself.
fn client_name(request: &ClientRequest) -> Option<String> {
    let info = Members::read(request.caller.info.as_deref()?).ok()?;
    Some(info.text("name")?.into_owned())
}
