//! Schedules: functions that are called at times, as `Event` invocations.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use serde_json::json;
use tokio::task::AbortHandle;

use crate::base::name::{self, ACCOUNT, REGION, Target};
use crate::events::async_invokes::Events;
use crate::function::schedule::Scheduled;
use crate::invocation::request::Invocation;
use worker_system::lock::lock;

/// The longest sleep: after it the clock is read again, which an operator may have set.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// All schedules that run now, by what they call.
pub(crate) struct Schedules {
    events: Events,
    running: Mutex<BTreeMap<String, Running>>,
}

/// The schedules of one function.
struct Running {
    schedules: Vec<Scheduled>,
    tasks: Vec<AbortHandle>,
}

impl Schedules {
    pub fn new(events: Events) -> Schedules {
        Schedules { events, running: Mutex::default() }
    }

    /// Runs these from now on, and no others. Unchanged ones go on.
    pub fn set(&self, wanted: BTreeMap<String, Vec<Scheduled>>) {
        let mut running = lock(&self.running);
        running.retain(|target, known| {
            let stays = wanted.get(target) == Some(&known.schedules);
            if !stays {
                known.tasks.iter().for_each(AbortHandle::abort);
            }
            stays
        });
        for (target, schedules) in wanted {
            let Ok(parsed) = name::parse(&target) else { continue };
            let start = |schedule: &Scheduled| {
                let (events, target, schedule) = (self.events.clone(), parsed.clone(), schedule.clone());
                tokio::spawn(follow(events, target, schedule)).abort_handle()
            };
            let begin =
                || Running { tasks: schedules.iter().map(start).collect(), schedules: schedules.clone() };
            running.entry(target).or_insert_with(begin);
        }
    }
}

/// Calls a function at each time of its schedule.
async fn follow(events: Events, target: Target, scheduled: Scheduled) {
    let begun = SystemTime::now();
    let mut last = begun;
    while let Some(next) = scheduled.schedule.next(begun, last) {
        loop {
            let left = next.duration_since(SystemTime::now()).unwrap_or_default();
            if left.is_zero() {
                break;
            }
            tokio::time::sleep(left.min(LONGEST_SLEEP)).await;
        }
        let payload = payload(&scheduled, next);
        let invocation = Invocation::new(name::arn(&target.to_string()), payload.into(), None, None);
        if let Err(error) = events.accept(&target, invocation).await {
            tracing::warn!("[{target}] schedule {}: {}", scheduled.name, error.message);
        }
        // Times that have passed meanwhile, as on a host that slept, are left out.
        last = next.max(SystemTime::now() - Duration::from_secs(1));
    }
    tracing::info!("[{target}] schedule {} has no further time", scheduled.name);
}

/// The event: `Input`, or what EventBridge sends.
fn payload(scheduled: &Scheduled, time: SystemTime) -> String {
    if let Some(input) = &scheduled.input {
        return input.clone();
    }
    let name = &scheduled.name;
    let (source, resource, detail) = match scheduled.is_scheduler {
        false => ("aws.events", format!("arn:aws:events:{REGION}:{ACCOUNT}:rule/{name}"), json!({})),
        true => {
            let resource = format!("arn:aws:scheduler:{REGION}:{ACCOUNT}:schedule/default/{name}");
            ("aws.scheduler", resource, json!("{}"))
        }
    };
    json!({
        "version": "0",
        "id": uuid::Uuid::new_v4().to_string(),
        "detail-type": "Scheduled Event",
        "source": source,
        "account": ACCOUNT,
        "time": humantime::format_rfc3339_seconds(time).to_string(),
        "region": REGION,
        "resources": [resource],
        "detail": detail,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::schedule::Schedule;
    use serde_json::Value;

    #[test]
    fn events_are_eventbridges_or_the_input() {
        let schedule = Schedule::parse("rate(1 minute)").unwrap();
        let mut scheduled = Scheduled { name: "n".into(), schedule, input: None, is_scheduler: false };
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_599);
        let mut event: Value = serde_json::from_str(&payload(&scheduled, time)).unwrap();
        assert_eq!(event["id"].take().as_str().map(str::len), Some(36));
        let wanted = json!({
            "version": "0", "id": null, "detail-type": "Scheduled Event", "source": "aws.events",
            "account": "000000000000", "time": "2025-12-31T23:59:59Z", "region": "us-east-1",
            "resources": ["arn:aws:events:us-east-1:000000000000:rule/n"], "detail": {},
        });
        assert_eq!(event, wanted);
        scheduled.is_scheduler = true;
        let event: Value = serde_json::from_str(&payload(&scheduled, time)).unwrap();
        assert_eq!((&event["source"], &event["detail"]), (&json!("aws.scheduler"), &json!("{}")));
        scheduled.input = Some("{\"own\": 1}".into());
        assert_eq!(payload(&scheduled, time), "{\"own\": 1}");
    }
}
