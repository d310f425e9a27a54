//! `mayfly predict`: a trained model's predictions for the contexts of a profile, looked up as the heap does;
//! and their time.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use lifetime::model::file::{File, Kernel, Model, frames_of};
use lifetime::profile::contents::Profile;
use lifetime::profile::label::{CLASS_NAMES, t95};
use serde_json::{Map, Value, json};

use crate::quantity::{bytes, duration};

const EXAMPLES: &str = "\
Examples:
  mayfly predict --model server.mayfly-model server.profile          how often it is right, by lifetime class
  mayfly predict --model server.mayfly-model server.profile --json   one line of JSON a context, in the order of server.parquet
  mayfly predict --model server.mayfly-model server.profile --time   the time it takes, by number of frames (LLAMA Fig 11b)

The profile is a NAME.profile of `mayfly profile`, best of another run than those that the model was trained on.";

/// Predict the lifetimes of a profile's contexts with a trained model
#[derive(Args)]
#[command(after_long_help = EXAMPLES, after_help = "Examples: mayfly predict --help")]
pub struct PredictArguments {
    /// The model that `mayfly train` made
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    /// NAME.profile, written by `mayfly profile`
    #[arg(value_name = "PROFILE")]
    profile: PathBuf,
    /// Measure how long the model takes, by number of frames
    #[arg(long)]
    time: bool,
    /// Print JSON: a line for each context, {"class": output, "scores": [...]}; a table has no scores, and
    /// null for contexts that it does not know; with --time one object
    #[arg(long)]
    json: bool,
}

impl PredictArguments {
    /// Prints the model's predictions; returns the exit code.
    ///
    /// # Errors
    /// A file cannot be read, or has no contexts.
    pub fn execute(self) -> Result<i32> {
        let file = File::read(&self.model)?;
        let model = file.model();
        let profile = Profile::read(&self.profile)?;
        let contexts: Vec<Vec<u32>> =
            profile.contexts.iter().map(|context| frames_of(&model, &profile, context)).collect();
        if contexts.is_empty() {
            bail!("{}: it has no contexts", self.profile.display());
        }
        match (self.time, self.json) {
            (true, json) => print_times(&times(&model, &contexts), json),
            (false, true) => {
                for frames in &contexts {
                    let class = model.classify(Kernel::best(), frames);
                    if model.is_table() {
                        println!("{}", json!({"class": class}));
                        continue;
                    }
                    let scores = model.scores(Kernel::best(), frames);
                    println!("{}", json!({"class": class, "scores": scores[..model.limits.len()]}));
                }
            }
            (false, false) => print!("{}", described(&model, &profile, &contexts)),
        }
        Ok(0)
    }
}

/// Contexts of a class, and the model's predictions for them.
#[derive(Clone, Copy, Default)]
struct Row {
    contexts: usize,
    right: usize,
    bytes: f64,
    right_bytes: f64,
    near_bytes: f64,
    /// Bytes of the contexts with a prediction.
    known_bytes: f64,
}

impl Row {
    fn with(self, other: &Self) -> Self {
        Self {
            contexts: self.contexts + other.contexts,
            right: self.right + other.right,
            bytes: self.bytes + other.bytes,
            right_bytes: self.right_bytes + other.right_bytes,
            near_bytes: self.near_bytes + other.near_bytes,
            known_bytes: self.known_bytes + other.known_bytes,
        }
    }
}

/// The model's accuracy by class: of bytes, and of contexts.
fn described(model: &Model, profile: &Profile, contexts: &[Vec<u32>]) -> String {
    let mut rows = [Row::default(); CLASS_NAMES.len()];
    let (mut known_frames, mut frames_in_all) = (0, 0);
    for (context, frames) in profile.contexts.iter().zip(contexts) {
        let read = &frames[..frames.len().min(model.max_frames)];
        frames_in_all += read.len();
        known_frames += read.iter().filter(|&&frame| frame != 0).count();
        let Some(truth) = t95(context) else { continue };
        let row = &mut rows[truth];
        row.contexts += 1;
        row.bytes += context.bytes;
        let Some(output) = model.classify(Kernel::best(), frames) else { continue };
        let limits = [10, 100, 1000, 10_000, 100_000, 1_000_000];
        let class =
            limits.iter().position(|&limit| model.limits[output] <= limit).unwrap_or(CLASS_NAMES.len() - 1);
        row.known_bytes += context.bytes;
        if class.abs_diff(truth) <= 1 {
            row.near_bytes += context.bytes;
        }
        if class == truth {
            row.right += 1;
            row.right_bytes += context.bytes;
        }
    }
    let percent = |part: f64, whole: f64| {
        if whole > 0.0 { format!("{:.1}%", part / whole * 100.0) } else { "-".into() }
    };
    let mut text = format!(
        "{:>8} {:>10} {:>9} {:>10} {:>9} {:>10} {:>9}\n",
        "class", "bytes", "right", "within one", "known", "contexts", "right"
    );
    let total = rows.iter().fold(Row::default(), Row::with);
    let met = CLASS_NAMES.iter().zip(&rows).filter(|(_, row)| row.contexts > 0);
    for (name, row) in met.chain([(&"all", &total)]) {
        text += &format!(
            "{name:>8} {:>10} {:>9} {:>10} {:>9} {:>10} {:>9}\n",
            bytes(row.bytes),
            percent(row.right_bytes, row.bytes),
            percent(row.near_bytes, row.bytes),
            percent(row.known_bytes, row.bytes),
            row.contexts,
            percent(row.right as f64, row.contexts as f64),
        );
    }
    text + &format!(
        "the model knows {} of the frames that it reads\n\
         right by address: beside each context's own objects; `mayfly train --measure` has the heap's accuracy, in\n\
         which contexts of the same names count together\n",
        percent(known_frames as f64, frames_in_all as f64)
    )
}

const LENGTHS: [usize; 8] = [1, 2, 4, 8, 12, 16, 24, 32];

/// The median time of a run in ns, for contexts of each length, and the kernel it ran on.
fn times(model: &Model, contexts: &[Vec<u32>]) -> Vec<(usize, f64)> {
    const BATCHES: usize = 101;
    const RUNS: usize = 200;
    let all: Vec<u32> = contexts.iter().flatten().copied().filter(|&frame| frame != 0).collect();
    let all = if all.is_empty() { vec![0] } else { all };
    let kernel = Kernel::best();
    LENGTHS
        .into_iter()
        .filter(|&length| length <= model.max_frames)
        .map(|length| {
            let mut start = 0;
            let mut batch = || {
                let began = Instant::now();
                for _ in 0..RUNS {
                    let context: Vec<u32> = (0..length).map(|i| all[(start + i) % all.len()]).collect();
                    start += length;
                    std::hint::black_box(model.classify(kernel, &context));
                }
                began.elapsed().as_nanos() as f64 / RUNS as f64
            };
            let mut measured: Vec<f64> = (0..BATCHES).map(|_| batch()).collect();
            measured.sort_by(f64::total_cmp);
            (length, measured[BATCHES / 2])
        })
        .collect()
}

fn print_times(times: &[(usize, f64)], json: bool) {
    if json {
        let of = |&(length, ns): &(usize, f64)| (format!("predict.frames_{length}.ns"), Value::from(ns));
        let object: Map<String, Value> = times.iter().map(of).collect();
        println!("{}", Value::Object(object));
        return;
    }
    println!("{:>8} {:>12}   ({:?})", "frames", "time", Kernel::best());
    times.iter().for_each(|&(length, ns)| println!("{length:>8} {:>12}", duration(ns)));
}
