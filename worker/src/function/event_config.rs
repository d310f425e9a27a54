//! How often and how long an `Event` invocation is tried, and which function receives its result.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::base::error::ApiError;
use crate::base::limits;
use crate::base::name::{self, Target};
use crate::base::time;
use crate::invocation::request::{Invocation, Outcome};

/// `EventInvokeConfig`, as the API and templates have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct EventConfig {
    /// Attempts after the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maximum_retry_attempts: Option<u32>,
    /// Seconds since it was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maximum_event_age_in_seconds: Option<u32>,
    /// Where the result goes.
    #[serde(default)]
    pub destination_config: Destinations,
}

/// The destinations by the kind of result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Destinations {
    /// The function has answered.
    #[serde(default)]
    pub on_success: Destination,
    /// It was given up.
    #[serde(default)]
    pub on_failure: Destination,
}

/// The function that receives the result, if any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Destination {
    /// Its ARN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// Its type in templates: `Lambda`.
    #[serde(rename = "Type", skip_serializing)]
    kind: Option<String>,
}

/// Why an event is tried no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Success,
    RetriesExhausted,
    EventAgeExceeded,
}

impl EventConfig {
    /// Checks that the worker supports it.
    ///
    /// # Errors
    /// Numbers out of bounds; destinations that are no functions.
    pub fn check(&self) -> Result<(), ApiError> {
        let bounded = |name: &str, given: Option<u32>, bounds: std::ops::RangeInclusive<u32>| match given {
            Some(number) if !bounds.contains(&number) => Err(ApiError::invalid_parameter(format!(
                "{name} must be {} to {}",
                bounds.start(),
                bounds.end()
            ))),
            _ => Ok(()),
        };
        bounded("MaximumRetryAttempts", self.maximum_retry_attempts, 0..=2)?;
        bounded("MaximumEventAgeInSeconds", self.maximum_event_age_in_seconds, 60..=21600)?;
        let Destinations { on_success, on_failure } = &self.destination_config;
        for Destination { destination, kind } in [on_success, on_failure] {
            let is_function = destination
                .as_deref()
                .is_none_or(|arn| arn.starts_with("arn:aws:lambda:") && name::parse(arn).is_ok());
            if !is_function || kind.as_deref().is_some_and(|kind| kind != "Lambda") {
                return Err(ApiError::invalid_parameter(
                    "Destination: only functions are supported, by their ARN (no queues, topics or buses)",
                ));
            }
        }
        Ok(())
    }

    /// This configuration with the values that `other` gives.
    pub fn updated(self, other: EventConfig) -> EventConfig {
        let of = |now: Destination, then: Destination| if then.destination.is_some() { then } else { now };
        let (now, then) = (self.destination_config, other.destination_config);
        EventConfig {
            maximum_retry_attempts: other.maximum_retry_attempts.or(self.maximum_retry_attempts),
            maximum_event_age_in_seconds: other
                .maximum_event_age_in_seconds
                .or(self.maximum_event_age_in_seconds),
            destination_config: Destinations {
                on_success: of(now.on_success, then.on_success),
                on_failure: of(now.on_failure, then.on_failure),
            },
        }
    }

    /// How long it is tried.
    pub fn most_age(&self) -> Duration {
        Duration::from_secs(self.maximum_event_age_in_seconds.unwrap_or(21600).into())
    }

    /// The function that receives such a result.
    pub fn destination(&self, condition: Condition) -> Option<Target> {
        let Destinations { on_success, on_failure } = &self.destination_config;
        let target = if condition == Condition::Success { on_success } else { on_failure };
        name::parse(target.destination.as_deref()?).ok()
    }
}

/// A minute after the first failure, two after the second.
pub fn after_failure(failures: u32, retries: u32) -> Option<Duration> {
    (failures <= retries).then(|| Duration::from_secs(60 * u64::from(failures)))
}

/// One second at first, then twice as long each time, up to five minutes.
pub fn after_throttle(times: u32) -> Duration {
    Duration::from_secs((1 << (times - 1).min(9)).min(300))
}

/// What a destination receives, as JSON. A record that would be longer than an event may be has neither the
/// payload nor the answer: functions that are each other's destinations would double it each time.
pub fn receipt(
    invocation: &Invocation,
    condition: Condition,
    attempts: u32,
    response: Option<(&Outcome, &str)>,
) -> String {
    let mut record = record(invocation, condition, attempts, response);
    let whole = record.to_string();
    if whole.len() <= limits::EVENT_PAYLOAD_BYTES {
        return whole;
    }
    for payload in ["requestPayload", "responsePayload"] {
        record[payload] = Value::Null;
    }
    record.to_string()
}

