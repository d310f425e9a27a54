//! The Runtime and Extensions APIs and their HTTP, as a hostile runtime calls them: requests in any order,
//! streamed answers with trailers, answers to requests that it does not have, and bytes that are no HTTP.

#![no_main]

use std::sync::LazyLock;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;
use worker::fuzzing::{Id, Step, runtime_api};

#[derive(Debug, Arbitrary)]
enum Action<'a> {
    Next,
    Answer { id: u8, failed: bool, body: &'a [u8] },
    Stream { id: u8, kind: u8, chunks: Vec<&'a [u8]>, trailers: Vec<(u8, u8)> },
    Call { method: u8, path: u8, headers: Vec<(u8, u8)>, body: &'a [u8] },
    Extension { body: u8 },
    Bytes(&'a [u8]),
    Reconnect,
}

const METHODS: [&str; 5] = ["GET", "POST", "PUT", "DELETE", "HEAD"];
const PATHS: [&str; 12] = [
    "/2018-06-01/runtime/invocation/next",
    "/2018-06-01/runtime/init/error",
    "/2018-06-01/runtime/mayfly/rest",
    "/2018-06-01/runtime/mayfly/ended/7",
    "/2018-06-01/runtime/invocation//response",
    "/2020-01-01/extension/register",
    "/2020-01-01/extension/event/next",
    "/2020-01-01/extension/init/error",
    "/2022-07-01/telemetry",
    "/2015-03-31/functions/f/invocations",
    "/",
    "*",
];
const HEADERS: [&str; 9] = [
    "lambda-runtime-function-error-type",
    "lambda-runtime-function-error-body",
    "lambda-runtime-function-response-mode",
    "lambda-extension-name",
    "lambda-extension-identifier",
    "mayfly-rests-after-ms",
    "mayfly-process",
    "expect",
    "transfer-encoding",
];
const VALUES: [&str; 10] = [
    "streaming",
    "Runtime.X",
    "e30=",
    "7",
    "1,18446744073709551615",
    "a",
    "100-continue",
    "chunked",
    "00000000-0000-4000-8000-000000000000",
    "{\"errorType\":\"x\"}",
];
const KINDS: [&str; 3] =
    ["application/json", "application/vnd.awslambda.http-integration-response", "text/plain; charset=\u{e9}"];
const REGISTRATIONS: [&str; 4] =
    ["{\"events\":[\"INVOKE\",\"SHUTDOWN\"]}", "{\"events\":[]}", "{}", "{\"live\":1,\"held\":2,\"ms\":3}"];

/// The instance's code.
static EMPTY: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir_in("/dev/shm").expect("there is room"));

fn pick<'a>(of: &[&'a str], number: u8) -> &'a str {
    of[usize::from(number) % of.len()]
}

fn id(number: u8) -> Id {
    match number % 8 {
        0 => Id::Earlier,
        1 => Id::Other,
        _ => Id::Current,
    }
}

fuzz_target!(|actions: Vec<Action>| {
    let pairs = |of: Vec<(u8, u8)>| {
        of.into_iter()
            .take(8)
            .map(|(name, value)| (pick(&HEADERS, name), pick(&VALUES, value)))
            .collect::<Vec<_>>()
    };
    let step = |action| match action {
        Action::Next => Step::Next,
        Action::Answer { id: number, failed, body } => Step::Answer { id: id(number), failed, body },
        Action::Stream { id: number, kind, chunks, trailers } => {
            Step::Stream { id: id(number), kind: pick(&KINDS, kind), chunks, trailers: pairs(trailers) }
        }
        Action::Call { method, path, headers, body } => Step::Call {
            method: pick(&METHODS, method),
            path: pick(&PATHS, path),
            headers: pairs(headers),
            body,
        },
        Action::Extension { body } => Step::Call {
            method: "POST",
            path: PATHS[5],
            headers: vec![("lambda-extension-name", "a")],
            body: pick(&REGISTRATIONS, body).as_bytes(),
        },
        Action::Bytes(bytes) => Step::Bytes(bytes),
        Action::Reconnect => Step::Reconnect,
    };
    let steps: Vec<Step> = actions.into_iter().take(16).map(step).collect();
    // Time stands still but where all wait, so that nothing waits in truth.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        runtime_api(&steps, EMPTY.path()).await;
    });
});
