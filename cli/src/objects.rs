//! The verbs for objects: they run programs on the heap, and record, show, learn and replay allocations.

use std::ffi::OsString;

use anyhow::Result;
use clap::Subcommand;

use crate::failure::OWN_FAILURE;
use crate::model::bind::BindArguments;
use crate::model::named;
use crate::model::predict::PredictArguments;
use crate::model::train::TrainArguments;
use crate::profile::ProfileArguments;
use crate::run::RunArguments;
use crate::trace::record::TraceArguments;
use crate::trace::replay::ReplayArguments;
use crate::trace::{driver, on_heap};
use crate::who::WhoArguments;

/// The verbs.
#[derive(Subcommand)]
#[allow(missing_docs)] // each is explained where its arguments are
pub enum ObjectVerb {
    Run(RunArguments),
    Profile(ProfileArguments),
    Train(TrainArguments),
    Predict(PredictArguments),
    Bind(BindArguments),
    Trace(TraceArguments),
    Replay(ReplayArguments),
    Who(WhoArguments),
}

impl ObjectVerb {
    /// What came of the verb, and the exit code that stands for a failure.
    pub fn execute(self) -> (Result<i32>, i32) {
        match self {
            ObjectVerb::Run(arguments) => (arguments.execute(), OWN_FAILURE),
            ObjectVerb::Profile(arguments) => (arguments.execute(), OWN_FAILURE),
            ObjectVerb::Predict(arguments) => (arguments.execute(), 1),
            ObjectVerb::Trace(arguments) => (arguments.execute(), OWN_FAILURE),
            ObjectVerb::Bind(arguments) => (arguments.execute(), 1),
            ObjectVerb::Train(arguments) => (arguments.execute(), 1),
            ObjectVerb::Replay(arguments) => (arguments.execute(), 1),
            ObjectVerb::Who(arguments) => (arguments.execute(), 1),
        }
    }
}

/// Runs what this program's own verbs start it for, and exits; returns if it was started for anything else.
/// The caller has allocated nothing else: a driver's memory is measured.
pub fn run_helper(arguments: &[OsString]) {
    match arguments {
        [_, verb, slots] if verb == on_heap::DRIVER_VERB => {
            std::process::exit(driver::drive(&slots.to_string_lossy()))
        }
        [_, verb, file, build_id, out] if verb == named::VERB => {
            std::process::exit(named::execute([file, build_id, out]))
        }
        _ => {}
    }
}
