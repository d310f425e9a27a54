//! What a function finds in its instance: programs, folders and variables, as Lambda's guide describes them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::code::python_packages::{self, RUNTIME};
use crate::code::runtime::{LANGUAGE, Runtime};
use crate::code::runtime_files;
use crate::function::settings::Settings;
use crate::function::variables::MAX_CONCURRENCY;
use crate::function::worker_options::{Advise, Libraries, Options};
use crate::sandbox::account;
use crate::sandbox::interface::{Bind, Order, RUNTIME_PORT};
use crate::sandbox::interpreters::{self, BOOTSTRAP_NODE, BOOTSTRAP_RUBY, CLIENT};
use worker_container::page_store::Endpoint;
use worker_image::Image;

/// Files of the worker's own, inside.
const BOOTSTRAP_OF_IMAGES: &str = "/var/mayfly/image";
const PACKAGES: &str = "/var/mayfly/python";
pub(crate) const TASK: &str = "/var/task";
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/opt/bin";
const HEAP: &str = "/var/mayfly/lib/libmayfly_heap.so";
const MERGE: &str = "/var/mayfly/lib/libmayfly_merge.so";
const REST: &str = "/var/mayfly/lib/libmayfly_rest.so";
const PYTHON_PATH: &str = "PYTHONPATH";
/// No huge pages: most of a small instance's would be unused.
const HEAP_PAGES: &str = "base";
/// The folder with the page store's socket.
const STORE: &str = "/var/mayfly/store";
/// Names the program that starts the runtime: its arguments are the runtime's command line.
const WRAPPER: &str = "AWS_LAMBDA_EXEC_WRAPPER";
/// The first host user that instances run as, if the worker is root; far from the host's own users.
const FIRST_USER: u32 = 2_000_000_000;
const USERS: u64 = 1_000_000;

/// What an instance is made of, whatever its sandbox.
pub(crate) struct ProgramSpec {
    pub binds: Vec<Bind>,
    pub command: Vec<String>,
    pub environment: Vec<(String, String)>,
    pub user: u32,
    /// The root of an image, in place of the host's own files.
    pub root: Option<PathBuf>,
    /// The root of a system that is installed, in place of the host's own files.
    pub system: Option<PathBuf>,
    /// Where the command is started.
    pub folder: String,
    /// No ASLR: pages with pointers are alike in all instances of a function.
    pub fixed_layout: bool,
}

/// The place of the pages that an instance shares with others.
#[derive(Clone, Copy)]
pub(crate) enum Sharing<'a> {
    /// None.
    No,
    /// In the function's page store.
    Store(&'a Endpoint),
    /// In the kernel that it runs on, with Mayfly's UPM series.
    Kernel,
}

/// What the instance is made of; `folder` is the worker's own.
pub(crate) fn program_spec(order: &Order, options: &Options, folder: &Path, sharing: Sharing) -> ProgramSpec {
    let deployment = &order.deployment;
    let settings = &deployment.settings;
    let user = FIRST_USER + (order.id.0 % USERS) as u32;
    if let Some(image) = &deployment.code.image {
        return of_image(order, image, options, folder, sharing, user);
    }
    let mut binds = vec![bind(&deployment.code.folder, TASK)];
    binds.extend(deployment.opt.folder.iter().map(|folder| bind(folder, "/opt")));
    binds.extend(common(options, folder));
    if let Sharing::Store(endpoint) = sharing {
        binds.push(bind(&endpoint.folder, STORE));
    }
    let libraries = &options.libraries;
    let mut command = match interpreters::command(settings, libraries) {
        Some(command) => command,
        None => vec![bootstrap_of(order)],
    };
    // A function's own runtime, as an image's, heeds it or not.
    let wrapper = settings.environment.get(WRAPPER).filter(|path| !path.is_empty());
    if let (Some(wrapper), Some(_)) = (wrapper, settings.runtime.program()) {
        command.insert(0, wrapper.clone());
    }
    if is_python(settings) {
        binds.push(bind(&folder.join(runtime_files::PACKAGES), PACKAGES));
    }
    let installed = options.installed.of(&settings.runtime);
    binds.extend(installed.folders.into_iter().map(|(source, target)| Bind { source, target }));
    ProgramSpec {
        binds,
        command,
        environment: variables(order, options, sharing),
        user,
        fixed_layout: libraries.merge.is_some() && may_share(order),
        root: None,
        system: installed.system,
        folder: TASK.into(),
    }
}

