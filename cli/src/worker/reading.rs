//! The options of `mayfly up` that say how a template is read.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use worker::function::worker_options::TemplateOptions;

/// How a template is read.
#[derive(Args)]
#[command(next_help_heading = "Template")]
pub struct Reading {
    /// Values of the template's parameters, as sam has them: "NAME=VALUE NAME=VALUE"; may be given several
    /// times [default: samconfig.toml beside the template, else each parameter's Default]
    #[arg(long, value_name = "NAME=VALUE")]
    parameter_overrides: Vec<String>,
    /// JSON file with values of functions' variables, as sam local has it: {"FUNCTION": {"NAME": "VALUE"}}
    #[arg(long, value_name = "FILE")]
    env_vars: Option<PathBuf>,
    /// Folder in place of a bucket that the template names code in; may be given several times
    #[arg(long, value_name = "NAME=FOLDER", value_parser = bucket)]
    bucket: Vec<(String, PathBuf)>,
    /// Folder or .zip in place of a layer that another account publishes; may be given several times
    #[arg(long, value_name = "NAME=PATH", value_parser = layer)]
    layer: Vec<(String, PathBuf)>,
    /// End with an error if any function or event of the template cannot be served
    #[arg(long)]
    strict: bool,
    /// Refuse a requirements.txt whose packages are not all pinned and hashed
    #[arg(long)]
    pinned: bool,
    /// Serve a function in the nearest version where this host lacks its runtime's
    #[arg(long)]
    nearest_runtime: bool,
    /// Install no AWS SDK for functions in Node.js that import it and have none of their own
    #[arg(long)]
    without_sdk: bool,
}

fn bucket(text: &str) -> Result<(String, PathBuf), String> {
    pair(text).ok_or("a bucket and a folder are needed, such as code=./build".into())
}

fn layer(text: &str) -> Result<(String, PathBuf), String> {
    pair(text).ok_or("a layer's name and its files are needed, such as tools=./tools.zip".into())
}

fn pair(text: &str) -> Option<(String, PathBuf)> {
    let (name, path) = text.split_once('=').filter(|(name, path)| !name.is_empty() && !path.is_empty())?;
    Some((name.into(), path.into()))
}

impl Reading {
    /// The worker's options.
    ///
    /// # Errors
    /// What takes the place of a bucket or a layer is not there.
    pub fn options(self) -> Result<TemplateOptions> {
        let whole = |option: &'static str| {
            move |(name, path): (String, PathBuf)| {
                let whole = path.canonicalize();
                let whole = whole.with_context(|| format!("--{option} {name}={}", path.display()))?;
                Ok((name, whole))
            }
        };
        Ok(TemplateOptions {
            parameters: self.parameter_overrides,
            variables: self.env_vars,
            buckets: self.bucket.into_iter().map(whole("bucket")).collect::<Result<_>>()?,
            layers: self.layer.into_iter().map(whole("layer")).collect::<Result<_>>()?,
            strict: self.strict,
            pinned: self.pinned,
            nearest_runtime: self.nearest_runtime,
            without_sdk: self.without_sdk,
        })
    }
}
