use serde_json::json;

use super::*;
use crate::function::http_api::{Authorizer, AuthorizerEvent, Identity};

const ARN: &str = "arn:aws:lambda:us-east-1:000000000000:function:f";

fn declaration(resources: &Json, events: &Json) -> Declaration {
    let resources = resources.as_object().unwrap().iter().map(|(id, resource)| {
        let kind = resource["Type"].as_str().unwrap().to_string();
        (id.clone(), kind, resource["Properties"].as_object().unwrap().clone())
    });
    let events = events.as_object().unwrap().clone();
    Declaration {
        resources: resources.collect(),
        functions: vec![("F".into(), name::parse("f:live").unwrap(), events)],
        ..Declaration::default()
    }
}

/// Routes as `API METHOD PATH`, and notes.
fn routes(declaration: &Declaration) -> (Vec<String>, Vec<String>) {
    let (apis, notes) = read(declaration);
    let route = |api: &HttpApi, route: &Route| format!("{} {} {}", api.id, route.method, route.path);
    let routes = apis.iter().flat_map(|api| api.routes.iter().map(move |one| route(api, one)));
    (routes.collect(), notes)
}

fn event(kind: &str, properties: &Json) -> Json {
    json!({ "Come": { "Type": kind, "Properties": properties } })
}

#[test]
fn events_without_an_id_are_routes_of_implicit_apis() {
    let events = json!({
        "A": { "Type": "Api", "Properties": { "Path": "/a/", "Method": "get" } },
        "B": { "Type": "HttpApi" },
        "C": { "Type": "HttpApi", "Properties": { "Path": "/c/{d+}", "Method": "*" } },
        "D": { "Type": "S3" },
    });
    let mut declared = declaration(&json!({}), &events);
    declared.rest_globals =
        json!({ "BinaryMediaTypes": ["image~1png"], "Cors": "'*'" }).as_object().unwrap().clone();
    let (apis, notes) = read(&declared);
    assert_eq!(notes, Vec::<String>::new());
    let (routes, _) = routes(&declared);
    let wanted =
        ["ServerlessHttpApi ANY $default", "ServerlessHttpApi ANY /c/{d+}", "ServerlessRestApi GET /a"];
    assert_eq!(routes, wanted);
    let (http, rest) = (&apis[0], &apis[1]);
    assert_eq!((http.stage.as_str(), rest.stage.as_str()), ("$default", "Prod"));
    assert_eq!((http.routes[0].format, rest.routes[0].format), (Format::Two, Format::One));
    assert_eq!(rest.routes[0].target, name::parse("f:live").unwrap());
    assert_eq!(
        (rest.binary[0].as_str(), rest.options.is_some(), http.cors.is_some()),
        ("image/png", true, false)
    );
}

