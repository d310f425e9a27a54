//! SAM templates: which functions a `template.yaml` declares.
//!
//! The worker reads resources of types `AWS::Serverless::Function` and `AWS::Serverless::LayerVersion`,
//! and `Globals.Function`; [`intrinsics`] resolves `!Ref` and the like. It ignores other resources, and
//! logs each property that it ignores.

mod events;
mod function;
mod http_apis;
mod intrinsics;
mod schedules;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use serde_yaml_ng::Value as Yaml;

pub use self::events::QueueSource;
pub use self::function::DeclaredUrl;
use self::intrinsics::Scope;
use crate::base::name::{self, Target};
use crate::function::event_config::EventConfig;
use crate::function::http_api::HttpApi;
use crate::function::schedule::Scheduled;
use crate::function::settings::Settings;

const FUNCTION: &str = "AWS::Serverless::Function";
const LAYER: &str = "AWS::Serverless::LayerVersion";
/// Properties that the worker reads.
const KNOWN: [&str; 21] = [
    "FunctionName",
    "CodeUri",
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
];

/// Properties that change nothing for a function on one machine: what it may do in an account, and how SAM
/// builds it.
const MEANINGLESS: [&str; 3] = ["Policies", "PermissionsBoundary", "AssumeRolePolicyDocument"];

/// Properties that images must not have.
const OF_FOLDERS: [&str; 4] = ["Runtime", "Handler", "Layers", "CodeUri"];

/// A function of a template.
#[derive(Debug)]
pub struct Declared {
    /// `FunctionName`, or the resource's name.
    pub name: String,
    /// Checked settings.
    pub settings: Settings,
    /// Its package: code or an image.
    pub package: Package,
    /// `ReservedConcurrentExecutions`.
    pub reserved: Option<u32>,
    /// `FunctionUrlConfig`.
    pub url: Option<DeclaredUrl>,
    /// `AutoPublishAlias`: the alias of the version that is published whenever the function has changed.
    pub alias: Option<String>,
    /// `Tags`.
    pub tags: BTreeMap<String, String>,
    /// `EventInvokeConfig`.
    pub events: Option<EventConfig>,
    /// The queues in `Events`.
    pub sources: Vec<QueueSource>,
}

/// The package of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Package {
    /// The folder that `CodeUri` names.
    Folder(PathBuf),
    /// `ImageUri`, and the folder where relative paths begin.
    Image(String, PathBuf),
}

/// A layer of a template.
#[derive(Debug)]
pub struct DeclaredLayer {
    /// `LayerName`, or the resource's name.
    pub name: String,
    /// The folder that `ContentUri` names.
    pub content: PathBuf,
    /// `Description`.
    pub description: String,
    /// `LicenseInfo`.
    pub license: String,
    /// `CompatibleRuntimes`.
    pub runtimes: Vec<String>,
}

/// What a template declares.
#[derive(Debug, Default)]
pub struct Template {
    /// Its functions.
    pub functions: Vec<Declared>,
    /// Its layers.
    pub layers: Vec<DeclaredLayer>,
    /// Its HTTP APIs.
    pub http_apis: Vec<HttpApi>,
    /// Its schedules, by what they call.
    pub schedules: BTreeMap<String, Vec<Scheduled>>,
}

/// The version number in ARNs that means the latest version of the template's own layer.
pub const LATEST_OF_LAYER: u64 = 0;

/// Reads a template.
///
/// # Errors
/// The template is wrong; names the file, the resource and the property.
pub fn read(path: &Path) -> Result<Template> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| anyhow!("{shown}: {}", worker_system::text::plain_reason(&error)))?;
    let yaml: Yaml = serde_yaml_ng::from_str(&text).map_err(|error| anyhow!("{shown}: {error}"))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    declared(&yaml, folder).with_context(|| shown.to_string())
}