/// The record (Lambda's guide, "Capturing records of Lambda asynchronous invocations").
fn record(
    invocation: &Invocation,
    condition: Condition,
    attempts: u32,
    response: Option<(&Outcome, &str)>,
) -> Value {
    let parsed = |payload: &[u8]| serde_json::from_slice(payload).unwrap_or(Value::Null);
    let mut record = json!({
        "version": "1.0",
        "timestamp": time::lambda_time(std::time::SystemTime::now()),
        "requestContext": {
            "requestId": invocation.id,
            "functionArn": qualified(&invocation.arn),
            "condition": format!("{condition:?}"),
            "approximateInvokeCount": attempts,
        },
        "requestPayload": parsed(&invocation.payload),
    });
    if let Some((response, version)) = response {
        record["responseContext"] = json!({ "statusCode": 200, "executedVersion": version });
        if response.failed {
            record["responseContext"]["functionError"] = "Unhandled".into();
        }
        record["responsePayload"] = parsed(&response.payload);
    }
    record
}

/// The ARN that such records have: that of a version or an alias, else of `$LATEST`.
fn qualified(arn: &str) -> String {
    match name::parse(arn) {
        Ok(Target { qualifier: None, .. }) => format!("{arn}:{}", name::LATEST),
        _ => arn.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_lambdas() {
        let seconds: Vec<_> =
            (1..=3).map(|failures| after_failure(failures, 2).map(|p| p.as_secs())).collect();
        assert_eq!(seconds, [Some(60), Some(120), None]);
        assert_eq!(after_failure(1, 0), None);
        let seconds: Vec<_> = [1, 2, 3, 9, 10, 40].map(|times| after_throttle(times).as_secs()).to_vec();
        assert_eq!(seconds, [1, 2, 4, 256, 300, 300]);
    }

    fn parsed(text: &str) -> Result<(), String> {
        let config: EventConfig = serde_json::from_str(text).map_err(|error| error.to_string())?;
        config.check().map_err(|error| error.message)
    }

    #[test]
    fn record_is_no_longer_than_an_event_may_be() {
        let record_of = |bytes: usize| {
            let payload = serde_json::to_vec(&"x".repeat(bytes)).unwrap();
            let invocation = Invocation::new(name::arn("f"), payload.into(), None, None);
            let text = receipt(&invocation, Condition::Success, 1, None);
            (text.len(), serde_json::from_str::<Value>(&text).unwrap()["requestPayload"].is_string())
        };
        let (length, whole) = record_of(1000);
        assert!(whole && length > 1000);
        let (length, whole) = record_of(limits::EVENT_PAYLOAD_BYTES);
        assert!(!whole && length < 1000);
    }

    #[test]
    fn record_names_the_version() {
        let outcome = Outcome { payload: "1".into(), failed: false, log_tail: Vec::new(), end: None };
        let of = |function: &str| {
            let invocation = Invocation::new(name::arn(function), "{}".into(), None, None);
            record(&invocation, Condition::Success, 1, Some((&outcome, "7")))
        };
        let latest = of("f");
        assert_eq!(latest["requestContext"]["functionArn"], name::arn("f:$LATEST"));
        assert_eq!(of("f:live")["requestContext"]["functionArn"], name::arn("f:live"));
        assert_eq!(latest["responseContext"]["executedVersion"], "7");
    }

    #[test]
    fn only_functions_are_destinations() {
        let with = |what: &str| parsed(&format!(r#"{{"DestinationConfig": {{"OnFailure": {what}}}}}"#));
        assert_eq!(
            with(r#"{"Type": "Lambda", "Destination": "arn:aws:lambda:eu-west-1:000000000000:function:f"}"#),
            Ok(())
        );
        assert_eq!(with("{}"), Ok(()));
        for wrong in [
            r#"{"Destination": "arn:aws:sqs:us-east-1:0:q"}"#,
            r#"{"Destination": "f"}"#,
            r#"{"Type": "SQS", "Destination": "arn:aws:lambda:us-east-1:000000000000:function:f"}"#,
        ] {
            assert!(with(wrong).unwrap_err().contains("only functions"), "{wrong}");
        }
        assert!(parsed(r#"{"MaximumRetryAttempts": 3}"#).unwrap_err().contains("0 to 2"));
        assert!(parsed(r#"{"Qualifier": "x"}"#).is_err());
    }
}
