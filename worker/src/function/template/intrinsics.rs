//! Evaluates intrinsic functions of CloudFormation where there is no CloudFormation.
//!
//! What cannot be known is left out, and a line is logged.

use std::net::Ipv4Addr;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value as Json, json};

use super::scope::Scope;
use super::yaml::{measure, text_of, weight_of};
use crate::base::name;

/// Zones of a region, as accounts have them.
const ZONES: [char; 3] = ['a', 'b', 'c'];
/// Networks of one `Fn::Cidr`, at most.
const NETWORKS: u64 = 256;

impl Scope {
    /// A value with intrinsic functions evaluated; `None` if it is left out. `place` is for messages.
    ///
    /// # Errors
    /// A function is used wrongly, or names what is not there.
    pub fn resolve(&self, value: &Json, place: &str) -> Result<Option<Json>> {
        self.deeper(|| self.evaluated(value, place))
    }

    fn evaluated(&self, value: &Json, place: &str) -> Result<Option<Json>> {
        Ok(Some(match value {
            Json::Object(map) => match call_of(map) {
                Some((function, argument)) => {
                    let made = self.call(function, argument, place)?;
                    self.spend(made.as_ref().map_or(0, |made| measure(made).0))?;
                    return Ok(made);
                }
                None => Json::Object(self.mapping(map, place)?),
            },
            Json::Array(list) => {
                let items = list.iter().map(|item| self.resolve(item, place)).collect::<Result<Vec<_>>>()?;
                items.into_iter().flatten().collect()
            }
            plain => {
                self.spend(measure(plain).0)?;
                if plain.as_str().is_some_and(|text| text.contains("{{resolve:")) {
                    self.note(format!(
                        "{place}: there are no secrets and parameters of AWS here: {plain} stays as it is"
                    ));
                }
                plain.clone()
            }
        }))
    }

    fn mapping(&self, map: &Map<String, Json>, place: &str) -> Result<Map<String, Json>> {
        let mut made = Map::new();
        for (key, value) in map {
            let value = self.resolve(value, &format!("{place}.{key}")).with_context(|| key.clone())?;
            made.extend(value.map(|value| (key.clone(), value)));
        }
        Ok(made)
    }

    fn list(&self, function: &str, value: &Json, place: &str) -> Result<Vec<Json>> {
        match self.resolve(value, place)? {
            Some(Json::Array(list)) => Ok(list),
            _ => bail!("!{function} needs a list"),
        }
    }

    /// The arguments of a function, evaluated, if there are so many.
    fn arguments<const N: usize>(&self, function: &str, value: &Json, place: &str) -> Result<[Json; N]> {
        let list = value.as_array().with_context(|| format!("!{function} needs a list"))?;
        let each = list.iter().map(|item| Ok(self.resolve(item, place)?.unwrap_or_default()));
        let each = each.collect::<Result<Vec<_>>>()?;
        each.try_into().ok().with_context(|| format!("!{function} needs a list of {N}"))
    }

