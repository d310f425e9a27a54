//! A function's settings, checked against Lambda's ranges.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::base::error::ApiError;
use crate::base::limits;
use crate::code::lambda_layers;
use crate::code::runtime::Runtime;
use crate::function::capacity_provider::Several;
use crate::function::logging::Logging;
use crate::function::tenancy::{self, TenancyConfig};
use crate::function::variables;
use crate::function::wanted::Wanted;
use worker_image::ImageConfig;
use worker_system::text::shown;

/// Checked settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Free text.
    pub description: String,
    /// The program that starts.
    pub runtime: Runtime,
    /// Where the function is in the code.
    pub handler: String,
    /// `MemorySize`.
    pub memory_mib: u32,
    /// `Timeout`.
    pub timeout_s: u32,
    /// The function's own variables.
    pub environment: BTreeMap<String, String>,
    /// Size of /tmp.
    pub ephemeral_mib: u32,
    /// As given.
    pub role: String,
    /// ARNs of versions of layers, the later over the earlier.
    pub layers: Vec<String>,
    /// `ImageConfig`.
    #[serde(default)]
    pub image_config: ImageConfig,
    /// `LoggingConfig`.
    #[serde(default)]
    pub logging: Logging,
    /// Processors it may use at most: `Metadata.Mayfly.Cpus` of its resource in a template.
    pub processors: Option<f64>,
    /// Whether it reaches the outside world: `Metadata.Mayfly.Network` of its resource in a template;
    /// otherwise as the worker is set up.
    pub outside: Option<bool>,
    /// Its VM, with `--sandbox vm`: `Metadata.Mayfly.Vm` of its resource in a template; otherwise the VM
    /// of all functions that name none.
    #[serde(default)]
    pub vm: Option<String>,
    /// Frozen for so long, its memory goes to the host's swap: `Metadata.Mayfly.PageOutAfter` of its
    /// resource in a template.
    #[serde(default)]
    pub page_out_after_s: Option<u32>,
    /// `TenancyConfig`: an instance serves one tenant.
    #[serde(default)]
    pub per_tenant: bool,
    /// How many requests an instance serves at once, where it serves several.
    #[serde(default)]
    pub several: Option<Several>,
    /// `SnapStart`: instances of published versions are restored from a snapshot.
    #[serde(default)]
    pub snap_start: bool,
    /// The same for all instances: `Metadata.Mayfly.Snapshot` of its resource in a template.
    #[serde(default)]
    pub snapshot: bool,
    /// The event, as JSON in one line, that the instance runs which is to be taken: that of
    /// `Metadata.Mayfly.Snapshot` of its resource in a template.
    #[serde(default)]
    pub primed_by: Option<String>,
    /// Instances of `$LATEST` are restored, where they can be: functions of templates, if the template does
    /// not say otherwise.
    #[serde(default)]
    pub snapshot_by_default: bool,
}

impl Settings {
    /// The settings of a new function.
    ///
    /// # Errors
    /// A value is out of range, or a required one is missing.
    pub fn new(wanted: &Wanted) -> Result<Settings, ApiError> {
        let needed =
            |what: &str| ApiError::invalid_parameter(format!("{what} is needed for a .zip or folder"));
        let package = wanted.package_type.as_deref().unwrap_or("Zip");
        let (runtime, handler) = match package {
            "Image" => (Runtime::Image, String::new()),
            _ => {
                check(package == "Zip", "PackageType", package, "be Zip or Image")?;
                let runtime = wanted.runtime.as_deref().ok_or_else(|| needed("Runtime"))?;
                (Runtime::parse(runtime)?, wanted.handler.clone().ok_or_else(|| needed("Handler"))?)
            }
        };
        let defaults = Settings {
            description: String::new(),
            runtime,
            handler,
            memory_mib: limits::DEFAULT_MEMORY_MIB,
            timeout_s: limits::DEFAULT_TIMEOUT_S,
            environment: BTreeMap::new(),
            ephemeral_mib: *limits::EPHEMERAL_MIB.start(),
            role: String::new(),
            layers: Vec::new(),
            image_config: ImageConfig::default(),
            logging: Logging::default(),
            processors: None,
            outside: None,
            vm: None,
            page_out_after_s: None,
            per_tenant: wanted.tenancy_config.is_some(),
            several: None,
            snap_start: false,
            snapshot: false,
            primed_by: None,
            snapshot_by_default: false,
        };
        wanted.tenancy_config.as_ref().map_or(Ok(()), TenancyConfig::check)?;
        let without = Wanted { tenancy_config: None, ..wanted.clone() };
        defaults.changed(&without)
    }

