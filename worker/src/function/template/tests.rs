//! Tests of the reader as a whole.

use proptest::prelude::*;

use super::*;
use crate::base::name;
use crate::function::failed::ReasonCode;

fn parse(text: &str) -> Result<Template> {
    of_text(text, &TemplateOptions::default())
}

fn refusal(text: &str) -> String {
    let template = match parse(text) {
        Ok(template) => template,
        Err(error) => return format!("{error:#}"),
    };
    let failed = template.failed.into_iter().map(|function| function.reason);
    failed.chain(template.missing).next().expect("must be refused")
}

const TEMPLATE: &str = "
AWSTemplateFormatVersion: '2010-09-09'
Transform: AWS::Serverless-2016-10-31
Parameters:
  Size: { Type: Number, Default: 512 }
  Word: { Type: String, Default: blue }
Globals:
  Function:
    Runtime: provided.al2023
    Timeout: 30
    Environment: { Variables: { ONE: one, TWO: 2 } }
Resources:
  Bucket: { Type: AWS::S3::Bucket }
  Hello:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: hello/
      Handler: app.handler
      MemorySize: !Ref Size
      Environment: { Variables: { TWO: !Sub 'x-${Word}-${!Word}', THREE: true } }
      ReservedConcurrentExecutions: 3
      FunctionUrlConfig: { AuthType: NONE, InvokeMode: RESPONSE_STREAM }
      Policies: []
";

#[test]
fn functions_are_read_with_globals_and_parameters() {
    let functions = parse(TEMPLATE).unwrap().functions;
    let [hello] = &functions[..] else { panic!("one function: {functions:?}") };
    assert_eq!(hello.name, "Hello");
    assert_eq!(hello.package, Package::Path("/templates/hello/".into()));
    assert_eq!((hello.settings.memory_mib, hello.settings.timeout_s), (512, 30));
    let variables: Vec<_> = hello.settings.environment.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(variables, ["ONE=one", "THREE=true", "TWO=x-blue-${Word}"]);
    let url = hello.url.as_ref().map(|url| (url.auth_type.as_str(), url.streams));
    assert_eq!((hello.reserved, url), (Some(3), Some(("NONE", true))));
}

#[test]
fn layers_are_read_and_those_of_globals_come_first() {
    let text = "
Globals: { Function: { Runtime: provided.al2023, Handler: h, Layers: [!Ref Base], Tags: { a: 1x, b: g } } }
Resources:
  Base: { Type: AWS::Serverless::LayerVersion, Properties: { ContentUri: base/, LayerName: base-libs } }
  More: { Type: AWS::Serverless::LayerVersion, Properties: { ContentUri: more, CompatibleRuntimes: [a] } }
  Hello:
    Type: AWS::Serverless::Function
    Properties: { CodeUri: hello, Layers: [!Ref More], Tags: { b: own }, AutoPublishAlias: live }
";
    let template = parse(text).unwrap();
    let layers: Vec<_> =
        template.layers.iter().map(|layer| (&*layer.name, layer.content.as_deref().unwrap())).collect();
    assert_eq!(
        layers,
        [("base-libs", Path::new("/templates/base/")), ("More", Path::new("/templates/more"))]
    );
    let hello = &template.functions[0];
    assert_eq!(hello.settings.layers, ["base-libs:0", "More:0"].map(name::layer_arn));
    assert_eq!(hello.alias.as_deref(), Some("live"));
    assert_eq!(hello.tags, BTreeMap::from([("a".into(), "1x".into()), ("b".into(), "own".into())]));
    let without = parse(&text.replace("ContentUri: more, ", "")).unwrap();
    let refused = format!("{:#}", without.layers[1].content.as_ref().unwrap_err());
    assert!(refused.contains("Resources.More.Properties: ContentUri is needed"), "{refused}");
    assert!(refusal(&text.replace("!Ref More", "libs")).contains("'libs' is no ARN"));
}

#[test]
fn image_takes_only_those_globals_that_images_may_have() {
    let image = TEMPLATE
        .replace("CodeUri: hello/", "PackageType: Image\n      ImageUri: image.tar")
        .replace("      Handler: app.handler\n", "      ImageConfig: { Command: [app.handler] }\n");
    let hello = &parse(&image).unwrap().functions[0];
    assert_eq!(hello.package, Package::Image("image.tar".into(), "/templates".into()));
    assert_eq!((hello.settings.image_config.command.len(), hello.settings.timeout_s), (1, 30));
    let refused = |from: &str, to: &str| refusal(&image.replace(from, to));
    assert!(refused("      ImageUri: image.tar\n", "").contains("ImageUri is needed"));
    assert!(
        refused("ImageUri:", "Runtime: python3.11\n      ImageUri:").contains("Runtime is not supported")
    );
    let zip = refusal(&TEMPLATE.replace("CodeUri: hello/", "ImageUri: image.tar"));
    assert!(zip.contains("ImageUri needs PackageType: Image"), "{zip}");
}

