//! A function: its settings and code, its published versions and aliases, and its description in the API.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::base::error::ApiError;
use crate::base::name;
use crate::base::time::lambda_time;
use crate::code::Code;
use crate::code::lambda_layers::{self, OptMount};
use crate::code::runtime::Runtime;
use crate::function::attached::Attached;
use crate::function::http_api::Cors;
use crate::function::settings::Settings;
use crate::function::tenancy::PER_TENANT;
use crate::invocation::counters::Count;
use worker_image::ImageConfig;
use worker_pool::{FunctionId, InstanceId};

/// All that an instance is started with. A change of the function makes a new one.
#[derive(Clone, Debug)]
pub struct Deployment {
    /// The function, or the version of it, that has instances of its own.
    pub function: FunctionId,
    /// The function that it is a version of, or itself: all its versions share pages, but not its tenants.
    pub parent: FunctionId,
    /// The tenant whose requests alone its instances serve; none, where all callers share instances.
    pub tenant: Option<Arc<str>>,
    /// Its name.
    pub name: String,
    /// `$LATEST`, or the number of a version.
    pub version: String,
    /// Its settings.
    pub settings: Settings,
    /// Its code.
    pub code: Code,
    /// What the code needs, seen below /opt.
    pub opt: OptMount,
    /// Changes with every change.
    pub revision: String,
    /// The time of the last change.
    pub modified: SystemTime,
}

/// The name of a function's log, if its settings name no other.
pub(crate) fn log_group(function: &str) -> String {
    format!("/aws/lambda/{function}")
}

/// A function of the worker.
#[derive(Clone, Debug)]
pub struct Function {
    /// What new instances are started with.
    pub deployment: Arc<Deployment>,
    /// Concurrency that it alone may use.
    pub reserved: Option<u32>,
    /// Its URL, if it has one.
    pub url: Option<FunctionUrl>,
    /// Shown by the API only.
    pub tags: BTreeMap<String, String>,
    /// Published versions, by number; they do not change any more.
    pub versions: BTreeMap<u64, Arc<Deployment>>,
    /// The number of the latest version, which is never reused.
    pub latest_version: u64,
    /// Names for versions.
    pub aliases: BTreeMap<String, Alias>,
    /// What callers attach to it, to its versions and aliases.
    pub attached: Attached,
    /// Its requests since the worker began, by their results.
    pub count: Arc<Count>,
}

/// A name for a version of a function, which may be moved to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alias {
    /// `$LATEST`, or the number of a version.
    pub version: String,
    /// Free text.
    pub description: String,
    /// Changes with every change.
    pub revision: String,
}

impl Function {
    /// The deployment of a version or an alias; none is `$LATEST`.
    ///
    /// # Errors
    /// There is no such version or alias.
    pub fn qualified(&self, qualifier: Option<&str>) -> Result<&Arc<Deployment>, ApiError> {
        let Some(qualifier) = qualifier else { return Ok(&self.deployment) };
        let version = self.aliases.get(qualifier).map_or(qualifier, |alias| &alias.version);
        let found = match version {
            name::LATEST => Some(&self.deployment),
            number => number.parse().ok().and_then(|number: u64| self.versions.get(&number)),
        };
        found.ok_or_else(|| name::no_such_function(&format!("{}:{qualifier}", self.deployment.name)))
    }

    /// $LATEST and the published versions.
    pub fn deployments(&self) -> impl Iterator<Item = &Arc<Deployment>> {
        std::iter::once(&self.deployment).chain(self.versions.values())
    }
}

/// A function's URL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionUrl {
    /// Its id in the path.
    pub id: String,
    /// The alias that it calls; none is `$LATEST`.
    pub alias: Option<String>,
    /// `NONE` or `AWS_IAM`.
    pub auth_type: String,
    /// `InvokeMode`: whether the function's answer is sent while the function makes it.
    #[serde(default)]
    pub streams: bool,
    /// `Cors`: what pages of other origins may do.
    #[serde(default)]
    pub cors: Option<Cors>,
    /// Lambda's time text.
    pub created: String,
    /// Lambda's time text.
    pub modified: String,
}

