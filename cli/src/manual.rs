//! `mayfly manual`: man pages and shell completions, generated from the command line. Packages call it.

use std::fs::File;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;

/// Write man pages and shell completions
#[derive(Args)]
pub struct ManualArguments {
    /// The folder for man1/ and completions/
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

impl ManualArguments {
    /// Writes `man1/mayfly.1`, a page for each verb, and `completions/mayfly.SHELL`.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn execute(self, command: Command) -> Result<i32> {
        let (pages, completions) = (self.folder.join("man1"), self.folder.join("completions"));
        for folder in [&pages, &completions] {
            std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
        }
        clap_mangen::generate_to(command.clone(), &pages).with_context(|| format!("{}", pages.display()))?;
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let name =
                shell.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
            let path = completions.join(format!("mayfly.{name}"));
            let mut file = File::create(&path).with_context(|| format!("{}", path.display()))?;
            clap_complete::generate(shell, &mut command.clone(), "mayfly", &mut file);
        }
        Ok(0)
    }
}
