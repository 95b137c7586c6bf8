//! Notifications: a POST to the operator's URLs for each new question.

use std::sync::Arc;
use std::time::Duration;

use addons::contract::{Outbound, System};
use aws_lc_rs::hmac;
use bytes::Bytes;
use http::Request;
use http::header::{CONTENT_TYPE, USER_AGENT};
use prometheus::{IntCounterVec, Opts, Registry};
use serde::Serialize;
use serde_json::value::RawValue;
use time::format_description::well_known::Rfc3339;
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::ledger::Ledger;
use super::record::{News, Record};
use super::watch::Seen;
use crate::config::NotifyTarget;
use crate::runtime::printable;

/// Notifications that are sent or wait for their next try. Further ones are dropped: questions are
/// never held up for them.
const MAX_RUNNING: usize = 64;
/// The waits before the three tries.
const TRIES: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_secs(2),
    Duration::from_secs(10),
];
/// The name of the field with the signature.
const SIGNATURE: &str = "x-unified-proxy-signature";

/// Sends notifications, as flows of the system principal `approvals`.
#[derive(Clone)]
pub struct Notifier {
    outbound: Arc<dyn Outbound>,
    sent: IntCounterVec,
    running: Arc<Semaphore>,
}

impl Notifier {
    /// Registers `proxy_approval_notifications_total`.
    pub fn new(outbound: Arc<dyn Outbound>, registry: &Registry) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "proxy_approval_notifications_total",
            "Notifications of new questions, by outcome.",
        );
        let sent = IntCounterVec::new(opts, &["outcome"])?;
        registry.register(Box::new(sent.clone()))?;
        for outcome in ["sent", "failed", "dropped"] {
            sent.with_label_values(&[outcome]);
        }
        Ok(Self {
            outbound,
            sent,
            running: Arc::new(Semaphore::new(MAX_RUNNING)),
        })
    }

    /// Follows the ledger until the shutdown. `targets` are those of the configuration in force.
    pub async fn follow(
        self,
        ledger: Arc<Ledger>,
        targets: impl Fn() -> Vec<NotifyTarget>,
        shutdown: CancellationToken,
    ) {
        let mut watch = ledger.watch();
        while let Some(Some(seen)) = shutdown.run_until_cancelled(watch.next()).await {
            let Seen::Changed(change) = seen else {
                continue;
            };
            let targets = targets();
            if change.news != News::Opened || targets.is_empty() {
                continue;
            }
            // The ledger logs its errors.
            let Some(id) = change.approval else { continue };
            let Ok(Some(question)) = ledger.get(id).await else {
                continue;
            };
            for target in targets {
                self.start(target, &question, &shutdown);
            }
        }
    }

    fn start(&self, target: NotifyTarget, question: &Record, shutdown: &CancellationToken) {
        let Ok(permit) = Arc::clone(&self.running).try_acquire_owned() else {
            self.count("dropped");
            return;
        };
        let (notifier, shutdown) = (self.clone(), shutdown.clone());
        let body = body(question, target.arguments);
        tokio::spawn(shutdown.run_until_cancelled_owned(async move {
            notifier.send(&target, body.into()).await;
            drop(permit);
        }));
    }

    /// Tries up to three times.
    async fn send(&self, target: &NotifyTarget, body: Bytes) {
        let principal = Arc::new(System {
            name: "approvals".into(),
            hosts: vec![target.authority.clone()],
            trust_private: true,
            url_secrets: target.url_secrets.clone(),
        });
        let mut failure = String::new();
        for wait in TRIES {
            sleep(wait).await;
            match self.once(target, &principal, body.clone()).await {
                Ok(()) => return self.count("sent"),
                Err(why) => failure = why,
            }
        }
        tracing::warn!(%target, "a question could not be announced: {failure}");
        self.count("failed");
    }

    async fn once(
        &self,
        target: &NotifyTarget,
        principal: &Arc<System>,
        body: Bytes,
    ) -> Result<(), String> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, target.secret.as_bytes());
        let tag = hmac::sign(&key, &body);
        let tag = tag.as_ref().iter().map(|byte| format!("{byte:02x}"));
        let request = Request::post(&*target.url)
            .header(USER_AGENT, "unified-proxy")
            .header(CONTENT_TYPE, "application/json")
            .header(SIGNATURE, format!("sha256={}", tag.collect::<String>()))
            .body(body);
        let request = request.map_err(|error| error.to_string())?;
        let response = self.outbound.send(principal, request).await;
        let status = response.map_err(|error| error.to_string())?.status();
        let taken = status.is_success().then_some(());
        taken.ok_or_else(|| format!("the receiver answered {status}"))
    }

    fn count(&self, outcome: &str) {
        self.sent.with_label_values(&[outcome]).inc();
    }
}

/// The body of a notification. The arguments, which may be confidential, are left out by default.
#[derive(Serialize)]
struct Body<'a> {
    text: String,
    id: String,
    kind: &'static str,
    container: &'a str,
    subject: String,
    rule: Option<&'a str>,
    reason: Option<&'a str>,
    expiry: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a RawValue>,
}

fn body(question: &Record, with_arguments: bool) -> String {
    let topic = &question.topic;
    let (kind, subject) = (topic.kind.as_str(), &topic.subject);
    let subject = match &topic.server {
        Some(server) => format!("{server}/{subject}"),
        None => subject.to_string(),
    };
    let reason = topic.reason.as_deref();
    let because = reason.map(|reason| format!(" ({reason})"));
    let text = format!(
        "{} asks: {kind} {}{} - unified-proxy approvals show {}",
        topic.container,
        quoted(&subject),
        because.unwrap_or_default(),
        question.id
    );
    let arguments = question.arguments.as_deref().filter(|_| with_arguments);
    let body = Body {
        text: plain(&text),
        id: question.id.to_string(),
        kind,
        container: topic.container.as_str(),
        subject,
        rule: topic.rule.as_deref(),
        reason,
        // Cannot fail: the years of the ledger's times have four digits.
        expiry: question.expires_at.format(&Rfc3339).unwrap_or_default(),
        // Cannot fail: the ledger keeps canonical JSON.
        arguments: arguments.and_then(|json| serde_json::from_str(json).ok()),
    };
    // Cannot fail: all keys are texts.
    serde_json::to_string(&body).unwrap_or_default()
}

/// The subject as text that no chat renders.
fn quoted(subject: &str) -> String {
    format!("`{}`", subject.replace('`', "'"))
}

/// The text without what controls a terminal, and without the mentions and links of a chat, which
/// begin with `<`.
fn plain(text: &str) -> String {
    let text = printable(text);
    let text = text.replace('&', "&amp;");
    text.replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests;
