//! The queues that functions are called from: those of the template, and those that callers add.

use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::Worker;
use crate::base::error::ApiError;
use crate::base::limits;
use crate::function::queue_source::{Mapping, Mappings};

impl Worker {
    /// Reads the sources.
    pub fn mappings<T>(&self, look: impl FnOnce(&Mappings) -> T) -> T {
        look(&self.mappings.borrow())
    }

    /// Receives the sources whenever they change.
    pub(crate) fn follow_mappings(&self) -> watch::Receiver<Mappings> {
        self.mappings.subscribe()
    }

    /// Changes the sources. After an error all is as before.
    ///
    /// # Errors
    /// The error of `change`, or more tags than Lambda allows.
    pub fn change_mappings<T>(
        &self,
        change: impl FnOnce(&mut Mappings) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let mut outcome = Err(ApiError::service("the sources were not changed"));
        self.mappings.send_if_modified(|mappings| {
            let mut changed = mappings.clone();
            outcome = change(&mut changed).and_then(|made| {
                let is_full = changed.values().any(|mapping| mapping.tags.len() > limits::TAGS);
                if is_full {
                    let text = format!("an event source mapping has at most {} tags", limits::TAGS);
                    return Err(ApiError::invalid_parameter(text));
                }
                Ok(made)
            });
            let is_changed = outcome.is_ok() && changed != *mappings;
            if is_changed {
                *mappings = changed;
            }
            is_changed
        });
        outcome
    }

    /// Replaces the template's sources.
    pub(crate) fn set_template_mappings(&self, wanted: Vec<Mapping>) {
        self.mappings.send_modify(|mappings| {
            let mut known = std::mem::take(mappings);
            for mut mapping in wanted {
                let id = id(&mapping);
                if let Some(known) = known.get(&id).filter(|known| known.given == mapping.given) {
                    mapping.modified = known.modified;
                }
                mappings.insert(id, mapping);
            }
            known.retain(|_, mapping| !mapping.of_template);
            for (id, mapping) in known {
                mappings.entry(id).or_insert(mapping);
            }
        });
    }
}

/// The id of a template's source: the same in every worker that reads the template.
fn id(mapping: &Mapping) -> String {
    let named = format!("{}\n{}", mapping.target, mapping.given.event_source_arn);
    let digest = Sha256::digest(named);
    uuid::Builder::from_custom_bytes(digest[..16].try_into().expect("16 bytes")).into_uuid().to_string()
}
