//! What answers each operation of Lambda's API.

use super::call::Call;
use super::operations::{Named, Operation};
use super::{
    Api, absent, event_configs, functions, invoke, layer_policies, layers, list, mappings, policies, streams,
    tags, urls, versions,
};
use crate::base::error::ApiError;
use crate::base::name::Target;
use crate::http::Answer;

impl Api {
    /// Answers by the operation that the request names.
    pub(super) async fn route(&self, call: &Call, named: Named<'_>) -> Result<Answer, ApiError> {
        use Operation as Op;
        let [first, second, third] = named.values;
        let target = || Target::new(first, call.query("Qualifier"));
        let name = || target()?.unqualified();
        match named.operation {
            Op::Invoke => invoke::invoke(self, call, &target()?).await,
            Op::InvokeWithResponseStream => streams::call(self, call, &target()?).await,
            Op::InvokeAsync => invoke::invoke_async(self, call, &target()?).await,

            Op::CreateFunction => functions::create(self, call).await,
            Op::GetFunction => functions::get(self, &target()?),
            Op::GetFunctionConfiguration => functions::get_configuration(self, &target()?),
            Op::UpdateFunctionCode => functions::update_code(self, call, &name()?).await,
            Op::UpdateFunctionConfiguration => functions::update_configuration(self, call, &name()?).await,
            Op::DeleteFunction => functions::delete(self, call, first),
            Op::ListFunctions => list::list(self, call),
            Op::PutFunctionConcurrency => functions::put_concurrency(self, call, &name()?),
            Op::GetFunctionConcurrency => functions::get_concurrency(self, &name()?),
            Op::DeleteFunctionConcurrency => functions::delete_concurrency(self, &name()?),
            Op::PutFunctionRecursionConfig => functions::put_recursion(self, call, &name()?),
            Op::GetFunctionRecursionConfig => functions::get_recursion(self, &name()?),
            Op::GetAccountSettings => functions::account(self),

            Op::PublishVersion => versions::publish(self, call, &name()?),
            Op::ListVersionsByFunction => versions::list(self, call, &name()?),
            Op::CreateAlias => versions::create_alias(self, call, &name()?),
            Op::GetAlias => versions::get_alias(self, &name()?, second),
            Op::UpdateAlias => versions::update_alias(self, call, &name()?, second),
            Op::DeleteAlias => versions::delete_alias(self, &name()?, second),
            Op::ListAliases => versions::list_aliases(self, call, &name()?),

            Op::PublishLayerVersion => layers::publish(self, call, first).await,
            Op::GetLayerVersion => layers::get(self, first, second),
            Op::GetLayerVersionByArn => layers::get_by_arn(self, call),
            Op::DeleteLayerVersion => layers::delete(self, first, second),
            Op::ListLayers => layers::list(self, call),
            Op::ListLayerVersions => layers::list_versions(self, call, first),

            Op::CreateFunctionUrlConfig => urls::create(self, call, &target()?),
            Op::GetFunctionUrlConfig => urls::get(self, &target()?),
            Op::UpdateFunctionUrlConfig => urls::update(self, call, &target()?),
            Op::DeleteFunctionUrlConfig => urls::delete(self, &target()?),
            Op::ListFunctionUrlConfigs => urls::list(self, &name()?),

            Op::PutFunctionEventInvokeConfig => event_configs::put(self, call, &target()?),
            Op::UpdateFunctionEventInvokeConfig => event_configs::update(self, call, &target()?),
            Op::GetFunctionEventInvokeConfig => event_configs::get(self, &target()?),
            Op::DeleteFunctionEventInvokeConfig => event_configs::delete(self, &target()?),
            Op::ListFunctionEventInvokeConfigs => event_configs::list(self, call, &name()?),

            Op::AddPermission => policies::add(self, call, &target()?),
            Op::GetPolicy => policies::get(self, &target()?),
            Op::RemovePermission => policies::remove(self, call, &target()?, second),
            Op::PutResourcePolicy => policies::put_whole(self, call, first),
            Op::GetResourcePolicy => policies::get(self, &policies::named(first)?),
            Op::DeleteResourcePolicy => policies::delete_whole(self, call, first),
            Op::AddLayerVersionPermission => layer_policies::add(self, call, first, second),
            Op::GetLayerVersionPolicy => layer_policies::get(self, first, second),
            Op::RemoveLayerVersionPermission => layer_policies::remove(self, call, first, second, third),

            Op::TagResource => tags::tag(self, call, first),
            Op::UntagResource => tags::untag(self, call, first),
            Op::ListTags => tags::list(self, first),

            Op::CreateEventSourceMapping => mappings::create(self, call),
            Op::GetEventSourceMapping => mappings::get(self, first),
            Op::UpdateEventSourceMapping => mappings::update(self, call, first),
            Op::DeleteEventSourceMapping => mappings::delete(self, first),
            Op::ListEventSourceMappings => mappings::list(self, call),

            _ => absent::answer(self, call, named),
        }
    }
}
