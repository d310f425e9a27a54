//! Runtimes: the program that starts inside an instance, and its place on this host.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::base::error::ApiError;
use worker_install::node;

/// The program that starts inside an instance; stored by Lambda's name for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Runtime {
    /// `python3.N`: the host's interpreter with Lambda's own Python client (PyPI's `awslambdaric`).
    Python(PathBuf, String),
    /// `nodejsN.x`: the host's interpreter, or one that the worker installs ([`LANGUAGE`]), with Mayfly's own
    /// client.
    Node(PathBuf, String),
    /// `provided.*`: the program `bootstrap` in the code, which speaks the Runtime API itself.
    Provided(String),
    /// `PackageType: Image`: the image's own command; the image brings Lambda's runtime interface client.
    Image,
}

/// Where an instance sees an interpreter that the worker has installed, as on Lambda.
pub const LANGUAGE: &str = "/var/lang";
/// In place of a runtime's name.
const IMAGE: &str = "Image";

impl Runtime {
    /// # Errors
    /// A runtime that this host does not have.
    pub fn parse(text: &str) -> Result<Runtime, ApiError> {
        if matches!(text, "provided" | "provided.al2" | "provided.al2023") {
            return Ok(Runtime::Provided(text.into()));
        }
        if let Some(wanted) = text.strip_prefix("nodejs").and_then(|rest| rest.strip_suffix(".x")) {
            let found = node_programs().iter().find(|(_, version)| version == wanted);
            let program = match found {
                Some((program, _)) => program.clone(),
                None if node::majors().any(|major| major.to_string() == wanted) => {
                    Path::new(LANGUAGE).join("bin/node")
                }
                None => {
                    return Err(ApiError::invalid_parameter(format!(
                        "Runtime {text}: this host has no Node.js {wanted}, and none can be installed"
                    )));
                }
            };
            return Ok(Runtime::Node(program, text.into()));
        }
        let version = text.strip_prefix("python3.").and_then(|minor| minor.parse::<u8>().ok());
        let program = version.and_then(python_program);
        match (program, version) {
            (Some(program), _) => Ok(Runtime::Python(program, text.into())),
            (None, Some(_)) => Err(ApiError::invalid_parameter(format!(
                "Runtime {text}: this host has no {text} in /usr/bin or /usr/local/bin"
            ))),
            (None, None) => Err(ApiError::invalid_parameter(format!(
                "Runtime {text} is not supported here; python3.N of the host, nodejsN.x and provided.al2023 are"
            ))),
        }
    }

    /// The name of a runtime that can be had: `text` itself, or the nearest version of the same language.
    /// A later version is nearer than an earlier one, since programs rarely need what a version removed.
    pub fn nearest(text: &str) -> String {
        match Runtime::parse(text) {
            Ok(_) => text.into(),
            Err(_) => Runtime::nearest_of(text, node::majors()),
        }
    }

    /// The same of those that this host has.
    pub fn nearest_of_host(text: &str) -> String {
        Runtime::nearest_of(text, std::iter::empty())
    }

    fn nearest_of(text: &str, installed: impl Iterator<Item = u32>) -> String {
        let nearest = |wanted: u32, there: Vec<u32>| {
            let later = there.iter().filter(|&&version| version > wanted).min();
            later.or(there.iter().filter(|&&version| version < wanted).max()).copied()
        };
        let found = if let Some(wanted) = text.strip_prefix("python3.").and_then(|minor| minor.parse().ok()) {
            let there = (0..=u8::MAX).filter(|&minor| python_program(minor).is_some());
            nearest(wanted, there.map(u32::from).collect()).map(|minor| format!("python3.{minor}"))
        } else if let Some(wanted) = text.strip_prefix("nodejs").and_then(|rest| rest.strip_suffix(".x")) {
            let there = node_programs().iter().filter_map(|(_, version)| version.parse().ok());
            let there = there.chain(installed);
            wanted
                .parse()
                .ok()
                .and_then(|wanted| nearest(wanted, there.collect()))
                .map(|v| format!("nodejs{v}.x"))
        } else {
            None
        };
        found.unwrap_or_else(|| text.into())
    }

    /// The major version of Node.js that the worker installs for it.
    pub fn node_to_install(&self) -> Option<u32> {
        let Runtime::Node(program, name) = self else { return None };
        let version = name.strip_prefix("nodejs")?.strip_suffix(".x")?;
        program.starts_with(LANGUAGE).then(|| version.parse().ok())?
    }

    /// Lambda's name for it.
    pub fn name(&self) -> &str {
        match self {
            Runtime::Python(_, name) | Runtime::Node(_, name) | Runtime::Provided(name) => name,
            Runtime::Image => IMAGE,
        }
    }
}

impl TryFrom<String> for Runtime {
    type Error = ApiError;

    fn try_from(text: String) -> Result<Runtime, ApiError> {
        if text == IMAGE { Ok(Runtime::Image) } else { Runtime::parse(&text) }
    }
}

impl From<Runtime> for String {
    fn from(runtime: Runtime) -> String {
        runtime.name().into()
    }
}

/// The host's interpreter `python3.N`.
fn python_program(minor: u8) -> Option<PathBuf> {
    let places = ["/usr/bin", "/usr/local/bin"].map(|f| PathBuf::from(format!("{f}/python3.{minor}")));
    places.into_iter().find(|program| program.is_file())
}

/// The host's interpreters of JavaScript and their major versions, looked for once.
fn node_programs() -> &'static [(PathBuf, String)] {
    static FOUND: OnceLock<Vec<(PathBuf, String)>> = OnceLock::new();
    let version = |program: &PathBuf| {
        let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        Some(text.strip_prefix('v')?.split('.').next()?.to_string())
    };
    FOUND.get_or_init(|| {
        let places = ["/usr/bin/node", "/usr/local/bin/node"].map(PathBuf::from);
        places.into_iter().filter_map(|place| version(&place).map(|version| (place, version))).collect()
    })
}
