//! `ListFunctions`.

use serde_json::{Value, json};

use super::configuration::configuration;
use super::{Api, Call, paging};
use crate::base::error::ApiError;
use crate::function::definition::Function;
use crate::http::{self, Answer};

pub fn list(api: &Api, call: &Call) -> Result<Answer, ApiError> {
    let most = paging::most(call)?;
    // The marker is the name after which the next page begins.
    let after = call.query("Marker").unwrap_or_default();
    let all_versions = call.query("FunctionVersion").as_deref() == Some("ALL");
    let of = |function: &Function| -> Vec<Value> {
        let most = if all_versions { usize::MAX } else { 1 };
        function.deployments().take(most).map(|version| configuration(api, version)).collect()
    };
    let served = api.worker.functions();
    let served = served.iter().map(|function| (function.deployment.name.clone(), of(function)));
    let failed = api.worker.failed().into_iter().map(|(name, failed)| (name, vec![failed.configuration()]));
    let mut functions: Vec<(String, Vec<Value>)> =
        served.chain(failed).filter(|(name, _)| *name > after).collect();
    functions.sort_by(|(one, _), (other, _)| one.cmp(other));
    let more = functions.len() > most;
    functions.truncate(most);
    let list: Vec<&Value> = functions.iter().flat_map(|(_, versions)| versions).collect();
    let mut answer = json!({ "Functions": list });
    if let (true, Some((last, _))) = (more, functions.last()) {
        answer["NextMarker"] = last.clone().into();
    }
    Ok(http::json(200, &answer))
}
