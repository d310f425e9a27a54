//! How the worker ends: it tells proxies so while it serves on, then refuses new requests, waits for those
//! that run, and ends all instances.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Worker;
use crate::base::error::{ApiError, ErrorKind};
use crate::instance::Scheduler;
use worker_pool::InstanceId;

impl Worker {
    /// Whether it accepts no new requests any more.
    pub(crate) fn is_closing(&self) -> bool {
        self.lock().closing
    }

    /// Whether proxies are to send requests to another worker, since this one ends.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Serves as ever for this time, and says at `/healthz` that it will end.
    pub(crate) async fn drain(&self, time: Duration) {
        self.draining.store(true, Ordering::Relaxed);
        if !time.is_zero() {
            tracing::info!("draining: serves for {} s more, while /healthz answers 503", time.as_secs());
            tokio::time::sleep(time).await;
        }
    }

    /// Accepts no new requests, gives those that run some time, then ends all instances and waits for
    /// their end.
    pub async fn close(self: &Arc<Self>, grace: Duration) {
        self.lock().closing = true;
        self.set_code_gc(false);
        self.maker().closing();
        let deadline = Instant::now() + grace;
        while !self.lock().waiting.is_empty() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let names: Vec<String> = self.lock().functions.keys().cloned().collect();
        for name in names {
            let _ = self.delete(&name);
        }
        let left: Vec<InstanceId> = self.lock().instances.keys().copied().collect();
        for instance in left {
            self.clone().end(instance);
        }
        loop {
            let removed = self.instance_removed.notified();
            if self.lock().instances.is_empty() {
                return;
            }
            // A limit, should a notification come between the two lines above.
            let _ = tokio::time::timeout(Duration::from_millis(100), removed).await;
        }
    }
}

/// The worker accepts nothing any more. Clients try again, and reach the next worker.
pub(crate) fn stopping() -> ApiError {
    ErrorKind::Stopping.with("the worker is being stopped")
}
