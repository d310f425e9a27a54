//! SAM templates: which functions a `template.yaml` declares.
//!
//! Read are resources of type `AWS::Serverless::Function`, `Globals.Function`, and `!Ref` or `!Sub` of a parameter's
//! `Default`. Other resources are none of the worker's and passed over.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Map, Value as Json};
use serde_yaml_ng::Value as Yaml;

use crate::function::{Settings, Wanted};
use crate::name;

const FUNCTION: &str = "AWS::Serverless::Function";
/// Properties that mean something here.
const KNOWN: [&str; 14] = [
    "FunctionName",
    "CodeUri",
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
];

/// A function of a template.
#[derive(Debug)]
pub struct Declared {
    /// `FunctionName`, or the resource's name.
    pub name: String,
    /// Checked settings.
    pub settings: Settings,
    /// The folder that `CodeUri` names.
    pub code: PathBuf,
    /// `ReservedConcurrentExecutions`.
    pub reserved: Option<u32>,
    /// `FunctionUrlConfig.AuthType`.
    pub url_auth_type: Option<String>,
}

/// Reads a template.
///
/// # Errors
/// What is wrong, with the file, the resource and the property.
pub fn read(path: &Path) -> Result<Vec<Declared>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| anyhow!("{shown}: {}", crate::code::plain_reason(&error)))?;
    let yaml: Yaml = serde_yaml_ng::from_str(&text).map_err(|error| anyhow!("{shown}: {error}"))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    declared(&yaml, folder).with_context(|| shown.to_string())
}

fn declared(template: &Yaml, folder: &Path) -> Result<Vec<Declared>> {
    let parameters = parameters(template);
    let resources = template.get("Resources").and_then(Yaml::as_mapping).context("there are no Resources")?;
    let globals = match template.get("Globals").and_then(|globals| globals.get("Function")) {
        Some(globals) => object(globals, &parameters).context("Globals.Function")?,
        None => Map::new(),
    };
    let mut functions: Vec<Declared> = Vec::new();
    for (name, resource) in resources {
        let name = name.as_str().context("Resources: a name is no text")?;
        if resource.get("Type").and_then(Yaml::as_str) != Some(FUNCTION) {
            continue;
        }
        let place = || format!("Resources.{name}.Properties");
        let own = resource
            .get("Properties")
            .with_context(|| format!("Resources.{name}: there are no Properties"))?;
        let mut properties = globals.clone();
        for (key, value) in object(own, &parameters).with_context(place)? {
            merge(&mut properties, key, value);
        }
        let mut function = function(name, properties, folder).with_context(place)?;
        function.settings.processors = processors(resource).with_context(|| format!("Resources.{name}"))?;
        if functions.iter().any(|other| other.name == function.name) {
            bail!("{}: FunctionName '{}' is there twice", place(), function.name);
        }
        functions.push(function);
    }
    ensure!(!functions.is_empty(), "Resources: none is an {FUNCTION}");
    Ok(functions)
}

/// The ceiling that SAM has no property for, and HotMem's functions have (HotMem Table 1).
fn processors(resource: &Yaml) -> Result<Option<f64>> {
    let Some(value) = resource.get("Metadata").and_then(|m| m.get("Mayfly")?.get("Cpus")) else {
        return Ok(None);
    };
    let number = value.as_f64().filter(|number| (0.01..=256.0).contains(number));
    number.map(Some).context("Metadata.Mayfly.Cpus must be a number of processors, 0.01 to 256")
}

