//! The progress that a client sees of one call: that of its server and, while the server reports
//! none, the gateway's own.

use std::time::Duration;

use addons::json::{Members, ObjectText};
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep_until};

use super::super::event::{Event, Params};
use super::super::message::is_progress_token;

/// How long a client that gave a progress token gets no progress before the gateway sends its own.
/// Some clients give up after 60 s without progress.
pub const INTERVAL: Duration = Duration::from_secs(10);
/// The difference of the gateway's progress to the value before it: small, so that the server's
/// next value is probably greater.
const STEP: f64 = 1e-6;
/// From here on, the gateway's progress is the next number.
const LARGE: f64 = 1e9;
/// The longest params that the gateway repeats, in bytes. After longer ones, its own progress has
/// only a value.
const MAX_REPEATED: usize = 1024;

const METHOD: &str = "notifications/progress";
const VALUE: &str = "progress";
const TOTAL: &str = "total";

/// The progress of one call, as its client sees it. The protocol requires that each value is greater
/// than the one before.
pub struct CallProgress {
    /// The client's token, as JSON; `None` if the client wants no progress.
    token: Option<Box<str>>,
    /// The value that the client got last.
    last: Option<f64>,
    /// The params that the client got last.
    repeated: Option<Box<RawValue>>,
    /// When the gateway sends its own progress.
    due: Instant,
}

impl CallProgress {
    /// The progress of a call that begins now, for a client with this token.
    pub fn new(token: Option<&str>) -> Self {
        Self {
            token: token
                .filter(|token| is_progress_token(token))
                .map(Into::into),
            last: None,
            repeated: None,
            due: Instant::now() + INTERVAL,
        }
    }

    /// Continues for the client's retry of the request, which may have another token.
    pub fn resume(&mut self, token: Option<&str>) {
        self.token = token
            .filter(|token| is_progress_token(token))
            .map(Into::into);
        self.due = Instant::now() + INTERVAL;
    }

    /// Waits until the gateway must send its own progress. Cancel-safe.
    pub async fn due(&self) {
        match &self.token {
            Some(_) => sleep_until(self.due).await,
            None => std::future::pending().await,
        }
    }

    /// The gateway's own progress: the last params with a slightly greater value. `None` if there is
    /// no greater value.
    pub fn own(&mut self) -> Option<Event> {
        self.due = Instant::now() + INTERVAL;
        let value = self.last.map_or(Some(0.0), greater)?;
        let params = match &self.repeated {
            Some(repeated) => with_value(&Members::read(repeated).ok()?, value),
            None => {
                let token = self.token.as_deref()?;
                format!("{{\"progressToken\":{token},\"{VALUE}\":{value}}}")
            }
        };
        let params = RawValue::from_string(params).ok()?;
        self.last = Some(value);
        Some(Event::Notification {
            method: METHOD.into(),
            params: Some(params.into()),
        })
    }

    /// Takes notice of an event for the client. A value of progress that is not greater than the last
    /// one is replaced by a slightly greater one, since the message beside it may be new. `None` for
    /// an event that the client must not get, because there is no greater value.
    pub fn pass(&mut self, event: Event) -> Option<Event> {
        let (method, params) = match event {
            Event::Notification {
                method,
                params: Some(params),
            } if &*method == METHOD => (method, params),
            other => return Some(other),
        };
        self.due = Instant::now() + INTERVAL;
        let params = Some(self.raise(params)?);
        Some(Event::Notification { method, params })
    }

    /// The params with a value that is greater than the last one. Params without a number pass as
    /// they are.
    fn raise(&mut self, params: Params) -> Option<Params> {
        let Some(value) = value_of(&params) else {
            return Some(params);
        };
        let (value, params) = match self.last.filter(|last| value <= *last) {
            None => (value, params),
            Some(last) => {
                let value = greater(last)?;
                let text = with_value(&Members::read(&params).ok()?, value);
                (value, params.with_text(RawValue::from_string(text).ok()?))
            }
        };
        self.last = Some(value);
        let is_short = params.get().len() <= MAX_REPEATED;
        self.repeated = is_short.then(|| (*params).to_owned());
        Some(params)
    }
}

/// The progress token of a request, as JSON.
pub fn token_of(params: Option<&RawValue>) -> Option<Box<str>> {
    let params = Members::read(params?).ok()?;
    let meta = params.members("_meta").ok()??;
    meta.get("progressToken").map(Into::into)
}

fn value_of(params: &RawValue) -> Option<f64> {
    number(&Members::read(params).ok()?, VALUE)
}

/// A member that is a number. A string is none: its JSON text begins with a quotation mark.
fn number(members: &Members<'_>, key: &str) -> Option<f64> {
    members.get(key)?.parse().ok()
}

/// The value after `last`; `None` if there is none.
fn greater(last: f64) -> Option<f64> {
    // Rounded, so that its text is short. A step is nothing to a large value.
    let stepped = match last.abs() < LARGE {
        true => format!("{:.6}", last + STEP).parse::<f64>().ok(),
        false => None,
    };
    let next = stepped.filter(|next| last < *next);
    let next = next.unwrap_or(last.next_up());
    next.is_finite().then_some(next)
}

