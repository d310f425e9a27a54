//! `ListFunctions`.

use super::configuration::configuration;
use super::{Api, Call, paging};
use crate::base::error::ApiError;
use crate::http::Answer;

pub fn list(api: &Api, call: &Call) -> Result<Answer, ApiError> {
    let most = if call.query("FunctionVersion").as_deref() == Some("ALL") { usize::MAX } else { 1 };
    // A blank sorts before all that a name may have.
    let key = |name: &str, version: usize| format!("{name} {}", paging::key_of(version as u64));
    let functions = api.worker.functions();
    let served = functions.iter().flat_map(|function| {
        let versions = function.deployments().take(most).enumerate();
        versions.map(|(at, version)| (key(&version.name, at), configuration(api, version)))
    });
    let failed =
        api.worker.failed().into_iter().map(|(name, failed)| (key(&name, 0), failed.configuration()));
    paging::page(call, "Functions", served.chain(failed).collect())
}
