//! Reads a function's `Events`: queues that it is called from. Routes and schedules are read elsewhere; for
//! each other kind there is a line.

use anyhow::{Result, anyhow, bail, ensure};
use serde_json::{Map, Value as Json};

use super::coercion;
use super::http_apis::is_route;
use super::schedules::{is_schedule, not_served};
use super::scope::Scope;
use crate::function::queue_source::Given;

/// The queues of a function, and lines about those that cannot be had. Logs each event of another kind.
pub fn sources(events: &Map<String, Json>, scope: &Scope, place: &str) -> (Vec<Given>, Vec<String>) {
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
            Ok(source) => found.push(source),
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

fn queue_of(properties: &Json, scope: &Scope, place: &str) -> Result<Given> {
    let properties = scope.resolve(properties, place)?.unwrap_or_default();
    let Json::Object(mut properties) = properties else { bail!("its Properties are no object") };
    ensure!(!properties.contains_key("EventSourceArn"), "EventSourceArn: a queue is named by Queue here");
    if let Some(queue) = properties.remove("Queue") {
        properties.insert("EventSourceArn".into(), queue);
    }
    given(properties)
}

/// A source from evaluated properties, with its queue's whole ARN.
///
/// # Errors
/// It is no queue, or a setting is wrong.
pub fn given(mut properties: Map<String, Json>) -> Result<Given> {
    coercion::properties(&mut properties);
    ensure!(properties.contains_key("EventSourceArn"), "Queue is needed");
    let mut given: Given = serde_json::from_value(Json::Object(properties))?;
    given.event_source_arn = given.source().map_err(|error| anyhow!(error))?.arn;
    Ok(given)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::function::queue_source::CONCURRENCY;

    fn read(properties: &Json) -> Result<Given, String> {
        let template = json!({ "Resources": {
            "Named": { "Type": "AWS::SQS::Queue", "Properties": { "QueueName": "real" } },
            "Plain": { "Type": "AWS::SQS::Queue" },
            "Fifo": { "Type": "AWS::SQS::Queue", "Properties": { "FifoQueue": true } },
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
        let one = |queue: Json| read(&json!({ "Queue": queue })).unwrap().source().unwrap();
        let source = one(json!("arn:aws:sqs:eu-west-1:123456789012:orders"));
        assert_eq!((source.queue.as_str(), source.arn.ends_with(":123456789012:orders")), ("orders", true));
        assert_eq!((source.batch_size, source.concurrency, source.partial), (10, CONCURRENCY, false));
        assert_eq!(one(arn("Fifo")).queue, "Fifo.fifo");
        assert_eq!([one(arn("Named")).queue, one(arn("Plain")).queue], ["real", "Plain"]);
        assert_eq!(one(arn("Elsewhere")).queue, "Elsewhere");
        assert!(one(arn("Plain")).arn.ends_with(":Plain"));
        let partial = json!({ "Queue": arn("Plain"), "FunctionResponseTypes": "ReportBatchItemFailures", "BatchSize": "7" });
        let source = read(&partial).unwrap().source().unwrap();
        assert_eq!((source.partial, source.batch_size), (true, 7));
    }

    #[test]
    fn other_events_are_passed_over_with_a_line() {
        let scope = Scope::new(json!({}), Path::new("/"), "mayfly", &BTreeMap::new()).unwrap();
        let events = json!({
            "Off": { "Type": "SQS", "Properties": { "Queue": "arn:aws:sqs:r:1:q", "Enabled": "false" } },
            "Web": { "Type": "Api", "Properties": { "Id": { "Fn::Cidr": ["a"] } } },
            "Bucket": { "Type": "S3", "Properties": { "Bucket": { "Fn::Cidr": ["a"] } } },
            "None": {},
        });
        let (found, missing) = sources(events.as_object().unwrap(), &scope, "P");
        assert!(missing.is_empty() && found.len() == 1 && !found[0].is_enabled(), "{missing:?}");
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
            ("FilterCriteria", json!({ "Filters": [{ "Pattern": "{" }] })),
            ("EventSourceArn", json!("arn:aws:sqs:r:1:q")),
            ("Queue", json!("arn:aws:sqs:eu-west-1:1:orders.other")),
            ("Queue", json!("http://queue")),
        ] {
            let mut properties = json!({ "Queue": arn("Plain") });
            properties[key] = value;
            let error = read(&properties).expect_err(key);
            assert!(error.starts_with("P.Events.Come: ") && error.contains(key), "{error}");
        }
    }
}
