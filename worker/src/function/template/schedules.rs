//! Events of Type `Schedule` and `ScheduleV2`, and lines for events that nothing here sends.

use serde_json::{Map, Value as Json};

use crate::function::schedule::{Schedule, Scheduled};

/// Whether events of this type are schedules.
pub fn is_schedule(kind: &str) -> bool {
    matches!(kind, "Schedule" | "ScheduleV2")
}

/// The schedules among a function's events, and notes of those that are not served.
pub fn read(function: &str, events: &Map<String, Json>) -> (Vec<Scheduled>, Vec<String>) {
    let (mut found, mut notes) = (Vec::new(), Vec::new());
    for (name, event) in events {
        let kind = event.get("Type").and_then(Json::as_str).unwrap_or_default();
        if is_schedule(kind) {
            let place = format!("{function}.Events.{name}");
            let read = schedule(function, name, event, &mut |note| notes.push(format!("{place}: {note}")));
            match read {
                Ok(schedule) => found.extend(schedule),
                Err(reason) => notes.push(format!("{place}: {reason}: it is not served")),
            }
        }
    }
    (found, notes)
}

fn schedule(
    function: &str,
    id: &str,
    event: &Json,
    note: &mut dyn FnMut(String),
) -> Result<Option<Scheduled>, String> {
    let property = |name: &str| event.get("Properties").and_then(|properties| properties.get(name));
    let text = |name: &str| property(name).and_then(Json::as_str);
    let is_scheduler = event.get("Type").and_then(Json::as_str) == Some("ScheduleV2");
    let key = if is_scheduler { "ScheduleExpression" } else { "Schedule" };
    let expression = text(key).ok_or_else(|| format!("{key} is needed"))?;
    let schedule = Schedule::parse(expression)?;
    let is_off = property("Enabled").is_some_and(|on| on == &Json::Bool(false) || on == "false");
    if is_off || text("State") == Some("DISABLED") {
        return Ok(None);
    }
    let input = match property("Input") {
        None => None,
        Some(Json::String(text)) => {
            let parsed = serde_json::from_str::<serde::de::IgnoredAny>(text);
            parsed.map_err(|error| format!("Input is no JSON: {error}"))?;
            Some(text.clone())
        }
        Some(other) => Some(other.to_string()),
    };
    if let Some(zone) = text("ScheduleExpressionTimezone").filter(|zone| *zone != "UTC") {
        note(format!("its times are UTC here, and not of {}", zone.escape_debug()));
    }
    let name = text("Name").map_or_else(|| format!("{function}{id}"), str::to_string);
    Ok(Some(Scheduled { name, schedule, input, is_scheduler }))
}

/// What calls functions by events of a type that is not served.
pub fn source_of(kind: &str) -> &'static str {
    match kind {
        "AlexaSkill" => "an Alexa skill",
        "CloudWatchEvent" | "EventBridgeRule" => "an event bus",
        "CloudWatchLogs" => "a log group",
        "Cognito" => "a Cognito user pool",
        "DocumentDB" => "a DocumentDB cluster",
        "DynamoDB" => "a DynamoDB table",
        "IoTRule" => "an IoT rule",
        "Kinesis" => "a Kinesis stream",
        "MQ" => "an Amazon MQ broker",
        "MSK" | "SelfManagedKafka" => "a Kafka topic",
        "S3" => "an S3 bucket",
        "SNS" => "an SNS topic",
        _ => "an unknown source",
    }
}

/// Says what would have called the function, for an event of a type that is not served.
pub fn not_served(kind: &str) -> String {
    let caller = source_of(kind);
    format!("events of Type {} are not served: {caller} would call the function", kind.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn schedules_are_read_and_wrong_ones_are_notes() {
        let events = json!({
            "A": { "Type": "Schedule", "Properties": { "Schedule": "rate(1 minute)", "Input": "{\"a\": 1}" } },
            "B": { "Type": "ScheduleV2", "Properties": { "ScheduleExpression": "cron(0 1 * * ? *)", "Name": "b",
                                                       "ScheduleExpressionTimezone": "Europe/Paris" } },
            "C": { "Type": "Schedule", "Properties": { "Schedule": "rate(1 minute)", "Enabled": false } },
            "D": { "Type": "ScheduleV2", "Properties": { "ScheduleExpression": "rate(1 minute)", "State": "DISABLED" } },
            "E": { "Type": "Schedule", "Properties": { "Schedule": "sometimes" } },
            "F": { "Type": "Schedule", "Properties": {} },
            "G": { "Type": "Schedule", "Properties": { "Schedule": "rate(1 minute)", "Input": "{" } },
            "H": { "Type": "S3" },
        });
        let (found, notes) = read("Fn", events.as_object().unwrap());
        let names: Vec<_> = found.iter().map(|one| (one.name.as_str(), one.is_scheduler)).collect();
        assert_eq!(names, [("FnA", false), ("b", true)]);
        assert_eq!(found[0].input.as_deref(), Some("{\"a\": 1}"));
        let notes = notes.join("\n");
        for part in [
            "Fn.Events.B: its times are UTC",
            "Fn.Events.E: 'sometimes'",
            "F: Schedule is needed",
            "G: Input",
        ] {
            assert!(notes.contains(part), "{part}: {notes}");
        }
        assert!(not_served("S3").ends_with("an S3 bucket would call the function"));
    }
}
