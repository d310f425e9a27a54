//! Layers that others publish for everybody. Functions name them by an ARN whose files only AWS has: packages
//! that are on PyPI, too, are installed from there, and layers that only report to AWS are left out.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::base::name;
use crate::code::python_packages;
use crate::code::runtime::Runtime;

/// What takes the place of such a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instead {
    /// Pinned and hashed packages, for functions in Python.
    Packages(&'static str),
    /// Nothing, for this reason.
    Nothing(&'static str),
}

const POWERTOOLS_1: Instead = Instead::Packages(include_str!("../../public-layers/powertools-1.txt"));
const POWERTOOLS_2: Instead = Instead::Packages(include_str!("../../public-layers/powertools-2.txt"));
const POWERTOOLS_3: Instead = Instead::Packages(include_str!("../../public-layers/powertools-3.txt"));
const PANDAS: Instead = Instead::Packages(include_str!("../../public-layers/pandas.txt"));
const INSIGHTS: Instead = Instead::Nothing("it reports to CloudWatch, which is not here");
const BOTO3: Instead = Instead::Nothing("every function in Python has boto3");

/// The publisher's account, the beginning of the name (the longest that fits counts), and what replaces it.
const PUBLISHED: [(&str, &str, Instead); 6] = [
    ("017000801446", "AWSLambdaPowertoolsPython", POWERTOOLS_1),
    ("017000801446", "AWSLambdaPowertoolsPythonV2", POWERTOOLS_2),
    ("017000801446", "AWSLambdaPowertoolsPythonV3", POWERTOOLS_3),
    ("336392948345", "AWSSDKPandas-Python", PANDAS),
    ("580247275435", "LambdaInsightsExtension", INSIGHTS),
    ("668099181075", "AWSLambda-Python-AWS-SDK", BOTO3),
];

/// The layer's name, and what takes its place in functions of this runtime.
fn find<'a>(arn: &'a str, runtime: &Runtime) -> Option<(&'a str, Instead)> {
    let (layer, _) = name::parse_layer_arn(arn)?;
    let account = arn.split(':').nth(4)?;
    let known = PUBLISHED.iter().filter(|(of, beginning, _)| *of == account && layer.starts_with(beginning));
    let (.., instead) = known.max_by_key(|(_, beginning, _)| beginning.len())?;
    let fits = matches!((instead, runtime), (Instead::Nothing(_), _) | (_, Runtime::Python(..)));
    fits.then_some((layer, *instead))
}

/// Whether a function of this runtime can do without the layer's own files.
pub fn has(arn: &str, runtime: &Runtime) -> bool {
    find(arn, runtime).is_some()
}

/// Lines about what takes the place of layers.
pub fn notes(arns: &[String], runtime: &Runtime, function: &str) -> Vec<String> {
    let note = |arn: &String| {
        find(arn, runtime).map(|(layer, instead)| match instead {
            Instead::Packages(_) => format!("{function}: PyPI has the packages of the layer {layer}"),
            Instead::Nothing(why) => format!("{function}: the layer {layer} is left out: {why}"),
        })
    };
    arns.iter().filter_map(note).collect()
}

/// Takes such layers out of a function's, and installs what takes their place: folders for `/opt`.
///
/// # Errors
/// It cannot be installed.
pub fn take(arns: &mut Vec<String>, runtime: &Runtime, cache: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for arn in std::mem::take(arns) {
        match find(&arn, runtime) {
            None => arns.push(arn),
            Some((_, Instead::Nothing(_))) => {}
            Some((layer, Instead::Packages(wanted))) => {
                let folder = python_packages::pinned(runtime, wanted, cache);
                folders.push(folder.with_context(|| format!("cannot install what the layer {layer} has"))?);
            }
        }
    }
    Ok(folders)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arn(account: &str, layer: &str) -> String {
        format!("arn:aws:lambda:eu-west-1:{account}:layer:{layer}:7")
    }

    #[test]
    fn a_layer_is_known_by_its_publishers_account_and_the_beginning_of_its_name() {
        let python = Runtime::Python("/usr/bin/python3".into(), "python3.11".into());
        let of = |account: &str, layer: &str| find(&arn(account, layer), &python).map(|(_, instead)| instead);
        let powertools = "017000801446";
        assert_eq!(of(powertools, "AWSLambdaPowertoolsPython"), Some(POWERTOOLS_1));
        assert_eq!(of(powertools, "AWSLambdaPowertoolsPythonV2-Arm64"), Some(POWERTOOLS_2));
        assert_eq!(of(powertools, "AWSLambdaPowertoolsPythonV3-python312-x86_64"), Some(POWERTOOLS_3));
        assert_eq!(of(powertools, "Other"), None);
        assert_eq!(of("123456789012", "AWSLambdaPowertoolsPythonV2"), None, "another account");
        assert_eq!(find("AWSLambdaPowertoolsPythonV2", &python), None);
    }

    #[test]
    fn packages_are_for_python_and_reporting_layers_are_left_out_everywhere() {
        let own = Runtime::parse("provided.al2023").unwrap();
        let [pandas, insights] =
            [arn("336392948345", "AWSSDKPandas-Python312"), arn("580247275435", "LambdaInsightsExtension")];
        assert!(!has(&pandas, &own) && has(&insights, &own));
        let mut arns = vec![pandas.clone(), insights];
        let [note] = &notes(&arns, &own, "f")[..] else { panic!("one line") };
        assert!(note.starts_with("f: the layer LambdaInsightsExtension is left out: "), "{note}");
        assert!(take(&mut arns, &own, Path::new("/none")).unwrap().is_empty());
        assert_eq!(arns, [pandas]);
    }

    #[test]
    fn every_package_is_pinned_and_hashed() {
        for (.., instead) in PUBLISHED {
            let Instead::Packages(wanted) = instead else { continue };
            let packages = wanted.lines().filter(|line| !line.starts_with(' ')).count();
            assert!(packages > 5);
            assert_eq!(
                wanted.lines().filter(|line| !line.starts_with(' ') && line.contains("==")).count(),
                packages
            );
            assert!(!wanted.contains("boto3=="), "the runtime has it");
            assert!(wanted.matches("--hash=sha256:").count() >= packages);
        }
    }
}
