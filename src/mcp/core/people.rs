//! Calls that wait for a person's decision.

use std::time::Duration;

use addons::contract::{Container, Denial};
use addons::json::Members;
use addons::mcp::OpenQuestion;
use serde_json::value::RawValue;

use super::judged_call::Refused;
use super::lease::Lease;
use super::params::{Progress, quote};
use super::{ClientRequest, Core, Event};

impl Core {
    /// Waits until a person decides about a request, or its client stops reading. Returns an
    /// approved request, which must be judged again. Records any other outcome as the end of the
    /// flow.
    pub(super) async fn wait_for_person(
        &self,
        request: &ClientRequest,
        mut asked: Box<Refused>,
    ) -> Result<Box<Refused>, Denial> {
        let waited = match asked.live.flow.take_slot::<OpenQuestion>() {
            Some(question) => self.wait_for(request, question, &mut asked).await,
            None => Err(asked.denial.clone()),
        };
        match waited {
            Ok(()) => Ok(asked),
            Err(denial) => {
                asked.denial = denial;
                Err(asked.end())
            }
        }
    }

    async fn wait_for(
        &self,
        request: &ClientRequest,
        question: OpenQuestion,
        asked: &mut Refused,
    ) -> Result<(), Denial> {
        let token = progress_token(request);
        let client = token.as_ref().and_then(|_| client_name(request));
        let limit = (self.rules)().settings.waits.of(client.as_deref());
        let text = format!("waits for a person (approval {})", question.approval());
        let open = asked.denial.clone();
        let begun = || report(request, token.as_deref(), &text);
        let deciding = hold(&request.caller.container, question, asked, limit, begun);
        tokio::select! {
            biased;
            () = request.events.call.left.cancelled() => return Err(open),
            decided = deciding => decided?,
        }
        report(request, token.as_deref(), "approved");
        Ok(())
    }
}

/// Holds a request until a person decides about it, at most for `limit`. Calls `begun` if the
/// container has no more than its waits. After an approval, the request must be judged again.
pub(super) async fn hold(
    container: &Container,
    question: OpenQuestion,
    asked: &mut Refused,
    limit: Duration,
    begun: impl FnOnce(),
) -> Result<(), Denial> {
    let lease = Lease::of(container);
    let Ok(_permit) = lease.waits.try_acquire() else {
        return Err(asked.denial.clone());
    };
    begun();
    match question.decision(&mut asked.live.flow, limit).await {
        Some(verdict) => verdict?,
        None => return Err(asked.denial.clone()),
    }
    asked.denial = question.unsent();
    Ok(())
}

/// Sends the client progress with a text, if it gave a token. The gateway repeats the text until there
/// is other progress.
fn report(request: &ClientRequest, token: Option<&str>, text: &str) {
    let Some(token) = token else {
        return;
    };
    let text = quote(text);
    let params = format!("{{\"progressToken\":{token},\"progress\":0,\"message\":{text}}}");
    let params = RawValue::from_string(params).ok();
    // A client that does not read misses progress.
    let _ = request.events.try_send(Event::Notification {
        method: "notifications/progress".into(),
        params: params.map(Into::into),
    });
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