#[test]
fn resources_give_stage_variables_cors_and_authorizers() {
    let resources = json!({
        "Rest": { "Type": "AWS::Serverless::Api", "Properties": {
            "StageName": "dev", "Variables": { "a": 1 },
            "Cors": { "AllowMethods": "'GET'", "AllowHeaders": "'X-A'", "MaxAge": "'5'", "AllowCredentials": true },
            "Auth": { "DefaultAuthorizer": "Mine", "ApiKeyRequired": true, "Authorizers": {
                "Mine": { "FunctionArn": ARN, "Identity": { "Header": "X-T", "ValidationExpression": "a+" } },
                "Other": { "FunctionArn": ARN, "FunctionPayloadType": "REQUEST",
                           "Identity": { "Headers": ["A"], "QueryStrings": ["b"] } },
                "Pool": { "UserPoolArn": "arn:x" } } } } },
        "Http": { "Type": "AWS::Serverless::HttpApi", "Properties": {
            "CorsConfiguration": { "AllowOrigins": ["https://a"], "MaxAge": 5 },
            "Auth": { "Authorizers": { "Simple": { "FunctionArn": ARN, "AuthorizerPayloadFormatVersion": 2.0,
                "EnableSimpleResponses": true, "Identity": { "Headers": ["A"] } } } } } },
    });
    let rest = |auth: Json| {
        json!({ "Type": "Api", "Properties": {
        "RestApiId": "Rest", "Path": format!("/{}", auth["Authorizer"].as_str().unwrap_or("none")),
        "Method": "GET", "Auth": auth } })
    };
    let events = json!({
        "A": rest(json!({})), "B": rest(json!({ "Authorizer": "NONE" })), "C": rest(json!({ "Authorizer": "Other" })),
        "D": rest(json!({ "Authorizer": "Pool" })), "E": rest(json!({ "Authorizer": "AWS_IAM" })),
        "F": rest(json!({ "Authorizer": "Missing" })),
        "G": { "Type": "HttpApi", "Properties": { "ApiId": "Http", "Auth": { "Authorizer": "Simple" },
                                                  "TimeoutInMillis": 500, "PayloadFormatVersion": "1.0" } },
    });
    let (apis, notes) = read(&declaration(&resources, &events));
    let [http, rest] = &apis[..] else { panic!("{apis:?}") };
    assert_eq!((rest.stage.as_str(), rest.variables["a"].as_str()), ("dev", "1"));
    let options = rest.options.as_ref().unwrap();
    assert_eq!(
        (options.methods.as_deref(), options.headers["access-control-max-age"].as_str()),
        (Some("GET"), "5")
    );
    assert_eq!(options.headers["access-control-allow-credentials"], "true");
    let guards: Vec<_> = rest.routes.iter().map(|route| &route.guard).collect();
    assert_eq!(guards[0], &Guard::Authorizer("Mine".into()));
    assert_eq!(guards[1], &Guard::Open);
    assert_eq!(guards[2], &Guard::Authorizer("Other".into()));
    assert!(matches!(guards[3], Guard::Unsupported(_)) && guards[4] == &Guard::Iam && guards.len() == 5);
    let mine = &rest.authorizers["Mine"];
    assert_eq!((mine.event, mine.validation.as_deref()), (AuthorizerEvent::Token, Some("a+")));
    assert_eq!(mine.identity, [Identity::Header("X-T".into())]);
    let other = &rest.authorizers["Other"];
    assert_eq!(other.identity, [Identity::Header("A".into()), Identity::Query("b".into())]);
    assert_eq!(http.cors.as_ref().unwrap().max_age, Some(5));
    let simple: &Authorizer = &http.authorizers["Simple"];
    assert_eq!((simple.event, simple.simple), (AuthorizerEvent::HttpTwo, true));
    assert_eq!((http.routes[0].format, http.routes[0].timeout_ms), (Format::One, Some(500)));
    let notes = notes.join("\n");
    for part in
        ["Auth.ApiKeyRequired is not supported", "no authorizer 'Missing'", "needs a token of Cognito"]
    {
        assert!(notes.contains(part), "{part}: {notes}");
    }
}

#[test]
fn definitions_give_routes_of_functions() {
    let integration = |function: &str| {
        json!({ "x-amazon-apigateway-integration": { "type": "aws_proxy", "payloadFormatVersion": "1.0",
            "uri": format!("arn:aws:apigateway:us-east-1:lambda:path/2015-03-31/functions/{function}/invocations") } })
    };
    let mut guarded = integration(ARN);
    guarded["security"] = json!([{ "Own": [] }]);
    let body = json!({
        "components": { "securitySchemes": { "Own": { "type": "apiKey", "name": "Authorization", "in": "header",
            "x-amazon-apigateway-authorizer": { "type": "request", "enableSimpleResponses": true,
                "authorizerPayloadFormatVersion": "2.0", "identitySource": "$request.header.Authorization",
                "authorizerUri": format!("arn:aws:apigateway:us-east-1:lambda:path/2015-03-31/functions/{ARN}/invocations") } } } },
        "paths": {
            "/a": { "get": integration(ARN), "post": guarded, "put": integration("none") },
            "/{b+}": { "x-amazon-apigateway-any-method": integration(ARN) },
            "/$default": { "x-amazon-apigateway-any-method": integration(ARN) },
            "/plain": { "get": {} },
        }
    });
    let resources =
        json!({ "Own": { "Type": "AWS::Serverless::HttpApi", "Properties": { "DefinitionBody": body } } });
    let declared = declaration(&resources, &json!({}));
    let (mut found, notes) = routes(&declared);
    found.sort();
    assert_eq!(found, ["Own ANY $default", "Own ANY /{b+}", "Own GET /a", "Own POST /a"]);
    assert!(notes.len() == 1 && notes[0].contains("PUT /a: its integration is no function"), "{notes:?}");
    let api = &read(&declared).0[0];
    let of = |method: &str| api.routes.iter().find(|route| route.method == method).unwrap();
    assert_eq!(of("POST").guard, Guard::Authorizer("Own".into()));
    assert_eq!(api.authorizers["Own"].identity, [Identity::Header("Authorization".into())]);
    assert_eq!(of("GET").format, Format::One);
}

