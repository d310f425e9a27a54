//! Readers of untrusted bytes that nothing outside the worker calls, for `fuzz/`.

mod runtime;

use std::path::Path;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::base::name;
use crate::code::unpack;
use crate::function::filters::Filters;
use crate::function::schedule::Schedule;
use crate::function::template;
use crate::gateway::{answer, policy};
use crate::invocation::logs::Pattern;
use crate::invocation::request::Outcome;
use crate::sandbox::vm::relay::Relay;
pub use runtime::{Id, Step, runtime_api};

/// Unpacks a function's .zip into an empty folder.
///
/// # Errors
/// The API's line about what is wrong with it.
pub fn unzip(zip: &[u8], folder: &Path) -> Result<(), String> {
    unpack::unpack(zip, folder).map_err(|error| error.message)
}

/// The values of a template's text.
///
/// # Errors
/// It is neither YAML nor JSON.
pub fn values(text: &str) -> Result<Value, String> {
    template::values(text).map_err(|error| format!("{error:#}"))
}

/// What a template declares, for people.
///
/// # Errors
/// The template as a whole is wrong.
pub fn template(text: &str) -> Result<String, String> {
    let read = template::of_text(text, &Default::default());
    read.map(|template| format!("{template:?}")).map_err(|error| format!("{error:#}"))
}

/// Whether a queue's filter takes a message; `None` if it is no filter.
pub fn filter(pattern: &str, body: &str) -> Option<bool> {
    let filters: Filters = serde_json::from_value(json!({ "Filters": [{ "Pattern": pattern }] })).ok()?;
    Some(filters.patterns().ok()?.match_record(&json!({ "messageId": "m", "body": body })))
}

/// The times after one at which a schedule calls its function, at most so many.
pub fn schedule(text: &str, after_s: u64, most: usize) -> Option<Vec<u64>> {
    let time = |seconds| std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    let schedule = Schedule::parse(text).ok()?;
    let (mut times, mut now) = (Vec::new(), time(after_s));
    while times.len() < most
        && let Some(next) = schedule.next(time(0), now)
    {
        assert!(next > now, "a schedule stands still");
        times.push(next.duration_since(time(0)).unwrap_or_default().as_secs());
        now = next;
    }
    Some(times)
}

/// The status and body of a function URL's answer to what a function has answered.
pub fn url_answer(payload: &[u8]) -> u16 {
    let outcome = Outcome::answered(Bytes::copy_from_slice(payload), false);
    let _ = (outcome.status(), outcome.error_type());
    answer::whole(&outcome).status().as_u16()
}

/// Small readers of texts: names of functions and layers, patterns of logs, an authoriser's policy.
pub fn texts(text: &str) {
    if let Ok(target) = name::parse(text) {
        assert_eq!(name::parse(&target.to_string()).as_ref().ok(), Some(&target), "it names another");
        assert!(name::is_plain(&target.name));
    }
    let _ = name::parse_layer_arn(text);
    if let Ok(pattern) = Pattern::parse(text) {
        let _ = pattern.matches(text);
    }
    if let Ok(policy) = serde_json::from_str::<Value>(text) {
        let _ = policy::verdict(&policy, "arn:aws:execute-api:us-east-1:000000000000:a/s/GET/x");
    }
}

/// Has a hostile guest say these bytes to the relay; an instance `a` is there, and reads all.
pub async fn relay(bytes: &[u8]) {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("descriptors are left");
    theirs.set_nonblocking(true).expect("it is open");
    let mut guest = tokio::net::UnixStream::from_std(theirs).expect("within a runtime");
    let relay = Relay::new(ours).expect("within a runtime");
    let mut listener = relay.listen("a", 4);
    let reading = tokio::spawn(async move {
        loop {
            let mut connection = listener.accept().await;
            tokio::spawn(async move {
                let mut part = [0; 1024];
                while let Ok(read @ 1..) = connection.read(&mut part).await {
                    let _ = connection.write_all(&part[..read]).await;
                }
            });
        }
    });
    let (mut answers, mut says) = guest.split();
    let mut heard = vec![0; 1 << 16];
    let speaking = async {
        let _ = says.write_all(bytes).await;
        let _ = says.shutdown().await;
    };
    let hearing = async { while answers.read(&mut heard).await.is_ok_and(|read| read > 0) {} };
    tokio::select! {
        () = async { tokio::join!(speaking, hearing); } => {}
        () = tokio::time::sleep(std::time::Duration::from_secs(1)) => {}
    }
    reading.abort();
}
