//! The command that starts a function's code in an instance, for languages whose interpreter and client of
//! the Runtime API are the worker's to choose.

use std::path::Path;

use crate::code::python_packages::{self, RUNTIME};
use crate::code::runtime::Runtime;
use crate::function::settings::Settings;
use crate::function::worker_options::Libraries;

/// Clients of Mayfly's own, inside.
pub(super) const BOOTSTRAP_NODE: &str = "/var/mayfly/bootstrap.mjs";
pub(super) const BOOTSTRAP_RUBY: &str = "/var/mayfly/bootstrap.rb";
/// Lambda's own client in Python.
pub(super) const CLIENT: &str = "awslambdaric";
const JAVA_CLIENT: &str = "com.amazonaws.services.lambda.runtime.api.client.AWSLambda";

/// None if the function or its image brings its own program.
pub(super) fn command(settings: &Settings, libraries: &Libraries) -> Option<Vec<String>> {
    let program = settings.runtime.program()?.to_string_lossy().into_owned();
    Some(match &settings.runtime {
        Runtime::Provided(_) | Runtime::Image => return None,
        Runtime::Node(..) => {
            // What is left is for buffers, code and the stack.
            let heap = format!("--max-old-space-size={}", u64::from(settings.memory_mib) * 3 / 4);
            vec![program, heap, BOOTSTRAP_NODE.into()]
        }
        Runtime::Java(program, name) => java_command(program, name, settings),
        Runtime::Ruby(..) => vec![program, BOOTSTRAP_RUBY.into()],
        Runtime::Python(..) => {
            let module = if libraries.rest.is_some() { python_packages::BOOTSTRAP } else { CLIENT };
            vec![program, "-m".into(), module.into(), settings.handler.clone()]
        }
    })
}

/// AWS' client, which finds classes in the working folder, in `lib` there and in /opt/java/lib.
fn java_command(program: &Path, name: &str, settings: &Settings) -> Vec<String> {
    // What is left is for classes, code and stacks. The machine's memory is not the instance's.
    let heap = format!("-Xmx{}m", u64::from(settings.memory_mib) * 3 / 4);
    let mut command = vec![program.to_string_lossy().into_owned(), heap];
    // As on Lambda: one small processor, and little time.
    command.extend(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"].map(String::from));
    // Later versions warn of the client's native library.
    let major: Option<u32> = name.strip_prefix("java").and_then(|version| version.parse().ok());
    if major.is_some_and(|major| major >= 24) {
        command.push("--enable-native-access=ALL-UNNAMED".into());
    }
    command.extend(["-cp".into(), format!("{RUNTIME}/lib/*"), JAVA_CLIENT.into(), settings.handler.clone()]);
    command
}
