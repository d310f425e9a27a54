//! Resolves intrinsic functions of CloudFormation where there is no CloudFormation.
//!
//! Parameters have their `Default`. A resource of the template is named by its logical id, as `sam local`
//! has it, and its attributes by `ID.Attribute`. There is no such resource here, so a function that uses it
//! must be configured in another way, and a warning is logged. What cannot be known at all is left out,
//! with a warning.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value as Json};
use serde_yaml_ng::{Mapping, Value as Yaml};

use crate::base::name;

/// The values of names in a template.
pub struct Scope {
    parameters: BTreeMap<String, Json>,
    resources: BTreeSet<String>,
    /// `FunctionName` of functions, by logical id.
    functions: BTreeMap<String, String>,
    /// `LayerName` of layers, by logical id.
    layers: BTreeMap<String, String>,
    mappings: Yaml,
}

impl Scope {
    /// The names of a template.
    pub fn of(template: &Yaml) -> Scope {
        let part = |name: &str| template.get(name).and_then(Yaml::as_mapping).into_iter().flatten();
        let named = |(name, value): (_, _)| Some((Yaml::as_str(name)?.to_string(), value));
        let parameters = part("Parameters").filter_map(named).filter_map(|(name, parameter): (_, &Yaml)| {
            Some((name, serde_json::to_value(parameter.get("Default")?).ok()?))
        });
        let of_kind = |kind: &'static str, property: &'static str| {
            let resources = part("Resources").filter_map(named);
            let chosen = resources.filter_map(move |(name, resource): (String, &Yaml)| {
                let is_one = resource.get("Type")?.as_str()? == kind;
                let given = resource.get("Properties").and_then(|p| p.get(property)?.as_str());
                is_one.then(|| (name.clone(), given.unwrap_or(&name).to_string()))
            });
            chosen.collect::<BTreeMap<_, _>>()
        };
        Scope {
            parameters: parameters.collect(),
            resources: part("Resources").filter_map(named).map(|(name, _)| name).collect(),
            functions: of_kind(super::FUNCTION, "FunctionName"),
            layers: of_kind(super::LAYER, "LayerName"),
            mappings: template.get("Mappings").cloned().unwrap_or_default(),
        }
    }

    /// YAML as JSON, with intrinsic functions resolved; `None` if the value is left out. `place` is for
    /// messages.
    pub fn resolve(&self, yaml: &Yaml, place: &str) -> Result<Option<Json>> {
        Ok(Some(match yaml {
            Yaml::Tagged(tagged) => {
                let tag = tagged.tag.to_string();
                return self.call(tag.trim_start_matches('!'), &tagged.value, place);
            }
            Yaml::Mapping(mapping) => {
                let single = mapping.iter().next().filter(|_| mapping.len() == 1);
                match single.and_then(|(key, value)| Some((key.as_str()?, value))) {
                    Some(("Ref", name)) => return self.call("Ref", name, place),
                    Some((function, value)) if function.starts_with("Fn::") => {
                        return self.call(&function[4..], value, place);
                    }
                    _ => Json::Object(self.mapping(mapping, place)?),
                }
            }
            Yaml::Sequence(list) => {
                let items = list.iter().map(|item| self.resolve(item, place)).collect::<Result<Vec<_>>>()?;
                items.into_iter().flatten().collect()
            }
            plain => serde_json::to_value(plain)?,
        }))
    }

    fn mapping(&self, mapping: &Mapping, place: &str) -> Result<Map<String, Json>> {
        let mut map = Map::new();
        for (key, value) in mapping {
            let key =
                key.as_str().map_or_else(|| serde_yaml_ng::to_string(key), |key| Ok(key.to_string()))?;
            let value = self.resolve(value, &format!("{place}.{key}")).with_context(|| key.clone())?;
            map.extend(value.map(|value| (key, value)));
        }
        Ok(map)
    }

    fn call(&self, function: &str, value: &Yaml, place: &str) -> Result<Option<Json>> {
        let texts = |value: &Yaml| -> Result<Vec<String>> {
            let list = match self.resolve(value, place)? {
                Some(Json::Array(list)) => list,
                _ => bail!("!{function} needs a list"),
            };
            Ok(list.iter().map(text_of).collect())
        };
        match (function, value) {
            ("Ref", Yaml::String(name)) if name == "AWS::NoValue" => Ok(None),
            ("Ref", Yaml::String(name)) => self.reference(name, place).map(Some),
            ("GetAtt", Yaml::String(name)) => Ok(Some(self.attribute(name, place))),
            ("GetAtt", Yaml::Sequence(_)) => Ok(Some(self.attribute(&texts(value)?.join("."), place))),
            ("Sub", Yaml::String(text)) => self.substitute(text, &Map::new(), place).map(Some),
            ("Sub", Yaml::Sequence(parts)) => match &parts[..] {
                [Yaml::String(text), Yaml::Mapping(own)] => {
                    self.substitute(text, &self.mapping(own, place)?, place).map(Some)
                }
                _ => bail!("!Sub needs a text and a mapping"),
            },
            ("Join", Yaml::Sequence(parts)) => match &parts[..] {
                [Yaml::String(between), list] => Ok(Some(texts(list)?.join(between).into())),
                _ => bail!("!Join needs a text and a list"),
            },
            ("FindInMap", Yaml::Sequence(_)) => {
                let keys = texts(value)?;
                let found = keys.iter().try_fold(&self.mappings, |map, key| map.get(key.as_str()));
                let found =
                    found.with_context(|| format!("!FindInMap {}: not in Mappings", keys.join(", ")))?;
                self.resolve(found, place)
            }
            ("If" | "ImportValue" | "Select" | "Split" | "GetAZs" | "Base64" | "Transform", _) => {
                tracing::warn!("{place}: !{function} is not supported here: the property is left out");
                Ok(None)
            }
            _ => bail!("!{function} is not supported"),
        }
    }

