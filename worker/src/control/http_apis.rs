//! The worker's HTTP APIs, which its template declares.

use std::sync::Arc;

use super::Worker;
use crate::function::http_api::HttpApi;
use worker_system::lock::lock;

impl Worker {
    /// Serves these from now on, and no others.
    pub(crate) fn set_http_apis(&self, apis: impl IntoIterator<Item = HttpApi>) {
        let by_id = |api: HttpApi| (api.id.to_ascii_lowercase(), Arc::new(api));
        *lock(&self.http_apis) = apis.into_iter().map(by_id).collect();
    }

    /// All of them, by id.
    pub(crate) fn http_apis(&self) -> Vec<Arc<HttpApi>> {
        lock(&self.http_apis).values().cloned().collect()
    }

    /// The API of this id, in small or capital letters, as in names of hosts.
    pub(crate) fn http_api(&self, id: &str) -> Option<Arc<HttpApi>> {
        lock(&self.http_apis).get(&id.to_ascii_lowercase()).cloned()
    }
}