/// The program of a function that brings its own runtime, in its code or in a layer.
fn bootstrap_of(order: &Order) -> String {
    // A link may lead to what only the instance has.
    let has = |folder: &Path| folder.join("bootstrap").symlink_metadata().is_ok();
    let of_layers = order.deployment.opt.folder.as_deref().is_some_and(has);
    let place = if of_layers && !has(&order.deployment.code.folder) { "/opt" } else { TASK };
    format!("{place}/bootstrap")
}

/// The image, and Mayfly's libraries. The heap is one for glibc and musl of any version. Those for idle work
/// and merging may not fit the image's own, so they are not preloaded: the bootstrap tries, where
/// [`may_share`] allows it, and who takes a snapshot.
fn of_image(
    order: &Order,
    image: &Image,
    options: &Options,
    own: &Path,
    sharing: Sharing,
    user: u32,
) -> ProgramSpec {
    let deployment = &order.deployment;
    let (libraries, config) = (&options.libraries, &deployment.settings.image_config);
    let (mut command, arguments) = command_of(order, image);
    // Runtime interface clients read the handler from the command or the environment: it is the last word
    // of the image's command.
    let handler = arguments.last().cloned();
    command.extend(arguments);
    let folder = config.working_directory.clone().filter(|folder| !folder.is_empty());
    let mut variables: BTreeMap<String, String> = [
        ("PATH", PATH),
        ("LANG", "C.UTF-8"),
        ("TZ", ":UTC"),
        ("HOME", "/tmp"),
        ("LAMBDA_TASK_ROOT", TASK),
        ("LAMBDA_RUNTIME_DIR", RUNTIME),
    ]
    .map(|(name, value)| (name.into(), value.into()))
    .into();
    variables.extend(handler.map(|handler| ("_HANDLER".into(), handler)));
    let shares = matches!(sharing, Sharing::Store(_));
    let mut binds: Vec<Bind> = library_binds(libraries).collect();
    if let Sharing::Store(endpoint) = sharing {
        binds.push(bind(&endpoint.folder, STORE));
        binds.push(bind(&own.join(runtime_files::OF_IMAGES), BOOTSTRAP_OF_IMAGES));
        command[2] = format!("{}.image", python_packages::BOOTSTRAP);
        let shared = sharing_variables(order, options, sharing, true).into_iter();
        variables.extend(shared.map(|(name, value)| (name, in_image(&value))));
    }
    if libraries.heap.is_some() {
        variables.insert("MAYFLY_HEAP_PAGES".into(), HEAP_PAGES.into());
    }
    variables.extend(image.environment.iter().cloned());
    // It is the function's setting that counts.
    variables.remove(MAX_CONCURRENCY);
    if libraries.heap.is_some() {
        // After what the image itself preloads.
        let preloaded = variables.entry("LD_PRELOAD".into()).or_default();
        *preloaded = joined(&[preloaded, &in_image(HEAP)]);
    }
    variables.extend(about(order, options));
    variables.extend(deployment.settings.environment.clone());
    if shares {
        let path = variables.entry(PYTHON_PATH.into()).or_default();
        *path = joined(&[&in_image(BOOTSTRAP_OF_IMAGES), path]);
    }
    for bind in &mut binds {
        bind.target = in_image(&bind.target.to_string_lossy()).into();
    }
    ProgramSpec {
        binds,
        command,
        environment: variables.into_iter().collect(),
        user,
        root: Some(deployment.code.folder.clone()),
        system: None,
        folder: folder.or_else(|| image.folder.clone()).unwrap_or_else(|| "/".into()),
        fixed_layout: shares,
    }
}

/// The program of an image and its arguments.
fn command_of(order: &Order, image: &Image) -> (Vec<String>, Vec<String>) {
    let config = &order.deployment.settings.image_config;
    let or =
        |own: &Vec<String>, images: &Vec<String>| if own.is_empty() { images.clone() } else { own.clone() };
    (or(&config.entry_point, &image.entry_point), or(&config.command, &image.command))
}

/// Whether instances of a function can share pages by a store. Those of an image can if it starts with
/// `PYTHON -m awslambdaric`, as AWS has it for images of others: the bootstrap replaces that client. Nothing
/// holds the threads of Java and Ruby off.
pub(crate) fn may_share(order: &Order) -> bool {
    if matches!(order.deployment.settings.runtime, Runtime::Java(..) | Runtime::Ruby(..)) {
        return false;
    }
    let Some(image) = &order.deployment.code.image else { return true };
    let (program, arguments) = command_of(order, image);
    let command = [program, arguments].concat();
    let [python, flag, module, ..] = &command[..] else { return false };
    let name = Path::new(python).file_name().unwrap_or_default();
    name.to_string_lossy().starts_with("python") && flag == "-m" && module == CLIENT
}