    fn reference(&self, name: &str, place: &str) -> Result<Json> {
        let pseudo = match name {
            "AWS::Region" => name::REGION,
            "AWS::AccountId" => name::ACCOUNT,
            "AWS::Partition" => "aws",
            "AWS::StackName" => "mayfly",
            "AWS::URLSuffix" => "amazonaws.com",
            _ => "",
        };
        if !pseudo.is_empty() {
            return Ok(pseudo.into());
        }
        if let Some(value) = self.parameters.get(name) {
            return Ok(value.clone());
        }
        if let Some(function) = self.functions.get(name) {
            return Ok(function.clone().into());
        }
        if let Some(layer) = self.layers.get(name) {
            return Ok(name::layer_arn(&format!("{layer}:{}", super::LATEST_OF_LAYER)).into());
        }
        if !self.resources.contains(name) {
            bail!("Ref {name}: no parameter with a Default, and no resource");
        }
        tracing::warn!("{place}: there is no {name} here: its name stands for it");
        Ok(name.into())
    }

    fn attribute(&self, name: &str, place: &str) -> Json {
        let function = name.strip_suffix(".Arn").and_then(|id| self.functions.get(id));
        if let Some(function) = function {
            return name::arn(function).into();
        }
        tracing::warn!("{place}: there is no {name} here: the text '{name}' stands for it");
        name.into()
    }

    /// Replaces `${NAME}`; `${!NAME}` stands for `${NAME}` itself.
    fn substitute(&self, text: &str, own: &Map<String, Json>, place: &str) -> Result<Json> {
        let (mut made, mut rest) = (String::new(), text);
        while let Some(start) = rest.find("${") {
            let end =
                rest[start..].find('}').with_context(|| format!("Sub '{text}': a }} is missing"))? + start;
            made.push_str(&rest[..start]);
            let name = &rest[start + 2..end];
            match (name.strip_prefix('!'), own.get(name)) {
                (Some(literal), _) => made.push_str(&format!("${{{literal}}}")),
                (None, Some(value)) => made.push_str(&text_of(value)),
                (None, None) if name.contains('.') => made.push_str(&text_of(&self.attribute(name, place))),
                (None, None) => made.push_str(&text_of(&self.reference(name, place)?)),
            }
            rest = &rest[end + 1..];
        }
        Ok(Json::String(made + rest))
    }
}

fn text_of(value: &Json) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(value: &str) -> Result<Option<Json>> {
        let template = "
            Parameters: { Size: { Default: 5 } }
            Mappings: { M: { a: { b: found } } }
            Resources:
              Table: { Type: AWS::DynamoDB::Table }
              Other: { Type: AWS::Serverless::Function, Properties: { FunctionName: other } }";
        let scope = Scope::of(&serde_yaml_ng::from_str(template)?);
        scope.resolve(&serde_yaml_ng::from_str(value)?, "here")
    }

    #[test]
    fn resolves_intrinsic_functions_with_known_values() {
        for (value, wanted) in [
            ("!Ref Size", "5"),
            ("!Ref Table", "\"Table\""),
            ("!Ref Other", "\"other\""),
            ("!GetAtt Table.Arn", "\"Table.Arn\""),
            ("!GetAtt Other.Arn", &format!("\"{}\"", name::arn("other"))),
            ("{'Fn::GetAtt': [Table, StreamArn]}", "\"Table.StreamArn\""),
            ("!Sub '${Table}-${Size}-${Other.Arn}'", &format!("\"Table-5-{}\"", name::arn("other"))),
            ("!Sub ['${x}-${Size}', {x: !Ref Size}]", "\"5-5\""),
            ("!Join ['/', [a, !Ref Size]]", "\"a/5\""),
            ("!FindInMap [M, a, b]", "\"found\""),
            ("{a: !If [x, 1, 2], b: !Ref AWS::NoValue, c: 1}", "{\"c\":1}"),
        ] {
            let found = resolved(value).unwrap().unwrap();
            assert_eq!(found.to_string(), wanted, "{value}");
        }
        assert_eq!(resolved("!ImportValue x").unwrap(), None);
        for value in ["!Ref Nothing", "!Sub '${Nothing}'", "!FindInMap [M, a, c]", "!Cidr [a]", "!Sub '${x'"]
        {
            assert!(resolved(value).is_err(), "{value}");
        }
    }
}