#[test]
fn api_keys_are_passed_over_with_a_line_wherever_they_are_asked_for() {
    let integration = json!({ "type": "aws_proxy", "uri": ARN });
    let operation = |scheme: &str| {
        let asked = json!([{ scheme: [] }]);
        json!({ "x-amazon-apigateway-integration": integration, "security": asked })
    };
    let key = json!({ "type": "apiKey", "name": "x-api-key", "in": "header" });
    let other = json!({ "type": "apiKey", "name": "X-Token", "in": "header" });
    let iam = json!({ "type": "apiKey", "name": "Authorization", "in": "header",
                      "x-amazon-apigateway-authtype": "awsSigv4" });
    let body = json!({ "securityDefinitions": { "Key": key, "Other": other, "Iam": iam }, "paths": { "/a": {
        "get": operation("Key"), "put": operation("Other"), "post": operation("Iam") } } });
    let resources =
        json!({ "Own": { "Type": "AWS::Serverless::Api", "Properties": { "DefinitionBody": body } } });
    let events =
        event("Api", &json!({ "Path": "/b", "Method": "GET", "Auth": { "ApiKeyRequired": "true" } }));
    let mut declared = declaration(&resources, &events);
    let method = json!({ "RestApiId": "Own", "HttpMethod": "GET", "ResourceId": "Own.RootResourceId",
                         "ApiKeyRequired": true, "Integration": { "Type": "AWS_PROXY", "Uri": ARN } });
    let method = method.as_object().unwrap().clone();
    declared.parts.push(("Method".into(), "ApiGateway::Method".into(), method));
    let (apis, notes) = read(&declared);
    let own = apis.iter().find(|api| api.id == "Own").unwrap();
    let guard = |key: (&str, &str)| {
        let of = |route: &&Route| (route.method.as_str(), route.path.as_str()) == key;
        own.routes.iter().find(of).map(|route| &route.guard)
    };
    assert_eq!(guard(("GET", "/a")), Some(&Guard::Open));
    assert_eq!(guard(("POST", "/a")), Some(&Guard::Iam));
    assert!(matches!(guard(("PUT", "/a")), Some(Guard::Unsupported(_))));
    assert_eq!(guard(("GET", "/")), Some(&Guard::Open));
    let notes = notes.join("\n");
    for part in [
        "Own: the API keys of Key are not supported",
        "F.Events.Come: Auth.ApiKeyRequired is not supported",
        "Method: ApiKeyRequired is not supported",
    ] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
}

#[test]
fn unsupported_routes_are_notes() {
    let sockets = json!({ "Live": { "Type": "AWS::ApiGatewayV2::Api",
                                    "Properties": { "ProtocolType": "WEBSOCKET" } } });
    let (found, notes) = routes(&declaration(&sockets, &json!({})));
    assert!(found.is_empty() && notes[0].starts_with("Live: WebSocket APIs are not supported"), "{notes:?}");
    for (kind, properties, reason) in [
        ("Api", json!({ "Method": "GET" }), "Path is needed"),
        ("Api", json!({ "Path": "/a" }), "Method is ''"),
        ("Api", json!({ "Path": "/a", "Method": "BREW" }), "Method is 'BREW'"),
        ("Api", json!({ "Path": "/{a+}/b", "Method": "GET" }), "only the last part"),
        ("Api", json!({ "Path": "/a", "Method": "GET", "RestApiId": {} }), "RestApiId is no id"),
        ("HttpApi", json!({ "PayloadFormatVersion": "3.0" }), "PayloadFormatVersion is '3.0'"),
    ] {
        let (found, notes) = routes(&declaration(&json!({}), &event(kind, &properties)));
        assert!(found.is_empty() && notes.len() == 1 && notes[0].contains(reason), "{notes:?}");
        assert!(notes[0].starts_with("F.Events.Come: "), "{notes:?}");
    }
    let elsewhere = event("HttpApi", &json!({ "ApiId": "Imported" }));
    let (found, notes) = routes(&declaration(&json!({}), &elsewhere));
    assert_eq!(found, ["Imported ANY $default"]);
    assert!(notes[0].contains("no resource is the API Imported"), "{notes:?}");
}

#[test]
fn globals_are_merged_below_a_resource() {
    let resources = json!({ "Own": { "Type": "AWS::Serverless::Api", "Properties": {
        "StageName": "x", "BinaryMediaTypes": ["b/b"], "Variables": { "a": "own" } } } });
    let mut declared =
        declaration(&resources, &event("Api", &json!({ "RestApiId": "Own", "Path": "/", "Method": "GET" })));
    let globals = json!({ "BinaryMediaTypes": ["a/a"], "Variables": { "a": "all", "b": "all" } });
    declared.rest_globals = globals.as_object().unwrap().clone();
    let api = &read(&declared).0[0];
    assert_eq!(api.binary, ["a/a", "b/b"]);
    assert_eq!((api.variables["a"].as_str(), api.variables["b"].as_str()), ("own", "all"));
    assert_eq!(api.routes[0].path, "/");
}

