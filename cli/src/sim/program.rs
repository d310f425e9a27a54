//! The program of a simulated guest: one of this machine, any one of the image, or one that the image lists
//! by name with its input and its expected output; and the environment that an allocator needs.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use clap::ValueEnum;
use serde_json::{Map, Value};

use crate::libraries;
use crate::sim::files::HostFile;

/// Mayfly's heap.
const MAYFLY_HEAP: &str = "libmayfly_heap.so";

/// Go's variables, as sim/programs/programs.toml has them, for a program that needs no image.
fn go_variables(allocator: Allocator) -> Vec<String> {
    let side = if allocator == Allocator::Memento { "MEMENTO=1" } else { "MEMENTO=0" };
    [side, "GOGC=off", "GOMAXPROCS=1", "GODEBUG=gcstoptheworld=1"].map(str::to_owned).to_vec()
}

/// The allocator of the program's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Allocator {
    /// The software allocator of the paper's baseline: CPython's own, jemalloc for C and C++, Go's
    Native,
    /// Memento's hardware, by libmemento.so
    Memento,
    /// Go's own, with marks that record its sweep's frees
    Marks,
    /// Mayfly's heap of this machine, in software: for C, C++ and CPython, where it also replaces pymalloc
    Mayfly,
    /// The baseline on machine mallacc, whose allocator's fast paths take no time: C++ programs only
    Mallacc,
    /// The baseline on machine speedmalloc, where a small core executes the allocator: C, C++ and CPython
    #[value(name = "speedmalloc")]
    SpeedMalloc,
}

impl Allocator {
    /// Its name in the image.
    pub fn name(self) -> &'static str {
        match self {
            Allocator::Native => "native",
            Allocator::Memento => "memento",
            Allocator::Marks => "marks",
            Allocator::Mallacc => "mallacc",
            Allocator::SpeedMalloc => "speedmalloc",
            Allocator::Mayfly => "mayfly",
        }
    }
}

/// The part of a function's run that is counted (§6.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Region {
    /// Its process, from its start to its end
    Process,
    /// The process until it has finished its imports
    Import,
    /// The first call of its handler after the imports, to the handler's return, as the paper counts
    First,
    /// A later call
    Warm,
}

impl Region {
    /// The variable by which the program, and the guest's init, know that the program itself marks the
    /// region's begin or end.
    pub fn variable(self) -> Option<&'static str> {
        match self {
            Region::Process => None,
            Region::Import => Some("MAYFLY_REGION=import"),
            Region::First => Some("MAYFLY_REGION=first"),
            Region::Warm => Some("MAYFLY_REGION=warm"),
        }
    }
}

/// A command, resolved.
pub struct Program {
    /// The words for the guest.
    pub words: Vec<String>,
    /// A file that is copied into the guest: the program itself, or a library for it.
    pub file: Option<HostFile>,
    /// The file is a library.
    pub is_library: bool,
    /// The environment.
    pub environment: Vec<String>,
    /// The output that it must write.
    pub expected: Option<String>,
    /// The program marks the end of its imports and the begin of its calls.
    pub has_regions: bool,
}

/// Whether the command is a program of this machine that needs no image: a static one.
///
/// # Errors
/// There is no such file.
pub fn is_alone(words: &[String]) -> Result<bool> {
    let first = &words[0];
    if !is_from_here(words) {
        return Ok(false);
    }
    let path = Path::new(first);
    if !path.is_file() {
        bail!("{first}: no such file on this machine");
    }
    is_static(path)
}

fn is_from_here(words: &[String]) -> bool {
    words[0].starts_with("./") || words[0].starts_with("../")
}

impl Program {
    /// The command `words` under `allocator`, in the image that `description` describes.
    ///
    /// # Errors
    /// The program needs libraries and there is no image, or the image does not know the allocator.
    pub fn resolve(
        words: &[String],
        description: &Map<String, Value>,
        allocator: Allocator,
    ) -> Result<Program> {
        if is_from_here(words) {
            return Program::from_here(words, description, allocator);
        }
        let known = description.get("programs").and_then(|programs| programs.get(&words[0]));
        let is_warm = known.and_then(|known| known.get("warm")).and_then(Value::as_bool) == Some(true);
        let (words, language, expected) = match known {
            Some(known) => {
                let is_cpp = known.get("cpp").and_then(Value::as_bool) == Some(true);
                if allocator == Allocator::Mallacc && !is_cpp {
                    bail!("{}: Mallacc is for C++ programs only, as the paper has it", words[0]);
                }
                let own = format!("{}_command", allocator.name());
                let command = known.get(&own).or_else(|| known.get("command")).and_then(Value::as_array);
                let command = command.ok_or_else(|| anyhow!("image.json: {} has no command", words[0]))?;
                let command: Vec<_> =
                    command.iter().filter_map(|word| word.as_str().map(str::to_owned)).collect();
                let is_own_input = words.len() > 1;
                let words = if is_own_input { with_arguments(command, &words[1..]) } else { command };
                let expected = known.get("expect").and_then(Value::as_str).filter(|text| !text.is_empty());
                let expected = expected.filter(|_| !is_own_input);
                let language = known.get("language").and_then(Value::as_str).unwrap_or("c");
                (words, language, expected.map(str::to_owned))
            }
            None => (words.to_vec(), if words[0].contains("python") { "python" } else { "c" }, None),
        };
        if allocator == Allocator::SpeedMalloc && language == "go" {
            bail!("{}: Go's runtime allocates on its own core only", words[0]);
        }
        let mut environment = environment(description, language, allocator)?;
        let mut file = None;
        if allocator == Allocator::Mayfly {
            if language == "go" {
                bail!("{}: Go's runtime takes no other allocator", words[0]);
            }
            environment.retain(|variable| !variable.starts_with("LD_PRELOAD="));
            environment.push(format!("LD_PRELOAD=/sim/bin/{MAYFLY_HEAP}"));
            environment.push("PYTHONMALLOC=malloc".to_owned());
            file = Some(HostFile::program(&libraries::find(MAYFLY_HEAP)?));
        }
        let is_library = file.is_some();
        Ok(Program { words, file, is_library, environment, expected, has_regions: is_warm })
    }

