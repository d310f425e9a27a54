//! Starts the agent's parts and runs them.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use crate::base::cgroup::ParentCgroup;
use crate::domains::page_stores::{Members, PageStores, Program};
use crate::domains::trust_domain::TrustDomain;
use crate::inject::artifacts::Artifacts;
use crate::profiles::profiler::Profiler;
use crate::profiles::storage::Storage;
use crate::profiles::upload_queue::UploadQueue;
use crate::service::agent::Agent;
use crate::service::memory::NodeMemory;
use crate::service::settings::Settings;
use crate::service::{http, metrics};

/// Runs the agent until `stop`.
///
/// # Errors
/// The user is not root, a library is missing, or the agent's folder or address cannot be used.
pub async fn run(settings: Settings, stop: impl Future<Output = ()>) -> Result<()> {
    // SAFETY: takes nothing and returns a number.
    require_root(unsafe { libc::geteuid() })?;
    let storage = Storage::open(&settings.profiles)?;
    let artifacts = Artifacts::prepare(
        &settings.data,
        &settings.glibc,
        settings.musl.as_deref(),
        settings.models.as_deref(),
    )?;
    if !artifacts.has_musl {
        tracing::warn!("no libraries for musl (--musl): programs on Alpine run unchanged");
    }
    let cgroups = ParentCgroup::new(Path::new("/sys/fs/cgroup"))
        .inspect_err(|why| tracing::warn!("page stores run without a memory limit of their own: {why:#}"))
        .ok();
    let program = Program { path: settings.program.clone(), max_bytes: settings.store_bytes };
    let stores = PageStores::start(&settings.data, program, cgroups)?;
    let upload_queue = UploadQueue::new(&settings.data, storage)?;
    let profiler = Arc::new(Profiler::new(&settings.program, &settings.data, upload_queue)?);
    let agent = Arc::new(Agent::new(settings.clone(), artifacts, stores.clone(), profiler));
    agent.write_cdi()?;
    for name in &settings.domains {
        stores.serve(&TrustDomain::Device(name.clone()), Members::SocketHolders);
    }
    let served = match settings.listen {
        Some(address) => {
            let listener = tokio::net::TcpListener::bind(address)
                .await
                .with_context(|| format!("cannot serve metrics at {address}"))?;
            let agent = agent.clone();
            tokio::spawn(http::serve(listener, move |path| match path {
                "/metrics" => Some((http::PLAIN, metrics::text(&agent))),
                "/memory" => Some((http::JSON, NodeMemory::measure(&agent).json())),
                _ => None,
            }))
        }
        None => tokio::spawn(std::future::pending()),
    };
    tracing::info!("agent ready");
    tokio::select! {
        () = stop => {}
        () = agent.clone().refresh_cdi() => {}
        () = agent.clone().serve_runtime() => {}
        () = agent.clone().scan_cdi_containers() => {}
        () = agent.profiler.upload_queue.clone().run() => {}
        () = agent.clone().watch_model_coverage() => {}
        _ = served => {}
    }
    stores.end();
    Ok(())
}

/// Rootless Podman has no agent of its own: the agent reads processes and cgroups of all users, and the
/// runtime's socket is root's.
fn require_root(user: u32) -> Result<()> {
    ensure!(
        user == 0,
        "mayfly node runs as root, and this is user {user}: containers of rootless Podman use the CDI devices \
         of root's agent"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_users_are_refused_in_one_line() {
        require_root(0).unwrap();
        let line = require_root(1000).unwrap_err().to_string();
        assert!(line.contains("root's agent") && !line.contains('\n'), "{line}");
    }
}
