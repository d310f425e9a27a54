//! What calls a function of the template and is a resource of its own, as CDK declares it: a function URL, a
//! rule or a schedule of EventBridge. Other services are known by the permission that they have.

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Map, Value as Json, json};

use super::schedules::{self, not_served, source_of};
use super::scope::Scope;
use super::yaml::text_of;
use super::{Template, function, kind_of};
use crate::base::name::{self, Target};

const URL: &str = "AWS::Lambda::Url";
const RULE: &str = "AWS::Events::Rule";
const SCHEDULE: &str = "AWS::Scheduler::Schedule";
const PERMISSION: &str = "AWS::Lambda::Permission";

/// Whether a resource is one of these.
pub fn is_caller(resource: &Json) -> bool {
    [URL, RULE, SCHEDULE, PERMISSION].contains(&kind_of(resource))
}

/// Adds it to what is declared. What else it calls is no function here, and needs no line.
///
/// # Errors
/// A setting is wrong.
pub fn read(id: &str, resource: &Json, scope: &Scope, template: &mut Template) -> Result<()> {
    let own = resource.get("Properties").unwrap_or(&Json::Null);
    let own = scope.resolve(own, &format!("Resources.{id}.Properties"))?.unwrap_or_default();
    let kind = kind_of(resource);
    if kind == PERMISSION {
        let called = own.get("FunctionName").and_then(|name| called_by(name, template));
        let caller = own.get("Principal").map(text_of).and_then(|service| caller(&service));
        if let (Some(called), Some(caller)) = (called, caller) {
            scope.note(format!("Resources.{id}: {caller} would call {}: that is not served", called.name));
        }
        return Ok(());
    }
    if kind == URL {
        let called = own.get("TargetFunctionArn").context("TargetFunctionArn is needed")?;
        let called = name::parse(&text_of(called)).map_err(|error| anyhow!("{}", error.message))?;
        let url = function::url(&own)?;
        // A function that is not served has a line of its own.
        let called = template.functions.iter_mut().find(|one| one.name == called.name);
        called.map(|called| called.url.get_or_insert(url));
        return Ok(());
    }
    let targets = match own.get("Targets") {
        Some(Json::Array(list)) => list.iter().collect(),
        _ => Vec::from_iter(own.get("Target")),
    };
    for target in targets {
        let called = target.get("Arn").and_then(|arn| called_by(arn, template));
        let Some(called) = called else { continue };
        let event = event(id, kind, &own, target);
        let Some(event) = event else { bail!("{}", not_served("EventBridgeRule")) };
        let events = Map::from_iter([(id.to_string(), event)]);
        let (found, notes) = schedules::read(&called.name, &events);
        template.schedules.entry(called.to_string()).or_default().extend(found);
        notes.into_iter().for_each(|note| scope.note(note));
    }
    Ok(())
}

/// What the service is that may call a function, if the worker does not serve it.
fn caller(service: &str) -> Option<&'static str> {
    let kind = match service.split('.').next()? {
        "alexa-appkit" | "alexa-connectedhome" => "AlexaSkill",
        "cognito-idp" => "Cognito",
        "iot" => "IoTRule",
        "logs" => "CloudWatchLogs",
        "s3" => "S3",
        "sns" => "SNS",
        _ => return None,
    };
    Some(source_of(kind))
}

/// The function of the template that an ARN names.
fn called_by(arn: &Json, template: &Template) -> Option<Target> {
    let called = name::parse(&text_of(arn)).ok()?;
    template.functions.iter().any(|one| one.name == called.name).then_some(called)
}

/// As `Events` of a function have it; none, if it is no schedule.
fn event(id: &str, kind: &str, own: &Json, target: &Json) -> Option<Json> {
    let mut properties = own.as_object()?.clone();
    let expression = properties.get("ScheduleExpression")?.clone();
    properties.insert("Schedule".into(), expression);
    properties.entry("Name").or_insert_with(|| id.into());
    properties.remove("Input");
    if let Some(input) = target.get("Input") {
        properties.insert("Input".into(), input.clone());
    }
    let kind = if kind == RULE { "Schedule" } else { "ScheduleV2" };
    Some(json!({ "Type": kind, "Properties": properties }))
}
