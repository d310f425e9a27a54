//! A queue that a function is called from, as templates and the API give it: an event source mapping.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::base::name::{ACCOUNT, REGION, arn};
use crate::base::time::epoch_ms;
use crate::function::filters::{Filters, Patterns};

/// Batches at once by default: as many as Lambda begins with.
pub const CONCURRENCY: usize = 5;
/// How a function reports which messages of a batch have failed.
const PARTIAL: &str = "ReportBatchItemFailures";

/// A queue that speaks SQS' API, and how a function is called with its messages.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueSource {
    /// The queue's name.
    pub queue: String,
    /// Its ARN, which the function receives.
    pub arn: String,
    /// Messages of one call, at most.
    pub batch_size: usize,
    /// How long the worker waits for that many.
    pub window_s: u64,
    /// Calls at once.
    pub concurrency: usize,
    /// Whether the function reports which messages of a batch have failed.
    pub partial: bool,
    /// Which messages the function is called with.
    pub patterns: Patterns,
}

/// A source as it is given; what is absent has Lambda's default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Given {
    /// The queue's ARN.
    pub event_source_arn: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maximum_batching_window_in_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function_response_types: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling_config: Option<Scaling>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter_criteria: Option<Filters>,
}

/// `ScalingConfig`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Scaling {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    maximum_concurrency: Option<usize>,
}

impl Given {
    /// Whether it is polled.
    pub fn is_enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }

    /// These settings with those that `other` gives.
    pub fn updated(self, other: Given) -> Given {
        Given {
            event_source_arn: self.event_source_arn,
            enabled: other.enabled.or(self.enabled),
            batch_size: other.batch_size.or(self.batch_size),
            maximum_batching_window_in_seconds: other
                .maximum_batching_window_in_seconds
                .or(self.maximum_batching_window_in_seconds),
            function_response_types: other.function_response_types.or(self.function_response_types),
            scaling_config: other.scaling_config.or(self.scaling_config),
            filter_criteria: other.filter_criteria.or(self.filter_criteria),
        }
    }

    /// The source, checked.
    ///
    /// # Errors
    /// A value that Lambda refuses, and which.
    pub fn source(&self) -> Result<QueueSource, String> {
        let (queue, arn) = queue(&self.event_source_arn)?;
        let (size, window_s) =
            (self.batch_size.unwrap_or(10), self.maximum_batching_window_in_seconds.unwrap_or(0));
        let check = |fits: bool, text: String| if fits { Ok(()) } else { Err(text) };
        check((1..=10_000).contains(&size), format!("BatchSize is {size} and must be 1 to 10000"))?;
        check(window_s <= 300, format!("MaximumBatchingWindowInSeconds is {window_s} and must be 0 to 300"))?;
        if queue.ends_with(".fifo") {
            check(size <= 10, format!("BatchSize is {size} and must be 1 to 10 for FIFO queues"))?;
            check(
                window_s == 0,
                "Batching window is not supported for FIFO queues (MaximumBatchingWindowInSeconds)".into(),
            )?;
        }
        check(
            size <= 10 || window_s > 0,
            "BatchSize above 10 needs a MaximumBatchingWindowInSeconds".into(),
        )?;
        let concurrency = self.scaling_config.as_ref().and_then(|scaling| scaling.maximum_concurrency);
        let concurrency = concurrency.unwrap_or(CONCURRENCY);
        check(
            (2..=1000).contains(&concurrency),
            format!("ScalingConfig.MaximumConcurrency is {concurrency} and must be 2 to 1000"),
        )?;
        let types = self.function_response_types.as_deref().unwrap_or_default();
        check(types.iter().all(|kind| kind == PARTIAL), format!("FunctionResponseTypes may be {PARTIAL}"))?;
        let patterns =
            self.filter_criteria.as_ref().map_or_else(|| Ok(Patterns::default()), Filters::patterns)?;
        let partial = !types.is_empty();
        Ok(QueueSource { queue, arn, batch_size: size, window_s, concurrency, partial, patterns })
    }
}

/// The name and the ARN of a queue, by its ARN or as an attribute of a resource that the template lacks.
fn queue(text: &str) -> Result<(String, String), String> {
    let name = match (text.strip_suffix(".Arn"), text.strip_prefix("arn:aws:sqs:")) {
        (Some(id), _) => id,
        (None, Some(rest)) => rest.split(':').nth(2).unwrap_or_default(),
        (None, None) => "",
    };
    let plain = name.strip_suffix(".fifo").unwrap_or(name);
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if plain.is_empty() || name.len() > 80 || !plain.bytes().all(is_letter) {
        return Err(format!("Queue: '{}' is no ARN of a queue", text.escape_debug()));
    }
    let arn = match text.starts_with("arn:") {
        true => text.to_string(),
        false => format!("arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"),
    };
    Ok((name.into(), arn))
}

