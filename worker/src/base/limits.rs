//! Lambda's quotas and ranges, as its developer guide gives them ("Lambda quotas").

use std::ops::RangeInclusive;
use std::time::Duration;

pub use worker_container::cgroup::share;

/// The letters of a function's name, at most.
pub const FUNCTION_NAME: usize = 64;

/// Memory of a function, `MemorySize`, in MiB.
pub const MEMORY_MIB: RangeInclusive<u32> = 128..=10_240;
/// `MemorySize` when none is given.
pub const DEFAULT_MEMORY_MIB: u32 = 128;
/// `Timeout`, in seconds.
pub const TIMEOUT_S: RangeInclusive<u32> = 1..=900;
/// `Timeout` when none is given.
pub const DEFAULT_TIMEOUT_S: u32 = 3;
/// Size of `/tmp`, `EphemeralStorage.Size`, in MiB.
pub const EPHEMERAL_MIB: RangeInclusive<u32> = 512..=10_240;
/// Payload of a synchronous invocation.
pub const PAYLOAD_BYTES: usize = 6 * 1024 * 1024;
/// Its answer, or the description of its error: Lambda grants answers 100 bytes more.
pub const ANSWER_BYTES: usize = PAYLOAD_BYTES + 100;
/// An answer that is streamed.
pub const STREAM_BYTES: usize = 200 * 1024 * 1024;
/// Payload of an asynchronous invocation.
pub const EVENT_PAYLOAD_BYTES: usize = 1024 * 1024;
/// A .zip that is uploaded.
pub const ZIP_BYTES: usize = 50 * 1024 * 1024;
/// The contents of a .zip, unpacked.
pub const UNZIPPED_BYTES: u64 = 250 * 1024 * 1024;
/// The limits of a folder that the operator has named: those of an image.
pub use worker_image::{FOLDER_DEPTH, IMAGE_BYTES};
/// Layers of a function.
pub const LAYERS: usize = 5;
/// Extensions of a function.
pub const EXTENSIONS: usize = vm_sandbox::extensions::MOST;
/// Tags of a function.
pub const TAGS: usize = 50;
/// The body of any call that carries no .zip and is no invocation.
pub const CALL_BYTES: usize = 1024 * 1024;
/// Names and values of all environment variables together.
pub const ENVIRONMENT_BYTES: usize = 4096;
/// How long an instance may take until it asks for its first invocation; a longer `Timeout` allows more.
pub const INIT: Duration = Duration::from_secs(10);
/// The same where an instance serves several requests at once.
pub const INIT_OF_SEVERAL: Duration = Duration::from_secs(130);
/// The end of an invocation's log that `LogType=Tail` answers with.
pub const LOG_TAIL_BYTES: usize = 4096;
/// Processes and threads of an instance.
pub const PROCESSES: u64 = 1024;
/// Attempts after the first for an asynchronous invocation that failed.
pub const EVENT_RETRIES: u32 = 2;
/// How long a function of a REST API may take until the API answers without it.
pub const REST_API: Duration = Duration::from_secs(29);
/// The same of an HTTP API.
pub const HTTP_API: Duration = Duration::from_secs(30);

/// Whether an instance of `memory_mib` fits into a worker that has `most_mib` for all.
///
/// # Errors
/// It never would.
pub fn check_memory(memory_mib: u32, most_mib: u64) -> Result<(), String> {
    if u64::from(memory_mib) <= most_mib {
        return Ok(());
    }
    Err(format!(
        "MemorySize is {memory_mib} MB, but this worker has only {most_mib} MB for all instances (--memory)"
    ))
}