    fn from_here(
        words: &[String],
        description: &Map<String, Value>,
        allocator: Allocator,
    ) -> Result<Program> {
        let mut path = PathBuf::from(&words[0]);
        let is_static = is_alone(words)?;
        if !is_static && description.is_empty() {
            bail!("{} is not a static program, and a guest without an image has no libraries", words[0]);
        }
        let language = language(&path)?;
        let mut environment = Vec::new();
        if language == "go" {
            // Its allocator is in the program, which has both sides' or Go's alone.
            let has_both = has_symbol(&path, "runtime.mementoMalloc")?;
            if has_both {
                environment = go_variables(allocator);
            }
            let marked = PathBuf::from(format!("{}-marks", words[0]));
            path = match allocator {
                Allocator::Native => path,
                Allocator::Memento if has_both => path,
                Allocator::Marks if marked.is_file() => marked,
                Allocator::Memento | Allocator::Marks => bail!(
                    "{} is a Go program, and Go's allocator is part of it: sim/programs/go/build FOLDER PROGRAMS \
                     builds each PROGRAMS/NAME/main.go with every allocator; then name FOLDER/NAME-go",
                    words[0]
                ),
                _ => bail!("{}: Go's runtime takes no other allocator", words[0]),
            };
        } else if is_static && !matches!(allocator, Allocator::Native | Allocator::SpeedMalloc) {
            bail!("{} is a static program, which takes no other allocator: link it dynamically", words[0]);
        } else if !is_static {
            environment = self::environment(description, language, allocator)?;
        }
        let file = HostFile::program(&path);
        let mut words = words.to_vec();
        words[0].clone_from(&file.to);
        Ok(Program {
            words,
            file: Some(file),
            is_library: false,
            environment,
            expected: None,
            has_regions: false,
        })
    }
}

/// A listed command with other arguments: those behind its last absolute path, which is the program or its
/// script.
fn with_arguments(mut command: Vec<String>, arguments: &[String]) -> Vec<String> {
    let program = command.iter().rposition(|word| word.starts_with('/')).unwrap_or(0);
    command.truncate(program + 1);
    command.extend_from_slice(arguments);
    command
}

fn environment(
    description: &Map<String, Value>,
    language: &str,
    allocator: Allocator,
) -> Result<Vec<String>> {
    let mut all = Vec::new();
    let of = |language: &str, allocator: &str| {
        description.get("environment")?.get(language)?.get(allocator)?.as_object()
    };
    // Mallacc and SpeedMalloc are machines: the program and its allocator are the baseline's. Mayfly's heap
    // replaces an allocator.
    let is_native = matches!(allocator, Allocator::Mallacc | Allocator::SpeedMalloc | Allocator::Mayfly);
    let named = if is_native { Allocator::Native } else { allocator };
    let own = of(language, named.name());
    if own.is_none() && named != Allocator::Native {
        bail!("the image has no allocator {} for {language} programs", allocator.name());
    }
    for variables in [of("all", "native"), own].into_iter().flatten() {
        all.extend(
            variables.iter().map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default())),
        );
    }
    Ok(all)
}

/// Whether an ELF file names no interpreter.
fn is_static(path: &Path) -> Result<bool> {
    let bytes = std::fs::read(path)?;
    if bytes.starts_with(b"#!") {
        return Ok(false);
    }
    let file = elf(path, &bytes)?;
    Ok(file
        .elf_program_headers()
        .iter()
        .all(|header| header.p_type.get(file.endian()) != object::elf::PT_INTERP))
}

/// What a file of this machine is written in, as the image names it: a script's first line or a section tell.
fn language(path: &Path) -> Result<&'static str> {
    use object::Object;
    let bytes = std::fs::read(path)?;
    if bytes.starts_with(b"#!") {
        let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        return Ok(if String::from_utf8_lossy(line).contains("python") { "python" } else { "c" });
    }
    Ok(if elf(path, &bytes)?.section_by_name(".go.buildinfo").is_some() { "go" } else { "c" })
}