    /// These settings with the requested changes.
    ///
    /// # Errors
    /// A value out of range.
    pub fn changed(&self, wanted: &Wanted) -> Result<Settings, ApiError> {
        let mut settings = self.clone();
        self.check_package(wanted)?;
        if wanted.tenancy_config.is_some() {
            let text = "TenancyConfig is chosen when a function is created, and cannot be changed afterwards";
            return Err(ApiError::invalid_parameter(text));
        }
        if let Some(config) = &wanted.image_config {
            check_image_config(config)?;
            settings.image_config.clone_from(config);
        }
        if let Some(logging) = &wanted.logging_config {
            settings.logging = settings.logging.changed(logging)?;
        }
        if let Some(text) = &wanted.description {
            check(text.len() <= 256, "Description", text, "have at most 256 bytes")?;
            settings.description.clone_from(text);
        }
        if let Some(text) = &wanted.runtime {
            settings.runtime = Runtime::parse(text)?;
        }
        if let Some(text) = &wanted.handler {
            let fits =
                (1..=128).contains(&text.len()) && !text.contains(|c: char| c.is_whitespace() || c == '\0');
            check(fits, "Handler", text, "have 1 to 128 bytes and no space")?;
            settings.handler.clone_from(text);
        }
        if let Some(size) = wanted.memory_size {
            check(limits::MEMORY_MIB.contains(&size), "MemorySize", &size.to_string(), "be 128 to 10240")?;
            settings.memory_mib = size;
        }
        if let Some(seconds) = wanted.timeout {
            check(limits::TIMEOUT_S.contains(&seconds), "Timeout", &seconds.to_string(), "be 1 to 900")?;
            settings.timeout_s = seconds;
        }
        if let Some(storage) = &wanted.ephemeral_storage {
            let fits = limits::EPHEMERAL_MIB.contains(&storage.size);
            check(fits, "EphemeralStorage.Size", &storage.size.to_string(), "be 512 to 10240")?;
            settings.ephemeral_mib = storage.size;
        }
        if let Some(environment) = &wanted.environment {
            variables::check(&environment.variables)?;
            settings.environment.clone_from(&environment.variables);
        }
        if let Some(role) = &wanted.role {
            settings.role.clone_from(role);
        }
        check_architectures(&json!(wanted.architectures))?;
        if let Some(arns) = &wanted.layers {
            lambda_layers::check(arns)?;
            settings.layers.clone_from(arns);
        }
        if let Some(config) = &wanted.capacity_provider_config {
            settings.several = Some(config.several()?);
        }
        if let Some(snap_start) = &wanted.snap_start {
            settings.snap_start = snap_start.applies()?;
        }
        if settings.snap_start || settings.snapshot {
            tenancy::refuse(settings.per_tenant, "SnapStart")?;
        }
        wanted.refuse_others()?;
        Ok(settings)
    }

    /// The most requests that one instance serves at once.
    pub fn at_once(&self) -> u32 {
        self.several.as_ref().map_or(1, |several| several.at_once)
    }

    /// Refuses settings of the other package type, as Lambda does.
    fn check_package(&self, wanted: &Wanted) -> Result<(), ApiError> {
        let given = |is_given: bool, what: &'static str| is_given.then_some(what);
        let (wrong, kind) = match self.runtime {
            Runtime::Image => {
                let layers = wanted.layers.as_ref().is_some_and(|layers| !layers.is_empty());
                let wrong = given(wanted.runtime.is_some(), "Runtime")
                    .or(given(wanted.handler.is_some(), "Handler"))
                    .or(given(layers, "Layers"));
                (wrong, "Image")
            }
            _ => {
                let config =
                    wanted.image_config.as_ref().is_some_and(|config| *config != ImageConfig::default());
                (given(config, "ImageConfig"), "Zip")
            }
        };
        match wrong {
            None => Ok(()),
            Some(what) => Err(ApiError::invalid_parameter(format!(
                "{what} is not supported for functions created with PackageType {kind}"
            ))),
        }
    }
}

/// Refuses `Architectures` that this host is not.
///
/// # Errors
/// It is none of this host's.
pub fn check_architectures(given: &Value) -> Result<(), ApiError> {
    let other = given.as_array().into_iter().flatten().find(|one| *one != "x86_64");
    let other = other.map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_string));
    check(other.is_none(), "Architectures", &other.unwrap_or_default(), "be x86_64")
}

fn check_image_config(config: &ImageConfig) -> Result<(), ApiError> {
    for word in config.entry_point.iter().chain(&config.command).chain(&config.working_directory) {
        let fits = word.len() <= 1000 && !word.contains('\0');
        check(fits, "ImageConfig", word, "have at most 1000 bytes, none of them zero")?;
    }
    let most = config.entry_point.len().max(config.command.len());
    check(most <= 1500, "ImageConfig", &most.to_string(), "have at most 1500 words")
}

