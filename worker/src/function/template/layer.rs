//! Reads the properties of a template's layer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::Value as Json;

use super::bucket;
use super::scope::Scope;
use super::yaml::text_of;
use super::{LATEST_OF_LAYER, Template};
use crate::base::name;
use crate::function::worker_options::TemplateOptions;

/// A layer of a template.
#[derive(Debug)]
pub struct DeclaredLayer {
    /// `LayerName`, or the resource's name.
    pub name: String,
    /// The folder or .zip that `ContentUri` names, or why there is none.
    pub content: Result<PathBuf>,
    /// `Description`.
    pub description: String,
    /// `LicenseInfo`.
    pub license: String,
    /// `CompatibleRuntimes`.
    pub runtimes: Vec<String>,
}

impl Template {
    /// Puts the operator's files in place of layers of these names, of whatever account and version.
    pub fn take_layers(&mut self, given: &BTreeMap<String, PathBuf>) {
        self.layers.retain(|layer| !given.contains_key(&layer.name));
        self.layers.extend(given.iter().map(|(name, path)| DeclaredLayer {
            name: name.clone(),
            content: Ok(path.clone()),
            description: String::new(),
            license: String::new(),
            runtimes: Vec::new(),
        }));
        let mut unused: BTreeSet<&str> = given.keys().map(String::as_str).collect();
        for arn in self.functions.iter_mut().flat_map(|function| &mut function.settings.layers) {
            let known = name::parse_layer_arn(arn).and_then(|(name, _)| given.get_key_value(name));
            if let Some((name, _)) = known {
                unused.remove(name.as_str());
                *arn = name::layer_arn(&format!("{name}:{LATEST_OF_LAYER}"));
            }
        }
        self.notes
            .extend(unused.iter().map(|name| format!("--layer {name}: no function names such a layer")));
    }
}

/// Reads a layer.
///
/// # Errors
/// It has no name that a layer may have.
pub fn read(id: &str, resource: &Json, scope: &Scope, options: &TemplateOptions) -> Result<DeclaredLayer> {
    let place = format!("Resources.{id}.Properties");
    let own =
        resource.get("Properties").with_context(|| format!("Resources.{id}: there are no Properties"))?;
    let text = |key: &str| -> Result<Option<String>> {
        let value = own.get(key).map(|value| scope.resolve(value, &format!("{place}.{key}")));
        Ok(value.transpose()?.flatten().as_ref().map(text_of))
    };
    let name = scope.name_of(id, "LayerName");
    ensure!(name::is_layer(&name), "{place}: LayerName: '{name}' is no name of a layer");
    let runtimes =
        own.get("CompatibleRuntimes").map(|value| scope.resolve(value, &place)).transpose()?.flatten();
    let runtimes = runtimes.and_then(|value| Some(value.as_array()?.iter().map(text_of).collect()));
    let content = || -> Result<PathBuf> {
        if let Some(path) = bucket::asset(resource, "Content") {
            return Ok(scope.folder.join(path));
        }
        let (key, content) = match (own.get("ContentUri"), own.get("Content")) {
            (Some(content), _) => ("ContentUri", content),
            (None, Some(content)) => ("Content", content),
            (None, None) => anyhow::bail!("{place}: ContentUri is needed: the folder or .zip with the files"),
        };
        let content = scope.resolve(content, &format!("{place}.{key}"))?;
        let content = content.with_context(|| format!("{place}: {key} has no value here"))?;
        bucket::path(&content, key, &scope.folder, options).with_context(|| place.clone())
    };
    Ok(DeclaredLayer {
        name,
        content: content(),
        description: text("Description")?.unwrap_or_default(),
        license: text("LicenseInfo")?.unwrap_or_default(),
        runtimes: runtimes.unwrap_or_default(),
    })
}
