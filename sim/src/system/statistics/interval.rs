//! What was counted in a part of the region.

use super::{Statistics, Value};
use serde_json::Map;
use std::collections::HashMap;

impl Statistics {
    /// What was counted since `before`: of each count the difference, and of each ratio the one of the
    /// differences. A count that may fall, as of pages that are held, may be below zero.
    pub fn since(&self, before: &Statistics) -> Map<String, serde_json::Value> {
        let known: HashMap<_, _> = before.list.iter().map(|one| (one.name.as_str(), one.value)).collect();
        let difference = |now: Value, before: Option<&Value>| -> serde_json::Value {
            match (now, before) {
                (Value::Count(now), Some(Value::Count(before))) => (now as i64 - *before as i64).into(),
                (Value::Count(now), _) => now.into(),
                (Value::Ratio(over, under), Some(Value::Ratio(over_before, under_before))) => {
                    // A clock's rate does not change.
                    let under = if under == *under_before { under } else { under - under_before };
                    Value::Ratio(over - over_before, under).number().into()
                }
                (ratio, _) => ratio.number().into(),
            }
        };
        self.list
            .iter()
            .map(|one| (one.name.clone(), difference(one.value, known.get(one.name.as_str()))))
            .collect()
    }
}
