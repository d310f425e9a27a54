//! Calls that make, show, change and delete functions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::configuration::configuration;
use super::versions::check_revision;
use super::{Api, Call};
use crate::base::error::ApiError;
use crate::base::limits;
use crate::base::name::{self, Target};
use crate::code::Code;
use crate::code::lambda_layers::OptMount;
use crate::code::runtime::Runtime;
use crate::function::definition::Deployment;
use crate::function::settings::{self, Settings};
use crate::function::wanted::{self, Wanted};
use crate::http::{self, Answer};

/// `Code` of CreateFunction, and the body of UpdateFunctionCode.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct WantedCode {
    zip_file: Option<String>,
    s3_bucket: Option<String>,
    s3_key: Option<String>,
    image_uri: Option<String>,
    #[serde(default)]
    dry_run: bool,
    /// Others are refused, so that no caller believes to have them.
    #[serde(flatten)]
    other: BTreeMap<String, Value>,
}

/// In place of a bucket's name: the key is a folder of this host.
const FOLDER_BUCKET: &str = "folder";

impl WantedCode {
    /// Unpacks or copies it, on a thread that may wait for disks. It must be of the kind that the function
    /// is.
    pub async fn fetch(self, api: &Api, is_image: bool) -> Result<Code, ApiError> {
        let unsupported = |text| Err(ApiError::invalid_parameter(text));
        if !api.worker.maker().takes_code() {
            return unsupported("with --sandbox vm functions and their code come from the template");
        }
        if self.image_uri.is_some() != is_image {
            return unsupported("ImageUri and PackageType Image belong together");
        }
        let worker = api.worker.clone();
        let place = worker.code_folder().to_path_buf();
        self.other.iter().try_for_each(|(name, value)| wanted::refuse(name, value))?;
        match (self.zip_file, self.s3_bucket.as_deref(), self.s3_key, self.image_uri) {
            (Some(zip), None, None, None) => {
                blocking(&api.unpacking, move || {
                    let zip = BASE64.decode(zip).map_err(|error| {
                        ApiError::invalid_content(format!("ZipFile is not base64: {error}"))
                    })?;
                    Ok(worker.lasting(Code::from_zip(&zip, &place)?))
                })
                .await
            }
            (None, Some(FOLDER_BUCKET), Some(folder), None) if Path::new(&folder).is_absolute() => {
                let allowed = api.worker.options.code_folders.clone();
                let copied = move || Ok(worker.lasting(Code::copied(Path::new(&folder), &allowed, &place)?));
                blocking(&api.unpacking, copied).await
            }
            (None, None, None, Some(uri)) => blocking(&api.unpacking, move || worker.image(&uri)).await,
            (None, Some(_), ..) => unsupported(
                "S3 is not supported here: give a ZipFile, or a folder of this host as S3Bucket 'folder' and its \
                 absolute path as S3Key",
            ),
            _ => unsupported(
                "Please provide a source for function code: ZipFile, S3Bucket 'folder' and S3Key, or ImageUri",
            ),
        }
    }
}

/// Runs blocking work on a thread of its own once there is a place. The work holds the place until it is
/// done, also when its client disconnects meanwhile.
async fn blocking<T: Send + 'static>(
    places: &Arc<Semaphore>,
    what: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let place = places.clone().acquire_owned().await.expect("it is never closed");
    let done = tokio::task::spawn_blocking(move || {
        let _place = place;
        what()
    });
    let done = done.await;
    done.unwrap_or_else(|_| Err(ApiError::service("the thread that unpacked the code panicked")))
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Create {
    function_name: String,
    code: WantedCode,
    #[serde(default)]
    tags: BTreeMap<String, String>,
    #[serde(default)]
    publish: bool,
    #[serde(flatten)]
    wanted: Wanted,
}