fn function(resource: &str, mut properties: Map<String, Json>, folder: &Path) -> Result<Declared> {
    for key in properties.keys().filter(|key| !KNOWN.contains(&key.as_str())) {
        tracing::warn!("Resources.{resource}.Properties.{key} is not supported and passed over");
    }
    properties.retain(|key, _| KNOWN.contains(&key.as_str()));
    let mut take = |key: &str| properties.remove(key);
    let text = |key: &str, value: Option<Json>| match value {
        None => Ok(None),
        Some(Json::String(text)) => Ok(Some(text)),
        Some(other) => Err(anyhow!("{key}: {other} is no text")),
    };
    let function_name = text("FunctionName", take("FunctionName"))?.unwrap_or_else(|| resource.to_string());
    ensure!(name::is_plain(&function_name), "FunctionName: '{function_name}' is no name of a function");
    let code = text("CodeUri", take("CodeUri"))?.context("CodeUri is needed: the folder with the code")?;
    ensure!(!code.starts_with("s3:"), "CodeUri: '{code}': S3 is not supported, give a folder");
    let reserved = match take("ReservedConcurrentExecutions") {
        None => None,
        Some(value) => {
            let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
            Some(number.with_context(|| format!("ReservedConcurrentExecutions: {value} is no number"))?)
        }
    };
    let url_auth_type = match take("FunctionUrlConfig") {
        None => None,
        Some(config) => match config.get("AuthType").and_then(Json::as_str) {
            Some(kind @ ("NONE" | "AWS_IAM")) => Some(kind.to_string()),
            _ => bail!("FunctionUrlConfig.AuthType must be NONE or AWS_IAM"),
        },
    };
    if let Some(variables) = properties.get_mut("Environment").and_then(|e| e.get_mut("Variables")) {
        // YAML reads numbers where the environment has texts.
        for value in variables.as_object_mut().into_iter().flat_map(|map| map.values_mut()) {
            if !value.is_string() {
                *value = Json::String(value.to_string());
            }
        }
    }
    let wanted: Wanted = serde_json::from_value(Json::Object(properties))?;
    let settings = Settings::new(&wanted).map_err(|error| anyhow!("{}", error.message))?;
    Ok(Declared { name: function_name, settings, code: folder.join(code), reserved, url_auth_type })
}

/// As SAM merges globals: variables one by one, everything else as a whole.
fn merge(properties: &mut Map<String, Json>, key: String, value: Json) {
    if key == "Environment"
        && let Some(known) =
            properties.get_mut("Environment").and_then(|e| e.get_mut("Variables")?.as_object_mut())
        && let Some(own) = value.get("Variables").and_then(Json::as_object)
    {
        known.extend(own.clone());
        return;
    }
    properties.insert(key, value);
}

type Parameters = BTreeMap<String, Json>;

fn parameters(template: &Yaml) -> Parameters {
    let declared = template.get("Parameters").and_then(Yaml::as_mapping);
    declared
        .into_iter()
        .flatten()
        .filter_map(|(name, parameter)| {
            let value = serde_json::to_value(parameter.get("Default")?).ok()?;
            Some((name.as_str()?.to_string(), value))
        })
        .collect()
}

fn object(yaml: &Yaml, parameters: &Parameters) -> Result<Map<String, Json>> {
    match resolve(yaml, parameters)? {
        Json::Object(map) => Ok(map),
        other => bail!("{other} should be a mapping"),
    }
}

/// YAML as JSON, with references to parameters replaced by their values.
fn resolve(yaml: &Yaml, parameters: &Parameters) -> Result<Json> {
    Ok(match yaml {
        Yaml::Tagged(tagged) => match (tagged.tag.to_string().as_str(), &tagged.value) {
            ("!Ref", Yaml::String(name)) => reference(name, parameters)?,
            ("!Sub", Yaml::String(text)) => Json::String(substitute(text, parameters)?),
            (tag, _) => bail!("{tag} is not supported; !Ref and !Sub of parameters with a Default are"),
        },
        Yaml::Mapping(mapping) => {
            let single = mapping.iter().next().filter(|_| mapping.len() == 1);
            match single.and_then(|(key, value)| Some((key.as_str()?, value))) {
                Some(("Ref", Yaml::String(name))) => return reference(name, parameters),
                Some(("Fn::Sub", Yaml::String(text))) => {
                    return Ok(Json::String(substitute(text, parameters)?));
                }
                Some((function, _)) if function.starts_with("Fn::") => bail!("{function} is not supported"),
                _ => {}
            }
            let mut map = Map::new();
            for (key, value) in mapping {
                let key =
                    key.as_str().map_or_else(|| serde_yaml_ng::to_string(key), |key| Ok(key.to_string()))?;
                let value = resolve(value, parameters).with_context(|| key.clone())?;
                map.insert(key, value);
            }
            Json::Object(map)
        }
        Yaml::Sequence(list) => list.iter().map(|item| resolve(item, parameters)).collect::<Result<_>>()?,
        plain => serde_json::to_value(plain)?,
    })
}

