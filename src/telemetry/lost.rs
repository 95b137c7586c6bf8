//! Counts the lines that the audit log lost, and formats their record in the log.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use addons::observe::rfc_3339;

/// The `kind` of a record of lost lines.
pub const KIND: &str = "lost";

/// The number of lost lines, and the times at which the first and the last of them were dropped, in
/// milliseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    pub count: u64,
    pub since: u64,
    pub until: u64,
}

impl Lost {
    /// The loss of `count` lines that are dropped now.
    pub fn now(count: u64) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = u64::try_from(now.unwrap_or_default().as_millis()).unwrap_or_default();
        Self {
            count,
            since: now,
            until: now,
        }
    }

    /// The sum of both counts, over the shortest period that contains both.
    pub fn and(self, other: Self) -> Self {
        Self {
            count: self.count.saturating_add(other.count),
            since: self.since.min(other.since),
            until: self.until.max(other.until),
        }
    }

    /// The record for the log: a JSON object with the present time as its `ts`.
    pub fn record(self) -> Vec<u8> {
        let ts = shown(Self::now(0).since);
        format!("{{\"ts\":\"{ts}\",{}}}", self.members()).into_bytes()
    }

    /// The members of the record that identify the loss: its kind, count and period.
    pub fn members(self) -> String {
        let (count, [since, until]) = (self.count, self.period());
        format!("\"kind\":\"{KIND}\",\"count\":{count},\"since\":\"{since}\",\"until\":\"{until}\"")
    }

    /// The first and the last time, in the log's format.
    pub fn period(self) -> [String; 2] {
        [self.since, self.until].map(shown)
    }
}

fn shown(millis: u64) -> String {
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(millis));
    String::from_utf8_lossy(&rfc_3339(at.unwrap_or(UNIX_EPOCH))).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_record_has_the_sum_of_its_lines_and_their_whole_period() {
        let lost = |count, since, until| Lost {
            count,
            since,
            until,
        };
        let both = lost(11, 2000, 3000).and(lost(7, 1_000, 2_500));
        let mut record: Value = serde_json::from_slice(&both.record()).unwrap();
        assert!(record["ts"].take().is_string());
        let expected = json!({
            "ts": null, "kind": "lost", "count": 18,
            "since": "1970-01-01T00:00:01.000Z", "until": "1970-01-01T00:00:03.000Z",
        });
        assert_eq!(record, expected);
    }

    #[test]
    fn a_time_out_of_range_still_yields_a_record() {
        let lost = Lost {
            count: u64::MAX,
            since: 0,
            until: u64::MAX,
        };
        assert!(serde_json::from_slice::<Value>(&lost.and(lost).record()).is_ok());
    }
}
