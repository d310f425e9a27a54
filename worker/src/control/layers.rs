//! The worker's layers: published, listed, deleted, and laid below a function's /opt.

use std::path::PathBuf;
use std::sync::Arc;

use super::Worker;
use crate::base::error::ApiError;
use crate::base::resource_policy::ResourcePolicy;
use crate::code::lambda_layers::{Layer, Layers, OptMount};

impl Worker {
    /// Publishes a version of a layer.
    pub fn publish_layer(&self, layer: Layer) -> Arc<Layer> {
        self.lock().published.publish(layer)
    }

    /// Deletes a version of a layer; functions that use it keep it.
    pub fn delete_layer(&self, name: &str, version: u64) {
        self.lock().published.remove(name, version);
    }

    /// Replaces the policy of a layer's version by what `change` makes of it, and returns the new one.
    ///
    /// # Errors
    /// There is no such version, or the error of `change`.
    pub fn change_layer_policy(
        &self,
        name: &str,
        version: u64,
        change: impl FnOnce(Option<ResourcePolicy>) -> Result<Option<ResourcePolicy>, ApiError>,
    ) -> Result<Option<ResourcePolicy>, ApiError> {
        self.lock().published.change_policy(name, version, change)
    }

    /// Reads from the worker's layers.
    pub fn layers<T>(&self, look: impl FnOnce(&Layers) -> T) -> T {
        look(&self.lock().published)
    }

    /// What a function with these layers, and packages of its own, sees below /opt. Takes time in
    /// proportion to their files.
    ///
    /// # Errors
    /// There is no such layer, or it cannot be copied.
    pub fn opt(&self, arns: &[String], packages: Vec<PathBuf>) -> Result<OptMount, ApiError> {
        let layers = self.layers(|layers| layers.named(arns))?;
        OptMount::new(layers, packages, self.folder())
    }
}
