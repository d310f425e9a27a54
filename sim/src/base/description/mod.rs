//! The description of a machine: a TOML file, which has what differs from another machine; every number can
//! be overridden.

mod check;
mod file;

use serde::{Deserialize, Serialize};
use std::path::Path;

const TABLE3: &str = include_str!("../../../machines/table3.toml");

/// The unit that a machine has beside Table 3's core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// None.
    Nothing,
    /// Memento's units.
    Memento,
    /// SpeedMalloc's support core.
    Support,
}

/// The built-in machines: name, differences from Table 3's baseline, and the unit beside its core.
pub const MACHINES: &[(&str, &[&str], Beside)] = &[
    ("table3", &[], Beside::Nothing),
    // The HOT's storage as a ninth way of the L1d instead (§6.7's question: is it the capacity?).
    ("iso-storage", &["l1d.ways=9"], Beside::Nothing),
    ("memento", &[], Beside::Memento),
    // Mallacc "where the Mallacc cache has zero latency and always hits" (§6.7).
    ("mallacc", &["core.ideal_allocator=true"], Beside::Nothing),
    // SpeedMalloc (Li et al., arXiv 2508.20253).
    ("speedmalloc", &[], Beside::Support),
];

/// A whole machine. The names are those of the TOML file; units are in the names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Description {
    pub name: String,
    /// A file without this section: one core.
    #[serde(default)]
    pub cores: CoresDescription,
    pub core: CoreDescription,
    pub branch: BranchDescription,
    pub l1i: CacheDescription,
    pub l1d: CacheDescription,
    pub l2: CacheDescription,
    pub llc: CacheDescription,
    pub tlb: TlbDescription,
    pub dram: DramDescription,
    /// Memento's units, if the machine has them.
    pub memento: Option<memento::Config>,
    /// SpeedMalloc's support core, if it has one.
    pub support: Option<SupportDescription>,
    /// Windows that are timed alone, if not all of the run is.
    pub sample: Option<SampleDescription>,
}

/// Of each period of instructions a window in its middle is timed, after the core has been filled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct SampleDescription {
    /// A prime number, so that no window after the other meets the same part of a loop or the timer's tick.
    pub period_instructions: u64,
    pub window_instructions: u64,
    pub filling_instructions: u64,
}

impl Default for SampleDescription {
    fn default() -> SampleDescription {
        SampleDescription {
            period_instructions: 25_013,
            window_instructions: 3_000,
            filling_instructions: 2_000,
        }
    }
}

/// The number of cores, each with an L1i, L1d, L2 and TLBs of its own, and the cost of sharing between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct CoresDescription {
    pub number: usize,
    /// Getting a line out of another core's caches, beyond the way to the LLC.
    pub snoop_cycles: u64,
    /// How far a core runs ahead of the others before one of them has its turn. A parameter of the
    /// simulation, not of the machine.
    pub turn_cycles: u64,
}

impl Default for CoresDescription {
    fn default() -> CoresDescription {
        CoresDescription { number: 1, snoop_cycles: 20, turn_cycles: 500 }
    }
}

/// The out-of-order core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct CoreDescription {
    pub frequency_mhz: u64,
    pub width: u32,
    pub rob_entries: usize,
    pub lsq_entries: usize,
    pub frontend_cycles: u64,
    pub fetch_ahead_cycles: u64,
    pub load_ports: u8,
    pub store_ports: u8,
    pub branch_ports: u8,
    pub multiply_ports: u8,
    pub vector_ports: u8,
    pub store_forward_cycles: u64,
    pub exception_cycles: u64,
    /// The functions of the program's allocator take no time, but functions that they call do.
    pub ideal_allocator: bool,
}

/// Branch prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct BranchDescription {
    pub base_entries: usize,
    pub tagged_entries: usize,
    pub btb_entries: usize,
    pub indirect_entries: usize,
    pub return_entries: usize,
    pub btb_miss_cycles: u64,
}

