//! What functions of a template are made of: their code, and what they see below /opt. Each part is prepared
//! once, however many functions name it, and as many at a time as there are processors: all files are read,
//! and a large template would wait for its functions one after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::anyhow;
use tokio::runtime::Handle;

use crate::code::Code;
use crate::code::lambda_layers::OptMount;
use crate::code::runtime::Runtime;
use crate::control::Worker;
use crate::function::failed::{ReasonCode, Refused};
use crate::function::template::Package;
use worker_system::lock::lock;

/// Parts by what names them, or why they cannot be had.
pub(super) type Parts<Name, Part> = BTreeMap<Name, Result<Part, Refused>>;

/// The ARNs of a function's layers and the folders of its packages, which it sees below /opt.
pub(super) type Below = (Vec<String>, Vec<PathBuf>);

/// The code of each package.
pub(super) fn codes(worker: &Worker, packages: BTreeSet<Package>) -> Parts<Package, Code> {
    let (cache, place) = (&worker.options.cache, worker.folder());
    each(packages, |package| {
        let (code, reason) = match package {
            Package::Path(path) => (Code::at_path(path, cache, place), ReasonCode::Code),
            Package::Inline(name, text) => {
                (Code::inline(name, text, cache, place), ReasonCode::Configuration)
            }
            Package::Image(uri, base) => {
                (Code::of_operators_image(uri, base, cache, place), ReasonCode::Image)
            }
        };
        code.map_err(|error| Refused::new(reason, &error))
    })
}

/// What is below /opt.
pub(super) fn opts(worker: &Worker, wanted: BTreeSet<Below>) -> Parts<Below, OptMount> {
    each(wanted, |(layers, packages)| {
        let opt = worker.opt(layers, packages.clone());
        opt.map_err(|error| Refused::new(ReasonCode::Dependency, &anyhow!("{}", error.message)))
    })
}

/// Installs AWS' SDK for JavaScript if it is needed by code of this runtime, in this folder, with these below
/// /opt.
pub(super) fn provide_sdk(worker: &Worker, codes: BTreeSet<(Runtime, PathBuf, Vec<PathBuf>)>) {
    each(codes, |(runtime, folder, below)| worker.options.installed.provide_sdk(runtime, folder, below));
}

/// Makes a value of each key.
fn each<K, V>(keys: BTreeSet<K>, make: impl Fn(&K) -> V + Sync) -> BTreeMap<K, V>
where
    K: Ord + Clone + Send + Sync,
    V: Send,
{
    let keys: Vec<K> = keys.into_iter().collect();
    let threads = thread::available_parallelism().map_or(1, usize::from).min(keys.len());
    let (next, made) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        while let Some(key) = keys.get(next.fetch_add(1, Ordering::Relaxed)) {
            let value = make(key);
            lock(&made).insert(key.clone(), value);
        }
    };
    let runtime = Handle::try_current().ok();
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| {
                // Images are fetched within the runtime.
                let _in_runtime = runtime.as_ref().map(Handle::enter);
                work();
            });
        }
        work();
    });
    std::mem::take(&mut *lock(&made))
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn each_is_made_once_and_several_at_a_time() {
        let processors = thread::available_parallelism().unwrap().get();
        // Waits until as many are being made as there are processors.
        let (all, count) = (Barrier::new(processors), AtomicUsize::new(0));
        let keys: BTreeSet<usize> = (0..4 * processors).collect();
        let made = each(keys.clone(), |key| {
            all.wait();
            count.fetch_add(1, Ordering::Relaxed);
            2 * key
        });
        assert_eq!(count.into_inner(), keys.len());
        assert_eq!(made, keys.into_iter().map(|key| (key, 2 * key)).collect());
        assert_eq!(each(BTreeSet::<u8>::new(), |key| *key), BTreeMap::new());
    }
}
