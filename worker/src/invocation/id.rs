//! The id of an invocation, as its caller and its function know it.

use std::fmt;

use hyper::header::HeaderValue;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Lambda's `RequestId`: a UUID in small letters. An event that is tried again has the same at each attempt,
/// and another [`RequestId`](worker_pool::RequestId).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InvocationId(Uuid);

impl InvocationId {
    /// A new one.
    pub fn random() -> InvocationId {
        InvocationId(Uuid::new_v4())
    }

    /// The id that a runtime names, if it is written as the runtime has received it.
    pub fn parse(text: &str) -> Option<InvocationId> {
        let id = InvocationId(Uuid::try_parse(text).ok()?);
        (id.to_string() == text).then_some(id)
    }

    /// It as the value of a header.
    pub fn header(self) -> HeaderValue {
        HeaderValue::from_str(&self.to_string()).expect("a UUID is a header")
    }
}

impl fmt::Display for InvocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_form_in_paths_headers_and_json() {
        let text = "0a1b2c3d-0000-4000-8000-00000000000f";
        let id = InvocationId::parse(text).unwrap();
        assert_eq!((id.to_string(), id.header().to_str().unwrap()), (text.to_string(), text));
        assert_eq!(serde_json::to_string(&id).unwrap(), format!("\"{text}\""));
        assert_eq!(serde_json::from_str::<InvocationId>(&format!("\"{text}\"")).unwrap(), id);
        for other in ["", "next", &text.to_uppercase(), &text.replace('-', ""), &format!("{{{text}}}")] {
            assert_eq!(InvocationId::parse(other), None, "{other}");
        }
    }
}
