//! Definitions of APIs in files beside the template: `DefinitionUri`, and a body by `AWS::Include`.

use anyhow::Result;
use serde_json::Value as Json;

use super::super::scope::Scope;
use super::super::yaml::measure;
use super::super::{bucket, load};

/// Properties that may name a file, and those that then have its contents.
const NAMING: [(&str, &str); 3] =
    [("DefinitionUri", "DefinitionBody"), ("DefinitionBody", "DefinitionBody"), ("Body", "Body")];

/// The properties of an API, with the contents of a file in place of its name. A file that cannot be read is
/// logged, and one that is elsewhere stays named.
pub fn included(properties: &Json, scope: &Scope, place: &str) -> Json {
    let mut all = properties.clone();
    for (key, body) in NAMING {
        let Some(location) = properties.get(key).and_then(|value| location(key, value)) else { continue };
        let place = format!("{place}.{key}");
        let Ok(Some(Json::String(location))) = scope.resolve(location, &place) else { continue };
        let Some(all) = all.as_object_mut().filter(|_| !bucket::is_far(&location)) else { continue };
        all.remove(key);
        match contents(&location, scope) {
            Ok(contents) => drop(all.insert(body.into(), contents)),
            Err(error) => scope.note(format!("{place}: {location}: {error:#}: only events have routes")),
        }
    }
    all
}

/// What names the file.
fn location<'a>(key: &str, value: &'a Json) -> Option<&'a Json> {
    if key == "DefinitionUri" {
        return Some(value);
    }
    let transform = value.get("Fn::Transform").filter(|transform| transform["Name"] == "AWS::Include")?;
    transform.get("Parameters")?.get("Location")
}

fn contents(location: &str, scope: &Scope) -> Result<Json> {
    let contents = load(&scope.folder.join(location))?;
    scope.spend(measure(&contents).0)?;
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::super::{declared, read};
    use super::*;

    #[test]
    fn routes_are_those_of_the_file_that_the_api_names() {
        let folder = tempfile::tempdir().unwrap();
        let definition = "openapi: 3.0.1
paths:
  /pets:
    get:
      x-amazon-apigateway-integration:
        type: aws_proxy
        uri: !Sub arn:aws:apigateway:${AWS::Region}:lambda:path/2015-03-31/functions/${F.Arn}/invocations";
        std::fs::write(folder.path().join("api.yaml"), definition).unwrap();
        let include = |file: &str| {
            let parameters = json!({ "Location": file });
            json!({ "Fn::Transform": { "Name": "AWS::Include", "Parameters": parameters } })
        };
        let apis = |kind: &str, properties: Json| {
            let template = json!({ "Resources": {
                "F": { "Type": "AWS::Serverless::Function" },
                "Own": { "Type": kind, "Properties": properties },
            } });
            let scope = Scope::new(template, folder.path(), "mayfly", &BTreeMap::new()).unwrap();
            let (apis, mut notes) = read(&declared(&scope));
            notes.extend(scope.take_notes());
            let paths = apis.iter().flat_map(|api| &api.routes).map(|route| route.path.clone());
            (paths.collect::<Vec<_>>(), notes.join("\n"))
        };
        for (kind, properties) in [
            ("AWS::Serverless::Api", json!({ "DefinitionUri": "api.yaml" })),
            ("AWS::Serverless::HttpApi", json!({ "DefinitionUri": "./api.yaml" })),
            ("AWS::Serverless::Api", json!({ "DefinitionBody": include("api.yaml") })),
            ("AWS::ApiGateway::RestApi", json!({ "Body": include("api.yaml") })),
        ] {
            assert_eq!(apis(kind, properties), (vec!["/pets".to_string()], String::new()), "{kind}");
        }
        let (paths, notes) = apis("AWS::Serverless::Api", json!({ "DefinitionUri": "none.yaml" }));
        let line = "Resources.Own.Properties.DefinitionUri: none.yaml: ";
        assert!(paths.is_empty() && notes.starts_with(line), "{notes}");
        let (paths, notes) = apis("AWS::Serverless::Api", json!({ "DefinitionUri": "s3://bucket/api.yaml" }));
        assert!(paths.is_empty() && notes.contains("its definition is no file here"), "{notes}");
    }
}
