//! How the API shows a function or version: its definition, and whether its snapshot stands (SnapStart).

use serde_json::Value;

use super::Api;
use crate::base::name;
use crate::function::definition::Deployment;
use crate::sandbox::interface::SnapshotState;

/// The configuration of a function or version, as it is now. As on Lambda, a version with SnapStart is
/// `Pending` until its snapshot stands; one that cannot have a snapshot is active without.
pub fn configuration(api: &Api, deployment: &Deployment) -> Value {
    let mut configuration = deployment.configuration();
    if !deployment.settings.snap_start || deployment.version == name::LATEST {
        return configuration;
    }
    match api.worker.maker().snapshot_state(deployment) {
        SnapshotState::None => {}
        SnapshotState::Taking => {
            configuration["State"] = "Pending".into();
            configuration["StateReasonCode"] = "Creating".into();
            configuration["StateReason"] = "The snapshot of the version is being taken".into();
        }
        SnapshotState::Ready => configuration["SnapStart"]["OptimizationStatus"] = "On".into(),
    }
    configuration
}