const INVOCATIONS: &str = "arn:aws:apigateway:us-east-1:lambda:path/2015-03-31/functions/";

/// Adds resources of CloudFormation's own, whose values are resolved.
fn with_parts(mut declared: Declaration, parts: &Json) -> Declaration {
    let parts = parts.as_object().unwrap().iter().map(|(id, part)| {
        let kind = parts::kind_of(part["Type"].as_str().unwrap()).unwrap().to_string();
        (id.clone(), kind, part["Properties"].as_object().unwrap().clone())
    });
    declared.parts = parts.collect();
    declared
}

#[test]
fn methods_below_resources_are_routes_of_a_rest_api() {
    let calls = json!({ "Type": "AWS_PROXY", "Uri": format!("{INVOCATIONS}{ARN}/invocations"), "TimeoutInMillis": 900 });
    let method = |method: &str, resource: &str, more: Json| {
        let mut properties = json!({ "RestApiId": "Own", "HttpMethod": method, "ResourceId": resource,
                                     "Integration": calls });
        properties.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "Type": "AWS::ApiGateway::Method", "Properties": properties })
    };
    let resource = |parent: &str, part: &str| {
        json!({ "Type": "AWS::ApiGateway::Resource",
                "Properties": { "RestApiId": "Own", "ParentId": parent, "PathPart": part } })
    };
    let preflight = json!({ "Integration": { "Type": "MOCK", "IntegrationResponses": [{ "ResponseParameters": {
        "method.response.header.Access-Control-Allow-Origin": "'https://shop.example'",
        "method.response.header.Access-Control-Allow-Methods": "'GET,POST'" } }] } });
    let parts = json!({
        "All": method("ANY", "Own.RootResourceId", json!({})),
        "Get": method("GET", "Item", json!({ "AuthorizationType": "CUSTOM", "AuthorizerId": "Asked" })),
        "Pool": method("POST", "Item", json!({ "AuthorizationType": "COGNITO_USER_POOLS", "AuthorizerId": "p" })),
        "Options": method("OPTIONS", "Item", preflight),
        "Page": method("GET", "Items", json!({ "Integration": { "Type": "HTTP_PROXY", "Uri": "https://shop.example" } })),
        "Lost": method("GET", "Circle", json!({})),
        "Items": resource("Own.RootResourceId", "items"),
        "Item": resource("Items", "{id}"),
        "Circle": resource("Circle", "x"),
        "Far": { "Type": "AWS::ApiGateway::Method", "Properties": { "RestApiId": "Imported" } },
        "Stage": { "Type": "AWS::ApiGateway::Stage",
                   "Properties": { "RestApiId": "Own", "StageName": "beta", "Variables": { "a": "1" } } },
        "Asked": { "Type": "AWS::ApiGateway::Authorizer", "Properties": {
            "RestApiId": "Own", "Type": "TOKEN", "AuthorizerUri": calls["Uri"],
            "IdentitySource": "method.request.header.X-Token" } },
    });
    let own = json!({ "Own": { "Type": "AWS::ApiGateway::RestApi", "Properties": {} } });
    let declared = with_parts(declaration(&own, &json!({})), &parts);
    let (mut found, notes) = routes(&declared);
    found.sort();
    assert_eq!(found, ["Own ANY /", "Own GET /items/{id}", "Own POST /items/{id}"]);
    for line in [
        "Page: its integration is 'HTTP_PROXY', and only AWS_PROXY calls a function here: it is not served",
        "Lost: its resource 'Circle' is not there: it is not served",
        "the API Imported is not served here: its routes call no function",
        "Own: POST /items/{id} needs a token of Cognito, which the worker cannot check: it answers 401",
    ] {
        assert!(notes.iter().any(|note| note == line), "{line}: {notes:?}");
    }
    let api = &read(&declared).0[0];
    assert_eq!((api.stage.as_str(), api.variables["a"].as_str()), ("beta", "1"));
    let options = api.options.as_ref().unwrap();
    assert_eq!(options.methods.as_deref(), Some("GET,POST"));
    assert_eq!(options.headers["access-control-allow-origin"], "https://shop.example");
    let get = api.routes.iter().find(|route| route.method == "GET").unwrap();
    assert_eq!((&get.guard, get.timeout_ms), (&Guard::Authorizer("Asked".into()), Some(900)));
    let asked = &api.authorizers["Asked"];
    assert_eq!(
        (asked.event, &asked.identity[..]),
        (AuthorizerEvent::Token, &[Identity::Header("X-Token".into())][..])
    );
}

