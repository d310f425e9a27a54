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
    let pair = text.split_once('=').filter(|(name, folder)| !name.is_empty() && !folder.is_empty());
    let (name, folder) = pair.ok_or("a bucket and a folder are needed, such as code=./build")?;
    Ok((name.into(), folder.into()))
}

impl Reading {
    /// The worker's options.
    ///
    /// # Errors
    /// A folder in place of a bucket is not there.
    pub fn options(self) -> Result<TemplateOptions> {
        let whole = |(name, folder): (String, PathBuf)| {
            let whole =
                folder.canonicalize().with_context(|| format!("--bucket {name}={}", folder.display()));
            Ok((name, whole?))
        };
        Ok(TemplateOptions {
            parameters: self.parameter_overrides,
            variables: self.env_vars,
            buckets: self.bucket.into_iter().map(whole).collect::<Result<_>>()?,
            strict: self.strict,
            pinned: self.pinned,
            nearest_runtime: self.nearest_runtime,
            without_sdk: self.without_sdk,
        })
    }
}
