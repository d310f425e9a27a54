//! Runtimes: the program that starts inside an instance, and its place on this host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::base::error::ApiError;
use worker_install::{java, node, python, ruby};

/// The program that starts inside an instance; stored by Lambda's name for it. A program below [`LANGUAGE`]
/// is one that the worker installs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Runtime {
    /// `python3.N`: an interpreter with Lambda's own Python client (PyPI's `awslambdaric`).
    Python(PathBuf, String),
    /// `nodejsN.x`: an interpreter with Mayfly's own client.
    Node(PathBuf, String),
    /// `javaN`: a virtual machine with Lambda's own Java client.
    Java(PathBuf, String),
    /// `rubyM.N`: an interpreter with Mayfly's own client.
    Ruby(PathBuf, String),
    /// `provided.*`: the program `bootstrap` in the code, which speaks the Runtime API itself.
    Provided(String),
    /// `PackageType: Image`: the image's own command; the image brings Lambda's runtime interface client.
    Image,
}

/// Where an instance sees an interpreter that the worker has installed, as on Lambda.
pub const LANGUAGE: &str = "/var/lang";
/// In place of a runtime's name.
const IMAGE: &str = "Image";
/// Where Debian and others put their versions of Java.
const JAVAS: &str = "/usr/lib/jvm";

/// A language of which there are several versions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Language {
    Python,
    Node,
    Java,
    Ruby,
}

impl Language {
    const ALL: [Language; 4] = [Language::Python, Language::Node, Language::Java, Language::Ruby];

    /// A version for people.
    fn shown(self, version: u32) -> String {
        match self {
            Language::Python => format!("Python 3.{version}"),
            Language::Node => format!("Node.js {version}"),
            Language::Java => format!("Java {version}"),
            Language::Ruby => format!("Ruby {}", ruby::number(version)),
        }
    }

    /// The version that a runtime's name has; that of Python is the minor one, and 303 is Ruby 3.3.
    fn version(self, text: &str) -> Option<u32> {
        let version = match self {
            Language::Python => text.strip_prefix("python3."),
            Language::Node => text.strip_prefix("nodejs").and_then(|rest| rest.strip_suffix(".x")),
            Language::Java => text.strip_prefix("java").map(|rest| rest.strip_suffix(".al2").unwrap_or(rest)),
            Language::Ruby => {
                let (major, minor) = text.strip_prefix("ruby")?.split_once('.')?;
                return Some(ruby::version(major.parse().ok()?, minor.parse().ok()?));
            }
        };
        version?.parse().ok()
    }

    /// Lambda's name of a version.
    fn runtime(self, version: u32) -> String {
        match self {
            Language::Python => format!("python3.{version}"),
            Language::Node => format!("nodejs{version}.x"),
            Language::Java => format!("java{version}"),
            Language::Ruby => format!("ruby{}", ruby::number(version)),
        }
    }

    fn program_of_host(self, version: u32) -> Option<PathBuf> {
        match self {
            Language::Python => program_of_name(&self.runtime(version)),
            // One without the SDK is taken only where none can be installed.
            Language::Ruby => program_of_name(&self.runtime(version))
                .filter(|program| !self.to_install().contains(&version) || ruby::has_sdk(program)),
            Language::Node => of_version(node_programs(), version),
            Language::Java => of_version(java_programs(), version),
        }
    }

    fn of_host(self) -> Vec<u32> {
        match self {
            Language::Python => (0..=99).filter(|&minor| self.program_of_host(minor).is_some()).collect(),
            Language::Node => node_programs().iter().map(|(_, version)| *version).collect(),
            Language::Java => java_programs().iter().map(|(_, version)| *version).collect(),
            Language::Ruby => {
                (300..=409).filter(|&version| self.program_of_host(version).is_some()).collect()
            }
        }
    }

    fn to_install(self) -> Vec<u32> {
        match self {
            Language::Python => python::minors().map(u32::from).collect(),
            Language::Node => node::majors().collect(),
            Language::Java => java::majors().collect(),
            Language::Ruby => ruby::versions().collect(),
        }
    }

    /// The program inside of a version that the worker installs.
    fn installed_program(self, version: u32) -> PathBuf {
        let folder = Path::new(LANGUAGE).join("bin");
        match self {
            Language::Python => folder.join(self.runtime(version)),
            Language::Node => folder.join("node"),
            Language::Java => folder.join("java"),
            Language::Ruby => folder.join("ruby"),
        }
    }
}

