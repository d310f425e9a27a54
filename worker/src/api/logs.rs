//! CloudWatch Logs' calls that read: `aws logs tail /aws/lambda/NAME`, `sam logs`.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Api, Call};
use crate::base::error::{ApiError, ErrorKind};
use crate::base::name;
use crate::base::time::lambda_time;
use crate::function::definition::log_group;
use crate::http::{self, Answer};
use crate::invocation::logs::{Group, Line, Pattern};

/// The part before an operation in the header `X-Amz-Target`.
pub const TARGET: &str = "Logs_20140328.";
/// The service that these calls are signed for.
pub const SERVICE: &str = "logs";
/// The most events in one answer, and the default.
const MOST: usize = 10_000;
/// The most names of streams in one request, as in CloudWatch.
const MOST_NAMED: usize = 100;
/// The most groups or streams in one answer.
const MOST_DESCRIBED: usize = 50;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Wanted {
    log_group_name: Option<String>,
    log_group_identifier: Option<String>,
    log_group_name_prefix: String,
    log_stream_name: Option<String>,
    log_stream_names: Option<Vec<String>>,
    log_stream_name_prefix: String,
    order_by: Option<String>,
    descending: bool,
    start_time: Option<u64>,
    end_time: Option<u64>,
    start_from_head: bool,
    filter_pattern: String,
    limit: Option<usize>,
    next_token: Option<String>,
}

/// Answers one call. Errors are in this service's own form.
pub fn answer(api: &Api, call: &Call, operation: &str) -> Answer {
    let answered = call.json::<Wanted>().and_then(|wanted| match operation {
        "DescribeLogGroups" => groups(api, &wanted),
        "DescribeLogStreams" => streams(api, &wanted),
        "FilterLogEvents" => filter(api, &wanted),
        "GetLogEvents" => get(api, &wanted),
        _ => Err(ErrorKind::UnknownOperation.with("only reading is supported here")),
    });
    match answered {
        Ok(value) => http::json(200, &value),
        Err(error) => http::json(400, &json!({ "__type": error.kind.name(), "message": error.message })),
    }
}

/// The log of the function that the query names, for people: each line with its time and instance.
pub fn text(api: &Api, query: Option<&str>) -> Answer {
    let named = super::query(query, "function").next();
    let lines = |group: &Group| -> String {
        let shown_line = |line: &Line| {
            let time = lambda_time(UNIX_EPOCH + Duration::from_millis(line.time_ms));
            format!("{time} {} {}\n", line.stream, line.text)
        };
        group.lines.iter().map(shown_line).collect()
    };
    let group = |name: String| {
        let known = api.worker.function(&name).map(|function| function.deployment.log_group());
        known.unwrap_or_else(|_| log_group(&name))
    };
    let log = named.and_then(|function| api.worker.logs.group(&group(function.to_string()), lines));
    match log {
        Some(text) => http::answer(200, "text/plain; charset=utf-8", text),
        None => http::answer(404, "text/plain", "no such function has printed anything\n"),
    }
}

fn invalid(text: impl Into<String>) -> ApiError {
    ErrorKind::InvalidParameter.with(text)
}

impl Wanted {
    fn limit(&self, most: usize) -> usize {
        self.limit.unwrap_or(most).clamp(1, most)
    }

    /// The number in a token that an earlier answer gave.
    fn token(&self, kind: &str) -> Result<Option<u64>, ApiError> {
        let Some(token) = &self.next_token else { return Ok(None) };
        let number = token.strip_prefix(kind).and_then(|number| number.parse().ok());
        number.map(Some).ok_or_else(|| invalid("nextToken: the specified nextToken is invalid"))
    }

    /// Calls `look` with the group that the request names.
    fn group<T>(&self, api: &Api, look: impl FnOnce(&Group) -> T) -> Result<T, ApiError> {
        let named = self.log_group_name.as_deref().or(self.log_group_identifier.as_deref());
        let named = named.ok_or_else(|| invalid("logGroupName is needed"))?;
        let name = named.rsplit_once("log-group:").map_or(named, |(_, name)| name.trim_end_matches(":*"));
        api.worker
            .logs
            .group(name, look)
            .ok_or_else(|| ErrorKind::ResourceNotFound.with("The specified log group does not exist."))
    }

    fn is_in_time(&self, line: &Line) -> bool {
        self.start_time.is_none_or(|start| line.time_ms >= start)
            && self.end_time.is_none_or(|end| line.time_ms < end)
    }
}

