//! Which operation of Lambda's API a call is for.

use super::call::Call;
use super::{
    Api, event_configs, functions, invoke, layers, list, streams, unknown_operation, urls, versions,
};
use crate::base::error::ApiError;
use crate::base::name::Target;
use crate::http::Answer;

impl Api {
    /// Answers by the operation that the method and the path's `segments` name.
    pub(super) async fn route(&self, call: &Call, segments: &[&str]) -> Result<Answer, ApiError> {
        let method = call.parts.method.as_str();
        let target = |text: &str| Target::new(text, call.query("Qualifier"));
        let named = |text: &str| target(text)?.unqualified();
        match (method, segments) {
            ("POST", ["2015-03-31", "functions", function, "invocations"]) => {
                invoke::invoke(self, call, &target(function)?).await
            }
            ("POST", ["2021-11-15", "functions", function, "response-streaming-invocations"]) => {
                streams::call(self, call, &target(function)?).await
            }
            (_, ["2015-03-31", "functions", function, "versions"]) => {
                versions::versions(self, call, &named(function)?)
            }
            (_, ["2015-03-31", "functions", function, "aliases"]) => {
                versions::aliases(self, call, &named(function)?)
            }
            (_, ["2015-03-31", "functions", function, "aliases", alias]) => {
                versions::alias(self, call, &named(function)?, alias)
            }
            ("GET", ["2018-10-31", "layers"]) => layers::list_or_find(self, call),
            ("POST", ["2018-10-31", "layers", layer, "versions"]) => layers::publish(self, call, layer).await,
            ("GET", ["2018-10-31", "layers", layer, "versions"]) => layers::list_versions(self, call, layer),
            ("GET", ["2018-10-31", "layers", layer, "versions", version]) => {
                layers::get(self, layer, version)
            }
            ("DELETE", ["2018-10-31", "layers", layer, "versions", version]) => {
                layers::delete(self, layer, version)
            }
            ("POST", ["2015-03-31", "functions"]) => functions::create(self, call).await,
            ("GET", ["2015-03-31", "functions" | ""]) | ("GET", ["2015-03-31", "functions", ""]) => {
                list::list(self, call)
            }
            ("GET", ["2015-03-31", "functions", function]) => functions::get(self, &target(function)?),
            ("DELETE", ["2015-03-31", "functions", function]) => functions::delete(self, call, function),
            ("GET", ["2015-03-31", "functions", function, "configuration"]) => {
                functions::get_configuration(self, &target(function)?)
            }
            ("PUT", ["2015-03-31", "functions", function, "configuration"]) => {
                functions::update_configuration(self, call, &named(function)?).await
            }
            ("PUT", ["2015-03-31", "functions", function, "code"]) => {
                functions::update_code(self, call, &named(function)?).await
            }
            ("PUT", ["2017-10-31", "functions", function, "concurrency"]) => {
                functions::put_concurrency(self, call, &named(function)?)
            }
            ("DELETE", ["2017-10-31", "functions", function, "concurrency"]) => {
                functions::delete_concurrency(self, &named(function)?)
            }
            ("GET", ["2019-09-30", "functions", function, "concurrency"]) => {
                functions::get_concurrency(self, &named(function)?)
            }
            ("POST", ["2021-10-31", "functions", function, "url"]) => {
                urls::create(self, call, &target(function)?)
            }
            ("GET", ["2021-10-31", "functions", function, "url"]) => urls::get(self, &target(function)?),
            ("PUT", ["2021-10-31", "functions", function, "url"]) => {
                urls::update(self, call, &target(function)?)
            }
            ("DELETE", ["2021-10-31", "functions", function, "url"]) => {
                urls::delete(self, &target(function)?)
            }
            ("GET", ["2021-10-31", "functions", function, "urls"]) => urls::list(self, &named(function)?),
            ("GET", ["2019-09-25", "functions", function, "event-invoke-config", "list"]) => {
                event_configs::list(self, &named(function)?)
            }
            (_, ["2019-09-25", "functions", function, "event-invoke-config"]) => {
                event_configs::call(self, call, &named(function)?)
            }
            ("GET", ["2017-03-31", "tags", function]) => functions::list_tags(self, &named(function)?),
            ("POST", ["2017-03-31", "tags", function]) => functions::tag(self, call, &named(function)?),
            ("DELETE", ["2017-03-31", "tags", function]) => functions::untag(self, call, &named(function)?),
            ("GET", ["2016-08-19", "account-settings" | "account-settings/"]) => functions::account(self),
            ("GET", ["2016-08-19", "account-settings", ""]) => functions::account(self),
            _ => Err(unknown_operation(method, call)),
        }
    }
}
