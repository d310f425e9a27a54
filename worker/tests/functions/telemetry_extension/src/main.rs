//! An extension made with AWS Labs' crate: it prints what it receives from the Telemetry API.

use std::convert::Infallible;

use lambda_extension::{
    Error, Extension, LambdaEvent, LambdaTelemetry, LambdaTelemetryRecord, NextEvent, SharedService,
    service_fn,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    Extension::new()
        .with_telemetry_types(&["platform", "function"])
        .with_events_processor(service_fn(event))
        .with_telemetry_processor(SharedService::new(service_fn(telemetry)))
        .run()
        .await
}

async fn event(event: LambdaEvent) -> Result<(), Infallible> {
    match event.next {
        NextEvent::Invoke(event) => println!("crate INVOKE {}", event.request_id),
        NextEvent::Shutdown(event) => println!("crate SHUTDOWN {}", event.shutdown_reason),
    }
    Ok(())
}

async fn telemetry(events: Vec<LambdaTelemetry>) -> Result<(), Infallible> {
    for event in events {
        match event.record {
            LambdaTelemetryRecord::Function(line) => println!("crate function {line}"),
            LambdaTelemetryRecord::PlatformReport { request_id, status, metrics, .. } => {
                println!("crate report {request_id} {status:?} {}", metrics.memory_size_mb)
            }
            other => println!("crate {}", serde_json::to_string(&other).unwrap_or_default()),
        }
    }
    Ok(())
}