fn check(fits: bool, what: &str, value: &str, must: &str) -> Result<(), ApiError> {
    if fits {
        return Ok(());
    }
    Err(ApiError::invalid_parameter(format!("'{what}' is '{}' and must {must}", shown(value))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::wanted::Environment;

    fn wanted() -> Wanted {
        Wanted { runtime: Some("provided.al2023".into()), handler: Some("h".into()), ..Wanted::default() }
    }

    fn refusal(change: impl Fn(&mut Wanted)) -> String {
        let mut wanted = wanted();
        change(&mut wanted);
        Settings::new(&wanted).expect_err("must be refused").message
    }

    #[test]
    fn defaults_are_lambdas() {
        let settings = Settings::new(&wanted()).unwrap();
        assert_eq!((settings.memory_mib, settings.timeout_s, settings.ephemeral_mib), (128, 3, 512));
    }

    #[test]
    fn image_defines_its_own_command() {
        let image = || Wanted { package_type: Some("Image".into()), ..Wanted::default() };
        let settings = Settings::new(&image()).unwrap();
        assert_eq!((&settings.runtime, settings.handler.as_str()), (&Runtime::Image, ""));
        let kept: Settings = serde_json::from_value(serde_json::to_value(&settings).unwrap()).unwrap();
        assert_eq!(kept, settings, "as a worker keeps it");
        assert!(Runtime::parse("Image").is_err(), "it cannot be named");
        let config = ImageConfig { command: vec!["app.handler".into()], ..ImageConfig::default() };
        let changed = Settings::new(&Wanted { image_config: Some(config.clone()), ..image() }).unwrap();
        assert_eq!(changed.image_config, config);
        let zip = refusal(|w| w.image_config = Some(config.clone()));
        assert!(zip.starts_with("ImageConfig is not supported"), "{zip}");
        let layers = Wanted { layers: Some(vec!["a".into()]), ..image() };
        assert!(Settings::new(&layers).unwrap_err().message.starts_with("Layers is not supported"));
        let long = ImageConfig { working_directory: Some("x".repeat(1001)), ..config };
        assert!(Settings::new(&Wanted { image_config: Some(long), ..image() }).is_err());
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        assert_eq!(refusal(|w| w.memory_size = Some(127)), "'MemorySize' is '127' and must be 128 to 10240");
        assert!(refusal(|w| w.timeout = Some(0)).starts_with("'Timeout' is '0'"));
        assert!(refusal(|w| w.timeout = Some(901)).starts_with("'Timeout'"));
        assert!(refusal(|w| w.handler = Some("a b".into())).starts_with("'Handler'"));
        assert!(refusal(|w| w.handler = None).starts_with("Handler is needed"));
        assert!(refusal(|w| w.runtime = Some("cobol".into())).contains("not supported"));
        assert!(refusal(|w| w.runtime = Some("python3.99".into())).contains("no Python 3.99, and"));
        assert!(refusal(|w| w.runtime = Some("python3.../sh".into())).contains("not supported"));
        assert!(refusal(|w| w.package_type = Some("Jar".into())).starts_with("'PackageType'"));
        assert!(refusal(|w| w.package_type = Some("Image".into())).starts_with("Runtime is not supported"));
        assert!(refusal(|w| w.architectures = Some(vec!["arm64".into()])).starts_with("'Architectures'"));
        let other =
            |name: &str, value: Value| Wanted { other: [(name.to_string(), value)].into(), ..wanted() };
        for (name, value) in [
            ("NewerThanThis", json!(1)),
            ("DeadLetterConfig", json!({ "TargetArn": "arn:aws:sqs:x" })),
            ("VpcConfig", json!({ "SubnetIds": ["a"], "SecurityGroupIds": [] })),
            ("TracingConfig", json!({ "Mode": "Active" })),
            ("DurableConfig", json!({ "ExecutionTimeout": 60 })),
            ("DurableConfig", json!({})),
        ] {
            let message = Settings::new(&other(name, value)).unwrap_err().message;
            assert!(message.starts_with(name) && message.contains("not supported here"), "{message}");
        }
        for (name, value) in [
            ("Publish", json!(true)),
            ("NewerThanThis", json!({})),
            ("DeadLetterConfig", json!({ "TargetArn": "" })),
            ("VpcConfig", json!({ "SubnetIds": [], "SecurityGroupIds": [] })),
            ("TracingConfig", json!({ "Mode": "PassThrough" })),
            ("DurableConfig", Value::Null),
        ] {
            assert!(Settings::new(&other(name, value)).is_ok(), "{name}");
        }
        let variable = |name: &str, value: &str| {
            let variables = BTreeMap::from([(name.to_string(), value.to_string())]);
            refusal(|w| w.environment = Some(Environment { variables: variables.clone() }))
        };
        assert!(variable("LONG", &"x".repeat(4093)).contains("4097 bytes"));
        assert!(variable("A=B", "").starts_with("'Environment'"));
        assert!(variable("_HANDLER", "x").starts_with("'Environment'"));
        assert!(variable("AWS_LAMBDA_RUNTIME_API", "x").contains("Lambda itself"));
    }
}