    fn call(&self, function: &str, value: &Json, place: &str) -> Result<Option<Json>> {
        match function {
            "Ref" => self.reference(&text_of(value), place),
            "GetAtt" => {
                let parts: Vec<String> = match value {
                    Json::String(text) => vec![text.clone()],
                    _ => self.list(function, value, place)?.iter().map(text_of).collect(),
                };
                let whole = parts.join(".");
                let (id, attribute) =
                    whole.split_once('.').context("!GetAtt needs a resource and an attribute")?;
                Ok(Some(self.attribute(id, attribute, place)))
            }
            "Sub" => match value {
                Json::Array(parts) => match &parts[..] {
                    [Json::String(text), Json::Object(own)] => {
                        self.substitute(text, &self.mapping(own, place)?, place).map(Some)
                    }
                    _ => bail!("!Sub needs a text and a mapping"),
                },
                text => self.substitute(&text_of(text), &Map::new(), place).map(Some),
            },
            "Join" => {
                let [between, list] = self.arguments(function, value, place)?;
                let list = list.as_array().context("!Join needs a text and a list")?;
                let (texts, between): (Vec<String>, _) =
                    (list.iter().map(text_of).collect(), text_of(&between));
                self.spend(weight_of(texts.len().saturating_mul(between.len())))?;
                Ok(Some(texts.join(&between).into()))
            }
            "Split" => {
                let [between, text] = self.arguments(function, value, place)?;
                let between = text_of(&between);
                ensure!(!between.is_empty(), "!Split needs a text to split at");
                let text = text_of(&text);
                self.spend(text.matches(&between).count())?;
                Ok(Some(text.split(&between).map(Json::from).collect()))
            }
            "Select" => {
                let [index, list] = self.arguments(function, value, place)?;
                let (index, list) = (text_of(&index), list.as_array().context("!Select needs a list")?);
                let found = index.parse().ok().and_then(|index: usize| list.get(index));
                let found = found.with_context(|| format!("!Select: the list has no item {index}"))?;
                Ok(Some(found.clone()))
            }
            "Base64" => Ok(self.resolve(value, place)?.map(|value| BASE64.encode(text_of(&value)).into())),
            "GetAZs" => {
                let region = self.resolve(value, place)?.map(|region| text_of(&region)).unwrap_or_default();
                let region = if region.is_empty() { name::REGION.into() } else { region };
                Ok(Some(ZONES.iter().map(|zone| Json::from(format!("{region}{zone}"))).collect()))
            }
            "Length" => Ok(Some(self.list(function, value, place)?.len().into())),
            "ToJsonString" => Ok(self.resolve(value, place)?.map(|value| value.to_string().into())),
            "Cidr" => self.networks(value, place).map(Some),
            "If" => {
                let parts = value.as_array().map(Vec::as_slice);
                let Some([Json::String(name), yes, no]) = parts else {
                    bail!("!If needs the name of a condition and two values")
                };
                self.resolve(if self.condition(name, place)? { yes } else { no }, place)
            }
            "Equals" | "And" | "Or" | "Not" => self
                .truth(&json!({ format!("Fn::{function}"): value }), place)
                .map(|truth| Some(truth.into())),
            "FindInMap" => self.find_in_map(value, place),
            other => {
                self.note(format!("{place}: !{other} is not supported here: the property is left out"));
                Ok(None)
            }
        }
    }

    fn find_in_map(&self, value: &Json, place: &str) -> Result<Option<Json>> {
        let parts = value
            .as_array()
            .filter(|parts| parts.len() >= 3)
            .context("!FindInMap needs a map and two keys")?;
        let key = |part: &Json| Ok(self.resolve(part, place)?.map(|key| text_of(&key)).unwrap_or_default());
        let keys = parts[..3].iter().map(key).collect::<Result<Vec<String>>>()?;
        let found =
            self.template.get("Mappings").and_then(|maps| maps.get(&keys[0])?.get(&keys[1])?.get(&keys[2]));
        let default = parts.get(3).and_then(|options| options.get("DefaultValue"));
        if let Some(value) = found {
            // CloudFormation has no functions there; a value of a template may have one, even itself.
            return self.guarded(&format!("the mapping {}", keys.join(".")), || self.resolve(value, place));
        }
        if let Some(value) = default {
            return self.resolve(value, place);
        }
        self.note(format!(
            "{place}: !FindInMap {}: not in Mappings: the property is left out",
            keys.join(", ")
        ));
        Ok(None)
    }

    /// Whether a condition of the template holds.
    ///
    /// # Errors
    /// There is none of this name, or it is wrong.
    pub fn condition(&self, name: &str, place: &str) -> Result<bool> {
        let condition = self.template.get("Conditions").and_then(|conditions| conditions.get(name));
        let condition = condition.with_context(|| format!("there is no condition {name}"))?;
        self.guarded(&format!("the condition {name}"), || self.truth(condition, place))
    }

    fn truth(&self, value: &Json, place: &str) -> Result<bool> {
        self.deeper(|| self.is_true(value, place))
    }

    fn is_true(&self, value: &Json, place: &str) -> Result<bool> {
        let single = value.as_object().and_then(|map| map.iter().next().filter(|_| map.len() == 1));
        let Some((function, argument)) = single else {
            return Ok(value == true || value == "true");
        };
        let each = || {
            let list = argument.as_array().with_context(|| format!("{function} needs a list"))?;
            list.iter().map(|part| self.truth(part, place)).collect::<Result<Vec<bool>>>()
        };
        Ok(match function.as_str() {
            "Condition" => self.condition(&text_of(argument), place)?,
            "Fn::Equals" => {
                let [one, other] = self.arguments("Equals", argument, place)?;
                text_of(&one) == text_of(&other)
            }
            "Fn::Not" => matches!(each()?[..], [false]),
            "Fn::And" => each()?.into_iter().all(|part| part),
            "Fn::Or" => each()?.into_iter().any(|part| part),
            _ => self.resolve(value, place)?.is_some_and(|value| text_of(&value) == "true"),
        })
    }

