//! The plugin's arguments, as the launcher passes them: `out=FOLDER`, and others as [`Arguments::parse`] has
//! them.

use std::path::PathBuf;

/// What one run is to do.
#[derive(Default)]
pub struct Arguments {
    /// machine.toml is there, statistics go there.
    pub folder: PathBuf,
    /// Instructions of the region; 0: no limit.
    pub most_instructions: u64,
    /// DRAM's requests are kept in the folder.
    pub keeps_dram: bool,
    /// How often each block of the region was entered is kept there, too.
    pub keeps_blocks: bool,
    /// The guest is only brought to its region, and its marks go to this file.
    pub save: Option<PathBuf>,
    /// The guest is at its region, and these are its marks up to there.
    pub from: Option<PathBuf>,
    /// The region's instructions go to this file.
    pub trace: Option<PathBuf>,
    /// Statistics of each so many instructions go to the folder.
    pub interval: Option<u64>,
    /// The machine has a thread of its own.
    pub threads: bool,
}

impl Arguments {
    /// From QEMU's words.
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Arguments, String> {
        let mut all = Arguments::default();
        let mut folder = None;
        for word in words {
            let number = |value: &str| value.parse().map_err(|_| format!("{word}: no number"));
            match word.split_once('=') {
                Some(("out", value)) => folder = Some(PathBuf::from(value)),
                Some(("max", value)) => all.most_instructions = number(value)?,
                Some(("interval", value)) => all.interval = Some(number(value)?),
                Some(("threads", "2")) => all.threads = true,
                Some(("keep", "dram")) => all.keeps_dram = true,
                Some(("keep", "blocks")) => all.keeps_blocks = true,
                Some(("save", value)) => all.save = Some(PathBuf::from(value)),
                Some(("from", value)) => all.from = Some(PathBuf::from(value)),
                Some(("trace", value)) => all.trace = Some(PathBuf::from(value)),
                _ => return Err(format!("unknown argument {word}")),
            }
        }
        all.folder = folder.ok_or("out=FOLDER is missing")?;
        Ok(all)
    }
}