/// One level of cache, lines of 64 bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct CacheDescription {
    pub sets: usize,
    pub ways: usize,
    /// From a load's issue to its use when this level has the line.
    pub latency_cycles: u64,
    pub mshrs: usize,
    /// One access starts every so many cycles; 0: no limit.
    pub cycles_per_access: u64,
    /// A file without it: least recently used.
    #[serde(default)]
    pub replacement: ReplacementKind,
}

/// The policies by which a cache replaces lines (`memory/replacement.rs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum ReplacementKind {
    #[default]
    Lru,
    Srrip,
    Random,
}

/// Both levels of TLB, and the page walker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct TlbDescription {
    pub l1_sets: usize,
    pub l1_ways: usize,
    pub l2_sets: usize,
    pub l2_ways: usize,
    pub l2_latency_cycles: u64,
    pub walk_cache_entries: usize,
}

/// SpeedMalloc's support core: a "lightweight programmable processor" that "houses all allocator metadata in
/// its own caches", and executes the allocator's code for the program's core. Numbers that the paper's
/// abstract does not give are ours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)]
pub struct SupportDescription {
    /// Sets, ways and latency are those of each of its two caches, behind which is the LLC.
    pub cache_sets: usize,
    pub cache_ways: usize,
    pub cache_latency_cycles: u64,
    /// From one core to the other: half of the way to the LLC and back.
    pub message_cycles: u64,
    /// Requests that may wait for it; the next one stalls the program's core.
    pub queue_entries: usize,
    /// Delay of a taken branch: the core fetches the target only once it has executed the branch.
    pub taken_branch_cycles: u64,
    /// Getting a line out of the other core's caches, beyond the way to the LLC.
    pub snoop_cycles: u64,
}

impl Default for SupportDescription {
    fn default() -> SupportDescription {
        SupportDescription {
            cache_sets: 64,
            cache_ways: 4,
            cache_latency_cycles: 2,
            message_cycles: 20,
            queue_entries: 16,
            taken_branch_cycles: 2,
            snoop_cycles: 20,
        }
    }
}

/// One channel, one rank of DDR4; times in memory clocks, by JEDEC's names without the t.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct DramDescription {
    pub clock_mhz: u64,
    pub bank_groups: usize,
    pub banks_per_group: usize,
    pub row_bytes: u64,
    pub cl: u64,
    pub cwl: u64,
    pub rcd: u64,
    pub rp: u64,
    pub ras: u64,
    pub rrd_s: u64,
    pub rrd_l: u64,
    pub faw: u64,
    pub ccd_s: u64,
    pub ccd_l: u64,
    pub wr: u64,
    pub wtr_s: u64,
    pub wtr_l: u64,
    pub rtp: u64,
    pub rfc: u64,
    pub refi: u64,
    pub burst: u64,
    pub write_queue: usize,
    pub row_hit_limit: u32,
}

impl Description {
    /// The machine of that name, or of that file, with `KEY=VALUE` overrides such as `l1d.ways=9`.
    ///
    /// # Errors
    /// One line: no such machine, a key that is unknown, or a value that cannot be; of a file, on which line.
    pub fn load(machine: &str, overrides: &[String]) -> Result<Description, String> {
        let result = match built_in(machine) {
            Some(table) => Description::build(table, overrides),
            None if Path::new(machine).extension().is_some() || machine.contains('/') => {
                let text = std::fs::read_to_string(machine)
                    .map_err(|error| format!("machine file {machine}: {error}"))?;
                Description::of_text(&text, Path::new(machine), overrides)
            }
            None => {
                let known: Vec<_> = MACHINES.iter().map(|(name, ..)| *name).collect();
                return Err(format!(
                    "no machine {machine}: there are {}, or name a .toml file",
                    known.join(", ")
                ));
            }
        };
        result.map_err(|error| format!("machine {machine}: {error}"))
    }

    /// As [`Description::load`], of a TOML text; files that it inherits are relative to the working folder.
    ///
    /// # Errors
    /// As [`Description::load`].
    pub fn parse(text: &str, overrides: &[String]) -> Result<Description, String> {
        Description::of_text(text, Path::new(""), overrides)
    }

