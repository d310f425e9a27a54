//! Reads a function's `Events`: queues that it is called from. The worker supports no other kinds of
//! events.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use serde_yaml_ng::Value as Yaml;

use super::http_apis::is_route;
use super::intrinsics::Scope;
use super::schedules::{is_schedule, not_served};

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

/// The queues of a function: the remaining ones of its `Events`. `resources` are the template's, whose
/// queues are named by their logical ids.
///
/// # Errors
/// An event is wrong, and which.
pub fn sources(events: &Map<String, Json>, resources: &Yaml) -> Result<Vec<QueueSource>> {
    let mut found = Vec::new();
    for (name, event) in events {
        let place = || format!("Events.{name}");
        let properties = event.get("Properties").cloned().unwrap_or_default();
        let properties: Properties = serde_json::from_value(properties).with_context(place)?;
        found.extend(source(properties, resources).with_context(place)?);
    }
    Ok(found)
}

/// The events that are routes of an HTTP API or schedules, with their properties resolved.
pub fn routes(events: &Yaml, scope: &Scope, function: &str) -> Map<String, Json> {
    let mut routes = Map::new();
    for (name, event) in events.as_mapping().into_iter().flatten() {
        let (Some(name), Some(kind)) = (name.as_str(), event.get("Type").and_then(Yaml::as_str)) else {
            continue;
        };
        if is_route(kind) || is_schedule(kind) {
            let place = format!("Resources.{function}.Properties.Events.{name}");
            match scope.resolve(event, &place) {
                Ok(event) => drop(routes.insert(name.into(), event.unwrap_or_default())),
                Err(error) => tracing::warn!("{place} is not served: {error:#}"),
            }
        }
    }
    routes
}

/// Keeps the queues of `Events`, and logs each other event as ignored, whatever its properties; routes are
/// read elsewhere.
pub fn only_queues(events: &Yaml, place: &str) -> Yaml {
    let Some(events) = events.as_mapping() else { return events.clone() };
    let is_queue = |(name, event): &(&Yaml, &Yaml)| {
        let kind = event.get("Type").and_then(Yaml::as_str);
        if kind != Some("SQS") && !kind.is_some_and(|kind| is_route(kind) || is_schedule(kind)) {
            let (name, kind) = (name.as_str().unwrap_or_default(), kind.unwrap_or("none"));
            tracing::warn!("{place}.{name}: {}", not_served(kind));
        }
        kind == Some("SQS")
    };
    Yaml::Mapping(events.iter().filter(is_queue).map(|(name, event)| (name.clone(), event.clone())).collect())
}

fn source(properties: Properties, resources: &Yaml) -> Result<Option<QueueSource>> {
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
    let queue = queue(&properties.queue, resources);
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

/// The name of a queue, by its ARN or as an attribute of a resource of the template.
fn queue(text: &str, resources: &Yaml) -> String {
    if let Some(id) = text.strip_suffix(".Arn") {
        let given =
            resources.get(id).and_then(|resource| resource.get("Properties")?.get("QueueName")?.as_str());
        return given.unwrap_or(id).into();
    }
    match text.strip_prefix("arn:aws:sqs:") {
        Some(rest) => rest.split(':').nth(2).unwrap_or_default().into(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(properties: &Json) -> Result<Vec<QueueSource>> {
        let resources = serde_yaml_ng::from_str("Named: { Properties: { QueueName: real } }").unwrap();
        let mut events = json!({ "Come": { "Type": "SQS", "Properties": {} } });
        events["Come"]["Properties"] = properties.clone();
        sources(events.as_object().unwrap(), &resources)
    }

    #[test]
    fn queues_are_known_by_arn_and_by_logical_id() {
        let one = |queue: &str| read(&json!({ "Queue": queue })).unwrap().remove(0);
        let source = one("arn:aws:sqs:eu-west-1:123456789012:orders");
        assert_eq!((source.queue.as_str(), source.arn.ends_with(":123456789012:orders")), ("orders", true));
        assert_eq!((source.batch_size, source.concurrency, source.partial), (10, CONCURRENCY, false));
        assert_eq!([one("Named.Arn").queue, one("Plain.Arn").queue], ["real", "Plain"]);
        assert!(one("Plain.Arn").arn.ends_with(":Plain"));
        assert!(read(&json!({ "Queue": "Plain.Arn", "Enabled": false })).unwrap().is_empty());
        let partial = json!({ "Queue": "Plain.Arn", "FunctionResponseTypes": ["ReportBatchItemFailures"] });
        assert!(read(&partial).unwrap()[0].partial);
    }

    #[test]
    fn other_events_are_passed_over_unread() {
        let events = "{ Come: { Type: SQS }, Web: { Type: Api, Properties: { Id: !Cidr [a] } }, None: {} }";
        let left = only_queues(&serde_yaml_ng::from_str(events).unwrap(), "Events");
        assert_eq!(left, serde_yaml_ng::from_str::<Yaml>("Come: { Type: SQS }").unwrap());
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
            let mut properties = json!({ "Queue": "Plain.Arn" });
            properties[key] = value;
            let error = format!("{:#}", read(&properties).expect_err(key));
            assert!(error.starts_with("Events.Come: ") && error.contains(key), "{error}");
        }
    }
}
