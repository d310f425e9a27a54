//! `mayfly up --credentials`: what functions sign calls of AWS' services with.
//!
//! A profile is read as AWS' command line does: `credentials` before `config`, whose sections are named
//! `profile NAME`. Only static keys are served.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use worker::function::worker_options::Account;

/// Settings of a profile whose credentials a service or a program has to give, with what they are.
const ELSEWHERE: [(&str, &str); 6] = [
    ("sso_session", "SSO"),
    ("sso_start_url", "SSO"),
    ("login_session", "a login"),
    ("role_arn", "a role"),
    ("web_identity_token_file", "a role"),
    ("credential_process", "a program"),
];
const KEY_ID: &str = "aws_access_key_id";
const SECRET: &str = "aws_secret_access_key";

/// Where the credentials come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// They are `test`, which no service knows.
    Test,
    /// From this process's environment.
    Env,
    /// From a profile: the one that is named, or the one that the environment names.
    Profile(Option<String>),
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Source, String> {
        match (text, text.strip_prefix("profile:")) {
            ("test", _) => Ok(Source::Test),
            ("env", _) => Ok(Source::Env),
            ("profile", _) => Ok(Source::Profile(None)),
            (_, Some(name)) if !name.is_empty() => Ok(Source::Profile(Some(name.into()))),
            _ => Err("it is test, env, profile or profile:NAME".into()),
        }
    }
}

impl Source {
    /// The credentials.
    ///
    /// # Errors
    /// There are none, or none that a function can have.
    pub fn account(&self) -> Result<Account> {
        let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let region = variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION"));
        let test = Account::test();
        match self {
            Source::Test => Ok(test),
            Source::Env => {
                let needed = |name: &str| {
                    variable(name)
                        .with_context(|| format!("--credentials env: {name} is not set where mayfly up runs"))
                };
                Ok(Account {
                    access_key_id: needed("AWS_ACCESS_KEY_ID")?,
                    secret_access_key: needed("AWS_SECRET_ACCESS_KEY")?,
                    session_token: variable("AWS_SESSION_TOKEN"),
                    region: region.unwrap_or(test.region),
                })
            }
            Source::Profile(name) => {
                let named = || variable("AWS_PROFILE").or_else(|| variable("AWS_DEFAULT_PROFILE"));
                let name = name.clone().or_else(named).unwrap_or_else(|| "default".into());
                let credentials = File::read(variable("AWS_SHARED_CREDENTIALS_FILE"), "credentials")?;
                let config = File::read(variable("AWS_CONFIG_FILE"), "config")?;
                let mut account = of_profile(&name, &credentials, &config)?;
                account.region = region.unwrap_or(account.region);
                Ok(account)
            }
        }
    }
}

/// A file of AWS' command line.
struct File {
    path: String,
    sections: BTreeMap<String, BTreeMap<String, String>>,
}

impl File {
    /// Reads the file that is named, or that of this name below `~/.aws`. One that is not there is empty.
    fn read(named: Option<String>, name: &str) -> Result<File> {
        let home = || std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let path = match named {
            Some(path) => match path.strip_prefix("~/") {
                Some(below) => home().join(below),
                None => path.into(),
            },
            None => home().join(".aws").join(name),
        };
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text.with_context(|| format!("--credentials profile: {}", path.display()))?,
        };
        File::parse(&path.display().to_string(), &text)
    }

    fn parse(path: &str, text: &str) -> Result<File> {
        let mut sections = BTreeMap::<String, BTreeMap<String, String>>::new();
        let mut section = None;
        for (number, line) in text.lines().enumerate() {
            let content = line.trim();
            // Indented lines are settings of a service, below the line before.
            if content.is_empty() || content.starts_with(['#', ';']) || line.starts_with([' ', '\t']) {
                continue;
            }
            if let Some(name) = content.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                section = Some(sections.entry(named(name.0)).or_default());
                continue;
            }
            let (Some(section), Some((key, value))) = (section.as_mut(), content.split_once(['=', ':']))
            else {
                let number = number + 1;
                bail!("--credentials profile: {path}, line {number}: neither [SECTION] nor NAME = VALUE");
            };
            section.insert(key.trim().to_lowercase(), value.trim().to_string());
        }
        Ok(File { path: path.into(), sections })
    }
}

/// A section's name: one blank, and no quotes.
fn named(section: &str) -> String {
    let parts = section.trim().splitn(2, char::is_whitespace);
    parts.map(|part| part.trim().trim_matches(['"', '\''])).collect::<Vec<_>>().join(" ")
}

