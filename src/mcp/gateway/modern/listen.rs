//! `subscriptions/listen`: a stream of the notifications that the client subscribed to.

use std::sync::Arc;

use addons::contract::Denial;
use bytes::Bytes;
use futures_util::stream::unfold;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::super::super::caller::Caller;
use super::super::super::core::{
    Core, Filter, Interest, MAX_SUBSCRIPTIONS, MAX_URI, MAX_URI_BYTES,
};
use super::super::super::error::{INVALID_PARAMS, protocol_error};
use super::super::super::event::Event;
use super::super::super::message::Id;
use super::super::answer::HttpResponse;
use super::super::legacy::count_stream;
use super::super::media::{EVENT_STREAM, check_accept};
use super::super::memory::Memory;
use super::super::refusal::over_limit;
use super::super::sse;
use super::super::visit::Visit;
use super::params::{ModernParams, object};
use super::request::{Request, json_response};

const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RequestedFilter {
    tools_list_changed: bool,
    prompts_list_changed: bool,
    resources_list_changed: bool,
    resource_subscriptions: Vec<String>,
}

/// Opens the stream. Its first message acknowledges the filter in effect.
pub async fn open(
    visit: &Visit<'_>,
    request: Request,
    caller: Arc<Caller>,
) -> Result<HttpResponse, Denial> {
    check_accept(visit.headers(), EVENT_STREAM)?;
    let read = ModernParams::read(request.params.as_deref());
    let Some(requested) = object::<RequestedFilter>(read.notifications).filter(is_bounded) else {
        let message = format!(
            "Invalid params: notifications must be a filter, with at most {MAX_SUBSCRIPTIONS} URIs of \
             at most {MAX_URI} bytes"
        );
        return Err(request.refuse(protocol_error(INVALID_PARAMS, message)));
    };
    let counted = count_stream(visit)?;
    let uris = Core::take_uri_room(&visit.container, &requested.resource_subscriptions);
    let uris = uris.ok_or_else(|| over_limit("bytes of subscribed URIs", MAX_URI_BYTES))?;
    let mut live = match visit.judge(&request.method, request.params.clone()).await {
        Ok(live) => live,
        Err(error) => return Ok(json_response(visit, &request.id, &Err(error))),
    };
    // The client normally ends the stream by closing it. Without this mark, such an end would be
    // recorded as aborted.
    live.complete();
    let core = &visit.gateway.core;
    let described = core.describe(&caller).await;
    let filter = granted(requested, &described.capabilities);
    let (sender, events) = visit.events();
    let attachment = core.attach(&caller, Interest::Filter(filter.clone()), sender);
    let listening = Listening {
        id: request.id,
        filter,
        events,
        stopping: visit.session().service.stopping.clone(),
        memory: visit.memory.clone(),
        acknowledged: false,
        _guards: (attachment, live, counted, uris),
    };
    let pieces = unfold(Some(listening), |listening| async {
        let mut listening = listening?;
        let (piece, is_last) = listening.piece().await;
        Some((piece, (!is_last).then_some(listening)))
    });
    Ok(HttpResponse::Events(Box::pin(pieces)))
}

fn is_bounded(requested: &RequestedFilter) -> bool {
    let uris = &requested.resource_subscriptions;
    uris.len() <= MAX_SUBSCRIPTIONS && uris.iter().all(|uri| uri.len() <= MAX_URI)
}

/// The part of the requested filter that the servers support.
fn granted(requested: RequestedFilter, capabilities: &RawValue) -> Filter {
    let can: Value = serde_json::from_str(capabilities.get()).unwrap_or_default();
    let can = |list: &str, what: &str| {
        let declared = can.get(list).and_then(|list| list.get(what));
        declared.and_then(Value::as_bool) == Some(true)
    };
    let uris = requested.resource_subscriptions.into_iter().map(Arc::from);
    Filter {
        tools: requested.tools_list_changed && can("tools", "listChanged"),
        prompts: requested.prompts_list_changed && can("prompts", "listChanged"),
        resources: requested.resources_list_changed && can("resources", "listChanged"),
        uris: uris.filter(|_| can("resources", "subscribe")).collect(),
    }
}

struct Listening<Guards> {
    id: Id,
    filter: Filter,
    events: mpsc::Receiver<Event>,
    stopping: CancellationToken,
    memory: Memory,
    acknowledged: bool,
    /// Dropped when the stream ends. The guard of the flow then writes the flow's record.
    _guards: Guards,
}

