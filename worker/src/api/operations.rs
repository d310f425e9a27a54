//! The operations of Lambda's API: one table of their names, methods and paths, as the service's model has
//! them. A request is parsed to an [`Operation`] once; all that depends on it matches on that.

use hyper::Method;

use super::call::query;

macro_rules! operations {
    ($($name:ident $method:ident $path:literal;)*) => {
        /// An operation of Lambda's API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Operation {
            $(#[doc = concat!("`", stringify!($method), " ", $path, "`")] $name,)*
        }

        /// Each operation with its name, method and path.
        const TABLE: &[(Operation, &str, Method, &str)] =
            &[$((Operation::$name, stringify!($name), Method::$method, $path),)*];
    };
}

// The calls of functions come first, since each request searches from the top.
operations! {
    Invoke POST "/2015-03-31/functions/{FunctionName}/invocations";
    InvokeWithResponseStream POST "/2021-11-15/functions/{FunctionName}/response-streaming-invocations";
    AddLayerVersionPermission POST "/2018-10-31/layers/{LayerName}/versions/{VersionNumber}/policy";
    AddPermission POST "/2015-03-31/functions/{FunctionName}/policy";
    CheckpointDurableExecution POST "/2025-12-01/durable-executions/{DurableExecutionArn}/checkpoint";
    CreateAlias POST "/2015-03-31/functions/{FunctionName}/aliases";
    CreateCapacityProvider POST "/2025-11-30/capacity-providers";
    CreateCodeSigningConfig POST "/2020-04-22/code-signing-configs";
    CreateEventSourceMapping POST "/2015-03-31/event-source-mappings";
    CreateFunction POST "/2015-03-31/functions";
    CreateFunctionUrlConfig POST "/2021-10-31/functions/{FunctionName}/url";
    DeleteAlias DELETE "/2015-03-31/functions/{FunctionName}/aliases/{Name}";
    DeleteCapacityProvider DELETE "/2025-11-30/capacity-providers/{CapacityProviderName}";
    DeleteCodeSigningConfig DELETE "/2020-04-22/code-signing-configs/{CodeSigningConfigArn}";
    DeleteDurableExecution DELETE "/2025-12-01/durable-executions/{DurableExecutionArn}";
    DeleteEventSourceMapping DELETE "/2015-03-31/event-source-mappings/{UUID}";
    DeleteFunction DELETE "/2015-03-31/functions/{FunctionName}";
    DeleteFunctionCodeSigningConfig DELETE "/2020-06-30/functions/{FunctionName}/code-signing-config";
    DeleteFunctionConcurrency DELETE "/2017-10-31/functions/{FunctionName}/concurrency";
    DeleteFunctionEventInvokeConfig DELETE "/2019-09-25/functions/{FunctionName}/event-invoke-config";
    DeleteFunctionUrlConfig DELETE "/2021-10-31/functions/{FunctionName}/url";
    DeleteLayerVersion DELETE "/2018-10-31/layers/{LayerName}/versions/{VersionNumber}";
    DeleteProvisionedConcurrencyConfig DELETE "/2019-09-30/functions/{FunctionName}/provisioned-concurrency";
    DeleteResourcePolicy DELETE "/2026-07-09/resource-policy/{ResourceArn}";
    GetAccountSettings GET "/2016-08-19/account-settings";
    GetAlias GET "/2015-03-31/functions/{FunctionName}/aliases/{Name}";
    GetCapacityProvider GET "/2025-11-30/capacity-providers/{CapacityProviderName}";
    GetCodeSigningConfig GET "/2020-04-22/code-signing-configs/{CodeSigningConfigArn}";
    GetDurableExecution GET "/2025-12-01/durable-executions/{DurableExecutionArn}";
    GetDurableExecutionHistory GET "/2025-12-01/durable-executions/{DurableExecutionArn}/history";
    GetDurableExecutionState GET "/2025-12-01/durable-executions/{DurableExecutionArn}/state";
    GetEventSourceMapping GET "/2015-03-31/event-source-mappings/{UUID}";
    GetFunction GET "/2015-03-31/functions/{FunctionName}";
    GetFunctionCodeSigningConfig GET "/2020-06-30/functions/{FunctionName}/code-signing-config";
    GetFunctionConcurrency GET "/2019-09-30/functions/{FunctionName}/concurrency";
    GetFunctionConfiguration GET "/2015-03-31/functions/{FunctionName}/configuration";
    GetFunctionEventInvokeConfig GET "/2019-09-25/functions/{FunctionName}/event-invoke-config";
    GetFunctionRecursionConfig GET "/2024-08-31/functions/{FunctionName}/recursion-config";
    GetFunctionScalingConfig GET "/2025-11-30/functions/{FunctionName}/function-scaling-config";
    GetFunctionUrlConfig GET "/2021-10-31/functions/{FunctionName}/url";
    GetLayerVersion GET "/2018-10-31/layers/{LayerName}/versions/{VersionNumber}";
    GetLayerVersionByArn GET "/2018-10-31/layers?find=LayerVersion";
    GetLayerVersionPolicy GET "/2018-10-31/layers/{LayerName}/versions/{VersionNumber}/policy";
    GetPolicy GET "/2015-03-31/functions/{FunctionName}/policy";
    GetProvisionedConcurrencyConfig GET "/2019-09-30/functions/{FunctionName}/provisioned-concurrency";
    GetResourcePolicy GET "/2026-07-09/resource-policy/{ResourceArn}";
    GetRuntimeManagementConfig GET "/2021-07-20/functions/{FunctionName}/runtime-management-config";
    InvokeAsync POST "/2014-11-13/functions/{FunctionName}/invoke-async";
    ListAliases GET "/2015-03-31/functions/{FunctionName}/aliases";
    ListCapacityProviders GET "/2025-11-30/capacity-providers";
    ListCodeSigningConfigs GET "/2020-04-22/code-signing-configs";
    ListDurableExecutionsByFunction GET "/2025-12-01/functions/{FunctionName}/durable-executions";
    ListEventSourceMappings GET "/2015-03-31/event-source-mappings";
    ListFunctionEventInvokeConfigs GET "/2019-09-25/functions/{FunctionName}/event-invoke-config/list";
    ListFunctionUrlConfigs GET "/2021-10-31/functions/{FunctionName}/urls";
    ListFunctionVersionsByCapacityProvider GET "/2025-11-30/capacity-providers/{CapacityProviderName}/function-versions";
    ListFunctions GET "/2015-03-31/functions";
    ListFunctionsByCodeSigningConfig GET "/2020-04-22/code-signing-configs/{CodeSigningConfigArn}/functions";
    ListLayerVersions GET "/2018-10-31/layers/{LayerName}/versions";
    ListLayers GET "/2018-10-31/layers";
    ListProvisionedConcurrencyConfigs GET "/2019-09-30/functions/{FunctionName}/provisioned-concurrency?List=ALL";
    ListTags GET "/2017-03-31/tags/{Resource}";
    ListVersionsByFunction GET "/2015-03-31/functions/{FunctionName}/versions";
    PauseDurableExecution POST "/2025-12-01/durable-executions/{DurableExecutionArn}/pause";
    PublishLayerVersion POST "/2018-10-31/layers/{LayerName}/versions";
    PublishVersion POST "/2015-03-31/functions/{FunctionName}/versions";
    PutFunctionCodeSigningConfig PUT "/2020-06-30/functions/{FunctionName}/code-signing-config";
    PutFunctionConcurrency PUT "/2017-10-31/functions/{FunctionName}/concurrency";
    PutFunctionEventInvokeConfig PUT "/2019-09-25/functions/{FunctionName}/event-invoke-config";
    PutFunctionRecursionConfig PUT "/2024-08-31/functions/{FunctionName}/recursion-config";
    PutFunctionScalingConfig PUT "/2025-11-30/functions/{FunctionName}/function-scaling-config";
    PutProvisionedConcurrencyConfig PUT "/2019-09-30/functions/{FunctionName}/provisioned-concurrency";
    PutResourcePolicy PUT "/2026-07-09/resource-policy/{ResourceArn}";
    PutRuntimeManagementConfig PUT "/2021-07-20/functions/{FunctionName}/runtime-management-config";
    RemoveLayerVersionPermission DELETE "/2018-10-31/layers/{LayerName}/versions/{VersionNumber}/policy/{StatementId}";
    RemovePermission DELETE "/2015-03-31/functions/{FunctionName}/policy/{StatementId}";
    ResumeDurableExecution POST "/2025-12-01/durable-executions/{DurableExecutionArn}/resume";
    SendDurableExecutionCallbackFailure POST "/2025-12-01/durable-execution-callbacks/{CallbackId}/fail";
    SendDurableExecutionCallbackHeartbeat POST "/2025-12-01/durable-execution-callbacks/{CallbackId}/heartbeat";
    SendDurableExecutionCallbackSuccess POST "/2025-12-01/durable-execution-callbacks/{CallbackId}/succeed";
    StopDurableExecution POST "/2025-12-01/durable-executions/{DurableExecutionArn}/stop";
    TagResource POST "/2017-03-31/tags/{Resource}";
    UntagResource DELETE "/2017-03-31/tags/{Resource}";
    UpdateAlias PUT "/2015-03-31/functions/{FunctionName}/aliases/{Name}";
    UpdateCapacityProvider PUT "/2025-11-30/capacity-providers/{CapacityProviderName}";
    UpdateCodeSigningConfig PUT "/2020-04-22/code-signing-configs/{CodeSigningConfigArn}";
    UpdateEventSourceMapping PUT "/2015-03-31/event-source-mappings/{UUID}";
    UpdateFunctionCode PUT "/2015-03-31/functions/{FunctionName}/code";
    UpdateFunctionConfiguration PUT "/2015-03-31/functions/{FunctionName}/configuration";
    UpdateFunctionEventInvokeConfig POST "/2019-09-25/functions/{FunctionName}/event-invoke-config";
    UpdateFunctionUrlConfig PUT "/2021-10-31/functions/{FunctionName}/url";
}

