//! Lambda layers: folders with files that several functions need, seen below /opt, later ones over earlier
//! ones.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::base::error::ApiError;
use crate::base::limits;
use crate::base::name;
use crate::base::resource_policy::ResourcePolicy;
use crate::base::time::lambda_time;
use crate::code::{self, Code, Unpacked};
use worker_system::text::{plain_reason, shown};

/// One version of a layer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Layer {
    /// The layer's name.
    pub name: String,
    /// From 1; 0 until it is published.
    pub version: u64,
    /// Its files.
    pub code: Code,
    /// Free text.
    pub description: String,
    /// Free text.
    pub license: String,
    /// Shown by the API only: a function may use the layer whatever its runtime.
    pub runtimes: Vec<String>,
    /// When it was published.
    pub created: SystemTime,
    /// Who may use it, shown by the API only.
    #[serde(default)]
    pub policy: Option<ResourcePolicy>,
}

impl Layer {
    /// The ARN of this version.
    pub fn arn(&self) -> String {
        name::layer_arn(&format!("{}:{}", self.name, self.version))
    }

    /// Its entry in lists.
    pub fn summary(&self) -> Value {
        let mut summary = json!({
            "LayerVersionArn": self.arn(),
            "Version": self.version,
            "Description": self.description,
            "CreatedDate": lambda_time(self.created),
            "CompatibleRuntimes": self.runtimes,
            "CompatibleArchitectures": ["x86_64"],
        });
        if !self.license.is_empty() {
            summary["LicenseInfo"] = self.license.clone().into();
        }
        summary
    }

    /// Its description in the API.
    pub fn description(&self) -> Value {
        let mut description = self.summary();
        description["LayerArn"] = name::layer_arn(&self.name).into();
        description["Content"] = json!({
            "Location": format!("file://{}", self.code.folder.display()),
            "CodeSha256": self.code.sha256,
            "CodeSize": self.code.size_bytes,
        });
        description
    }
}

/// All layers of the worker, each with its versions. A version that was deleted stays with the functions
/// that use it.
#[derive(Debug, Default)]
pub struct Layers {
    known: BTreeMap<String, BTreeMap<u64, Arc<Layer>>>,
    /// The number of each layer's latest version, which is never reused.
    latest: BTreeMap<String, u64>,
}

impl Layers {
    /// Adds a version.
    pub fn publish(&mut self, mut layer: Layer) -> Arc<Layer> {
        let latest = self.latest.entry(layer.name.clone()).or_default();
        *latest += 1;
        layer.version = *latest;
        let layer = Arc::new(layer);
        self.known.entry(layer.name.clone()).or_default().insert(layer.version, layer.clone());
        layer
    }

    /// All versions of a layer, and the number of its latest, which may be deleted.
    pub fn history(&self, name: &str) -> Option<(u64, Vec<Arc<Layer>>)> {
        Some((*self.latest.get(name)?, self.versions(name)))
    }

    /// The versions that an earlier worker had of a layer.
    pub fn again(&mut self, name: &str, latest: u64, versions: Vec<Arc<Layer>>) {
        self.latest.insert(name.into(), latest);
        if !versions.is_empty() {
            let numbered = versions.into_iter().map(|layer| (layer.version, layer));
            self.known.insert(name.into(), numbered.collect());
        }
    }

    /// The versions of a layer, the latest first.
    pub fn versions(&self, name: &str) -> Vec<Arc<Layer>> {
        self.known.get(name).into_iter().flat_map(|versions| versions.values().rev().cloned()).collect()
    }

    /// The latest version of each layer.
    pub fn all(&self) -> Vec<Arc<Layer>> {
        self.known.values().filter_map(|versions| versions.values().next_back().cloned()).collect()
    }

    /// A version of a layer.
    pub fn get(&self, name: &str, version: u64) -> Option<Arc<Layer>> {
        self.known.get(name)?.get(&version).cloned()
    }

    /// Replaces the policy of a version by what `change` makes of it, and returns the new one.
    ///
    /// # Errors
    /// There is no such version, or the error of `change`.
    pub fn change_policy(
        &mut self,
        name: &str,
        version: u64,
        change: impl FnOnce(Option<ResourcePolicy>) -> Result<Option<ResourcePolicy>, ApiError>,
    ) -> Result<Option<ResourcePolicy>, ApiError> {
        let versions = self.known.get_mut(name);
        let known = versions.and_then(|versions| versions.get_mut(&version)).ok_or_else(|| {
            let arn = name::layer_arn(&format!("{name}:{version}"));
            ApiError::not_found(format!("Layer version {arn} does not exist."))
        })?;
        let policy = change(known.policy.clone())?;
        *known = Arc::new(Layer { policy: policy.clone(), ..(**known).clone() });
        Ok(policy)
    }

    /// Deletes a version.
    pub fn remove(&mut self, name: &str, version: u64) {
        if let Some(versions) = self.known.get_mut(name) {
            versions.remove(&version);
            if versions.is_empty() {
                self.known.remove(name);
            }
        }
    }

    /// The layers that ARNs name, of whatever region and account: templates name those of their own.
    ///
    /// # Errors
    /// No version has this ARN.
    pub fn named(&self, arns: &[String]) -> Result<Vec<Arc<Layer>>, ApiError> {
        let find = |arn: &String| {
            let found = name::parse_layer_arn(arn).and_then(|(name, version)| self.get(name, version));
            found.ok_or_else(|| {
                ApiError::invalid_parameter(format!(
                    "Layers: there is no {arn} here: publish it (aws lambda publish-layer-version)"
                ))
            })
        };
        arns.iter().map(find).collect()
    }
}