pub async fn create(api: &Api, call: &Call) -> Result<Answer, ApiError> {
    let create: Create = call.json_beside_zip()?;
    let name = Target::new(&create.function_name, None)?.unqualified()?;
    let settings = Settings::new(&create.wanted)?;
    if api.worker.function(&name).is_ok() {
        return Err(ApiError::conflict(format!("Function already exist: {name}")));
    }
    let code = create.code.fetch(api, settings.runtime == Runtime::Image).await?;
    if create.tags.len() > limits::TAGS {
        return Err(ApiError::invalid_parameter(format!("a function has at most {} tags", limits::TAGS)));
    }
    let opt = opt(api, &settings, code.folder.clone()).await?;
    let mut deployment = api.worker.create(&name, settings, code, opt)?;
    api.worker.change_tags(&name, |tags| *tags = create.tags)?;
    if create.publish {
        deployment = api.worker.publish(&name, None, |_| Ok(()))?;
    }
    Ok(http::json(201, &configuration(api, &deployment)))
}

/// Overlays a function's layers, and provides its runtime's client, on a thread that may wait for disks.
async fn opt(api: &Api, settings: &Settings, code: PathBuf) -> Result<OptMount, ApiError> {
    let (worker, arns, runtime) = (api.worker.clone(), settings.layers.clone(), settings.runtime.clone());
    if !arns.is_empty() && !worker.maker().takes_code() {
        return Err(ApiError::invalid_parameter("with --sandbox vm layers come from the template"));
    }
    let made = move || {
        worker
            .options
            .installed
            .provide(&runtime)
            .map_err(|error| ApiError::service(format!("{error:#}")))?;
        let opt = worker.opt(&arns, Vec::new())?;
        worker.options.installed.provide_sdk(&runtime, &code, &opt.sources);
        Ok(opt)
    };
    blocking(&api.unpacking, made).await
}

pub fn get(api: &Api, target: &Target) -> Result<Answer, ApiError> {
    if let Some(failed) = api.worker.failed().get(&target.name) {
        return Ok(http::json(200, &json!({ "Configuration": failed.configuration(), "Code": {} })));
    }
    let function = api.worker.function(&target.name)?;
    let deployment = function.qualified(target.qualifier.as_deref())?;
    let mut answer = json!({
        "Configuration": configuration(api, deployment),
        "Code": deployment.location(),
    });
    if !function.tags.is_empty() {
        answer["Tags"] = json!(function.tags);
    }
    if let Some(reserved) = function.reserved {
        answer["Concurrency"] = json!({ "ReservedConcurrentExecutions": reserved });
    }
    Ok(http::json(200, &answer))
}

pub fn get_configuration(api: &Api, target: &Target) -> Result<Answer, ApiError> {
    if let Some(failed) = api.worker.failed().get(&target.name) {
        return Ok(http::json(200, &failed.configuration()));
    }
    Ok(http::json(200, &configuration(api, &*api.worker.target(target)?)))
}

/// As on Lambda, $LATEST is not deleted as if it were a version: all of the function would be.
fn check_deletable(function: &str, qualifier: Option<&str>) -> Result<(), ApiError> {
    let named = function.rsplit_once(':').map(|(_, last)| last);
    if [named, qualifier].contains(&Some(name::LATEST)) {
        let text = "$LATEST version cannot be deleted without deleting the function.";
        return Err(ApiError::invalid_parameter(text));
    }
    Ok(())
}

pub fn delete(api: &Api, call: &Call, function: &str) -> Result<Answer, ApiError> {
    let qualifier = call.query("Qualifier");
    check_deletable(function, qualifier.as_deref())?;
    let target = Target::new(function, qualifier)?;
    match &target.qualifier {
        None => api.worker.delete(&target.name)?,
        Some(version) => api.worker.delete_version(&target.name, version)?,
    }
    Ok(http::empty(204))
}

/// The fields of an update that are no settings.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Expected {
    revision_id: Option<String>,
    #[serde(default)]
    publish: bool,
}

