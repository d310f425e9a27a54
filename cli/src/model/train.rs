//! `mayfly train`: from profiles to a model file (LLAMA §5). The training program is `train/`, in Python with
//! JAX; this module checks the arguments, finds that program and replaces itself with it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};

const EXAMPLES: &str = "\
Examples:
  mayfly profile -o server -- ./server
  mayfly train server.parquet -o server.model       learn, and print the accuracy
  mayfly run --model server.model -- ./server       use the model
  mayfly train monday.parquet tuesday.parquet -o server.model --plot confusion.svg
  mayfly train server.parquet --compare             every encoder on the same contexts; writes no model
  mayfly train other.parquet --measure server.model a model's accuracy on another profile
  mayfly train profiles/ --where \"program = 'web' AND version >= '9'\" -o web.model
                                                    a data set in folders program=web/version=9/; s3://bucket/profiles, too
  MASTER=spark://host:7077 mayfly train hdfs://host/server.parquet --engine spark -o server.model

The first run installs its packages into ~/.cache/mayfly/train (0.5 GB); the first network 0.7 GB more, for JAX.
Accuracy is in bytes: of a run held out of training if there are several, and of contexts held out. The model that is
written then learns from all.
The same profiles, options and seed give the same file. A GPU is used when there is one.";

/// The kind of model
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Encoder {
    /// A table where contexts are few, else lstm-frames
    Auto,
    /// A table of contexts: made in a second; the heap learns unknown contexts online
    Table,
    /// A network with a step for each frame: as accurate and many times faster (LLAMA §10)
    LstmFrames,
    /// The paper's network, with a step for each token (LLAMA §5.2)
    LstmTokens,
}

/// The cost of confusing one class with another
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Confusions {
    /// All alike, as in the paper
    Alike,
    /// By the effect on pages: an object that outlives its page holds it, a class too long costs least
    Costs,
}

/// The engine that computes the dataset
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// This machine
    Duckdb,
    /// Apache Spark, here or at MASTER or SPARK_REMOTE
    Spark,
}

/// Learn lifetimes from profiles: write a model for the heap's predictions
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct TrainArguments {
    /// Tables that `mayfly profile` wrote, or folders of them, here or at a URL (s3://, gs://, hdfs://)
    #[arg(value_name = "PROFILE.parquet|DATASET", required = true)]
    profiles: Vec<OsString>,
    /// Choose profiles by the names of their folders (KEY=VALUE): an SQL expression, such as "program =
    /// 'web'"
    #[arg(long = "where", value_name = "EXPRESSION")]
    chosen: Option<OsString>,
    /// The model file to write
    #[arg(short, long, value_name = "MODEL", required_unless_present_any = ["compare", "measure"])]
    output: Option<PathBuf>,
    /// The kind of model
    #[arg(long, value_enum, default_value_t = Encoder::Auto)]
    encoder: Encoder,
    /// Length of the encoder's state: 64, or 16 for a smaller and faster model
    #[arg(long, value_name = "LENGTH", default_value = "64", value_parser = ["16", "64"])]
    hidden: String,
    /// Tokens that have a number of their own
    #[arg(long, value_name = "TOKENS", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    vocabulary: u32,
    /// Most rounds of training; it ends earlier when another round no longer helps
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seed of the random numbers
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u32,
    /// The cost of confusing one class with another
    #[arg(long, value_enum, default_value_t = Confusions::Alike)]
    confusions: Confusions,
    /// The engine that computes the dataset
    #[arg(long, value_enum, default_value_t = Engine::Duckdb)]
    engine: Engine,
    /// Draw the confusion matrix
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Train every encoder and compare
    #[arg(long, conflicts_with_all = ["output", "measure", "plot"])]
    compare: bool,
    /// Measure this model on the profiles instead of training one
    #[arg(long, value_name = "MODEL", conflicts_with = "output")]
    measure: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl TrainArguments {
    /// Becomes the Python program.
    ///
    /// # Errors
    /// That program is not found.
    pub fn execute(self) -> Result<i32> {
        let program = find()?;
        tracing::debug!(program = %program.display(), "train");
        let mut command = Command::new(&program);
        // Training starts it to name all the code of the programs.
        if let Ok(own) = std::env::current_exe() {
            command.env("MAYFLY_COMMAND", own);
        }
        let error = command.args(self.forwarded()).exec();
        Err(error).with_context(|| format!("{}: cannot be started", program.display()))
    }

    fn forwarded(self) -> Vec<OsString> {
        let name =
            |value: Option<clap::builder::PossibleValue>| value.map(|value| value.get_name().to_owned());
        let mut arguments: Vec<OsString> = Vec::new();
        let mut option = |flag: &str, value: Option<OsString>| {
            if let Some(value) = value {
                let mut argument = OsString::from(flag);
                argument.push("=");
                argument.push(value);
                arguments.push(argument);
            }
        };
        option("--output", self.output.map(Into::into));
        option("--where", self.chosen);
        option("--encoder", name(self.encoder.to_possible_value()).map(Into::into));
        option("--hidden", Some(self.hidden.into()));
        option("--vocabulary", Some(self.vocabulary.to_string().into()));
        option("--rounds", Some(self.rounds.to_string().into()));
        option("--seed", Some(self.seed.to_string().into()));
        option("--confusions", name(self.confusions.to_possible_value()).map(Into::into));
        option("--engine", name(self.engine.to_possible_value()).map(Into::into));
        option("--plot", self.plot.map(Into::into));
        option("--measure", self.measure.map(Into::into));
        arguments.extend(
            [(self.compare, "--compare"), (self.json, "--json")]
                .iter()
                .filter(|flag| flag.0)
                .map(|flag| flag.1.into()),
        );
        arguments.push("--".into());
        arguments.extend(self.profiles);
        arguments
    }
}

/// `train/run`: under `MAYFLY_TRAIN`, else in the repository that the running program was built in, or in
/// `../lib/mayfly/train`.
fn find() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("MAYFLY_TRAIN").filter(|value| !value.is_empty()) {
        let program = Path::new(&folder).join("run");
        if !program.is_file() {
            bail!("MAYFLY_TRAIN={}: no program 'run' in it", folder.display());
        }
        return std::path::absolute(program).context("MAYFLY_TRAIN");
    }
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    let prefixes: Vec<&Path> = own.ancestors().skip(2).take(2).collect();
    let places =
        prefixes.iter().flat_map(|prefix| [prefix.join("train/run"), prefix.join("lib/mayfly/train/run")]);
    places.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        anyhow!(
            "train/run is not beside {}: set MAYFLY_TRAIN to the folder 'train' of Mayfly's sources",
            own.display()
        )
    })
}
