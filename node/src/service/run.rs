//! Puts the agent together and runs it.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};

use crate::base::cgroup::Parent;
use crate::domains::page_stores::{Members, Program, Stores};
use crate::domains::trust_domain::Domain;
use crate::inject::artifacts::Offer;
use crate::profiles::profiler::Profiles;
use crate::profiles::storage::Storage;
use crate::profiles::upload_queue::Outbox;
use crate::service::agent::Agent;
use crate::service::settings::Settings;
use crate::service::{http, metrics};

/// Runs until `stop`.
///
/// # Errors
/// What is needed is not there: libraries, the folder, the address.
pub async fn run(settings: Settings, stop: impl Future<Output = ()>) -> Result<()> {
    let storage = Storage::of(&settings.profiles)?;
    let offer = Offer::prepare(
        &settings.data,
        &settings.glibc,
        settings.musl.as_deref(),
        settings.models.as_deref(),
    )?;
    if !offer.has_musl {
        tracing::warn!("no libraries for musl (--musl): programs on Alpine run as they are");
    }
    let cgroups = Parent::new(Path::new("/sys/fs/cgroup"))
        .inspect_err(|why| tracing::warn!("stores have no limit of their own: {why:#}"))
        .ok();
    let program = Program { path: settings.program.clone(), most_bytes: settings.store_bytes };
    let stores = Stores::start(&settings.data, program, cgroups)?;
    let outbox = Outbox::new(&settings.data, storage)?;
    let profiles = Arc::new(Profiles::new(&settings.program, &settings.data, outbox)?);
    let agent = Arc::new(Agent::new(settings.clone(), offer, stores.clone(), profiles));
    agent.write_cdi()?;
    for name in &settings.domains {
        stores.serve(&Domain::Device(name.clone()), Members::Holders);
    }
    let served = match settings.listen {
        Some(address) => {
            let listener = tokio::net::TcpListener::bind(address)
                .await
                .with_context(|| format!("cannot serve metrics at {address}"))?;
            let agent = agent.clone();
            tokio::spawn(http::serve(listener, move || metrics::text(&agent)))
        }
        None => tokio::spawn(std::future::pending()),
    };
    tracing::info!("agent ready");
    tokio::select! {
        () = stop => {}
        () = agent.clone().follow_models() => {}
        () = agent.clone().follow_runtime() => {}
        () = agent.clone().follow_cdi() => {}
        () = agent.profiles.outbox.clone().follow() => {}
        () = agent.clone().follow_model_coverage() => {}
        _ = served => {}
    }
    stores.end();
    Ok(())
}