pub async fn update_configuration(api: &Api, call: &Call, name: &str) -> Result<Answer, ApiError> {
    let (wanted, expected): (Wanted, Expected) = (call.json()?, call.json()?);
    // Overlaying layers takes time, so nothing is locked meanwhile.
    let known = api.worker.function(name)?.deployment;
    let changed = known.settings.changed(&wanted)?;
    let is_same = |now: &Settings| (&now.layers, &now.runtime) == (&changed.layers, &changed.runtime);
    let opt = if is_same(&known.settings) {
        known.opt.clone()
    } else {
        opt(api, &changed, known.code.folder.clone()).await?
    };
    let deployment = api.worker.update(name, |known| {
        check_revision(expected.revision_id.as_deref(), &known.revision)?;
        let settings = known.settings.changed(&wanted)?;
        if !is_same(&settings) {
            return Err(ApiError::conflict(format!(
                "The function {name} is being changed by another request"
            )));
        }
        Ok((settings, known.code.clone(), opt))
    })?;
    Ok(http::json(200, &configuration(api, &deployment)))
}

pub async fn update_code(api: &Api, call: &Call, name: &str) -> Result<Answer, ApiError> {
    let (mut wanted, expected): (WantedCode, Expected) = (call.json()?, call.json()?);
    wanted.other.retain(|name, _| !wanted::OF_THE_CALL.contains(&name.as_str()));
    wanted.other.remove("Architectures").map_or(Ok(()), |given| settings::check_architectures(&given))?;
    let known = api.worker.function(name)?;
    check_revision(expected.revision_id.as_deref(), &known.deployment.revision)?;
    let dry_run = wanted.dry_run;
    let code = wanted.fetch(api, known.deployment.code.image.is_some()).await?;
    if dry_run {
        return Ok(http::json(200, &configuration(api, &known.deployment)));
    }
    let (worker, folder) = (api.worker.clone(), code.folder.clone());
    let (runtime, layers) = (known.deployment.settings.runtime.clone(), known.deployment.opt.sources.clone());
    blocking(&api.unpacking, move || {
        worker.options.installed.provide_sdk(&runtime, &folder, &layers);
        Ok(())
    })
    .await?;
    let change = |known: &Deployment| {
        // Fetching takes time: another call may have changed the function meanwhile.
        check_revision(expected.revision_id.as_deref(), &known.revision)?;
        Ok((known.settings.clone(), code, known.opt.clone()))
    };
    let mut deployment = api.worker.update(name, change)?;
    if expected.publish {
        deployment = api.worker.publish(name, None, |_| Ok(()))?;
    }
    Ok(http::json(200, &configuration(api, &deployment)))
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Concurrency {
    reserved_concurrent_executions: u32,
}

pub fn put_concurrency(api: &Api, call: &Call, name: &str) -> Result<Answer, ApiError> {
    let wanted: Concurrency = call.json()?;
    api.worker.reserve(name, Some(wanted.reserved_concurrent_executions))?;
    get_concurrency(api, name)
}

pub fn delete_concurrency(api: &Api, name: &str) -> Result<Answer, ApiError> {
    api.worker.reserve(name, None)?;
    Ok(http::empty(204))
}

pub fn get_concurrency(api: &Api, name: &str) -> Result<Answer, ApiError> {
    let answer = |reserved| json!({ "ReservedConcurrentExecutions": reserved });
    Ok(http::json(200, &api.worker.function(name)?.reserved.map_or(json!({}), answer)))
}

/// The body of PutFunctionRecursionConfig.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Recursion {
    recursive_loop: String,
}

pub fn put_recursion(api: &Api, call: &Call, name: &str) -> Result<Answer, ApiError> {
    let allows = match call.json::<Recursion>()?.recursive_loop.as_str() {
        "Allow" => true,
        "Terminate" => false,
        _ => return Err(ApiError::invalid_parameter("RecursiveLoop must be Allow or Terminate")),
    };
    let target = Target { name: name.into(), qualifier: None };
    api.worker.change_attached(&target, |attached| {
        attached.allows_loops = allows;
        Ok(())
    })?;
    get_recursion(api, name)
}

