//! What clients of AWS find in an instance: credentials, a region, and the address of this worker.

use crate::function::worker_options::Options;
use crate::sandbox::interface::{Order, RUNTIME_PORT};

const KEY_ID: &str = "AWS_ACCESS_KEY_ID";
/// For the services that have no variable of their own.
const ENDPOINT: &str = "AWS_ENDPOINT_URL";
/// The address of Lambda's API.
const LAMBDA: &str = "AWS_ENDPOINT_URL_LAMBDA";

/// The variables; the function's own replace those that Lambda does not reserve.
pub(crate) fn variables(order: &Order, options: &Options) -> Vec<(String, String)> {
    let (own, account) = (&order.deployment.settings.environment, &options.account);
    let here = format!("127.0.0.1:{RUNTIME_PORT}");
    let mut all = vec![
        ("AWS_REGION", account.region.clone()),
        ("AWS_DEFAULT_REGION", account.region.clone()),
        ("AWS_LAMBDA_METADATA_TOKEN", order.metadata_token.to_string()),
        (LAMBDA, format!("http://{here}")),
    ];
    // A function that reaches nothing else has an answer at once from here. The others' calls go to AWS.
    if !order.reaches_out(options) {
        all.push((ENDPOINT, format!("http://{here}")));
    }
    all.push(("AWS_LAMBDA_METADATA_API", here));
    // The worker's secret would not fit a key of the function's own.
    if !own.contains_key(KEY_ID) {
        all.push((KEY_ID, account.access_key_id.clone()));
        all.push(("AWS_SECRET_ACCESS_KEY", account.secret_access_key.clone()));
        all.extend(account.session_token.clone().map(|token| ("AWS_SESSION_TOKEN", token)));
    }
    all.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}
