//! What a function finds in its instance: programs, folders and variables, as Lambda's guide describes them.

use std::path::{Path, PathBuf};

use crate::function::Runtime;
use crate::instance::Instance;
use crate::name::REGION;
use crate::sandbox::{Bind, Cgroup, RUNTIME_PORT, Spec};
use crate::worker::Options;

const TASK: &str = "/var/task";
const RUNTIME: &str = "/var/runtime";
const HEAP: &str = "/var/mayfly/libmayfly_heap.so";
/// The first host user that instances run as, where the worker is root; far from those that people have.
const FIRST_USER: u32 = 2_000_000_000;
const USERS: u64 = 1_000_000;
/// Python packages of the host, which a function shall not depend on.
const HOST_PACKAGES: &str = "dist-packages";

/// How to start the instance.
pub(crate) fn sandbox_of(
    instance: &Instance,
    options: &Options,
    mount_point: PathBuf,
    cgroup: &Cgroup,
) -> Spec {
    let deployment = &instance.deployment;
    let settings = &deployment.settings;
    let bind = |source: &Path, target: &str| Bind { source: source.into(), target: target.into() };
    let mut binds = vec![bind(&deployment.code.folder, TASK)];
    let mut hidden = Vec::new();
    binds.extend(deployment.layer.iter().map(|folder| bind(folder, "/opt")));
    binds.extend(options.heap.iter().map(|library| bind(library, HEAP)));
    let command = match &settings.runtime {
        Runtime::Provided(_) => vec![format!("{TASK}/bootstrap")],
        Runtime::Python(program, name) => {
            binds.extend(options.python_client.iter().map(|folder| bind(folder, RUNTIME)));
            hidden.push(Path::new("/usr/lib/python3").join(HOST_PACKAGES));
            hidden.push(Path::new("/usr/local/lib").join(name).join(HOST_PACKAGES));
            let program = program.to_string_lossy().into_owned();
            vec![program, "-m".into(), "awslambdaric".into(), settings.handler.clone()]
        }
    };
    Spec {
        worker: std::process::id(),
        mount_point,
        binds,
        hidden,
        tmp_mib: settings.ephemeral_mib,
        user: FIRST_USER + (instance.id % USERS) as u32,
        host_name: format!("instance-{}", instance.id),
        cgroup_procs: cgroup.procs_files(),
        command,
        environment: variables(instance, options),
    }
}

fn variables(instance: &Instance, options: &Options) -> Vec<(String, String)> {
    let deployment = &instance.deployment;
    let settings = &deployment.settings;
    let python = matches!(settings.runtime, Runtime::Python(..));
    let stream = format!("[$LATEST]{}-{}", deployment.revision, instance.id);
    let mut variables: Vec<(String, String)> = [
        ("PATH", "/usr/local/bin:/usr/bin:/bin:/opt/bin".to_string()),
        ("LD_LIBRARY_PATH", format!("{TASK}:{TASK}/lib:/opt/lib")),
        ("LANG", "C.UTF-8".into()),
        ("TZ", ":UTC".into()),
        ("HOME", "/tmp".into()),
        ("_HANDLER", settings.handler.clone()),
        ("LAMBDA_TASK_ROOT", TASK.into()),
        ("LAMBDA_RUNTIME_DIR", RUNTIME.into()),
        ("AWS_REGION", REGION.into()),
        ("AWS_DEFAULT_REGION", REGION.into()),
        ("AWS_EXECUTION_ENV", format!("AWS_Lambda_{}", settings.runtime.name())),
        ("AWS_LAMBDA_FUNCTION_NAME", deployment.name.clone()),
        ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", settings.memory_mib.to_string()),
        ("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST".into()),
        ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand".into()),
        ("AWS_LAMBDA_LOG_GROUP_NAME", format!("/aws/lambda/{}", deployment.name)),
        ("AWS_LAMBDA_LOG_STREAM_NAME", stream),
        ("AWS_LAMBDA_RUNTIME_API", format!("127.0.0.1:{RUNTIME_PORT}")),
    ]
    .map(|(name, value)| (name.to_string(), value))
    .to_vec();
    if python {
        variables.push(("PYTHONPATH".into(), format!("/opt/python:{RUNTIME}")));
    }
    if options.heap.is_some() {
        variables.push(("LD_PRELOAD".into(), HEAP.into()));
    }
    // The function's own may replace those that Lambda does not reserve.
    variables.retain(|(name, _)| !settings.environment.contains_key(name));
    variables.extend(settings.environment.iter().map(|(name, value)| (name.clone(), value.clone())));
    variables
}