impl Runtime {
    /// # Errors
    /// A runtime that this host does not have.
    pub fn parse(text: &str) -> Result<Runtime, ApiError> {
        if matches!(text, "provided" | "provided.al2" | "provided.al2023") {
            return Ok(Runtime::Provided(text.into()));
        }
        let found = Language::ALL.into_iter().find_map(|one| Some((one, one.version(text)?)));
        let Some((language, version)) = found else { return Err(refused(text)) };
        let program = language.program_of_host(version).or_else(|| {
            language.to_install().contains(&version).then(|| language.installed_program(version))
        });
        let Some(program) = program else {
            return Err(ApiError::invalid_parameter(format!(
                "Runtime {text}: this host has no {}, and none can be installed",
                language.shown(version)
            )));
        };
        Ok(match language {
            Language::Python => Runtime::Python(program, text.into()),
            Language::Node => Runtime::Node(program, text.into()),
            Language::Java => Runtime::Java(program, text.into()),
            Language::Ruby => Runtime::Ruby(program, text.into()),
        })
    }

    /// The name of a runtime that can be had: `text` itself, or the nearest version of the same language.
    /// A later version is nearer than an earlier one, since programs rarely need what a version removed.
    pub fn nearest(text: &str) -> String {
        match Runtime::parse(text) {
            Ok(_) => text.into(),
            Err(_) => Runtime::nearest_of(text, Language::to_install),
        }
    }

    /// The same of those that this host has.
    pub fn nearest_of_host(text: &str) -> String {
        let language = Language::ALL.into_iter().find_map(|one| Some((one, one.version(text)?)));
        match language {
            Some((language, version)) if language.program_of_host(version).is_some() => text.into(),
            _ => Runtime::nearest_of(text, |_| Vec::new()),
        }
    }

    fn nearest_of(text: &str, to_install: impl Fn(Language) -> Vec<u32>) -> String {
        let nearest = |language: Language| {
            let wanted = language.version(text)?;
            let there = [language.of_host(), to_install(language)].concat();
            let later = there.iter().filter(|&&version| version > wanted).min();
            let found = later.or(there.iter().filter(|&&version| version < wanted).max());
            found.map(|&version| language.runtime(version))
        };
        Language::ALL.into_iter().find_map(nearest).unwrap_or_else(|| text.into())
    }

    /// Its program, if the worker starts one that is not the function's.
    pub fn program(&self) -> Option<&Path> {
        match self {
            Runtime::Python(program, _)
            | Runtime::Node(program, _)
            | Runtime::Java(program, _)
            | Runtime::Ruby(program, _) => Some(program),
            Runtime::Provided(_) | Runtime::Image => None,
        }
    }

    /// The version that the worker installs for it, if it is not the host's.
    pub fn to_install(&self) -> Option<u32> {
        self.program().filter(|program| program.starts_with(LANGUAGE))?;
        Language::ALL.into_iter().find_map(|language| language.version(self.name()))
    }

    /// Whether its instances have a root with nothing of the host, which the worker installs.
    pub fn has_own_system(&self) -> bool {
        !matches!(self, Runtime::Node(..)) && self.to_install().is_some()
    }

    /// Lambda's name for it.
    pub fn name(&self) -> &str {
        match self {
            Runtime::Python(_, name)
            | Runtime::Node(_, name)
            | Runtime::Java(_, name)
            | Runtime::Ruby(_, name) => name,
            Runtime::Provided(name) => name,
            Runtime::Image => IMAGE,
        }
    }
}

/// Why a runtime of another language cannot be had, and what to do.
fn refused(text: &str) -> ApiError {
    let has = |start: &str| text.starts_with(start);
    let what = if has("dotnet") {
        "there is no .NET here: build the function as an image (PackageType: Image)"
    } else if has("go1.") {
        "Lambda has ended it: build the function as `bootstrap` for provided.al2023"
    } else {
        "not supported here; python3.N, nodejsN.x, javaN, rubyM.N and provided.al2023 are"
    };
    ApiError::invalid_parameter(format!("Runtime {text}: {what}"))
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

/// The host's interpreter that has its version in its name, as the runtime has.
fn program_of_name(name: &str) -> Option<PathBuf> {
    let places = ["/usr/bin", "/usr/local/bin"].map(|folder| Path::new(folder).join(name));
    places.into_iter().find(|program| program.is_file())
}

fn of_version(programs: &[(PathBuf, u32)], wanted: u32) -> Option<PathBuf> {
    programs.iter().find(|(_, version)| *version == wanted).map(|(program, _)| program.clone())
}

/// The host's interpreters of JavaScript and their major versions, looked for once.
fn node_programs() -> &'static [(PathBuf, u32)] {
    static FOUND: OnceLock<Vec<(PathBuf, u32)>> = OnceLock::new();
    let version = |program: &PathBuf| {
        let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        text.strip_prefix('v')?.split('.').next()?.parse().ok()
    };
    FOUND.get_or_init(|| {
        let places = ["/usr/bin/node", "/usr/local/bin/node"].map(PathBuf::from);
        places.into_iter().filter_map(|place| version(&place).map(|version| (place, version))).collect()
    })
}