/// The path in an image for a path that is below /var/mayfly in other instances. All else there is the
/// image's, whose folders are read-only and whose links must not be followed before it is entered; /dev is
/// made for each instance.
/// The library for idle work, and where an instance has it.
pub(crate) fn rest_library(order: &Order, options: &Options) -> Option<(PathBuf, PathBuf)> {
    let inside = match order.deployment.settings.runtime {
        Runtime::Image => in_image(REST),
        _ => REST.into(),
    };
    options.libraries.rest.clone().map(|library| (library, inside.into()))
}

fn in_image(path: &str) -> String {
    path.replace("/var/mayfly/lib/", "/dev/mayfly/").replace("/var/mayfly/", "/dev/mayfly/")
}

/// A path of several parts, some of which may be empty.
fn joined(parts: &[&str]) -> String {
    parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(":")
}

/// What all instances see: Mayfly's libraries, the bootstraps in the worker's `folder`.
pub(crate) fn common(options: &Options, folder: &Path) -> Vec<Bind> {
    let node = bind(&folder.join(runtime_files::BOOTSTRAP_NODE), BOOTSTRAP_NODE);
    let ruby = bind(&folder.join(runtime_files::BOOTSTRAP_RUBY), BOOTSTRAP_RUBY);
    library_binds(&options.libraries).chain([node, ruby]).collect()
}

fn library_binds(libraries: &Libraries) -> impl Iterator<Item = Bind> {
    let all = [(&libraries.heap, HEAP), (&libraries.merge, MERGE), (&libraries.rest, REST)];
    all.into_iter().filter_map(|(library, target)| Some(bind(library.as_ref()?, target)))
}

fn bind(source: &Path, target: &str) -> Bind {
    Bind { source: source.into(), target: target.into() }
}

fn is_python(settings: &Settings) -> bool {
    matches!(settings.runtime, Runtime::Python(..))
}

/// The variables that Lambda sets for every function.
fn about(order: &Order, options: &Options) -> Vec<(String, String)> {
    let deployment = &order.deployment;
    let at_once = deployment.settings.at_once();
    let kind = match (order.snap_start, at_once) {
        (true, _) => "snap-start",
        (false, 1) => "on-demand",
        (false, _) => "lambda-managed-instances",
    };
    let levels = deployment.settings.logging.json.as_ref();
    let logging = levels.map(|levels| {
        [("AWS_LAMBDA_LOG_FORMAT", "JSON"), ("AWS_LAMBDA_LOG_LEVEL", levels.application.name())]
    });
    let logging = logging.into_iter().flatten().map(|(name, value)| (name.to_string(), value.to_string()));
    let others = [
        ("AWS_LAMBDA_FUNCTION_NAME", deployment.name.clone()),
        ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", deployment.settings.memory_mib.to_string()),
        ("AWS_LAMBDA_FUNCTION_VERSION", deployment.version.clone()),
        ("AWS_LAMBDA_INITIALIZATION_TYPE", kind.into()),
        ("AWS_LAMBDA_LOG_GROUP_NAME", deployment.log_group()),
        ("AWS_LAMBDA_LOG_STREAM_NAME", deployment.log_stream(order.id)),
        ("AWS_LAMBDA_RUNTIME_API", format!("127.0.0.1:{RUNTIME_PORT}")),
    ]
    .map(|(name, value)| (name.to_string(), value));
    let aws = account::variables(order, options);
    // Runtimes that find it, even as 1, run as for several requests.
    let several = (at_once > 1).then(|| (MAX_CONCURRENCY.to_string(), at_once.to_string()));
    others.into_iter().chain(logging).chain(aws).chain(several).collect()
}

/// Its own interpreter comes first, as on Lambda.
fn path_of(runtime: &Runtime) -> String {
    match runtime.to_install() {
        Some(_) => format!("{LANGUAGE}/bin:{PATH}"),
        None => PATH.into(),
    }
}

