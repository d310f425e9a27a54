//! A function of a template that cannot be served, and why: the API describes it as Lambda describes a
//! function that could not be created.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::base::error::ApiError;
use crate::base::name;

/// Lambda's `StateReasonCode`, as far as a template can cause it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasonCode {
    /// A property is wrong, or needs what this worker lacks.
    Configuration,
    /// This host lacks the runtime.
    Runtime,
    /// The code cannot be had.
    Code,
    /// The image cannot be had.
    Image,
    /// Packages or layers of it cannot be had.
    Dependency,
}

impl ReasonCode {
    /// Lambda's name for it.
    pub fn name(self) -> &'static str {
        match self {
            ReasonCode::Configuration => "InvalidConfiguration",
            ReasonCode::Runtime => "InvalidRuntime",
            ReasonCode::Code => "InvalidZipFileException",
            ReasonCode::Image => "InvalidImage",
            ReasonCode::Dependency => "DependencyError",
        }
    }
}

/// An error that concerns one thing of a function.
#[derive(Clone, Debug)]
pub struct Refused {
    code: ReasonCode,
    line: String,
}

impl Refused {
    /// Makes one of an error.
    pub fn of<E: Into<anyhow::Error>>(code: ReasonCode) -> impl FnOnce(E) -> anyhow::Error {
        move |error| anyhow::Error::new(Refused::new(code, &error.into()))
    }

    /// One that several functions may have.
    pub fn new(code: ReasonCode, error: &anyhow::Error) -> Refused {
        Refused { code, line: format!("{error:#}") }
    }

    /// What an error concerns.
    pub fn code(error: &anyhow::Error) -> ReasonCode {
        let refused = error.chain().find_map(|cause| cause.downcast_ref::<Refused>());
        refused.map_or(ReasonCode::Configuration, |refused| refused.code)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl std::error::Error for Refused {}

/// A function that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Its logical id, after those of the templates that it lies in.
    pub id: String,
    /// Its name.
    pub name: String,
    /// `Runtime` and `Handler`, as far as they are known.
    pub runtime: Option<String>,
    /// See `runtime`.
    pub handler: Option<String>,
    /// Its properties by SAM's names, as far as they were evaluated.
    pub properties: Map<String, Value>,
    /// What failed.
    pub code: ReasonCode,
    /// One line: what, and where.
    pub reason: String,
}

impl Failed {
    /// The `FunctionConfiguration` that the API answers with.
    pub fn configuration(&self) -> Value {
        let mut configuration = json!({
            "FunctionName": self.name,
            "FunctionArn": name::arn(&self.name),
            "Version": name::LATEST,
            "State": "Failed",
            "StateReason": self.reason,
            "StateReasonCode": self.code.name(),
            "LastUpdateStatus": "Failed",
            "LastUpdateStatusReason": self.reason,
            "LastUpdateStatusReasonCode": self.code.name(),
        });
        for (key, value) in [("Runtime", &self.runtime), ("Handler", &self.handler)] {
            if let Some(value) = value {
                configuration[key] = value.clone().into();
            }
        }
        configuration
    }

    /// The error of every call that needs the function to be served.
    pub fn refusal(&self) -> ApiError {
        ApiError::conflict(format!(
            "The operation cannot be performed at this time. The function is currently in the following state: Failed. {}",
            self.reason
        ))
    }
}