#[test]
fn errors_name_the_resource_and_the_property() {
    let with = |from: &str, to: &str| refusal(&TEMPLATE.replace(from, to));
    let place = "Resources.Hello.Properties: ";
    assert_eq!(with("!Ref Size", "1"), format!("{place}'MemorySize' is '1' and must be 128 to 10240"));
    assert_eq!(
        with("!Ref Size", "!Ref X"),
        format!("{place}MemorySize: Ref X: there is no parameter and no resource of this name")
    );
    assert!(with("!Ref Size", "!GetAtt X.Y").contains("MemorySize: \"X.Y\" is no number"));
    assert!(with("!Ref Size", "!Cidr [a]").contains("MemorySize: !Cidr: 'a' is no network"));
    assert!(with("!Ref Size", "lots").contains("MemorySize: \"lots\" is no number"));
    assert!(with("CodeUri: hello/", "CodeUri: s3://b/k").contains("CodeUri: 's3://b/k'"));
    assert!(with("AuthType: NONE", "AuthType: SOME").contains("FunctionUrlConfig.AuthType"));
    assert!(with("RESPONSE_STREAM", "OTHER").contains("FunctionUrlConfig.InvokeMode"));
    assert!(with("CodeUri: hello/", "CodeUri: hello/\n      FunctionName: a b").contains("'a b'"));
    let ours = |word: &str| {
        let text = format!("    Metadata: {{ Mayfly: {{ {word} }} }}\n    Properties:\n      CodeUri");
        TEMPLATE.replace("    Properties:\n      CodeUri", &text)
    };
    let settings = |word: &str| parse(&ours(word)).unwrap().functions[0].settings.clone();
    assert!(refusal(&ours("Network: all")).contains("Resources.Hello: Metadata.Mayfly.Network must be"));
    assert_eq!(settings("Network: outside").outside, Some(true));
    for name in ["a/b", "''", "7", "a-name-that-is-too-long-for-a-vm"] {
        let refused = refusal(&ours(&format!("Vm: {name}")));
        assert!(refused.contains("Resources.Hello: Metadata.Mayfly.Vm must be"), "{refused}");
    }
    assert_eq!(settings("Vm: red").vm.as_deref(), Some("red"));
    assert!(refusal(&ours("PageOutAfter: 0")).contains("Metadata.Mayfly.PageOutAfter must be"));
    assert_eq!(settings("PageOutAfter: 30").page_out_after_s, Some(30));
    assert!(refusal(&ours("Snapshot: often")).contains("must be true, false or {Prime: FILE}"));
    let other = refusal(&ours("Snapshot: { Prime: event.json }"));
    assert!(other.contains("Snapshot.Prime: only functions in Python and Node.js"), "{other}");
    let nearest = "Metadata: { Mayfly: { NearestRuntime: often } }\nResources: {}";
    assert_eq!(refusal(nearest), "Metadata.Mayfly.NearestRuntime must be true or false");
    assert_eq!(refusal("Resources: {}"), "Resources: none is an AWS::Serverless::Function");
    assert_eq!(refusal("a: b"), "there are no Resources");
}

#[test]
fn event_that_primes_is_a_file_with_one_value_in_json() {
    let folder = tempfile::tempdir().unwrap();
    let read = |text: &[u8]| {
        let path = folder.path().join("event.json");
        std::fs::write(&path, text).unwrap();
        let mut settings = parse(TEMPLATE).unwrap().functions[0].settings.clone();
        settings.runtime = crate::code::runtime::Runtime::Image;
        let resource = serde_json::json!({ "Metadata": { "Mayfly": { "Snapshot": { "Prime": path } } } });
        function::of_mayfly(&resource, &mut settings, "/else".as_ref())
            .map(|()| (settings.snapshot, settings.snapshot_by_default, settings.primed_by.unwrap()))
            .map_err(|error| format!("{error:#}"))
    };
    assert_eq!(read(b"{\n \"a\": 1.50\r\n}\n"), Ok((true, false, "{  \"a\": 1.50  } ".into())));
    assert!(read(b"{} {}").unwrap_err().contains("event.json: trailing characters"));
    assert!(read(b"\xff").unwrap_err().contains("event.json"));
    assert!(read(&[b' '; 1 << 21]).unwrap_err().contains("has more than 1048576 bytes"));
    assert!(read(b"").unwrap_err().contains("event.json: EOF"));
}