fn reference(name: &str, parameters: &Parameters) -> Result<Json> {
    match name {
        "AWS::Region" => Ok(name::REGION.into()),
        "AWS::AccountId" => Ok(name::ACCOUNT.into()),
        _ => {
            parameters.get(name).cloned().with_context(|| format!("Ref {name}: no parameter with a Default"))
        }
    }
}

/// Replaces `${NAME}`; `${!NAME}` stands for `${NAME}` itself.
fn substitute(text: &str, parameters: &Parameters) -> Result<String> {
    let (mut made, mut rest) = (String::new(), text);
    while let Some(start) = rest.find("${") {
        let end = rest[start..].find('}').with_context(|| format!("Sub '{text}': a }} is missing"))? + start;
        made.push_str(&rest[..start]);
        let name = &rest[start + 2..end];
        match name.strip_prefix('!') {
            Some(literal) => made.push_str(&format!("${{{literal}}}")),
            None => match reference(name, parameters)? {
                Json::String(value) => made.push_str(&value),
                value => made.push_str(&value.to_string()),
            },
        }
        rest = &rest[end + 1..];
    }
    Ok(made + rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Vec<Declared>> {
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
      FunctionUrlConfig: { AuthType: NONE }
      Policies: []
";

    #[test]
    fn functions_are_read_with_globals_and_parameters() {
        let functions = parse(TEMPLATE).unwrap();
        let [hello] = &functions[..] else { panic!("one function: {functions:?}") };
        assert_eq!((hello.name.as_str(), hello.code.as_path()), ("Hello", Path::new("/templates/hello/")));
        assert_eq!((hello.settings.memory_mib, hello.settings.timeout_s), (512, 30));
        let variables: Vec<_> = hello.settings.environment.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(variables, ["ONE=one", "THREE=true", "TWO=x-blue-${Word}"]);
        assert_eq!((hello.reserved, hello.url_auth_type.as_deref()), (Some(3), Some("NONE")));
    }

    #[test]
    fn errors_name_the_resource_and_the_property() {
        let with = |from: &str, to: &str| refusal(&TEMPLATE.replace(from, to));
        let place = "Resources.Hello.Properties: ";
        assert_eq!(with("!Ref Size", "1"), format!("{place}'MemorySize' is '1' and must be 128 to 10240"));
        assert_eq!(
            with("!Ref Size", "!Ref X"),
            format!("{place}MemorySize: Ref X: no parameter with a Default")
        );
        assert!(with("!Ref Size", "!GetAtt X.Y").contains("MemorySize: !GetAtt is not supported"));
        assert!(with("!Ref Size", "lots").contains("invalid type"));
        assert!(with("CodeUri: hello/", "CodeUri: s3://b/k").contains("CodeUri: 's3://b/k'"));
        assert!(with("      CodeUri: hello/\n", "").contains("CodeUri is needed"));
        assert!(with("AuthType: NONE", "AuthType: SOME").contains("FunctionUrlConfig.AuthType"));
        assert!(with("CodeUri: hello/", "CodeUri: hello/\n      FunctionName: a b").contains("'a b'"));
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