fn groups(api: &Api, wanted: &Wanted) -> Result<Value, ApiError> {
    let after = wanted.next_token.as_deref().unwrap_or_default();
    let most = wanted.limit(MOST_DESCRIBED);
    Ok(api.worker.logs.all(|groups| {
        let chosen = groups.iter().filter(|(name, _)| name.starts_with(&wanted.log_group_name_prefix));
        let mut chosen = chosen.filter(|(name, _)| after.is_empty() || name.as_str() > after).peekable();
        let mut list = Vec::new();
        while let Some((name, group)) = chosen.next_if(|_| list.len() < most) {
            list.push(json!({
                "logGroupName": name,
                "creationTime": group.created_ms,
                "arn": format!("arn:aws:logs:{}:{}:log-group:{name}:*", name::REGION, name::ACCOUNT),
                "storedBytes": group.bytes,
                "metricFilterCount": 0,
            }));
        }
        let last = list.last().map(|group| group["logGroupName"].clone());
        let mut answer = json!({ "logGroups": list });
        if let (Some(_), Some(last)) = (chosen.peek(), last) {
            answer["nextToken"] = last;
        }
        answer
    }))
}

fn streams(api: &Api, wanted: &Wanted) -> Result<Value, ApiError> {
    // By name: first and last time.
    let mut times: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    wanted.group(api, |group| {
        for line in group.lines.iter().filter(|line| line.stream.starts_with(&wanted.log_stream_name_prefix))
        {
            times.entry(line.stream.to_string()).or_insert((line.time_ms, 0)).1 = line.time_ms;
        }
    })?;
    let mut list: Vec<_> = times.into_iter().collect();
    if wanted.order_by.as_deref() == Some("LastEventTime") {
        list.sort_by_key(|(_, (_, last))| *last);
    }
    if wanted.descending {
        list.reverse();
    }
    let from = wanted.token("s/")?.unwrap_or(0) as usize;
    let until = from.saturating_add(wanted.limit(MOST_DESCRIBED));
    let page = list.iter().take(until).skip(from).map(|(name, (first, last))| {
        json!({
            "logStreamName": name,
            "creationTime": first,
            "firstEventTimestamp": first,
            "lastEventTimestamp": last,
            "lastIngestionTime": last,
        })
    });
    let mut answer = json!({ "logStreams": page.collect::<Vec<_>>() });
    if list.len() > until {
        answer["nextToken"] = format!("s/{until}").into();
    }
    Ok(answer)
}

fn filter(api: &Api, wanted: &Wanted) -> Result<Value, ApiError> {
    let pattern = Pattern::parse(&wanted.filter_pattern).map_err(invalid)?;
    if wanted.log_stream_names.as_ref().is_some_and(|names| names.len() > MOST_NAMED) {
        return Err(invalid(format!("logStreamNames: at most {MOST_NAMED} are allowed")));
    }
    let (from, most) = (wanted.token("e/")?.unwrap_or(0), wanted.limit(MOST));
    wanted.group(api, |group| {
        let chosen = group.lines.iter().filter(|line| {
            line.number >= from
                && wanted.is_in_time(line)
                && line.stream.starts_with(&wanted.log_stream_name_prefix)
                && wanted
                    .log_stream_names
                    .as_ref()
                    .is_none_or(|names| names.iter().any(|name| **name == *line.stream))
                && pattern.matches(&line.text)
        });
        let mut chosen = chosen.peekable();
        let mut events = Vec::new();
        while let Some(line) = chosen.next_if(|_| events.len() < most) {
            events.push(json!({
                "logStreamName": *line.stream,
                "timestamp": line.time_ms,
                "ingestionTime": line.time_ms,
                "message": line.text,
                "eventId": format!("{:013}{:043}", group.created_ms, line.number),
            }));
        }
        let mut answer = json!({ "events": events, "searchedLogStreams": [] });
        if let Some(next) = chosen.peek() {
            answer["nextToken"] = format!("e/{}", next.number).into();
        }
        answer
    })
}

/// One stream, forwards or backwards. As in CloudWatch, the token at the end is the request's own.
fn get(api: &Api, wanted: &Wanted) -> Result<Value, ApiError> {
    let stream = wanted.log_stream_name.as_deref().ok_or_else(|| invalid("logStreamName is needed"))?;
    let most = wanted.limit(MOST);
    let backwards = match &wanted.next_token {
        Some(token) => token.starts_with("b/"),
        None => !wanted.start_from_head,
    };
    let token = wanted.token(if backwards { "b/" } else { "f/" })?;
    wanted.group(api, |group| {
        let of_stream = || group.lines.iter().filter(|line| *line.stream == *stream && wanted.is_in_time(line));
        let page: Vec<&Line> = if backwards {
            let before = of_stream().filter(|line| token.is_none_or(|token| line.number < token));
            let mut page: Vec<&Line> = before.rev().take(most).collect();
            page.reverse();
            page
        } else {
            of_stream().filter(|line| token.is_none_or(|token| line.number >= token)).take(most).collect()
        };
        let first = page.first().map_or(token.unwrap_or(0), |line| line.number);
        let next = page.last().map_or(token.unwrap_or(0), |line| line.number + 1);
        let of = |line: &&Line| {
            json!({ "timestamp": line.time_ms, "ingestionTime": line.time_ms, "message": line.text })
        };
        json!({
            "events": page.iter().map(of).collect::<Vec<_>>(),
            "nextForwardToken": format!("f/{next}"),
            "nextBackwardToken": format!("b/{first}"),
        })
    })
}