/// The most values that a path has.
const VALUES: usize = 3;

/// An operation with the values in its path; those that it lacks are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named<'a> {
    pub operation: Operation,
    pub values: [&'a str; VALUES],
}

impl Operation {
    /// The operation's name, as clients have it.
    pub fn name(self) -> &'static str {
        TABLE.iter().find(|(known, ..)| *known == self).map_or("", |(_, name, ..)| name)
    }

    /// Whether it carries code.
    pub fn has_code(self) -> bool {
        matches!(
            self,
            Operation::CreateFunction | Operation::UpdateFunctionCode | Operation::PublishLayerVersion
        )
    }

    /// Whether it waits for a function, or hands it an event.
    pub fn is_invocation(self) -> bool {
        matches!(self, Operation::Invoke | Operation::InvokeAsync | Operation::InvokeWithResponseStream)
    }
}

impl<'a> Named<'a> {
    /// The operation that a request names; a trailing slash of the path does not matter.
    pub fn of(method: &Method, segments: &[&'a str], queried: Option<&str>) -> Option<Named<'a>> {
        let segments = match segments {
            [path @ .., ""] if !path.is_empty() => path,
            path => path,
        };
        let find = |(operation, _, wanted, path): &(Operation, &str, Method, &str)| {
            if wanted != method {
                return None;
            }
            let (path, condition) =
                path.split_once('?').map_or((*path, None), |(path, pair)| (path, Some(pair)));
            let values = values(path, segments)?;
            let holds = |pair: &str| {
                let (name, wanted) = pair.split_once('=').unwrap_or((pair, ""));
                query(queried, name).any(|value| value == wanted)
            };
            // Of two operations with one path, the one with a condition is meant where that holds.
            let rank = match condition {
                None => 0,
                Some(pair) if holds(pair) => 1,
                Some(_) => return None,
            };
            Some((rank, Named { operation: *operation, values }))
        };
        let mut best = None;
        for (rank, named) in TABLE.iter().filter_map(find) {
            if named.operation.is_invocation() {
                return Some(named);
            }
            if best.is_none_or(|(known, _)| known < rank) {
                best = Some((rank, named));
            }
        }
        best.map(|(_, named)| named)
    }
}

/// The values in a path, if it is this path.
fn values<'a>(path: &str, segments: &[&'a str]) -> Option<[&'a str; VALUES]> {
    let (mut found, mut count) = ([""; VALUES], 0);
    let mut given = segments.iter();
    for part in path.split('/').skip(1) {
        let segment = given.next()?;
        if part.starts_with('{') {
            found[count] = segment;
            count += 1;
        } else if part != *segment {
            return None;
        }
    }
    given.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: &str, path: &'static str) -> Option<(&'static str, [&'static str; VALUES])> {
        let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        let named = Named::of(&method.parse().unwrap(), &segments, query)?;
        Some((named.operation.name(), named.values))
    }

    #[test]
    fn each_path_names_its_own_operation() {
        for (operation, _, method, path) in TABLE {
            let (path, query) =
                path.split_once('?').map_or((*path, None), |(path, query)| (path, Some(query)));
            let segments: Vec<&str> = path.split('/').skip(1).collect();
            let named = Named::of(method, &segments, query).unwrap();
            assert_eq!(named.operation, *operation);
            let values = segments.iter().filter(|part| part.starts_with('{'));
            assert!(values.eq(named.values.iter().filter(|value| !value.is_empty())), "{path}");
        }
    }

    #[test]
    fn requests_name_operations() {
        let listed = of("GET", "/2015-03-31/functions/?MaxItems=1");
        assert_eq!(listed, Some(("ListFunctions", ["", "", ""])));
        assert_eq!(of("GET", "/2018-10-31/layers").unwrap().0, "ListLayers");
        assert_eq!(
            of("GET", "/2018-10-31/layers?find=LayerVersion&Arn=a").unwrap().0,
            "GetLayerVersionByArn"
        );
        let provisioned = "/2019-09-30/functions/f/provisioned-concurrency?List=ALL";
        assert_eq!(of("GET", provisioned).unwrap().0, "ListProvisionedConcurrencyConfigs");
        let removed = of("DELETE", "/2018-10-31/layers/l/versions/3/policy/s");
        assert_eq!(removed, Some(("RemoveLayerVersionPermission", ["l", "3", "s"])));
        for (method, path) in [
            ("PATCH", "/2015-03-31/functions"),
            ("GET", "/2015-03-30/functions"),
            ("GET", "/2015-03-31/functions/f/other"),
            ("GET", "/"),
        ] {
            assert_eq!(of(method, path), None, "{method} {path}");
        }
    }
}
