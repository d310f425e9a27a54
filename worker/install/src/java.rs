//! Java: Debian's OpenJDK without a desktop, and AWS' client of the Runtime API of Maven Central.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};

use crate::debian::{self, System};
use crate::download::agent;
use crate::maven::{self, Jar};
use crate::once::once;

/// Versions that Lambda has, and the suites that have them.
static VERSIONS: [(u32, System); 3] = [
    (17, System { suite: "bookworm", packages: &["openjdk-17-jre-headless"] }),
    (21, System { suite: "trixie", packages: &["openjdk-21-jre-headless"] }),
    (25, System { suite: "trixie", packages: &["openjdk-25-jre-headless"] }),
];
/// `sha512-` and `openssl dgst -sha512 -binary FILE | base64 -w0`. The client's `pom.xml` names the others.
const CLIENT: [Jar; 5] = [
    Jar {
        group: "com/amazonaws",
        artifact: "aws-lambda-java-runtime-interface-client",
        version: "2.10.1",
        integrity: "sha512-buZh63919ErBlnL4GjcMBmVqWlnsnEsqZ1k3qIQTfMDCi+VMJdYgZyjFh85QdxtR3dJ6GDSBtAUmWfrEBNfARQ==",
    },
    Jar {
        group: "com/amazonaws",
        artifact: "aws-lambda-java-core",
        version: "1.4.0",
        integrity: "sha512-QhQ/Evj/7UtaKr4G/MjNDgdvctTfkFCU3IOxTGnOGNP+37o/mHeIc1jMv94/ucEXcRWUl5ReAYcyKtx37wcqzg==",
    },
    Jar {
        group: "com/amazonaws",
        artifact: "aws-lambda-java-serialization",
        version: "1.2.0",
        integrity: "sha512-UXMyHN0sJvSq9SafGr0Kff/xasHYfdJTj9Rl+aRh5Wa+X0iqA94T+/1jZQ/WEpNud6RHNR0aaRZQiSgOYWQclg==",
    },
    Jar {
        group: "software/amazon/awssdk",
        artifact: "utils-lite",
        version: "2.34.0",
        integrity: "sha512-5APwPaXupH9ZMYYt6k9CliM5XkAIqwJ30vIZ06PB0hfRMNq+KZ4MV0JCZxfB35y+Rmw3hucF6L2xBRsyOOehmQ==",
    },
    Jar {
        group: "software/amazon/awssdk",
        artifact: "annotations",
        version: "2.34.0",
        integrity: "sha512-HY0rZpX9weKFGGRTXUXKHW0Rczex57llIEjFifwX4HSw3CZ792/92n/X1OzLgoKG0bF0JFK8H0hRO+7jU/J5TA==",
    },
];

/// The versions that can be installed on this processor.
pub fn majors() -> impl Iterator<Item = u32> {
    debian::installable(&VERSIONS)
}

/// The root with a version of Java, below `cache`; its program is `bin/java` of /var/lang. It is installed if
/// it is not there.
///
/// # Errors
/// It cannot be installed, and what to do.
pub fn provide(wanted: u32, cache: &Path) -> Result<PathBuf> {
    let label = format!("Java {wanted}");
    debian::of_version(&VERSIONS, wanted, &label)?.provide(&label, cache, |root| {
        let all = fs::read_dir(root.join("usr/lib/jvm"))?.flatten().map(|entry| entry.path());
        let mut homes = all.filter(|path| !path.is_symlink() && path.join("bin/java").is_file());
        let home = homes.next().ok_or_else(|| anyhow!("the packages have no java"))?;
        let program = format!("/{}/bin/java", home.strip_prefix(root)?.display());
        debian::link_programs(root, &[("java", &program)])
    })
}

/// The folder with AWS' client in `lib`, below `cache`. It is installed if it is not there.
///
/// # Errors
/// It cannot be installed, and what to do.
pub fn client(cache: &Path) -> Result<PathBuf> {
    let key: String =
        CLIENT[0].integrity.chars().filter(char::is_ascii_alphanumeric).skip(6).take(8).collect();
    let installed =
        once(&cache.join("runtimes"), &format!("java-client-{}-{key}", CLIENT[0].version), |folder| {
            tracing::info!("installing AWS' client for Java from {}, once", maven::shown());
            let library = folder.join("lib");
            fs::create_dir(&library)?;
            let agent = agent();
            for jar in &CLIENT {
                maven::install(&agent, jar, &library)?;
            }
            for made in [folder, &library] {
                fs::set_permissions(made, fs::Permissions::from_mode(0o755))?;
            }
            for file in fs::read_dir(&library)? {
                fs::set_permissions(file?.path(), fs::Permissions::from_mode(0o644))?;
            }
            Ok(())
        });
    installed.with_context(|| {
        format!(
            "cannot install AWS' client for Java (where {} cannot be reached, set {} to a mirror)",
            maven::shown(),
            maven::VARIABLE
        )
    })
}
