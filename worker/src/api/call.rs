//! One call of the API: its head, its body, and the values that operations read from both.

use bytes::Bytes;
use hyper::http::request::Parts;
use serde::Deserialize;

use crate::base::error::ApiError;
use crate::base::limits;
use crate::http::connections::Client;
use crate::http::sigv4::Signed;

/// A call with its body.
pub(crate) struct Call {
    pub parts: Parts,
    pub body: Bytes,
    pub client: Client,
}

/// Calls `what`, which takes time in proportion to `body`. If that is long, another thread serves other
/// requests meanwhile.
pub fn large_or_not<T>(body: &[u8], what: impl FnOnce() -> T) -> T {
    if body.len() > limits::CALL_BYTES { tokio::task::block_in_place(what) } else { what() }
}

/// All values of a query parameter.
pub fn query<'a>(query: Option<&'a str>, wanted: &'a str) -> impl Iterator<Item = String> + 'a {
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    pairs.filter(move |(name, _)| name == wanted).map(|(_, value)| value.into_owned())
}

/// The parts of a request that its signature covers.
pub fn signed<'a>(parts: &'a Parts, body: &'a [u8]) -> Signed<'a> {
    Signed {
        method: parts.method.as_str(),
        path: parts.uri.path(),
        query: parts.uri.query().unwrap_or_default(),
        headers: &parts.headers,
        body,
    }
}

/// The .zip that a call carries, as CreateFunction and PublishLayerVersion have it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Carried {
    #[serde(alias = "Content")]
    code: Option<Zip>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Zip {
    zip_file: Option<String>,
}

impl Call {
    /// A call without a connection.
    #[cfg(test)]
    pub fn of_tests(parts: Parts, body: impl Into<Bytes>) -> Call {
        let connections = std::sync::Arc::<crate::http::connections::Connections>::default();
        Call { parts, body: body.into(), client: connections.add([127, 0, 0, 1].into()).client().clone() }
    }

    /// The parts that its signature covers.
    pub fn signed(&self) -> Signed<'_> {
        signed(&self.parts, &self.body)
    }

    /// The value of a query parameter.
    pub fn query(&self, wanted: &str) -> Option<String> {
        query(self.parts.uri.query(), wanted).next()
    }

    /// All values of a query parameter.
    pub fn queries(&self, wanted: &str) -> Vec<String> {
        query(self.parts.uri.query(), wanted).collect()
    }

    /// The body as JSON.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, ApiError> {
        let body: &[u8] = if self.body.is_empty() { b"{}" } else { &self.body };
        let parsed = large_or_not(body, || serde_json::from_slice(body));
        parsed.map_err(|error| {
            ApiError::invalid_content(format!("Could not parse request body into json: {error}"))
        })
    }

    /// The body as JSON, of a call that may carry a .zip. Its other fields may be as long as another
    /// call's body and no longer, since parsed JSON takes many times the memory of its text.
    pub fn json_beside_zip<T: serde::de::DeserializeOwned>(&self) -> Result<T, ApiError> {
        if self.body.len() > limits::CALL_BYTES {
            let carried: Carried = self.json()?;
            let zip = carried.code.and_then(|code| code.zip_file).map_or(0, |zip| zip.len());
            // Some clients escape each slash of base64, as two letters.
            if self.body.len() > zip + zip / 32 + limits::CALL_BYTES {
                let limit = limits::CALL_BYTES;
                return Err(ApiError::too_large(format!(
                    "beside a ZipFile at most {limit} bytes are allowed"
                )));
            }
        }
        self.json()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::base::error::ErrorKind;

    #[test]
    fn only_the_zip_may_be_long() {
        let long = "A".repeat(2 * limits::CALL_BYTES);
        let refusal = |body: Value| {
            let parts = hyper::Request::new(()).into_parts().0;
            let call = Call::of_tests(parts, body.to_string());
            call.json_beside_zip::<Value>().err().map(|error| error.kind)
        };
        assert_eq!(refusal(json!({ "Code": { "ZipFile": long }, "FunctionName": "f" })), None);
        assert_eq!(refusal(json!({ "Content": { "ZipFile": long } })), None);
        assert_eq!(
            refusal(json!({ "Code": { "ZipFile": "" }, "FunctionName": long })),
            Some(ErrorKind::RequestTooLarge)
        );
        assert_eq!(
            refusal(json!({ "Code": { "ZipFile": long, "S3Key": long } })),
            Some(ErrorKind::RequestTooLarge)
        );
        assert_eq!(
            refusal(json!({ "Content": {}, "CompatibleRuntimes": vec![0; limits::CALL_BYTES] })),
            Some(ErrorKind::RequestTooLarge)
        );
    }
}