fn declared(template: &Yaml, folder: &Path) -> Result<Template> {
    let scope = Scope::of(template);
    let resources = template.get("Resources").and_then(Yaml::as_mapping).context("there are no Resources")?;
    let globals = match template.get("Globals").and_then(|globals| globals.get("Function")) {
        Some(globals) => properties_of(globals, &scope, "Globals.Function")?,
        None => Map::new(),
    };
    let mut functions: Vec<Declared> = Vec::new();
    let mut layers = Vec::new();
    let takes_nearest = function::takes_nearest_runtime(template)?;
    let mut http = http_apis::declared(template, &scope);
    for (name, resource) in resources {
        let name = name.as_str().context("Resources: a name is no text")?;
        match resource.get("Type").and_then(Yaml::as_str) {
            Some(FUNCTION) => {}
            Some(LAYER) => {
                layers.push(layer(name, resource, &scope, folder)?);
                continue;
            }
            _ => continue,
        }
        let place = || format!("Resources.{name}.Properties");
        let own = resource
            .get("Properties")
            .with_context(|| format!("Resources.{name}: there are no Properties"))?;
        let own = properties_of(own, &scope, &place())?;
        let mut properties = globals.clone();
        if own.get("PackageType").or(globals.get("PackageType")).is_some_and(|kind| kind == "Image") {
            // Globals for functions of the other package type.
            OF_FOLDERS.iter().for_each(|key| drop(properties.remove(*key)));
        }
        for (key, value) in own {
            merge(&mut properties, key, value);
        }
        if takes_nearest {
            function::take_nearest_runtime(name, &mut properties);
        }
        let sources = match properties.remove("Events") {
            Some(Json::Object(events)) => {
                events::sources(&events, &template["Resources"]).with_context(place)?
            }
            Some(_) => bail!("{}: Events should be a mapping", place()),
            None => Vec::new(),
        };
        let mut function = function::function(name, properties, folder).with_context(place)?;
        function.sources = sources;
        function::of_mayfly(resource, &mut function.settings).with_context(|| format!("Resources.{name}"))?;
        let routes = resource.get("Properties").and_then(|own| own.get("Events"));
        let routes = routes.map(|events| events::routes(events, &scope, name)).unwrap_or_default();
        let target = Target { name: function.name.clone(), qualifier: function.alias.clone() };
        http.functions.push((name.to_string(), target, routes));
        if functions.iter().any(|other| other.name == function.name) {
            bail!("{}: FunctionName '{}' is there twice", place(), function.name);
        }
        functions.push(function);
    }
    ensure!(!functions.is_empty(), "Resources: none is an {FUNCTION}");
    let (http_apis, mut notes) = http_apis::read(&http);
    let mut schedules = BTreeMap::new();
    for (function, target, events) in &http.functions {
        let (found, more) = schedules::read(function, events);
        schedules.insert(target.to_string(), found);
        notes.extend(more);
    }
    notes.iter().for_each(|note| tracing::warn!("{note}"));
    Ok(Template { functions, layers, http_apis, schedules })
}

/// SAM's properties of a layer.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct LayerProperties {
    layer_name: Option<String>,
    content_uri: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    license_info: String,
    #[serde(default)]
    compatible_runtimes: Vec<String>,
}

fn layer(id: &str, resource: &Yaml, scope: &Scope, folder: &Path) -> Result<DeclaredLayer> {
    let place = format!("Resources.{id}.Properties");
    let own =
        resource.get("Properties").with_context(|| format!("Resources.{id}: there are no Properties"))?;
    let properties = scope.resolve(own, &place)?.unwrap_or_default();
    let properties: LayerProperties = serde_json::from_value(properties).with_context(|| place.clone())?;
    let name = properties.layer_name.unwrap_or_else(|| id.to_string());
    ensure!(name::is_layer(&name), "{place}: LayerName: '{name}' is no name of a layer");
    let content = properties.content_uri;
    ensure!(
        !content.starts_with("s3:"),
        "{place}: ContentUri: '{content}': S3 is not supported, give a folder"
    );
    Ok(DeclaredLayer {
        name,
        content: folder.join(content),
        description: properties.description,
        license: properties.license_info,
        runtimes: properties.compatible_runtimes,
    })
}

/// The properties that the worker reads, with intrinsic functions resolved.
fn properties_of(yaml: &Yaml, scope: &Scope, place: &str) -> Result<Map<String, Json>> {
    let mapping = yaml.as_mapping().with_context(|| format!("{place}: should be a mapping"))?;
    let mut properties = Map::new();
    for (key, value) in mapping {
        let key = key.as_str().with_context(|| format!("{place}: a name is no text"))?;
        if !KNOWN.contains(&key) {
            if !MEANINGLESS.contains(&key) {
                tracing::warn!("{place}.{key} is not supported and passed over");
            }
            continue;
        }
        let queues = (key == "Events").then(|| events::only_queues(value, &format!("{place}.Events")));
        let value = scope.resolve(queues.as_ref().unwrap_or(value), &format!("{place}.{key}"));
        if let Some(value) = value.with_context(|| key.to_string()).with_context(|| place.to_string())? {
            properties.insert(key.to_string(), value);
        }
    }
    Ok(properties)
}

