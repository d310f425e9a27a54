//! The properties of functions that the worker reads, and those that it may do without.

use serde_json::{Map, Value as Json};

use super::scope::Scope;

/// Properties that the worker reads.
pub const KNOWN: [&str; 26] = [
    "FunctionName",
    "CodeUri",
    "InlineCode",
    "ImageUri",
    "ImageConfig",
    "Handler",
    "Runtime",
    "MemorySize",
    "Timeout",
    "Environment",
    "Description",
    "EphemeralStorage",
    "Architectures",
    "ReservedConcurrentExecutions",
    "FunctionUrlConfig",
    "Role",
    "PackageType",
    "Layers",
    "AutoPublishAlias",
    "Tags",
    "Events",
    "EventInvokeConfig",
    "LoggingConfig",
    "TenancyConfig",
    "CapacityProviderConfig",
    // Refused: without it the function would lose what it relies on.
    "DurableConfig",
];

/// Properties that change nothing for a function on one machine: what it may do in an account, and how SAM
/// builds it.
const MEANINGLESS: [&str; 4] =
    ["Policies", "PermissionsBoundary", "AssumeRolePolicyDocument", "PropagateTags"];

/// Properties without which a function is served as with them.
pub const NEEDLESS: [&str; 3] = ["Description", "Role", "Tags"];

/// Logs the properties that the worker does not read.
pub fn note_unknown(properties: &Map<String, Json>, scope: &Scope, place: &str) {
    for key in properties.keys() {
        if !KNOWN.contains(&key.as_str()) && !MEANINGLESS.contains(&key.as_str()) {
            scope.note(format!("{place}.{key} is not supported and passed over"));
        }
    }
}
