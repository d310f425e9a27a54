//! The IAM policies that Lambda authorisers answer with: whether one allows a call.

use serde_json::Value;

/// What a policy says of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A statement allows it, and none denies it.
    Allowed,
    /// A statement denies it.
    Denied,
    /// No statement mentions it.
    Unmentioned,
}

const ACTION: &str = "execute-api:Invoke";

/// The verdict on a call of this ARN. Conditions are not evaluated: a statement with one never allows, and
/// denies as if it had none.
///
/// # Errors
/// It is no policy, and why.
pub fn verdict(policy: &Value, arn: &str) -> Result<Verdict, String> {
    let statements = match &policy["Statement"] {
        Value::Array(list) => list.iter().collect(),
        one @ Value::Object(_) => vec![one],
        _ => return Err("policyDocument should have a Statement".into()),
    };
    let mut verdict = Verdict::Unmentioned;
    for statement in statements {
        let effect = statement["Effect"].as_str().unwrap_or_default();
        let covers = covers(statement, "Action", "NotAction", |pattern| {
            matches(&pattern.to_ascii_lowercase(), &ACTION.to_ascii_lowercase())
        })? && covers(statement, "Resource", "NotResource", |pattern| matches(pattern, arn))?;
        let conditional = statement["Condition"].as_object().is_some_and(|condition| !condition.is_empty());
        match effect {
            "Deny" if covers => return Ok(Verdict::Denied),
            "Allow" if covers && !conditional => verdict = Verdict::Allowed,
            "Allow" | "Deny" => {}
            other => return Err(format!("Effect is '{}' and must be Allow or Deny", other.escape_debug())),
        }
    }
    Ok(verdict)
}

fn covers(statement: &Value, key: &str, not: &str, is_it: impl Fn(&str) -> bool) -> Result<bool, String> {
    let any = |value: &Value| match value {
        Value::String(text) => Ok(is_it(text)),
        Value::Array(list) => Ok(list.iter().filter_map(Value::as_str).any(&is_it)),
        _ => Err(format!("a Statement should have {key}, a text or a list")),
    };
    match statement.get(not) {
        Some(value) => any(value).map(|covered| !covered),
        None => any(&statement[key]),
    }
}

/// Whether a pattern with `*` and `?` matches all of a text. Takes time in proportion to both lengths.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut at, mut from, mut star) = (0, 0, None);
    while from < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(&letter) if letter == b'?' || letter == text[from] => {
                at += 1;
                from += 1;
            }
            _ => {
                let Some((after, taken)) = star else { return false };
                star = Some((after, taken + 1));
                at = after + 1;
                from = taken + 1;
            }
        }
    }
    pattern[at..].iter().all(|letter| *letter == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ARN: &str = "arn:aws:execute-api:us-east-1:000000000000:api/Prod/GET/pets/1";

    fn of(statements: Value) -> Result<Verdict, String> {
        verdict(&json!({ "Version": "2012-10-17", "Statement": statements }), ARN)
    }

    fn statement(effect: &str, resource: &str) -> Value {
        json!({ "Effect": effect, "Action": "execute-api:Invoke", "Resource": resource })
    }

    #[test]
    fn statements_allow_and_deny_by_wildcards() {
        for (resource, wanted) in [
            (ARN, Verdict::Allowed),
            ("*", Verdict::Allowed),
            ("arn:aws:execute-api:*:*:*/*/GET/pets/?", Verdict::Allowed),
            ("arn:aws:execute-api:*:*:*/*/POST/*", Verdict::Unmentioned),
            ("arn:aws:execute-api:*:*:*/*/GET/pets", Verdict::Unmentioned),
        ] {
            assert_eq!(of(statement("Allow", resource)), Ok(wanted), "{resource}");
        }
        let both = |first: &str, second: &str| of(json!([statement(first, "*"), statement(second, ARN)]));
        assert_eq!(both("Allow", "Deny"), Ok(Verdict::Denied));
        assert_eq!(both("Deny", "Allow"), Ok(Verdict::Denied));
        let lists =
            json!([{ "Effect": "Allow", "Action": ["s3:*", "execute-api:*"], "Resource": ["x", ARN] }]);
        assert_eq!(of(lists), Ok(Verdict::Allowed));
        let not = json!([{ "Effect": "Allow", "Action": "*", "NotResource": "arn:aws:s3:*" }]);
        assert_eq!(of(not), Ok(Verdict::Allowed));
    }

    #[test]
    fn conditions_never_allow() {
        let mut conditional = statement("Allow", "*");
        conditional["Condition"] = json!({ "IpAddress": { "aws:SourceIp": "10.0.0.0/8" } });
        assert_eq!(of(conditional.clone()), Ok(Verdict::Unmentioned));
        conditional["Effect"] = "Deny".into();
        assert_eq!(of(conditional), Ok(Verdict::Denied));
    }

    #[test]
    fn refuses_documents_that_are_no_policy() {
        assert!(verdict(&json!({}), ARN).is_err());
        assert!(of(json!({ "Effect": "Perhaps", "Action": "*", "Resource": "*" })).is_err());
        assert!(of(json!({ "Effect": "Allow", "Action": "*" })).is_err());
    }

    #[test]
    fn hostile_pattern_takes_little_time() {
        assert!(!matches(&"*a".repeat(10_000), &"a".repeat(9_000)));
    }
}
