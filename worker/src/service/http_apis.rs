//! Serves the template's HTTP APIs, and logs where each is.

use std::net::SocketAddr;

use crate::control::Worker;
use crate::function::http_api::{DEFAULT, HttpApi, Kind};

/// Serves these APIs from now on.
pub(crate) fn set(worker: &Worker, apis: Vec<HttpApi>) {
    worker.set_http_apis(apis);
}

/// Logs each API's addresses: by name, for browsers and whatever follows redirects, and by path.
pub(crate) fn log(worker: &Worker, address: SocketAddr) {
    for api in worker.http_apis() {
        let stage = if api.stage == DEFAULT { String::new() } else { format!("{}/", api.stage) };
        let (id, port, count) = (&api.id, address.port(), api.routes.len());
        let kind = if api.kind == Kind::Rest { "REST" } else { "HTTP" };
        let routes = if count == 1 { "route" } else { "routes" };
        tracing::info!(
            "{kind} API {id}, {count} {routes}: http://{id}.execute-api.localhost:{port}/{stage} or \
             http://{address}/execute-api/{id}/{stage}"
        );
    }
}