/// A source of a function, by its id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mapping {
    /// The function, version or alias: `NAME` or `NAME:QUALIFIER`.
    pub target: String,
    /// Its settings.
    pub given: Given,
    /// When they were set.
    pub modified: SystemTime,
    /// Shown by the API only.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
    /// Whether the template declares it.
    #[serde(skip)]
    pub of_template: bool,
}

/// All sources, by id.
pub type Mappings = BTreeMap<String, Mapping>;

/// The ARN of a source.
pub fn mapping_arn(id: &str) -> String {
    format!("arn:aws:lambda:{REGION}:{ACCOUNT}:event-source-mapping:{id}")
}

/// The id of a source, by its ARN.
pub fn id_of(arn: &str) -> Option<&str> {
    let (start, id) = arn.split_once(":event-source-mapping:")?;
    start.starts_with("arn:aws:lambda:").then_some(id)
}

impl Mapping {
    /// Its description in the API.
    pub fn description(&self, id: &str, state: &str) -> Value {
        let given = &self.given;
        let mut described = json!({
            "UUID": id,
            "EventSourceMappingArn": mapping_arn(id),
            "EventSourceArn": given.event_source_arn,
            "FunctionArn": arn(&self.target),
            "BatchSize": given.batch_size.unwrap_or(10),
            "MaximumBatchingWindowInSeconds": given.maximum_batching_window_in_seconds.unwrap_or(0),
            "FunctionResponseTypes": given.function_response_types.clone().unwrap_or_default(),
            "LastModified": epoch_ms(self.modified) as f64 / 1000.0,
            "State": state,
            "StateTransitionReason": "USER_INITIATED",
        });
        if let Some(filters) = given.filter_criteria.as_ref().filter(|filters| !filters.is_empty()) {
            described["FilterCriteria"] = json!(filters);
        }
        if let Some(scaling) = given.scaling_config.as_ref().filter(|one| **one != Scaling::default()) {
            described["ScalingConfig"] = json!(scaling);
        }
        described
    }

    /// `Enabled` or `Disabled`.
    pub fn state(&self) -> &'static str {
        if self.given.is_enabled() { "Enabled" } else { "Disabled" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_that_keep_an_order_have_short_batches_and_no_window() {
        let of = |arn: &str, more: Value| {
            let mut given = json!({ "EventSourceArn": arn });
            given.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value::<Given>(given).unwrap().source()
        };
        let fifo = "arn:aws:sqs:us-east-1:000000000000:orders.fifo";
        assert_eq!(of(fifo, json!({})).unwrap().queue, "orders.fifo");
        assert_eq!(of("Orders.fifo.Arn", json!({})).unwrap().queue, "Orders.fifo");
        for (more, part) in [
            (json!({ "BatchSize": 11 }), "BatchSize"),
            (json!({ "MaximumBatchingWindowInSeconds": 1 }), "Batching window"),
        ] {
            assert!(of(fifo, more).unwrap_err().starts_with(part), "{part}");
        }
        for wrong in [".fifo", "arn:aws:sqs:r:1:a.b", "arn:aws:sns:r:1:a", "http://q"] {
            assert!(of(wrong, json!({})).is_err(), "{wrong}");
        }
    }

    #[test]
    fn updates_keep_absent_settings() {
        let given = Given {
            event_source_arn: "a".into(),
            batch_size: Some(3),
            enabled: Some(false),
            ..Given::default()
        };
        let updated = given.clone().updated(Given { batch_size: Some(4), ..Given::default() });
        assert_eq!(
            (updated.batch_size, updated.enabled, updated.event_source_arn.as_str()),
            (Some(4), Some(false), "a")
        );
        let mapping = Mapping {
            target: "f:live".into(),
            given,
            modified: SystemTime::UNIX_EPOCH,
            tags: BTreeMap::new(),
            of_template: false,
        };
        let described = mapping.description("u", mapping.state());
        assert_eq!((&described["State"], &described["BatchSize"]), (&json!("Disabled"), &json!(3)));
        assert_eq!(id_of(described["EventSourceMappingArn"].as_str().unwrap()), Some("u"));
        assert_eq!(id_of("arn:aws:lambda:r:1:function:f"), None);
    }
}