fn of_profile(name: &str, credentials: &File, config: &File) -> Result<Account> {
    let kept = credentials.sections.get(name);
    let of_default = || config.sections.get("default").filter(|_| name == "default");
    let configured = config.sections.get(&format!("profile {name}")).or_else(of_default);
    let setting =
        |key: &str| kept.and_then(|it| it.get(key)).or_else(|| configured.and_then(|it| it.get(key)));
    if kept.is_none() && configured.is_none() {
        let (one, other) = (&credentials.path, &config.path);
        bail!("--credentials profile: neither {one} nor {other} has a profile {name}");
    }
    let has_key = kept.is_some_and(|it| it.contains_key(KEY_ID));
    // A key comes before a program, but after the others.
    let mut elsewhere = ELSEWHERE.iter().filter(|(key, _)| *key != "credential_process" || !has_key);
    if let Some((key, what)) = elsewhere.find(|(key, _)| setting(key).is_some()) {
        bail!(
            "--credentials profile: {name} has its keys from {what} ({key}): set them in the environment (aws \
             configure export-credentials --profile {name} --format env), and give --credentials env"
        );
    }
    // A key's parts stand in one file.
    let (place, file) = if has_key { (kept, credentials) } else { (configured, config) };
    let part = |key: &str| place.and_then(|it| it.get(key)).filter(|value| !value.is_empty()).cloned();
    let needed = |key: &str| {
        part(key).with_context(|| format!("--credentials profile: {name} has no {key} in {}", file.path))
    };
    Ok(Account {
        access_key_id: needed(KEY_ID)?,
        secret_access_key: needed(SECRET)?,
        session_token: part("aws_session_token").or_else(|| part("aws_security_token")),
        region: setting("region").cloned().unwrap_or_else(|| Account::test().region),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, credentials: &str, config: &str) -> Result<Account> {
        let read = |path: &str, text: &str| File::parse(path, text).unwrap();
        of_profile(name, &read("credentials", credentials), &read("config", config))
    }

    fn fault(name: &str, credentials: &str, config: &str) -> String {
        of(name, credentials, config).unwrap_err().to_string()
    }

    #[test]
    fn sources_are_named() {
        assert_eq!("test".parse::<Source>(), Ok(Source::Test));
        assert_eq!("profile".parse::<Source>(), Ok(Source::Profile(None)));
        assert_eq!("profile:a:b".parse::<Source>(), Ok(Source::Profile(Some("a:b".into()))));
        assert!("profile:".parse::<Source>().is_err() && "sso".parse::<Source>().is_err());
    }

    #[test]
    fn credentials_come_before_configuration() {
        let credentials = "# mine\n[default]\nAWS_Access_Key_Id = A\naws_secret_access_key=s/+=:\n[other]\n";
        let config = "[default]\nregion = eu-west-1\naws_access_key_id = B\naws_session_token = t\ns3 =\n  a = b\n\
                      [profile  'o p']\naws_access_key_id = C\naws_secret_access_key = c\naws_session_token = t\n";
        let found = of("default", credentials, config).unwrap();
        assert_eq!((&*found.access_key_id, &*found.secret_access_key), ("A", "s/+=:"));
        assert_eq!((found.session_token, &*found.region), (None, "eu-west-1"));
        let found = of("o p", credentials, config).unwrap();
        assert_eq!((&*found.access_key_id, found.session_token.as_deref()), ("C", Some("t")));
        assert!(fault("other", credentials, config).contains("other has no aws_access_key_id in config"));
        assert!(fault("none", credentials, config).contains("neither credentials nor config"));
    }

    #[test]
    fn keys_from_elsewhere_are_refused_by_name() {
        let sso = fault("s", "", "[profile s]\nsso_session = x\n");
        assert!(sso.contains("s has its keys from SSO (sso_session)") && !sso.contains('\n'), "{sso}");
        let keys = "[p]\naws_access_key_id = A\naws_secret_access_key = s\n";
        assert!(fault("p", keys, "[profile p]\nrole_arn = r\n").contains("role_arn"));
        assert!(of("p", keys, "[profile p]\ncredential_process = x\n").is_ok());
        assert!(fault("p", "", "[profile p]\ncredential_process = x\n").contains("a program"));
        assert!(File::parse("f", "[a]\nwrong\n").err().unwrap().to_string().contains("f, line 2"));
    }
}