    /// `Fn::Cidr`: so many networks of a network, with so many bits for hosts.
    fn networks(&self, value: &Json, place: &str) -> Result<Json> {
        let parts = self.list("Cidr", value, place)?;
        let number = |index: usize, otherwise: &str| {
            let text = parts.get(index).map_or(otherwise.to_string(), text_of);
            text.parse::<u64>().ok().with_context(|| format!("!Cidr: '{text}' is no number"))
        };
        let block = parts.first().map(text_of).unwrap_or_default();
        let network = block.split_once('/').and_then(|(address, bits)| {
            Some((address.parse::<Ipv4Addr>().ok()?, bits.parse::<u32>().ok().filter(|bits| *bits <= 32)?))
        });
        let (address, bits) = network.with_context(|| format!("!Cidr: '{block}' is no network of IPv4"))?;
        let (count, hosts) = (number(1, "1")?, number(2, "8")?);
        let fits = (1..=NETWORKS).contains(&count)
            && hosts <= u64::from(32 - bits)
            && count << hosts <= 1 << (32 - bits);
        ensure!(fits, "!Cidr: {block} has no room for {count} networks with {hosts} bits");
        let first = u64::from(u32::from(address)) & !((1_u64 << (32 - bits)) - 1);
        let of = |index: u64| {
            Json::from(format!("{}/{}", Ipv4Addr::from((first + (index << hosts)) as u32), 32 - hosts))
        };
        Ok((0..count).map(of).collect())
    }
}

