//! What callers attach to a function or to a version or an alias of it: policies, and how its events are
//! retried.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::base::name::{LATEST, Target};
use crate::base::resource_policy::ResourcePolicy;
use crate::function::event_config::EventConfig;

/// Of one function. A key is `$LATEST`, the number of a version or an alias.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Attached {
    /// Who may use it: kept and shown, as are tags.
    pub policies: BTreeMap<String, ResourcePolicy>,
    /// How its `Event` invocations are retried, and where their results go.
    pub events: BTreeMap<String, EventInvoke>,
    /// `RecursiveLoop: Allow`: a circle of destinations that leads through the function does not end.
    pub allows_loops: bool,
}

/// An `EventInvokeConfig` and when it was set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventInvoke {
    pub config: EventConfig,
    pub modified: SystemTime,
}

impl EventInvoke {
    /// One that is set now.
    pub fn now(config: EventConfig) -> EventInvoke {
        EventInvoke { config, modified: SystemTime::now() }
    }
}

impl Attached {
    /// Forgets what belongs to a version or an alias that is deleted.
    pub fn forget(&mut self, qualifier: &str) {
        self.policies.remove(qualifier);
        self.events.remove(qualifier);
    }
}

/// The key of what is attached to a function, or to a version or an alias of it.
pub fn key(target: &Target) -> String {
    target.qualifier.clone().unwrap_or_else(|| LATEST.into())
}