/// The host's versions of Java, looked for once.
fn java_programs() -> &'static [(PathBuf, u32)] {
    static FOUND: OnceLock<Vec<(PathBuf, u32)>> = OnceLock::new();
    FOUND.get_or_init(|| javas_below(Path::new(JAVAS)))
}

/// Programs, and the major versions that the file `release` beside them names.
fn javas_below(folder: &Path) -> Vec<(PathBuf, u32)> {
    let entries = folder.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let mut homes: Vec<PathBuf> =
        entries.filter(|path| path.join("bin/java").is_file() && !path.is_symlink()).collect();
    homes.sort();
    let version = |home: &PathBuf| {
        let release = fs::read_to_string(home.join("release")).ok()?;
        let version = release.lines().find_map(|line| line.strip_prefix("JAVA_VERSION="))?.trim_matches('"');
        // Java 8 calls itself 1.8.
        version.strip_prefix("1.").unwrap_or(version).split(['.', '-']).next()?.parse().ok()
    };
    homes.iter().filter_map(|home| Some((home.join("bin/java"), version(home)?))).collect()
}

/// Debian keeps settings of Java below /etc, which instances do not see otherwise.
pub fn settings_of_java(program: &Path) -> Option<PathBuf> {
    let home = program.parent()?.parent()?;
    let settings = home.join("lib/jvm.cfg").canonicalize().ok()?.parent()?.to_path_buf();
    settings.starts_with("/etc").then_some(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_version_is_a_later_one_if_there_is_one() {
        let of = |text: &str| {
            Runtime::nearest_of(text, |language| match language {
                Language::Java => vec![1017, 1021],
                _ => Vec::new(),
            })
        };
        assert_eq!((of("java1018"), of("java1022")), ("java1021".into(), "java1021".into()));
        assert_eq!(of("perl5.40"), "perl5.40");
        assert_eq!(Language::Java.version("java8.al2"), Some(8));
        assert_eq!(Language::Ruby.version("ruby3.3"), Some(303));
        assert_eq!((Language::Ruby.runtime(304), Language::Ruby.version("ruby")), ("ruby3.4".into(), None));
    }

    #[test]
    fn refusals_name_the_way_out() {
        let refusal = |text: &str| Runtime::parse(text).unwrap_err().message;
        for (text, words) in [
            ("dotnet8", "Runtime dotnet8: there is no .NET here: build the function as an image"),
            ("ruby2.5", "this host has no Ruby 2.5, and none can be installed"),
            ("go1.x", "provided.al2023"),
            ("nodejs0.x", "this host has no Node.js 0, and none can be installed"),
            ("python3.1", "no Python 3.1,"),
            ("cobol", "not supported here"),
        ] {
            assert!(refusal(text).contains(words), "{}", refusal(text));
        }
    }

    #[test]
    fn versions_of_java_are_read_beside_their_programs() {
        let folder = tempfile::tempdir().unwrap();
        for (name, version) in [("a-17", "17.0.15"), ("b-8", "1.8.0_402"), ("c", "25-ea"), ("d", "")] {
            fs::create_dir_all(folder.path().join(name).join("bin")).unwrap();
            fs::write(folder.path().join(name).join("bin/java"), "").unwrap();
            let release = format!("IMPLEMENTOR=\"Us\"\nJAVA_VERSION=\"{version}\"\n");
            fs::write(folder.path().join(name).join("release"), release).unwrap();
        }
        std::os::unix::fs::symlink("a-17", folder.path().join("default")).unwrap();
        let versions: Vec<u32> = javas_below(folder.path()).into_iter().map(|(_, version)| version).collect();
        assert_eq!(versions, [17, 8, 25]);
    }
}