/// The intrinsic function that a mapping calls, and its argument.
pub fn call_of(map: &Map<String, Json>) -> Option<(&str, &Json)> {
    let (key, value) = map.iter().next().filter(|_| map.len() == 1)?;
    match key.as_str() {
        "Ref" => Some(("Ref", value)),
        key => Some((key.strip_prefix("Fn::")?, value)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;
    use crate::function::template::yaml;

    const TEMPLATE: &str = "
        Parameters:
          Size: { Type: Number, Default: 5 }
          List: { Type: CommaDelimitedList, Default: 'a,b' }
          Open: { Type: String }
        Mappings: { M: { a: { b: found } } }
        Conditions:
          Five: !Equals [!Ref Size, '5']
          Six: !Not [!Condition Five]
          Both: !And [!Condition Five, !Condition Six]
          One: !Or [!Condition Five, !Condition Six]
          Round: !Not [!Condition Round]
        Resources:
          Table: { Type: AWS::DynamoDB::Table }
          Queue: { Type: AWS::SQS::Queue, Properties: { QueueName: !Sub 'q-${Size}' } }
          Other:
            Type: AWS::Serverless::Function
            Properties: { FunctionName: !Sub 'other-${Size}', AutoPublishAlias: live }
          Self: { Type: AWS::Serverless::Function, Properties: { FunctionName: !Ref Self } }";

    fn resolved(value: &str) -> Result<Option<Json>> {
        let scope = Scope::new(yaml::read(TEMPLATE)?, Path::new("/"), "mayfly", &BTreeMap::new())?;
        scope.resolve(&yaml::read(value)?, "here")
    }

    #[test]
    fn evaluates_intrinsic_functions() {
        for (value, wanted) in [
            ("!Ref Size", json!(5)),
            ("!Ref Table", json!("Table")),
            ("!Ref Other", json!("other-5")),
            ("!Ref Self", json!("Self")),
            ("!Ref Open", json!("Open")),
            ("!Ref OtherRole", json!("OtherRole")),
            ("!Ref Other.Alias", json!(name::arn("other-5:live"))),
            ("!Ref ServerlessRestApi", json!("ServerlessRestApi")),
            ("!Ref AWS::NotificationARNs", json!([])),
            ("!GetAtt Table.Arn", json!("Table.Arn")),
            ("!GetAtt Other.Arn", json!(name::arn("other-5"))),
            ("!GetAtt Queue.Arn", json!("arn:aws:sqs:us-east-1:000000000000:q-5")),
            ("!GetAtt OtherRole.Arn", json!("arn:aws:iam::000000000000:role/OtherRole")),
            ("{'Fn::GetAtt': [Table, StreamArn]}", json!("Table.StreamArn")),
            ("!Sub '${Table}-${Size}-${Other.Arn}'", json!(format!("Table-5-{}", name::arn("other-5")))),
            ("!Sub ['${x}-${Size}-${!Size}', {x: !Ref Size}]", json!("5-5-${Size}")),
            ("!Join ['/', [a, !Ref Size]]", json!("a/5")),
            ("!Join ['-', !Ref List]", json!("a-b")),
            ("!Select [1, !Split [',', 'a,b,c']]", json!("b")),
            ("!Select ['0', !GetAZs '']", json!("us-east-1a")),
            ("!Base64 hello", json!("aGVsbG8=")),
            ("{'Fn::Length': !Ref List}", json!(2)),
            ("{'Fn::ToJsonString': {a: !Ref Size}}", json!("{\"a\":5}")),
            ("!Select [1, !Cidr [10.0.0.0/16, 4, 8]]", json!("10.0.1.0/24")),
            ("!FindInMap [M, a, b]", json!("found")),
            ("{'Fn::FindInMap': [M, a, c, {DefaultValue: !Ref Size}]}", json!(5)),
            ("!If [Five, 1, 2]", json!(1)),
            ("[!If [Six, 1, !Ref AWS::NoValue], 2]", json!([2])),
            ("[!If [Both, a, b], !If [One, a, b]]", json!(["b", "a"])),
            ("{a: !ImportValue x, b: !Ref AWS::NoValue, c: 1}", json!({ "c": 1 })),
        ] {
            let found = resolved(value).unwrap().unwrap_or_default();
            assert_eq!(found, wanted, "{value}");
        }
    }

    #[test]
    fn an_api_is_named_by_its_id_without_a_line() {
        let template = "Resources:
          Http: { Type: AWS::Serverless::HttpApi }
          Rest: { Type: AWS::Serverless::Api }
          Table: { Type: AWS::Serverless::SimpleTable }";
        let scope =
            Scope::new(yaml::read(template).unwrap(), Path::new("/"), "mayfly", &BTreeMap::new()).unwrap();
        for id in ["Http", "Rest", "ServerlessRestApi", "ServerlessHttpApi"] {
            assert_eq!(scope.resolve(&json!({ "Ref": id }), "here").unwrap(), Some(json!(id)));
        }
        assert_eq!(scope.take_notes(), Vec::<String>::new());
        scope.resolve(&json!({ "Ref": "Table" }), "here").unwrap();
        assert_eq!(scope.take_notes(), ["here: there is no Table here: its name stands for it"]);
    }

    #[test]
    fn unknown_values_are_left_out_and_wrong_uses_are_errors() {
        for value in ["!ImportValue x", "!FindInMap [M, a, c]", "!Ref AWS::NoValue", "!Transform x"] {
            assert_eq!(resolved(value).unwrap(), None, "{value}");
        }
        for value in [
            "!Ref Nothing",
            "!Sub '${Nothing}'",
            "!Sub '${x'",
            "!If [Nothing, 1, 2]",
            "!If [Round, 1, 2]",
            "!Select [2, !Ref List]",
            "!Cidr [10.0.0.0/30, 4, 8]",
            "!Cidr [a]",
            "!Join x",
            "!Split ['', a]",
        ] {
            assert!(resolved(value).is_err(), "{value}");
        }
    }

    /// What is wrong with a value, evaluated in this template.
    fn refusal(template: &str, value: &str) -> String {
        let scope = Scope::new(yaml::read(template).unwrap(), Path::new("/"), "mayfly", &BTreeMap::new());
        format!("{:#}", scope.unwrap().resolve(&yaml::read(value).unwrap(), "here").unwrap_err())
    }

    #[test]
    fn names_that_multiply_or_lie_too_deep_are_refused() {
        let chain = |line: &dyn Fn(usize) -> String| (0..2000).map(line).collect::<String>();
        let twice = |n| format!("  C{n}: !And [!Condition C{0}, !Condition C{0}]\n", n + 1);
        let twice = format!("Conditions:\n{}  C60: true\n", (0..60).map(twice).collect::<String>());
        assert!(refusal(&twice, "!If [C0, 1, 2]").contains("more than 1000000 values"));
        let deep = chain(&|n| format!("  C{n}: !Not [!Condition C{}]\n", n + 1));
        assert!(refusal(&format!("Conditions:\n{deep}"), "!If [C0, 1, 2]").contains("too deep"));
        let itself = "Mappings: { M: { a: { b: !FindInMap [M, a, b] } } }";
        assert!(refusal(itself, "!FindInMap [M, a, b]").contains("needs itself"));
        let large = format!("Parameters: {{ P: {{ Default: {} }} }}", "x".repeat(100_000));
        let many = format!("!Sub '{}'", "${P}".repeat(1000));
        assert!(refusal(&large, &many).contains("more than 1000000 values"));
        let quoted = "{'Fn::ToJsonString': ".repeat(40) + "'\"'" + &"}".repeat(40);
        assert!(refusal("{}", &quoted).contains("more than 1000000 values"));
    }
}