impl<Guards> Listening<Guards> {
    /// The next piece, and whether it is the last.
    async fn piece(&mut self) -> (Bytes, bool) {
        if !self.acknowledged {
            self.acknowledged = true;
            return (
                self.tagged(ACKNOWLEDGED, acknowledgment(&self.filter)),
                false,
            );
        }
        loop {
            let event = tokio::select! {
                biased;
                () = self.stopping.cancelled() => None,
                event = timeout(sse::KEEP_ALIVE_INTERVAL, self.events.recv()) => match event {
                    Err(_elapsed) => return (sse::KEEP_ALIVE, false),
                    Ok(event) => event,
                },
            };
            match event {
                Some(Event::Notification { method, params }) if self.wants(&method) => {
                    let fields = object(params.as_deref()).unwrap_or_default();
                    let piece = self.tagged(&method, fields);
                    // Drops the notification if memory is exhausted.
                    if let Ok(charge) = self.memory.reserve(piece.len()) {
                        return (charge.hold(piece), false);
                    }
                }
                // Other notifications and all requests are dropped. The server of a dropped request
                // gets an error.
                Some(_) => {}
                None => return (self.end(), true),
            }
        }
    }

    fn wants(&self, method: &str) -> bool {
        match method {
            "notifications/tools/list_changed" => self.filter.tools,
            "notifications/prompts/list_changed" => self.filter.prompts,
            "notifications/resources/list_changed" => self.filter.resources,
            "notifications/resources/updated" => !self.filter.uris.is_empty(),
            _ => false,
        }
    }

    /// The event of a notification, with the id of the subscription.
    fn tagged(&self, method: &str, mut params: Map<String, Value>) -> Bytes {
        let id: Value = serde_json::from_str(self.id.as_json()).unwrap_or_default();
        match params.entry("_meta").or_insert_with(|| json!({})) {
            Value::Object(meta) => {
                meta.insert(SUBSCRIPTION_ID.to_owned(), id);
            }
            meta => *meta = json!({ SUBSCRIPTION_ID: id }),
        }
        let message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        sse::message(None, &message.to_string())
    }

    /// The response, which distinguishes an orderly end from a broken connection.
    fn end(&self) -> Bytes {
        let id = self.id.as_json();
        let text = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"resultType\":\"complete\",\"_meta\":{{\"{SUBSCRIPTION_ID}\":{id}}}}}}}"
        );
        sse::message(None, &text)
    }
}

fn acknowledgment(filter: &Filter) -> Map<String, Value> {
    let mut notifications = Map::new();
    for (name, granted) in [
        ("toolsListChanged", filter.tools),
        ("promptsListChanged", filter.prompts),
        ("resourcesListChanged", filter.resources),
    ] {
        if granted {
            notifications.insert(name.to_owned(), true.into());
        }
    }
    if !filter.uris.is_empty() {
        let uris: Vec<&str> = filter.uris.iter().map(|uri| &**uri).collect();
        notifications.insert("resourceSubscriptions".to_owned(), uris.into());
    }
    Map::from_iter([("notifications".to_owned(), notifications.into())])
}

#[cfg(test)]
mod tests {
    use super::super::super::super::event::Events;
    use super::*;

    #[tokio::test]
    async fn a_long_notification_is_charged_until_sent_and_dropped_if_memory_is_exhausted() {
        const LONG: usize = 100_000;
        let memory = Memory::of_bytes(3 * LONG / 2);
        let (sender, events) = Events::uncharged(8);
        for _ in ["sent", "dropped"] {
            let params = json!({ "uri": "a", "x": "x".repeat(LONG) });
            let params = serde_json::value::to_raw_value(&params).unwrap();
            let event = Event::Notification {
                method: "notifications/resources/updated".into(),
                params: Some(params.into()),
            };
            sender.try_send(event).unwrap();
        }
        drop(sender);
        let filter = Filter {
            uris: vec!["a".into()],
            ..Filter::default()
        };
        let mut listening = Listening {
            id: Id::number(1),
            filter,
            events,
            stopping: CancellationToken::new(),
            memory: memory.clone(),
            acknowledged: true,
            _guards: (),
        };
        let (piece, is_last) = listening.piece().await;
        assert!(piece.len() > LONG && !is_last);
        assert!(memory.reserve(LONG).is_err());
        let (end, is_last) = listening.piece().await;
        assert!(end.len() < LONG && is_last);
        drop(piece);
        assert!(memory.reserve(LONG).is_ok());
    }
}