#[test]
fn function_that_cannot_be_read_does_not_hinder_the_others() {
    let text = "
Globals: { Function: { Runtime: provided.al2023, Handler: h, Environment: { Variables: { A1: '1' } } } }
Resources:
  Good: { Type: AWS::Serverless::Function, Properties: { CodeUri: a } }
  Wrong: { Type: AWS::Serverless::Function, Properties: { CodeUri: a, MemorySize: 1 } }
  Runtime: { Type: AWS::Serverless::Function, Properties: { CodeUri: a, Runtime: cobol } }
  Far: { Type: AWS::Serverless::Function, Properties: { CodeUri: { Bucket: b, Key: k.zip } } }
  Image: { Type: AWS::Serverless::Function, Properties: { PackageType: Image } }
  Good2: { Type: AWS::Serverless::Function, Properties: { FunctionName: Good, CodeUri: a } }
";
    let template = parse(text).unwrap();
    let failed: Vec<_> =
        template.failed.iter().map(|failed| (failed.name.as_str(), failed.code.name())).collect();
    let wanted = [
        ("Wrong", "InvalidConfiguration"),
        ("Runtime", "InvalidRuntime"),
        ("Far", "InvalidZipFileException"),
        ("Image", "InvalidImage"),
        ("Good", "InvalidConfiguration"),
    ];
    assert_eq!(failed, wanted);
    assert_eq!(template.functions.len(), 1);
    assert_eq!(template.failed[1].runtime.as_deref(), Some("cobol"));
    assert_eq!(template.failed[1].code, ReasonCode::Runtime);
}

#[test]
fn functions_of_lambda_and_cdk_are_read_without_globals() {
    let text = "
Globals: { Function: { Timeout: 9, Runtime: provided.al2023, Handler: h } }
Resources:
  Raw:
    Type: AWS::Lambda::Function
    Properties: { Runtime: provided, Handler: h, Code: code, Tags: [{ Key: a, Value: 1 }] }
  Cdk:
    Type: AWS::Lambda::Function
    Properties: { Runtime: provided, Handler: h, Code: { S3Bucket: b, S3Key: k } }
    Metadata: { 'aws:asset:path': asset.1, 'aws:asset:property': Code }
  Image: { Type: AWS::Lambda::Function, Properties: { Code: { ImageUri: image.tar } } }
";
    let functions = parse(text).unwrap().functions;
    let packages: Vec<_> = functions.iter().map(|function| function.package.clone()).collect();
    let image = Package::Image("image.tar".into(), "/templates".into());
    let path = |path: &str| Package::Path(path.into());
    assert_eq!(packages, [path("/templates/code"), path("/templates/asset.1"), image]);
    assert_eq!((functions[0].settings.timeout_s, functions[0].tags["a"].as_str()), (3, "1"));
}

#[test]
fn variables_are_texts_and_those_that_lambda_refuses_are_noted() {
    let text = "
Resources:
  F:
    Type: AWS::Serverless::Function
    Properties:
      Runtime: provided
      Handler: h
      Environment: { Variables: { V_1: yes, V_2: , V_3: [a], V_4: 012, A: 1, AWS_REGION: x, _HANDLER: y } }
";
    let template = parse(text).unwrap();
    let variables: Vec<_> =
        template.functions[0].settings.environment.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(variables, ["AWS_REGION=x", "V_1=true", "V_2=", "V_3=", "V_4=10"]);
    for line in
        ["V_3: [\"a\"] is no text", "A is passed over", "AWS_REGION is set as it is", "_HANDLER is passed"]
    {
        assert!(template.notes.iter().any(|note| note.contains(line)), "{line}: {:?}", template.notes);
    }
    assert_eq!(template.functions[0].package, Package::Path("/templates/.".into()), "without CodeUri");
}

#[test]
fn globals_are_merged_as_sam_merges_them() {
    let text = "
Conditions: { Is: !Equals [a, a], Isnt: !Not [!Condition Is] }
Globals:
  Function:
    Runtime: provided
    Handler: h
    EphemeralStorage: { Size: 600 }
    Environment: { Variables: { ONE: 1, TWO: !Ref AWS::Region } }
Resources:
  F:
    Type: AWS::Serverless::Function
    Properties:
      Environment: { Variables: { TWO: !If [Isnt, a, b] } }
      EphemeralStorage: !If [Isnt, { Size: 700 }, { Size: 800 }]
  G: { Type: AWS::Serverless::Function, Condition: Isnt }
";
    let template = parse(text).unwrap();
    let [one] = &template.functions[..] else { panic!("one function: {template:?}") };
    assert_eq!(
        (one.settings.environment["ONE"].as_str(), one.settings.environment["TWO"].as_str()),
        ("1", "b")
    );
    assert_eq!(one.settings.ephemeral_mib, 800);
    assert!(template.notes.iter().any(|note| note.contains("G: the condition Isnt does not hold")));
}

#[test]
fn code_comes_from_a_folder_in_place_of_a_bucket() {
    let text = TEMPLATE.replace("CodeUri: hello/", "CodeUri: s3://b/k.zip");
    let buckets = [("b".into(), "/own".into())].into();
    let template = of_text(&text, &TemplateOptions { buckets, ..TemplateOptions::default() }).unwrap();
    assert_eq!(template.functions[0].package, Package::Path("/own/k.zip".into()));
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(lines in prop::collection::vec(any::<prop::sample::Index>(), 0..60)) {
        // Lines of a true template, in any order: near to right, wrong everywhere.
        let all: Vec<&str> = TEMPLATE.lines().collect();
        let text: Vec<&str> = lines.iter().map(|index| *index.get(&all)).collect();
        let _ = parse(&text.join("\n"));
    }
}