fn has_symbol(path: &Path, name: &str) -> Result<bool> {
    use object::{Object, ObjectSymbol};
    let bytes = std::fs::read(path)?;
    Ok(elf(path, &bytes)?.symbols().any(|symbol| symbol.name() == Ok(name)))
}

type Elf<'a> = object::read::elf::ElfFile64<'a, object::Endianness>;

fn elf<'a>(path: &Path, bytes: &'a [u8]) -> Result<Elf<'a>> {
    Elf::parse(bytes).map_err(|error| anyhow!("{}: neither a program nor a script: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description() -> Map<String, Value> {
        let text = r#"{
            "environment": {
                "all": {"native": {"HOME": "/tmp"}},
                "python": {"native": {}, "memento": {"LD_PRELOAD": "/usr/lib/libmemento.so"}},
                "go": {"native": {"GOGC": "off"}, "memento": {}}
            },
            "programs": {
                "json": {"language": "python", "command": ["python3", "/p/json.py", "60"], "expect": "ok\n"},
                "html": {"language": "go", "command": ["html"], "memento_command": ["html-memento"], "expect": ""}
            }
        }"#;
        serde_json::from_str(text).unwrap()
    }

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn names_of_the_image_are_its_programs() {
        let program = Program::resolve(&words("json"), &description(), Allocator::Memento).unwrap();
        assert_eq!(program.words, ["python3", "/p/json.py", "60"]);
        assert_eq!(program.environment, ["HOME=/tmp", "LD_PRELOAD=/usr/lib/libmemento.so"]);
        assert_eq!(program.expected.as_deref(), Some("ok\n"));
        let program = Program::resolve(&words("json 5"), &description(), Allocator::Memento).unwrap();
        assert_eq!((program.words, program.expected), (words("python3 /p/json.py 5"), None), "another input");
        let line = Program::resolve(&words("json"), &description(), Allocator::Mallacc).err().unwrap();
        assert_eq!(line.to_string(), "json: Mallacc is for C++ programs only, as the paper has it");
        let program = Program::resolve(&words("json"), &description(), Allocator::SpeedMalloc).unwrap();
        assert_eq!((program.words.len(), program.environment), (3, words("HOME=/tmp")), "as on the baseline");
        let line = Program::resolve(&words("html"), &description(), Allocator::SpeedMalloc).err().unwrap();
        assert_eq!(line.to_string(), "html: Go's runtime allocates on its own core only");
        let program = Program::resolve(&words("html"), &description(), Allocator::Memento).unwrap();
        assert_eq!((program.words, program.expected), (words("html-memento"), None));
        let program = Program::resolve(&words("html"), &description(), Allocator::Native).unwrap();
        assert_eq!((program.words, program.environment), (words("html"), words("HOME=/tmp GOGC=off")));
    }

    #[test]
    fn forwards_other_commands() {
        let program = Program::resolve(&words("python3 json"), &description(), Allocator::Native).unwrap();
        assert_eq!((program.words, program.environment), (words("python3 json"), words("HOME=/tmp")));
        let line =
            Program::resolve(&words("ls"), &description(), Allocator::Memento).err().unwrap().to_string();
        assert_eq!(line, "the image has no allocator memento for c programs");
        let line =
            Program::resolve(&words("./none"), &description(), Allocator::Native).err().unwrap().to_string();
        assert_eq!(line, "./none: no such file on this machine");
    }
    #[test]
    fn only_a_static_program_of_this_machine_needs_no_image() {
        let here = |name: &Path| vec![format!("{}{}", "../".repeat(32), name.display())];
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("words");
        std::fs::write(&script, "#!/usr/bin/env python3\nprint(6)\n").unwrap();
        let script = here(&script);
        let dynamic = here(&std::env::current_exe().unwrap());
        for words in [&script, &dynamic] {
            assert!(!is_alone(words).unwrap(), "{words:?}");
            let line = Program::resolve(words, &Map::new(), Allocator::Native).err().unwrap().to_string();
            assert!(line.contains("is not a static program, and a guest without an image"), "{line}");
        }
        let program = Program::resolve(&script, &description(), Allocator::Memento).unwrap();
        assert_eq!(program.environment, ["HOME=/tmp", "LD_PRELOAD=/usr/lib/libmemento.so"], "it is Python's");
        assert_eq!(program.words, ["/sim/bin/words"]);
        std::fs::write(folder.path().join("text"), "words").unwrap();
        let line = is_alone(&here(&folder.path().join("text"))).unwrap_err().to_string();
        assert!(line.contains("/text: neither a program nor a script: "), "{line}");
    }

    #[test]
    fn go_s_variables_are_the_image_s() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../sim/programs/programs.toml");
        let listed: toml::Table = std::fs::read_to_string(file).unwrap().parse().unwrap();
        for side in [Allocator::Native, Allocator::Memento] {
            let its = listed["environment"]["go"][side.name()].as_table().unwrap();
            let its: Vec<_> =
                its.iter().map(|(name, value)| format!("{name}={}", value.as_str().unwrap())).collect();
            let mut own = go_variables(side);
            own.sort_unstable();
            assert_eq!(its, own);
        }
    }
}
