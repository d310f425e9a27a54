//! Reads a function's `Events`: queues that it is called from. The worker supports no other kinds of
//! events.

use anyhow::{Result, ensure};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

use super::coercion;
use super::http_apis::is_route;
use super::schedules::{is_schedule, not_served};
use super::scope::Scope;

/// A queue that speaks SQS' API, and how a function is called with its messages.
#[derive(Clone, Debug, PartialEq, Eq)]
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
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Properties {
    queue: String,
    #[serde(default = "ten")]
    batch_size: usize,
    #[serde(default)]
    maximum_batching_window_in_seconds: u64,
    #[serde(default = "yes")]
    enabled: bool,
    #[serde(default)]
    function_response_types: Vec<String>,
    scaling_config: Option<Scaling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Scaling {
    maximum_concurrency: usize,
}

fn ten() -> usize {
    10
}

fn yes() -> bool {
    true
}

/// Batches at once by default: as many as Lambda begins with.
const CONCURRENCY: usize = 5;

/// The queues of a function, and lines about those that cannot be had. Logs each event of another kind.
pub fn sources(events: &Map<String, Json>, scope: &Scope, place: &str) -> (Vec<QueueSource>, Vec<String>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for (name, event) in events {
        let place = format!("{place}.Events.{name}");
        let kind = event.get("Type").and_then(Json::as_str);
        if kind != Some("SQS") {
            if !kind.is_some_and(|kind| is_route(kind) || is_schedule(kind)) {
                scope.note(format!("{place}: {}", not_served(kind.unwrap_or("none"))));
            }
            continue;
        }
        match queue_of(event.get("Properties").unwrap_or(&Json::Null), scope, &place) {
            Ok(source) => found.extend(source),
            Err(error) => missing.push(format!("{place}: {error:#}")),
        }
    }
    (found, missing)
}

/// The events that are routes of an HTTP API or schedules, with their properties evaluated.
pub fn routes(events: &Map<String, Json>, scope: &Scope, function: &str) -> Map<String, Json> {
    let mut routes = Map::new();
    for (name, event) in events {
        let kind = event.get("Type").and_then(Json::as_str);
        if kind.is_some_and(|kind| is_route(kind) || is_schedule(kind)) {
            let place = format!("Resources.{function}.Properties.Events.{name}");
            match scope.resolve(event, &place) {
                Ok(event) => drop(routes.insert(name.clone(), event.unwrap_or_default())),
                Err(error) => scope.note(format!("{place} is not served: {error:#}")),
            }
        }
    }
    routes
}

fn queue_of(properties: &Json, scope: &Scope, place: &str) -> Result<Option<QueueSource>> {
    let mut properties = scope.resolve(properties, place)?.unwrap_or_default();
    properties.as_object_mut().into_iter().for_each(coercion::properties);
    source(serde_json::from_value(properties)?)
}

fn source(properties: Properties) -> Result<Option<QueueSource>> {
    let (size, window_s) = (properties.batch_size, properties.maximum_batching_window_in_seconds);
    ensure!((1..=10_000).contains(&size), "BatchSize is {size} and must be 1 to 10000");
    ensure!(window_s <= 300, "MaximumBatchingWindowInSeconds is {window_s} and must be 0 to 300");
    ensure!(size <= 10 || window_s > 0, "BatchSize above 10 needs a MaximumBatchingWindowInSeconds");
    let concurrency = properties.scaling_config.map_or(CONCURRENCY, |scaling| scaling.maximum_concurrency);
    ensure!(
        (2..=1000).contains(&concurrency),
        "ScalingConfig.MaximumConcurrency is {concurrency} and must be 2 to 1000"
    );
    let other = properties.function_response_types.iter().find(|kind| *kind != "ReportBatchItemFailures");
    ensure!(other.is_none(), "FunctionResponseTypes may be ReportBatchItemFailures");
    let partial = !properties.function_response_types.is_empty();
    let queue = queue(&properties.queue);
    let plain = |name: &str| {
        (1..=80).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    ensure!(!queue.ends_with(".fifo"), "Queue: {queue}: queues that keep an order are not supported");
    ensure!(plain(&queue), "Queue: '{}' is no ARN of a queue", properties.queue.escape_debug());
    let arn = match properties.queue.starts_with("arn:") {
        true => properties.queue,
        false => format!("arn:aws:sqs:{}:{}:{queue}", crate::base::name::REGION, crate::base::name::ACCOUNT),
    };
    let source = QueueSource { queue, arn, batch_size: size, window_s, concurrency, partial };
    Ok(properties.enabled.then_some(source))
}

/// The name of a queue, by its ARN or as an attribute of a resource that the template lacks.
fn queue(text: &str) -> String {
    match (text.strip_suffix(".Arn"), text.strip_prefix("arn:aws:sqs:")) {
        (Some(id), _) => id.into(),
        (None, Some(rest)) => rest.split(':').nth(2).unwrap_or_default().into(),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn read(properties: &Json) -> Result<QueueSource, String> {
        let template = json!({ "Resources": {
            "Named": { "Type": "AWS::SQS::Queue", "Properties": { "QueueName": "real" } },
            "Plain": { "Type": "AWS::SQS::Queue" },
        } });
        let scope = Scope::new(template, Path::new("/"), "mayfly", &BTreeMap::new()).unwrap();
        let event = json!({ "Come": { "Type": "SQS", "Properties": properties } });
        let (mut found, mut missing) = sources(event.as_object().unwrap(), &scope, "P");
        missing.pop().map_or_else(|| Ok(found.remove(0)), Err)
    }

    fn arn(id: &str) -> Json {
        json!({ "Fn::GetAtt": [id, "Arn"] })
    }

    #[test]
    fn queues_are_known_by_arn_and_by_logical_id() {
        let one = |queue: Json| read(&json!({ "Queue": queue })).unwrap();
        let source = one(json!("arn:aws:sqs:eu-west-1:123456789012:orders"));
        assert_eq!((source.queue.as_str(), source.arn.ends_with(":123456789012:orders")), ("orders", true));
        assert_eq!((source.batch_size, source.concurrency, source.partial), (10, CONCURRENCY, false));
        assert_eq!([one(arn("Named")).queue, one(arn("Plain")).queue], ["real", "Plain"]);
        assert_eq!(one(arn("Elsewhere")).queue, "Elsewhere");
        assert!(one(arn("Plain")).arn.ends_with(":Plain"));
        let partial = json!({ "Queue": arn("Plain"), "FunctionResponseTypes": "ReportBatchItemFailures", "BatchSize": "7" });
        assert_eq!((read(&partial).unwrap().partial, read(&partial).unwrap().batch_size), (true, 7));
    }

    #[test]
    fn other_events_and_disabled_queues_are_passed_over() {
        let scope = Scope::new(json!({}), Path::new("/"), "mayfly", &BTreeMap::new()).unwrap();
        let events = json!({
            "Off": { "Type": "SQS", "Properties": { "Queue": "arn:aws:sqs:r:1:q", "Enabled": "false" } },
            "Web": { "Type": "Api", "Properties": { "Id": { "Fn::Cidr": ["a"] } } },
            "Bucket": { "Type": "S3", "Properties": { "Bucket": { "Fn::Cidr": ["a"] } } },
            "None": {},
        });
        let (found, missing) = sources(events.as_object().unwrap(), &scope, "P");
        assert!(found.is_empty() && missing.is_empty(), "{missing:?}");
        let mut notes = scope.take_notes();
        notes.sort();
        let lines = [("Bucket", "S3"), ("None", "none")];
        assert_eq!(notes, lines.map(|(name, kind)| format!("P.Events.{name}: {}", not_served(kind))));
    }

    #[test]
    fn refuses_unsupported_settings() {
        for (key, value) in [
            ("BatchSize", json!(0)),
            ("BatchSize", json!(11)),
            ("MaximumBatchingWindowInSeconds", json!(301)),
            ("ScalingConfig", json!({ "MaximumConcurrency": 1 })),
            ("FunctionResponseTypes", json!(["Other"])),
            ("FilterCriteria", json!({})),
            ("Queue", json!("arn:aws:sqs:eu-west-1:1:orders.fifo")),
            ("Queue", json!("http://queue")),
        ] {
            let mut properties = json!({ "Queue": arn("Plain") });
            properties[key] = value;
            let error = read(&properties).expect_err(key);
            assert!(error.starts_with("P.Events.Come: ") && error.contains(key), "{error}");
        }
    }
}