fn variables(order: &Order, options: &Options, sharing: Sharing) -> Vec<(String, String)> {
    let deployment = &order.deployment;
    let settings = &deployment.settings;
    let libraries = &options.libraries;
    let mut variables: Vec<(String, String)> = [
        ("PATH", path_of(&settings.runtime)),
        ("LD_LIBRARY_PATH", format!("{TASK}:{TASK}/lib:/opt/lib")),
        ("LANG", "C.UTF-8".into()),
        ("TZ", ":UTC".into()),
        ("HOME", "/tmp".into()),
        ("_HANDLER", settings.handler.clone()),
        ("LAMBDA_TASK_ROOT", TASK.into()),
        ("LAMBDA_RUNTIME_DIR", RUNTIME.into()),
        ("AWS_EXECUTION_ENV", format!("AWS_Lambda_{}", settings.runtime.name())),
    ]
    .map(|(name, value)| (name.to_string(), value))
    .to_vec();
    variables.extend(about(order, options));
    variables.extend(sharing_variables(order, options, sharing, is_python(settings)));
    let mut add = |name: &str, value: String| variables.push((name.to_string(), value));
    let version = settings.runtime.name();
    // The function's own folders come first, and its runtime and layers stay. A function that advises runs
    // where nothing is merged, too.
    let own = settings.environment.get(PYTHON_PATH).map_or("", String::as_str);
    let layers = format!("/opt/python/lib/{version}/site-packages:/opt/python");
    let path = joined(&[own, &layers, RUNTIME, PACKAGES]);
    let mut preloaded = Vec::new();
    if !matches!(sharing, Sharing::No) {
        preloaded.push(REST);
    }
    if libraries.heap.is_some() {
        preloaded.push(HEAP);
        add("MAYFLY_HEAP_PAGES", HEAP_PAGES.into());
    }
    match &settings.runtime {
        Runtime::Python(..) => add(PYTHON_PATH, path),
        Runtime::Node(_, name) => {
            let folder = name.trim_end_matches(".x").replace("nodejs", "node");
            add(
                "NODE_PATH",
                format!(
                    "/opt/nodejs/{folder}/node_modules:/opt/nodejs/node_modules:{RUNTIME}/node_modules:{TASK}"
                ),
            );
        }
        Runtime::Ruby(_, name) => {
            // Gems of 3.3 lie in a folder 3.3.0, whatever its last number.
            let gems = format!("{}.0", name.trim_start_matches("ruby"));
            add("GEM_PATH", format!("{TASK}/vendor/bundle/ruby/{gems}:/opt/ruby/gems/{gems}"));
            add("RUBYLIB", format!("{TASK}:{RUNTIME}/lib:/opt/ruby/lib"));
        }
        Runtime::Java(..) | Runtime::Provided(_) | Runtime::Image => {}
    }
    if !preloaded.is_empty() {
        add("LD_PRELOAD", preloaded.join(":"));
    }
    // The function's own may replace those that Lambda does not reserve.
    let mut all: BTreeMap<String, String> = variables.into_iter().collect();
    let keeps = |name: &str| name == PYTHON_PATH && is_python(settings);
    let own = settings.environment.iter().filter(|(name, _)| !keeps(name));
    all.extend(own.map(|(name, value)| (name.clone(), value.clone())));
    all.into_iter().collect()
}

/// The variables that set how an instance shares pages; `rests` if mayfly_bootstrap runs it.
fn sharing_variables(
    order: &Order,
    options: &Options,
    sharing: Sharing,
    rests: bool,
) -> Vec<(String, String)> {
    let libraries = &options.libraries;
    let mut variables = Vec::new();
    let mut add = |name: &str, value| variables.push((name.to_string(), value));
    if libraries.rest.is_some() {
        add("MAYFLY_REST_LIBRARY", REST.into());
    }
    match sharing {
        Sharing::No => return variables,
        Sharing::Store(endpoint) => {
            add("MAYFLY_SHARE_SOCKET", format!("{STORE}/{}", endpoint.socket));
            if let Some(user) = endpoint.user {
                add("MAYFLY_SHARE_UID", user.to_string());
            }
        }
        Sharing::Kernel => add("MAYFLY_MERGE_PATH", "kernel".into()),
    }
    add("MAYFLY_MERGE_LIBRARY", MERGE.into());
    match libraries.advise {
        Advise::Named => {}
        Advise::Whole => add("MAYFLY_REST_ADVISE", "whole".into()),
    }
    // Strings hash alike in all instances of the function, so dicts are alike; callers cannot find out how.
    let seed = u32::from_str_radix(&order.deployment.revision[..8], 16).unwrap_or(1);
    add("PYTHONHASHSEED", seed.to_string());
    if libraries.heap.is_some() && rests {
        // The addresses of objects must not depend on time, so that pages with pointers are alike (UPM
        // §IV-B): one lifetime class, and a clock that stands still until mayfly_bootstrap has done idle
        // work once.
        add("MAYFLY_HEAP_LIFETIMES", "fixed:inf".into());
        add("MAYFLY_HEAP_CLOCK", "settled".into());
    }
    variables
}