/// As SAM merges globals: variables and tags one by one, layers one after another, everything else as a
/// whole.
fn merge(properties: &mut Map<String, Json>, key: String, value: Json) {
    if key == "Environment"
        && let Some(known) =
            properties.get_mut("Environment").and_then(|e| e.get_mut("Variables")?.as_object_mut())
        && let Some(own) = value.get("Variables").and_then(Json::as_object)
    {
        known.extend(own.clone());
        return;
    }
    match (properties.get_mut(&key), value) {
        (Some(Json::Array(known)), Json::Array(own)) if key == "Layers" => known.extend(own),
        (Some(Json::Object(known)), Json::Object(own)) if key == "Tags" => known.extend(own),
        (_, value) => drop(properties.insert(key, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Template> {
        declared(&serde_yaml_ng::from_str(text)?, Path::new("/templates"))
    }

    fn refusal(text: &str) -> String {
        format!("{:#}", parse(text).expect_err("must be refused"))
    }

    const TEMPLATE: &str = "
AWSTemplateFormatVersion: '2010-09-09'
Transform: AWS::Serverless-2016-10-31
Parameters:
  Size: { Type: Number, Default: 512 }
  Word: { Type: String, Default: blue }
Globals:
  Function:
    Runtime: provided.al2023
    Timeout: 30
    Environment: { Variables: { ONE: one, TWO: 2 } }
Resources:
  Bucket: { Type: AWS::S3::Bucket }
  Hello:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: hello/
      Handler: app.handler
      MemorySize: !Ref Size
      Environment: { Variables: { TWO: !Sub 'x-${Word}-${!Word}', THREE: true } }
      ReservedConcurrentExecutions: 3
      FunctionUrlConfig: { AuthType: NONE, InvokeMode: RESPONSE_STREAM }
      Policies: []
";

    #[test]
    fn functions_are_read_with_globals_and_parameters() {
        let functions = parse(TEMPLATE).unwrap().functions;
        let [hello] = &functions[..] else { panic!("one function: {functions:?}") };
        assert_eq!(hello.name, "Hello");
        assert_eq!(hello.package, Package::Folder("/templates/hello/".into()));
        assert_eq!((hello.settings.memory_mib, hello.settings.timeout_s), (512, 30));
        let variables: Vec<_> = hello.settings.environment.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(variables, ["ONE=one", "THREE=true", "TWO=x-blue-${Word}"]);
        let url = DeclaredUrl { auth_type: "NONE".into(), streams: true, cors: None };
        assert_eq!((hello.reserved, &hello.url), (Some(3), &Some(url)));
    }

    #[test]
    fn layers_are_read_and_those_of_globals_come_first() {
        let text = "
Globals: { Function: { Runtime: provided.al2023, Handler: h, Layers: [!Ref Base], Tags: { a: 1x, b: g } } }
Resources:
  Base: { Type: AWS::Serverless::LayerVersion, Properties: { ContentUri: base/, LayerName: base-libs } }
  More: { Type: AWS::Serverless::LayerVersion, Properties: { ContentUri: more, CompatibleRuntimes: [a] } }
  Hello:
    Type: AWS::Serverless::Function
    Properties: { CodeUri: hello, Layers: [!Ref More], Tags: { b: own }, AutoPublishAlias: live }
";
        let template = parse(text).unwrap();
        let layers: Vec<_> =
            template.layers.iter().map(|layer| (&*layer.name, layer.content.as_path())).collect();
        assert_eq!(
            layers,
            [("base-libs", Path::new("/templates/base/")), ("More", Path::new("/templates/more"))]
        );
        let hello = &template.functions[0];
        assert_eq!(hello.settings.layers, ["base-libs:0", "More:0"].map(name::layer_arn));
        assert_eq!(hello.alias.as_deref(), Some("live"));
        assert_eq!(hello.tags, BTreeMap::from([("a".into(), "1x".into()), ("b".into(), "own".into())]));
        let refused = refusal(&text.replace("ContentUri: more, ", ""));
        assert!(refused.contains("Resources.More.Properties") && refused.contains("ContentUri"), "{refused}");
        assert!(refusal(&text.replace("!Ref More", "libs")).contains("'libs' is no ARN"));
    }

    #[test]
    fn image_takes_only_those_globals_that_images_may_have() {
        let image = TEMPLATE
            .replace("CodeUri: hello/", "PackageType: Image\n      ImageUri: image.tar")
            .replace("      Handler: app.handler\n", "      ImageConfig: { Command: [app.handler] }\n");
        let hello = &parse(&image).unwrap().functions[0];
        assert_eq!(hello.package, Package::Image("image.tar".into(), "/templates".into()));
        assert_eq!((hello.settings.image_config.command.len(), hello.settings.timeout_s), (1, 30));
        let refused = |from: &str, to: &str| refusal(&image.replace(from, to));
        assert!(refused("      ImageUri: image.tar\n", "").contains("ImageUri is needed"));
        assert!(
            refused("ImageUri:", "Runtime: python3.11\n      ImageUri:").contains("Runtime is not supported")
        );
        let zip = refusal(&TEMPLATE.replace("CodeUri: hello/", "ImageUri: image.tar"));
        assert!(zip.contains("ImageUri needs PackageType: Image"), "{zip}");
    }

    #[test]
    fn errors_name_the_resource_and_the_property() {
        let with = |from: &str, to: &str| refusal(&TEMPLATE.replace(from, to));
        let place = "Resources.Hello.Properties: ";
        assert_eq!(with("!Ref Size", "1"), format!("{place}'MemorySize' is '1' and must be 128 to 10240"));
        assert_eq!(
            with("!Ref Size", "!Ref X"),
            format!("{place}MemorySize: Ref X: no parameter with a Default, and no resource")
        );
        assert!(with("!Ref Size", "!GetAtt X.Y").contains("invalid type"), "a number is needed");
        assert!(with("!Ref Size", "!Cidr [a]").contains("MemorySize: !Cidr is not supported"));
        assert!(with("!Ref Size", "lots").contains("invalid type"));
        assert!(with("CodeUri: hello/", "CodeUri: s3://b/k").contains("CodeUri: 's3://b/k'"));
        assert!(with("      CodeUri: hello/\n", "").contains("CodeUri is needed"));
        assert!(with("AuthType: NONE", "AuthType: SOME").contains("FunctionUrlConfig.AuthType"));
        assert!(with("RESPONSE_STREAM", "OTHER").contains("FunctionUrlConfig.InvokeMode"));
        assert!(with("CodeUri: hello/", "CodeUri: hello/\n      FunctionName: a b").contains("'a b'"));
        let ours = |word: &str| {
            let text = format!("    Metadata: {{ Mayfly: {{ {word} }} }}\n    Properties:\n      CodeUri");
            TEMPLATE.replace("    Properties:\n      CodeUri", &text)
        };
        let settings = |word: &str| parse(&ours(word)).unwrap().functions[0].settings.clone();
        assert!(refusal(&ours("Network: all")).contains("Resources.Hello: Metadata.Mayfly.Network must be"));
        assert_eq!(settings("Network: outside").outside, Some(true));
        for name in ["a/b", "''", "7", "a-name-that-is-too-long-for-a-vm"] {
            let refused = refusal(&ours(&format!("Vm: {name}")));
            assert!(refused.contains("Resources.Hello: Metadata.Mayfly.Vm must be"), "{refused}");
        }
        assert_eq!(settings("Vm: red").vm.as_deref(), Some("red"));
        assert!(refusal(&ours("PageOutAfter: 0")).contains("Metadata.Mayfly.PageOutAfter must be"));
        assert_eq!(settings("PageOutAfter: 30").page_out_after_s, Some(30));
        let nearest = "Metadata: { Mayfly: { NearestRuntime: often } }\nResources: {}";
        assert_eq!(refusal(nearest), "Metadata.Mayfly.NearestRuntime must be true or false");
        assert_eq!(refusal("Resources: {}"), "Resources: none is an AWS::Serverless::Function");
        assert_eq!(refusal("a: b"), "there are no Resources");
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(lines in prop::collection::vec(any::<prop::sample::Index>(), 0..60)) {
            // Lines of a true template, in any order: near to right, wrong everywhere.
            let all: Vec<&str> = TEMPLATE.lines().collect();
            let text: Vec<&str> = lines.iter().map(|index| *index.get(&all)).collect();
            let _ = parse(&text.join("\n"));
        }
    }
}
