//! Reads resources of Type `AWS::Lambda::EventSourceMapping`: queues that functions of the template are
//! called from. For a source of another kind there is a line.

use std::collections::BTreeMap;
use std::time::SystemTime;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Map, Value as Json};

use super::events;
use super::schedules::source_of;
use super::scope::Scope;
use super::yaml::text_of;
use crate::base::name::Target;
use crate::function::queue_source::{Given, Mapping};

/// The type of such resources.
pub const MAPPING: &str = "AWS::Lambda::EventSourceMapping";

/// A source of a function.
pub fn mapping(target: &Target, given: Given) -> Mapping {
    let target = target.to_string();
    Mapping { target, given, modified: SystemTime::now(), tags: BTreeMap::new(), of_template: true }
}

/// The source that a resource declares; none, if it is of another kind, which is noted.
///
/// # Errors
/// A setting is wrong, or the function is none of the template's.
pub fn read(
    id: &str,
    resource: &Json,
    scope: &Scope,
    is_known: impl Fn(&str) -> bool,
) -> Result<Option<Mapping>> {
    let place = format!("Resources.{id}.Properties");
    let none = Json::Object(Map::new());
    let raw = resource.get("Properties").unwrap_or(&none);
    if let Some(caller) = other_source(raw, scope) {
        scope.note(format!("Resources.{id}: it is not served: {caller} would call the function"));
        return Ok(None);
    }
    let evaluated = scope.resolve(raw, &place)?.unwrap_or_default();
    let Json::Object(mut properties) = evaluated else { bail!("{place} is no object") };
    let tags = properties.remove("Tags");
    let function = properties.remove("FunctionName").context("FunctionName is needed")?;
    let target =
        Target::new(&text_of(&function), None).map_err(|error| anyhow!("FunctionName: {}", error.message))?;
    ensure!(is_known(&target.name), "FunctionName: the template has no function {}", target.name);
    let mut mapping = mapping(&target, events::given(properties)?);
    for tag in tags.as_ref().and_then(Json::as_array).into_iter().flatten() {
        if let (Some(key), Some(value)) = (tag.get("Key"), tag.get("Value")) {
            mapping.tags.insert(text_of(key), text_of(value));
        }
    }
    Ok(Some(mapping))
}

/// What would call the function, if that is no queue.
fn other_source(properties: &Json, scope: &Scope) -> Option<&'static str> {
    if properties.get("SelfManagedEventSource").is_some() {
        return Some(source_of("SelfManagedKafka"));
    }
    let arn = properties.get("EventSourceArn")?;
    let of_resource = arn.get("Fn::GetAtt").and_then(|names| match names {
        Json::Array(names) => names.first()?.as_str(),
        text => text.as_str()?.split('.').next(),
    });
    let kind = of_resource.and_then(|id| scope.resource(id)?.get("Type")?.as_str());
    let text = arn.as_str().unwrap_or_default();
    let service = match (kind, text.strip_prefix("arn:")) {
        (Some(kind), _) => kind.split("::").nth(1)?,
        (None, Some(rest)) => rest.split(':').nth(1)?,
        (None, None) => return None,
    };
    let event = match service.to_ascii_lowercase().as_str() {
        "kinesis" => "Kinesis",
        "dynamodb" => "DynamoDB",
        "kafka" | "msk" => "MSK",
        "mq" | "amazonmq" => "MQ",
        "rds" | "docdb" => "DocumentDB",
        _ => return None,
    };
    Some(source_of(event))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn scope() -> Scope {
        let template = json!({ "Resources": {
            "F": { "Type": "AWS::Serverless::Function", "Properties": { "AutoPublishAlias": "live" } },
            "Queue": { "Type": "AWS::SQS::Queue" },
            "Stream": { "Type": "AWS::Kinesis::Stream" },
            "Table": { "Type": "AWS::DynamoDB::Table" },
        } });
        Scope::new(template, Path::new("/"), "mayfly", &BTreeMap::new()).unwrap()
    }

    #[test]
    fn queues_call_the_function_that_the_resource_names() {
        let scope = scope();
        let of = |function: Json, arn: Json| {
            let properties = json!({ "FunctionName": function, "EventSourceArn": arn, "BatchSize": "3",
                                     "Tags": [{ "Key": "a", "Value": 1 }] });
            read("M", &json!({ "Properties": properties }), &scope, |name| name == "F")
        };
        let queue = json!({ "Fn::GetAtt": ["Queue", "Arn"] });
        let made = of(json!({ "Ref": "F" }), queue.clone()).unwrap().unwrap();
        assert_eq!((made.target.as_str(), made.given.batch_size), ("F", Some(3)));
        assert_eq!(made.tags["a"], "1");
        let made = of(json!({ "Ref": "F.Alias" }), queue.clone()).unwrap().unwrap();
        assert_eq!(made.target, "F:live");
        assert!(of("G".into(), queue).unwrap_err().to_string().contains("no function G"));
        assert!(of("F".into(), json!("q")).is_err());
    }

    #[test]
    fn other_sources_are_a_line() {
        let scope = scope();
        for (arn, caller) in [
            (json!({ "Fn::GetAtt": ["Stream", "Arn"] }), "a Kinesis stream"),
            (json!({ "Fn::GetAtt": "Table.StreamArn" }), "a DynamoDB table"),
            (json!("arn:aws:kafka:r:1:cluster/c"), "a Kafka topic"),
        ] {
            let resource = json!({ "Properties": { "FunctionName": "F", "EventSourceArn": arn } });
            assert_eq!(read("M", &resource, &scope, |_| true).unwrap(), None);
            assert_eq!(
                scope.take_notes(),
                [format!("Resources.M: it is not served: {caller} would call the function")]
            );
        }
    }
}