/// The contents of /opt in an instance.
#[derive(Clone, Debug, Default)]
pub struct OptMount {
    /// The folder, if there is one.
    pub folder: Option<PathBuf>,
    /// The layers it is made of; a layer is removed with its last user.
    pub layers: Vec<Arc<Layer>>,
    /// The folders that lie over one another.
    pub sources: Vec<PathBuf>,
    _merged: Option<Arc<Unpacked>>,
}

impl OptMount {
    /// Lays the layers over one another, and over them `packages`, later ones over earlier ones. Takes
    /// time in proportion to their files.
    ///
    /// # Errors
    /// Together they are larger than allowed, or they cannot be copied.
    pub fn new(layers: Vec<Arc<Layer>>, packages: Vec<PathBuf>, place: &Path) -> Result<OptMount, ApiError> {
        let mut sources: Vec<PathBuf> = layers.iter().map(|layer| layer.code.folder.clone()).collect();
        sources.extend(packages);
        if let [] | [_] = sources[..] {
            let folder = sources.first().cloned();
            return Ok(OptMount { folder, layers, sources, _merged: None });
        }
        let merged = code::new_folder(place)?;
        for folder in &sources {
            code::lay_over(folder, merged.path(), link_or_copy).map_err(|error| {
                let reason = plain_reason(&error);
                ApiError::service(format!("cannot lay {} below /opt: {reason}", folder.display()))
            })?;
        }
        let merged = Unpacked::new(merged, None);
        Ok(OptMount { folder: Some(merged.folder.clone()), layers, sources, _merged: Some(merged) })
    }
}

/// The same file where that is possible: instances cannot write it.
fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop))
}

/// The ARNs of a function's layers, checked.
///
/// # Errors
/// Too many, one that is no ARN of a layer's version, or two versions of one.
pub fn check(arns: &[String]) -> Result<(), ApiError> {
    if arns.len() > limits::LAYERS {
        return Err(ApiError::invalid_parameter(format!(
            "Layers: a function has at most {}",
            limits::LAYERS
        )));
    }
    let mut names = Vec::new();
    for arn in arns {
        let Some((name, _)) = name::parse_layer_arn(arn) else {
            return Err(ApiError::invalid_parameter(format!(
                "Layers: '{}' is no ARN of a version of a layer (arn:aws:lambda:REGION:ACCOUNT:layer:NAME:VERSION)",
                shown(arn)
            )));
        };
        if names.contains(&name) {
            return Err(ApiError::invalid_parameter(format!("Layers: two versions of the layer {name}")));
        }
        names.push(name);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(place: &Path, name: &str, files: &[(&str, &str)]) -> Layer {
        let folder = place.join(name);
        for (file, text) in files {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Layer {
            name: name.into(),
            version: 0,
            code: Code::from_folder(&folder).unwrap(),
            description: String::new(),
            license: String::new(),
            runtimes: Vec::new(),
            created: SystemTime::now(),
            policy: None,
        }
    }

    #[test]
    fn the_later_layer_lies_over_the_earlier() {
        let place = tempfile::tempdir().unwrap();
        let a = Arc::new(layer(place.path(), "a", &[("x/one", "a"), ("x/two", "a"), ("thing", "a")]));
        let b = Arc::new(layer(place.path(), "b", &[("x/two", "b"), ("thing/inside", "b")]));
        let of = |layers: Vec<Arc<Layer>>| OptMount::new(layers, Vec::new(), place.path()).unwrap();
        assert_eq!(of(vec![]).folder, None);
        assert_eq!(
            of(vec![a.clone()]).folder.as_deref(),
            Some(a.code.folder.as_path()),
            "one is used as it is"
        );
        let both = of(vec![a.clone(), b.clone()]);
        let folder = both.folder.clone().unwrap();
        let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!([text("x/one"), text("x/two"), text("thing/inside")], ["a", "b", "b"]);
        let back = of(vec![b, a.clone()]).folder.as_ref().map(|folder| folder.join("thing"));
        assert!(back.is_some(), "a file over a folder, too");
        assert_eq!(fs::read_to_string(a.code.folder.join("x/two")).unwrap(), "a", "the layer is as it was");
        drop(both);
        assert!(!folder.exists());
    }

    #[test]
    fn versions_count_on_and_are_found_by_arn() {
        let place = tempfile::tempdir().unwrap();
        let mut layers = Layers::default();
        for _ in 0..2 {
            layers.publish(layer(place.path(), "libs", &[("a", "")]));
        }
        layers.remove("libs", 2);
        let third = layers.publish(layer(place.path(), "libs", &[("a", "")]));
        assert_eq!(third.version, 3, "a number is given once");
        let elsewhere = "arn:aws:lambda:eu-west-1:123456789012:layer:libs:3".to_string();
        assert_eq!(layers.named(&[elsewhere]).unwrap()[0].version, 3);
        assert!(layers.named(&[name::layer_arn("libs:2")]).unwrap_err().message.contains("libs:2"));
        let versions: Vec<u64> = layers.versions("libs").iter().map(|layer| layer.version).collect();
        assert_eq!(versions, [3, 1]);
        let arns = |list: &[&str]| list.iter().map(|text| name::layer_arn(text)).collect::<Vec<_>>();
        assert!(check(&arns(&["a:1", "b:1"])).is_ok());
        assert!(check(&arns(&["a:1", "a:2"])).unwrap_err().message.contains("two versions"));
        assert!(check(&["libs".into()]).is_err());
        assert!(check(&arns(&["a:1", "b:1", "c:1", "d:1", "e:1", "f:1"])).is_err());
    }
}