#[test]
fn routes_with_integrations_are_those_of_an_http_api() {
    let route = |key: &str, target: &str, more: Json| {
        let mut properties =
            json!({ "ApiId": "Own", "RouteKey": key, "Target": format!("integrations/{target}") });
        properties.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "Type": "AWS::ApiGatewayV2::Route", "Properties": properties })
    };
    let integration = |version: &str| {
        json!({ "Type": "AWS::ApiGatewayV2::Integration", "Properties": {
            "ApiId": "Own", "IntegrationType": "AWS_PROXY", "IntegrationUri": ARN, "PayloadFormatVersion": version } })
    };
    let parts = json!({
        "Get": route("GET /pets/{id}", "Two", json!({ "AuthorizationType": "CUSTOM", "AuthorizerId": "Asked" })),
        "Rest": route("$default", "One", json!({ "AuthorizationType": "AWS_IAM" })),
        "Token": route("PUT /pets", "One", json!({ "AuthorizationType": "JWT", "AuthorizerId": "Jwt" })),
        "Wrong": route("pets", "One", json!({})),
        "Lost": route("GET /lost", "None", json!({})),
        "One": integration("1.0"),
        "Two": integration("2.0"),
        "Asked": { "Type": "AWS::ApiGatewayV2::Authorizer", "Properties": {
            "ApiId": "Own", "AuthorizerType": "REQUEST", "AuthorizerUri": format!("{INVOCATIONS}{ARN}/invocations"),
            "AuthorizerPayloadFormatVersion": "2.0", "EnableSimpleResponses": true,
            "IdentitySource": ["$request.header.Authorization", "$request.querystring.key"] } },
        "Jwt": { "Type": "AWS::ApiGatewayV2::Authorizer", "Properties": { "ApiId": "Own", "AuthorizerType": "JWT" } },
    });
    let own =
        json!({ "Own": { "Type": "AWS::ApiGatewayV2::Api", "Properties": { "ProtocolType": "HTTP" } } });
    let declared = with_parts(declaration(&own, &json!({})), &parts);
    let (mut found, notes) = routes(&declared);
    found.sort();
    assert_eq!(found, ["Own ANY $default", "Own GET /pets/{id}", "Own PUT /pets"]);
    for line in [
        "Wrong: RouteKey is 'pets' and must be METHOD PATH: it is not served",
        "Lost: its integration is not there: it is not served",
        "Own: PUT /pets needs a JSON web token, which the worker cannot check: it answers 401",
    ] {
        assert!(notes.iter().any(|note| note == line), "{line}: {notes:?}");
    }
    let api = &read(&declared).0[0];
    let of = |method: &str| api.routes.iter().find(|route| route.method == method).unwrap();
    assert_eq!(
        (of("GET").format, of("ANY").format, &of("ANY").guard),
        (Format::Two, Format::One, &Guard::Iam)
    );
    let asked = &api.authorizers["Asked"];
    let wanted = [Identity::Header("Authorization".into()), Identity::Query("key".into())];
    assert_eq!(
        (asked.event, asked.simple, &asked.identity[..]),
        (AuthorizerEvent::HttpTwo, true, &wanted[..])
    );
    assert_eq!(api.stage, DEFAULT);
}

#[test]
fn http_apis_that_name_a_function_themselves_send_it_their_requests() {
    let api = |key: Option<&str>, target: &str| {
        let mut own = json!({ "ProtocolType": "HTTP", "Target": target });
        key.into_iter().for_each(|key| own["RouteKey"] = key.into());
        json!({ "Type": "AWS::ApiGatewayV2::Api", "Properties": own })
    };
    let own = json!({
        "All": api(None, ARN),
        "One": api(Some("GET /pets/{id}"), &format!("{INVOCATIONS}{ARN}/invocations")),
        "Page": api(None, "https://shop.example"),
    });
    let declared = declaration(&own, &json!({}));
    let (found, notes) = routes(&declared);
    assert_eq!(found, ["All ANY $default", "One GET /pets/{id}"]);
    assert_eq!(notes, ["Page: its Target is no function: it is not served"]);
    assert!(read(&declared).0.iter().all(|api| api.routes[0].format == Format::Two));
}