impl Deployment {
    /// The `FunctionConfiguration` that the API answers with.
    pub fn configuration(&self) -> Value {
        let settings = &self.settings;
        let mut configuration = json!({
            "FunctionName": self.name,
            "FunctionArn": self.arn(),
            "Role": settings.role,
            "CodeSize": self.code.size_bytes,
            "CodeSha256": self.code.sha256,
            "Description": settings.description,
            "Timeout": settings.timeout_s,
            "MemorySize": settings.memory_mib,
            "LastModified": lambda_time(self.modified),
            "Version": self.version,
            "TracingConfig": { "Mode": "PassThrough" },
            "RevisionId": self.revision,
            "State": "Active",
            "LastUpdateStatus": "Successful",
            "PackageType": "Zip",
            "LoggingConfig": settings.logging.described(&self.log_group()),
            "Architectures": ["x86_64"],
            "EphemeralStorage": { "Size": settings.ephemeral_mib },
            "SnapStart": self.snap_start(),
        });
        match settings.runtime {
            Runtime::Image => {
                configuration["PackageType"] = "Image".into();
                if settings.image_config != ImageConfig::default() {
                    configuration["ImageConfigResponse"] = json!({ "ImageConfig": settings.image_config });
                }
            }
            _ => {
                configuration["Runtime"] = settings.runtime.name().into();
                configuration["Handler"] = settings.handler.clone().into();
            }
        }
        if let Some(provider) = settings.several.as_ref().and_then(|several| several.provider.as_ref()) {
            configuration["CapacityProviderConfig"] = provider.clone();
        }
        if !settings.environment.is_empty() {
            configuration["Environment"] = json!({ "Variables": settings.environment });
        }
        if settings.per_tenant {
            configuration["TenancyConfig"] = json!({ "TenantIsolationMode": PER_TENANT });
        }
        if !self.opt.layers.is_empty() {
            let layer = |layer: &Arc<lambda_layers::Layer>| json!({ "Arn": layer.arn(), "CodeSize": layer.code.size_bytes });
            configuration["Layers"] = self.opt.layers.iter().map(layer).collect();
        }
        configuration
    }

    /// `SnapStart`, of which only the worker knows whether it has a snapshot.
    fn snap_start(&self) -> Value {
        let on = if self.settings.snap_start { "PublishedVersions" } else { "None" };
        json!({ "ApplyOn": on, "OptimizationStatus": "Off" })
    }

    /// The place of its code, for `GetFunction`.
    pub fn location(&self) -> Value {
        match &self.code.image {
            Some(image) => json!({
                "RepositoryType": "Image",
                "ImageUri": image.uri,
                "ResolvedImageUri": format!("{}@sha256:{}", image.uri, self.code.sha256),
            }),
            None => json!({
                "RepositoryType": "Folder",
                "Location": format!("file://{}", self.code.folder.display()),
            }),
        }
    }

    /// Its ARN, with the number of a version that was published.
    pub fn arn(&self) -> String {
        match self.version.as_str() {
            name::LATEST => name::arn(&self.name),
            version => name::arn(&format!("{}:{version}", self.name)),
        }
    }

    /// The page store of its instances: the function's, or the tenant's own.
    pub fn store(&self) -> FunctionId {
        if self.tenant.is_some() { self.function } else { self.parent }
    }

    /// The name of its log.
    pub fn log_group(&self) -> String {
        self.settings.logging.group.clone().unwrap_or_else(|| log_group(&self.name))
    }

    /// The name of one instance's log, as long as any other's: the instance has it in its environment, and
    /// a longer environment moves later memory. Otherwise the tenth instance's pages with pointers would
    /// differ from those of the nine before it.
    pub fn log_stream(&self, instance: InstanceId) -> String {
        format!("[{}]{}-{instance:010}", self.version, self.revision)
    }

    /// Whether both are equal apart from their names.
    pub fn is_alike(&self, other: &Deployment) -> bool {
        let described =
            |deployment: &Deployment| Settings { description: String::new(), ..deployment.settings.clone() };
        self.code.sha256 == other.code.sha256 && described(self) == described(other)
    }
}