/// The params with another value, and without a total that is smaller.
fn with_value(params: &Members<'_>, value: f64) -> String {
    let is_over = number(params, TOTAL).is_some_and(|total| total < value);
    let mut object = ObjectText::default();
    for (key, old) in params.iter() {
        match key {
            VALUE => object.member(VALUE, &value.to_string()),
            TOTAL if is_over => {}
            _ => object.member(key, old),
        }
    }
    object.end()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use testkit::each_row;

    use super::*;

    fn of_server(params: Value) -> Event {
        let params = serde_json::value::to_raw_value(&params).unwrap();
        Event::Notification {
            method: METHOD.into(),
            params: Some(params.into()),
        }
    }

    #[track_caller]
    fn params_of(event: Option<Event>) -> Value {
        match event {
            Some(Event::Notification {
                params: Some(params),
                ..
            }) => serde_json::from_str(params.get()).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// A call whose server reported this value.
    fn after(value: &str) -> CallProgress {
        let mut progress = CallProgress::new(Some("7"));
        let params = format!("{{\"progressToken\":7,\"progress\":{value}}}");
        let params = RawValue::from_string(params).unwrap();
        let event = Event::Notification {
            method: METHOD.into(),
            params: Some(params.into()),
        };
        assert!(progress.pass(event).is_some());
        progress
    }

    #[test]
    fn the_gateways_progress_is_a_little_more_than_the_last_value() {
        each_row(
            [
                ("5", json!([5.000001, 5.000002, 5.000003])),
                ("0", json!([0.000001, 0.000002, 0.000003])),
                ("-1.5", json!([-1.499999, -1.499998, -1.499997])),
                ("0.1234567", json!([0.123458, 0.123459, 0.12346])),
            ],
            |(value, expected)| {
                let mut progress = after(value);
                let own = [(); 3].map(|()| params_of(progress.own())["progress"].clone());
                assert_eq!(json!(own), expected);
            },
        );
        let mut silent = CallProgress::new(Some("\"t\""));
        let first = json!({ "progressToken": "t", "progress": 0 });
        assert_eq!(params_of(silent.own()), first);
        assert_eq!(params_of(silent.own())["progress"], json!(0.000001));
    }

    #[test]
    fn values_rise_without_end_and_stay_numbers() {
        each_row(["1e21", "-1e300", "9007199254740992", "1.7e308"], |value| {
            let mut progress = after(value);
            let mut last = value.parse::<f64>().unwrap();
            for _ in 0..3 {
                let Some(Event::Notification {
                    params: Some(params),
                    ..
                }) = progress.own()
                else {
                    panic!("no progress after {last}");
                };
                // Read as the gateway reads it: serde_json may round a long number.
                let next = value_of(&params).unwrap();
                assert!(last < next, "{last} {next}");
                last = next;
            }
        });
        // There is no greater number.
        each_row(["1e400", "1.7976931348623157e308"], |value| {
            let mut progress = after(value);
            assert!(progress.own().is_none());
            let params = json!({ "progressToken": 7, "progress": 1 });
            assert!(progress.pass(of_server(params)).is_none());
        });
    }

    #[test]
    fn a_value_of_the_server_that_does_not_rise_is_raised_and_its_message_kept() {
        each_row(
            [
                (json!(6), json!(6)),
                (json!(5.5), json!(5.5)),
                (json!(5), json!(5.000002)),
                (json!(5.000001), json!(5.000002)),
                (json!(0), json!(5.000002)),
            ],
            |(sent, expected)| {
                let mut progress = after("5");
                assert!(progress.own().is_some());
                let params = json!({ "progressToken": 7, "progress": sent, "message": "next" });
                let params = params_of(progress.pass(of_server(params)));
                assert_eq!(params["progress"], expected);
                assert_eq!(params["message"], "next");
                let own = params_of(progress.own());
                assert_eq!(own["message"], "next");
                assert!(own["progress"].as_f64() > params["progress"].as_f64());
            },
        );
    }

    #[test]
    fn a_total_is_repeated_unless_the_value_is_greater() {
        each_row([(5, true), (6, false)], |(total, is_over)| {
            let mut progress = CallProgress::new(Some("7"));
            let params = json!({ "progressToken": 7, "progress": 5, "total": total });
            let passed = params_of(progress.pass(of_server(params.clone())));
            assert_eq!(passed, params);
            let own = params_of(progress.own());
            assert_eq!(own.get("total").is_none(), is_over, "{own}");
        });
    }

    #[test]
    fn other_events_and_values_that_are_no_numbers_pass_as_they_are() {
        each_row([json!("5"), json!(null), json!(true), json!([])], |value| {
            let mut progress = after("5");
            let params = json!({ "progressToken": 7, "progress": value });
            assert_eq!(params_of(progress.pass(of_server(params.clone()))), params);
            assert_eq!(params_of(progress.own())["progress"], json!(5.000001));
        });
        let mut progress = after("5");
        let log = Event::Notification {
            method: "notifications/message".into(),
            params: None,
        };
        assert!(progress.pass(log).is_some());
    }

    #[test]
    fn long_params_are_not_repeated() {
        let mut progress = CallProgress::new(Some("7"));
        let long = "x".repeat(MAX_REPEATED);
        let params = json!({ "progressToken": 7, "progress": 1, "message": long });
        assert_eq!(params_of(progress.pass(of_server(params)))["message"], long);
        let expected = json!({ "progressToken": 7, "progress": 1.000001 });
        assert_eq!(params_of(progress.own()), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn the_gateways_progress_is_due_after_ten_seconds_without_progress() {
        let began = Instant::now();
        let mut progress = CallProgress::new(Some("7"));
        tokio::time::advance(Duration::from_secs(7)).await;
        let params = json!({ "progressToken": 7, "progress": 1 });
        assert!(progress.pass(of_server(params)).is_some());
        progress.due().await;
        assert_eq!(began.elapsed(), Duration::from_secs(17));
        assert!(progress.own().is_some());
        progress.due().await;
        assert_eq!(began.elapsed(), Duration::from_secs(27));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_without_a_valid_token_gets_none() {
        for token in [None, Some("null"), Some("{}"), Some("true")] {
            let progress = CallProgress::new(token);
            let due = tokio::time::timeout(INTERVAL * 10, progress.due());
            assert!(due.await.is_err(), "{token:?}");
        }
    }
}
