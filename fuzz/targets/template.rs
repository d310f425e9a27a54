//! A template of SAM or CloudFormation. Its values, written as JSON, read the same again; its functions are
//! read or refused, in bounded time and memory.

#![no_main]

use arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};
use worker::fuzzing::{template, values};

const NAMES: [&str; 12] =
    ["A", "B", "C", "Fn", "P", "M", "AWS::Region", "AWS::NoValue", "A.Arn", "B.Alias", "Q", "S"];
const PROPERTIES: [&str; 24] = [
    "FunctionName",
    "CodeUri",
    "InlineCode",
    "ImageUri",
    "Handler",
    "Runtime",
    "MemorySize",
    "Timeout",
    "Environment",
    "EphemeralStorage",
    "Architectures",
    "FunctionUrlConfig",
    "PackageType",
    "Layers",
    "AutoPublishAlias",
    "Tags",
    "Events",
    "EventInvokeConfig",
    "LoggingConfig",
    "TenancyConfig",
    "Role",
    "Description",
    "ImageConfig",
    "Other",
];
const TEXTS: [&str; 18] = [
    "x",
    "python3.13",
    "provided.al2023",
    "app.handler",
    "code/",
    "${A}-${P}",
    "${!A}",
    "${M",
    "rate(5 minutes)",
    "cron(0 12 ? * MON-FRI *)",
    "GET",
    "/a/{b+}",
    "true",
    "10",
    "arn:aws:sqs:us-east-1:000000000000:q",
    "Api",
    "HttpApi",
    "Schedule",
];
const KINDS: [&str; 10] = [
    "AWS::Serverless::Function",
    "AWS::Lambda::Function",
    "AWS::Serverless::LayerVersion",
    "AWS::SQS::Queue",
    "AWS::Lambda::EventSourceMapping",
    "AWS::Serverless::HttpApi",
    "AWS::Serverless::Api",
    "AWS::IAM::Role",
    "AWS::ApiGatewayV2::Route",
    "AWS::Serverless::Application",
];
const FUNCTIONS: [&str; 16] = [
    "Ref",
    "Fn::Sub",
    "Fn::GetAtt",
    "Fn::Join",
    "Fn::Split",
    "Fn::Select",
    "Fn::If",
    "Fn::FindInMap",
    "Fn::Equals",
    "Fn::And",
    "Fn::Not",
    "Fn::Cidr",
    "Fn::Base64",
    "Fn::ToJsonString",
    "Fn::Length",
    "Condition",
];
const KEYS: [&str; 22] = [
    "Type",
    "Properties",
    "Variables",
    "Path",
    "Method",
    "Schedule",
    "Queue",
    "BatchSize",
    "Size",
    "AuthType",
    "Cors",
    "AllowOrigins",
    "ApiId",
    "Auth",
    "Authorizers",
    "DefinitionBody",
    "paths",
    "MaximumRetryAttempts",
    "LogFormat",
    "FilterCriteria",
    "Pattern",
    "Input",
];

#[derive(Debug)]
enum Input {
    Text(String),
    Made(Value),
}

fn pick(u: &mut Unstructured, of: &[&str]) -> Result<String> {
    Ok((*u.choose(of)?).to_string())
}

fn text(u: &mut Unstructured) -> Result<String> {
    match u.int_in_range(0..=5)? {
        0 => u.arbitrary(),
        1 => pick(u, &NAMES),
        _ => pick(u, &TEXTS),
    }
}

fn value(u: &mut Unstructured, depth: usize) -> Result<Value> {
    let kind = u.int_in_range(0..=if depth == 0 { 3 } else { 8 })?;
    Ok(match kind {
        0 => json!(u.arbitrary::<i64>()?),
        1 => json!(u.arbitrary::<bool>()?),
        2 | 3 => json!(text(u)?),
        4 => list(u, depth)?,
        5 => mapping(u, depth, &KEYS)?,
        6 => mapping(u, depth, &PROPERTIES)?,
        _ => {
            let function = pick(u, &FUNCTIONS)?;
            let arguments = match u.int_in_range(0..=2)? {
                0 => json!(text(u)?),
                1 => value(u, depth - 1)?,
                _ => list(u, depth)?,
            };
            json!({ function: arguments })
        }
    })
}

fn list(u: &mut Unstructured, depth: usize) -> Result<Value> {
    (0..u.int_in_range(0..=4)?).map(|_| value(u, depth.saturating_sub(1))).collect()
}

fn mapping(u: &mut Unstructured, depth: usize, keys: &[&str]) -> Result<Value> {
    let entry = |u: &mut Unstructured| Ok((pick(u, keys)?, value(u, depth.saturating_sub(1))?));
    let all: Map<String, Value> = (0..u.int_in_range(0..=5)?).map(|_| entry(u)).collect::<Result<_>>()?;
    Ok(Value::Object(all))
}

fn resource(u: &mut Unstructured) -> Result<Value> {
    let kind = pick(u, &KINDS)?;
    let mut properties = mapping(u, 3, &PROPERTIES)?;
    if u.ratio(3, 4)? {
        // Enough that it can be served.
        for (key, value) in [("Runtime", "provided.al2023"), ("Handler", "h"), ("CodeUri", "code/")] {
            properties[key] = value.into();
        }
    }
    let mut resource = json!({ "Type": kind, "Properties": properties });
    if u.ratio(1, 4)? {
        resource["Condition"] = pick(u, &NAMES)?.into();
    }
    if u.ratio(1, 4)? {
        resource["Metadata"] = json!({ "Mayfly": value(u, 2)? });
    }
    Ok(resource)
}

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Input> {
        if u.ratio(1, 3)? {
            return Ok(Input::Text(u.arbitrary()?));
        }
        let mut made = json!({ "Resources": {} });
        for _ in 0..u.int_in_range(1..=5)? {
            let (name, of) = (pick(u, &NAMES)?, u.int_in_range(0..=9)?);
            match of {
                0 => made["Parameters"][name] = mapping(u, 2, &["Type", "Default", "AllowedValues"])?,
                1 => made["Conditions"][name] = value(u, 3)?,
                2 => made["Mappings"][name] = json!({ "A": { "B": value(u, 2)? } }),
                3 => made["Globals"]["Function"] = mapping(u, 3, &PROPERTIES)?,
                4 => {
                    let body = resource(u)?;
                    let items = list(u, 2)?;
                    made["Resources"][format!("Fn::ForEach::{name}")] =
                        json!([name, items, { "X${A}": body }]);
                }
                _ => made["Resources"][name] = resource(u)?,
            }
        }
        Ok(Input::Made(made))
    }
}

fn has_fraction(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.iter().any(has_fraction),
        Value::Object(map) => map.values().any(has_fraction),
        value => value.is_f64(),
    }
}

fuzz_target!(|input: Input| {
    let text = match &input {
        Input::Text(text) => text.clone(),
        Input::Made(value) => value.to_string(),
    };
    if let Ok(read) = values(&text) {
        let json = read.to_string();
        // Numbers with a fraction lose bits; YAML has other rules for long keys and rare letters.
        let is_plain = json.len() < 1000 && json.bytes().all(|byte| (0x20..0x7f).contains(&byte));
        if is_plain && !has_fraction(&read) {
            assert_eq!(values(&json).as_ref(), Ok(&read), "{json}");
            if let Ok(listed) = values(&format!("- {json}")) {
                assert_eq!(listed, json!([read]), "{json}");
            }
        }
    }
    if let Err(reason) = template(&text) {
        assert!(!reason.is_empty());
    }
});