pub fn get_recursion(api: &Api, name: &str) -> Result<Answer, ApiError> {
    let allows = api.worker.function(name)?.attached.allows_loops;
    Ok(http::json(200, &json!({ "RecursiveLoop": if allows { "Allow" } else { "Terminate" } })))
}

pub fn account(api: &Api) -> Result<Answer, ApiError> {
    let functions = api.worker.functions();
    let reserved: u32 = functions.iter().filter_map(|function| function.reserved).sum();
    let most = api.worker.options.capacity.concurrency;
    let bytes: u64 = functions.iter().map(|function| function.deployment.code.size_bytes).sum();
    let answer = json!({
        "AccountLimit": {
            "ConcurrentExecutions": most,
            "UnreservedConcurrentExecutions": most.saturating_sub(reserved),
            "CodeSizeUnzipped": limits::UNZIPPED_BYTES,
            "CodeSizeZipped": limits::ZIP_BYTES,
        },
        "AccountUsage": { "FunctionCount": functions.len(), "TotalCodeSize": bytes },
    });
    Ok(http::json(200, &answer))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::base::error::ErrorKind;
    use crate::control::Worker;
    use crate::events::async_invokes::Events;
    use crate::http::BodyMemory;

    #[tokio::test]
    async fn code_is_not_replaced_that_another_has_changed_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let worker = Worker::of_tests(folder.path());
        let known = worker.function("f").unwrap().deployment;
        let api = Api {
            worker: worker.clone(),
            events: Events::new(worker.clone(), &BTreeSet::new()).unwrap().0,
            bodies: BodyMemory::new(0),
            uploads: BodyMemory::new(0),
            from_functions: Default::default(),
            unpacking: Arc::new(Semaphore::new(1)),
            changing: Arc::default(),
            address: worker.options.address,
        };
        let nothing = [&b"PK\x05\x06"[..], &[0; 18]].concat();
        let body = json!({ "ZipFile": BASE64.encode(nothing), "RevisionId": known.revision }).to_string();
        let call = Call::of_tests(hyper::Request::new(()).into_parts().0, body);
        let place = api.unpacking.clone().acquire_owned().await.unwrap();
        let mut updating = Box::pin(update_code(&api, &call, "f"));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(updating.as_mut().poll(&mut context).is_pending());
        let same = |now: &Deployment| Ok((now.settings.clone(), now.code.clone(), now.opt.clone()));
        worker.update("f", same).unwrap();
        drop(place);
        assert_eq!(updating.await.unwrap_err().kind, ErrorKind::PreconditionFailed);
    }

    #[test]
    fn only_versions_are_deleted_apart_from_their_function() {
        let checked = |function, qualifier| check_deletable(function, qualifier).map_err(|error| error.kind);
        assert_eq!(
            (checked("f", None), checked("f", Some("1")), checked("f:1", None)),
            (Ok(()), Ok(()), Ok(()))
        );
        let invalid = Err(ErrorKind::InvalidParameterValue);
        assert_eq!((checked("f", Some("$LATEST")), checked("f:$LATEST", None)), (invalid, invalid));
    }

    #[tokio::test]
    async fn disconnected_client_frees_its_place_when_its_work_is_done() {
        let places = Arc::new(Semaphore::new(1));
        let (begun, begins) = channel();
        let (end, ends) = channel::<()>();
        let work = move || {
            begun.send(()).unwrap();
            let _ = ends.recv();
            Ok(())
        };
        let caller = {
            let places = places.clone();
            tokio::spawn(async move { blocking(&places, work).await })
        };
        tokio::task::spawn_blocking(move || begins.recv()).await.unwrap().unwrap();
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
        assert_eq!(places.available_permits(), 0, "its work goes on");
        drop(end);
        assert!(blocking(&places, || Ok(())).await.is_ok());
    }
}
