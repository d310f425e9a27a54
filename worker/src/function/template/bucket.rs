//! Where code lies: a path beside the template, or an object of a bucket that a folder of this host
//! replaces (`--bucket NAME=FOLDER`), or an asset that CDK has written beside the template.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value as Json;

use super::yaml::text_of;
use crate::base::name;
use crate::function::worker_options::TemplateOptions;

/// The end of the names of CDK's lists of assets.
const ASSETS: &str = ".assets.json";

/// The place that a value of `CodeUri`, `ContentUri`, `Code` or `Content` names.
///
/// # Errors
/// It names a bucket that no folder replaces, or is no place at all.
pub fn path(value: &Json, key: &str, folder: &Path, options: &TemplateOptions) -> Result<PathBuf> {
    let part = |names: [&str; 2]| names.iter().find_map(|name| value.get(name)).map(text_of);
    let (bucket, object) = match value {
        Json::String(text) => match text.strip_prefix("s3://") {
            None => return Ok(folder.join(text)),
            Some(rest) => {
                rest.split_once('/').map(|(bucket, object)| (bucket.to_string(), object.to_string()))
            }
        },
        _ => part(["Bucket", "S3Bucket"]).zip(part(["Key", "S3Key"])),
    }
    .with_context(|| format!("{key}: {value} names neither a path nor an object of a bucket"))?;
    let Some(root) = options.buckets.get(&bucket) else {
        if let Some(path) = asset_of(&bucket, &object, folder) {
            return Ok(path);
        }
        bail!(
            "{key}: 's3://{bucket}/{object}': there is no bucket {bucket} here (mayfly up --bucket {bucket}=FOLDER)"
        )
    };
    let below = Path::new(&object);
    let stays = below.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    ensure!(stays, "{key}: '{object}' leads out of the bucket");
    Ok(root.join(below))
}

/// The folder that CDK has written a resource's code to, if the template does not name another.
pub fn asset(resource: &Json, property: &str) -> Option<String> {
    let metadata = resource.get("Metadata")?;
    let is_its = metadata.get("aws:asset:property")?.as_str()? == property;
    let named = resource.get("Properties").and_then(|own| own.get(property)).and_then(Json::as_str);
    (is_its && named.is_none_or(is_far))
        .then(|| metadata.get("aws:asset:path")?.as_str().map(String::from))?
}

/// Whether a text names something that is not on this machine.
pub fn is_far(location: &str) -> bool {
    ["s3://", "http://", "https://", "arn:"].iter().any(|far| location.starts_with(far))
}

/// The file that CDK will put into a bucket as this object, by the lists of assets beside the template.
pub fn asset_of(bucket: &str, object: &str, folder: &Path) -> Option<PathBuf> {
    let lists = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let lists = lists.filter(|path| path.to_string_lossy().ends_with(ASSETS));
    let found = |path: PathBuf| {
        let list: Json = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        let is_it = |place: &Json| {
            let text = |key: &str| place.get(key).and_then(Json::as_str);
            let name = text("bucketName")?.replace("${AWS::AccountId}", name::ACCOUNT);
            let name = name.replace("${AWS::Region}", name::REGION).replace("${AWS::Partition}", "aws");
            (name == bucket && text("objectKey")? == object).then_some(())
        };
        let has = |file: &&Json| file.get("destinations")?.as_object()?.values().find_map(is_it);
        let files = list.get("files")?.as_object()?;
        let file = files.values().find(|file| has(file).is_some())?;
        Some(folder.join(file.get("source")?.get("path")?.as_str()?))
    };
    lists.into_iter().find_map(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn assets_are_those_that_cdk_lists_beside_the_template() {
        let folder = tempfile::tempdir().unwrap();
        let list = json!({ "files": { "0a": {
            "source": { "path": "asset.0a", "packaging": "zip" },
            "destinations": { "here": { "objectKey": "0a.zip",
                                        "bucketName": "assets-${AWS::AccountId}-${AWS::Region}" } } } } });
        std::fs::write(folder.path().join("Shop.assets.json"), list.to_string()).unwrap();
        std::fs::write(folder.path().join("Broken.assets.json"), "{").unwrap();
        let options = TemplateOptions::default();
        let of = |object: &str| {
            let bucket = format!("assets-{}-{}", name::ACCOUNT, name::REGION);
            path(&json!({ "S3Bucket": bucket, "S3Key": object }), "CodeUri", folder.path(), &options)
        };
        assert_eq!(of("0a.zip").unwrap(), folder.path().join("asset.0a"));
        assert!(of("0b.zip").is_err());
        assert_eq!(asset_of("elsewhere", "0a.zip", folder.path()), None);
    }

    #[test]
    fn objects_lie_in_the_folder_that_replaces_their_bucket() {
        let options =
            TemplateOptions { buckets: [("b".into(), "/own".into())].into(), ..TemplateOptions::default() };
        let of = |value: Json| path(&value, "CodeUri", Path::new("/t"), &options);
        assert_eq!(of(json!("code")).unwrap(), Path::new("/t/code"));
        assert_eq!(of(json!("s3://b/x/k.zip")).unwrap(), Path::new("/own/x/k.zip"));
        assert_eq!(of(json!({ "Bucket": "b", "Key": "k.zip" })).unwrap(), Path::new("/own/k.zip"));
        assert_eq!(of(json!({ "S3Bucket": "b", "S3Key": "k.zip" })).unwrap(), Path::new("/own/k.zip"));
        for (value, reason) in [
            (json!("s3://c/k.zip"), "--bucket c=FOLDER"),
            (json!("s3://b/../k.zip"), "leads out of the bucket"),
            (json!({ "Bucket": "b" }), "names neither"),
            (json!([1]), "names neither"),
        ] {
            let error = format!("{:#}", of(value).unwrap_err());
            assert!(error.starts_with("CodeUri: ") && error.contains(reason), "{error}");
        }
    }
}