    fn of_text(text: &str, file: &Path, overrides: &[String]) -> Result<Description, String> {
        let name = file.file_stem().and_then(|name| name.to_str());
        let merged = file::merged(text, file.parent().unwrap_or(file), name, 0)?;
        // Of a file that is wrong by itself, the line.
        Description::build(merged.table.clone(), &[]).map_err(|error| merged.on_its_line(error))?;
        Description::build(merged.table, overrides)
    }

    fn build(mut table: toml::Table, overrides: &[String]) -> Result<Description, String> {
        for item in overrides {
            let (key, value) = item
                .split_once('=')
                .ok_or_else(|| format!("`{item}` is not KEY=VALUE, such as l1d.ways=9"))?;
            replace(&mut table, key.trim(), value.trim())?;
        }
        let description: Description = table.try_into().map_err(|error| one_line(&error))?;
        description.check()?;
        Ok(description)
    }

    /// The same machine; with a period, only windows of its run are timed.
    ///
    /// # Errors
    /// The period is too short for its windows.
    pub fn sampled(mut self, period_instructions: Option<u64>) -> Result<Description, String> {
        if let Some(period_instructions) = period_instructions {
            self.sample = Some(SampleDescription { period_instructions, ..SampleDescription::default() });
            self.check()?;
        }
        Ok(self)
    }
}

/// The built-in machine of this name: Table 3's, what differs, and its unit.
fn built_in(name: &str) -> Option<toml::Table> {
    let (name, changes, beside) = MACHINES.iter().find(|(known, ..)| *known == name)?;
    let mut table: toml::Table = TABLE3.parse().expect("sim/machines/table3.toml is TOML");
    table.insert("name".to_owned(), (*name).into());
    for change in *changes {
        let (key, value) = change.split_once('=').expect("a change is KEY=VALUE");
        replace(&mut table, key, value).expect("a built-in machine has keys of Table 3's");
    }
    let section = match beside {
        Beside::Nothing => return Some(table),
        // The guest's kernel does not notify the shim of a switch, so its batches are not emptied there.
        Beside::Memento => {
            let config = memento::Config { drain_at_switch: false, ..memento::Config::default() };
            ("memento", toml::Table::try_from(config))
        }
        Beside::Support => ("support", toml::Table::try_from(SupportDescription::default())),
    };
    table.insert(section.0.to_owned(), section.1.expect("a section is a table").into());
    Some(table)
}

/// `table.a.b = value`, where the key must be there already.
fn replace(table: &mut toml::Table, key: &str, value: &str) -> Result<(), String> {
    let (section, name) = match key.split_once('.') {
        Some((section, name)) => {
            let names: Vec<_> = table.iter().filter(|(_, v)| v.is_table()).map(|(k, _)| k.clone()).collect();
            let inner = table.get_mut(section).and_then(toml::Value::as_table_mut);
            (inner.ok_or_else(|| format!("unknown key {key}: there are {}", names.join(", ")))?, name)
        }
        None => (table, key),
    };
    let names: Vec<_> = section.keys().cloned().collect();
    let old =
        section.get_mut(name).ok_or_else(|| format!("unknown key {key}: there are {}", names.join(", ")))?;
    *old = match old {
        toml::Value::Integer(_) => value
            .parse()
            .map(toml::Value::Integer)
            .map_err(|_| format!("{key}={value}: a whole number is needed"))?,
        toml::Value::Boolean(_) => value
            .parse()
            .map(toml::Value::Boolean)
            .map_err(|_| format!("{key}={value}: true or false is needed"))?,
        toml::Value::String(_) => toml::Value::String(value.to_owned()),
        _ => return Err(format!("{key} is a section: name one of its keys")),
    };
    Ok(())
}

/// TOML's errors show the line with a pointer below; users get one line.
fn one_line(error: &toml::de::Error) -> String {
    error.message().split_whitespace().collect::<Vec<_>>().join(" ")
}
