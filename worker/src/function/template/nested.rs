//! Templates within a template: `AWS::Serverless::Application` and `AWS::CloudFormation::Stack` with a path.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value as Json;

use super::scope::Scope;
use super::yaml::measure;
use super::{bucket, load};

/// Templates within one another, at most.
const DEPTH: usize = 8;

/// Whether a resource is a template of its own.
pub fn is_nested(resource: &Json) -> bool {
    let kind = resource.get("Type").and_then(Json::as_str);
    matches!(kind, Some("AWS::Serverless::Application" | "AWS::CloudFormation::Stack"))
}

impl Scope {
    /// The template that a resource names by a path; `None` if it is elsewhere.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn nested(&self, id: &str) -> Result<Option<Scope>> {
        let Some(resource) = self.resource(id).filter(|resource| is_nested(resource)) else {
            return Ok(None);
        };
        let place = format!("Resources.{id}.Properties");
        let property = |name: &str| match resource.get("Properties").and_then(|own| own.get(name)) {
            Some(value) => self.resolve(value, &format!("{place}.{name}")),
            None => Ok(None),
        };
        let location = property("Location")?.or(property("TemplateURL")?);
        let asset = bucket::asset(resource, "TemplateURL").map(Json::from);
        let location = asset.or(location.map(|location| self.asset(&location).unwrap_or(location)));
        let Some(Json::String(location)) = location.filter(|text| !text.as_str().is_some_and(bucket::is_far))
        else {
            self.note(format!(
                "Resources.{id}: its template is in a repository or a bucket: its functions are not served"
            ));
            return Ok(None);
        };
        ensure!(self.depth < DEPTH, "Resources.{id}: more than {DEPTH} templates lie within one another");
        let given: BTreeMap<String, Json> = match property("Parameters")? {
            Some(Json::Object(map)) => map.into_iter().collect(),
            _ => BTreeMap::new(),
        };
        let path = self.folder.join(location);
        let folder = path.parent().unwrap_or(Path::new("."));
        let stack = format!("{}-{id}", self.stack());
        let read = || {
            let template = load(&path)?;
            self.spend(measure(&template).0)?;
            Scope::within(template, folder, &stack, &given, self.effort())
        };
        let mut inner = read().with_context(|| path.display().to_string())?;
        inner.depth = self.depth + 1;
        Ok(Some(inner))
    }
}

impl Scope {
    /// The file that CDK names by the URL of an object, `https://s3.REGION.amazonaws.com/BUCKET/OBJECT`.
    fn asset(&self, location: &Json) -> Option<Json> {
        let object = location.as_str()?.strip_prefix("https://s3.")?.split_once('/')?.1;
        let (bucket, object) = object.split_once('/')?;
        let path = bucket::asset_of(bucket, object, &self.folder)?;
        Some(path.strip_prefix(&self.folder).ok()?.to_str()?.into())
    }
}
