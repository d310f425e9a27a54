//! The policy of a function or of a layer's version: statements that say who may use it. The API keeps and
//! shows them; who may call the worker is the operator's setting.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::{ApiError, ErrorKind};

/// The most bytes of a policy, as Lambda has it.
const MOST_BYTES: usize = 20 * 1024;

/// A policy in IAM's language.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResourcePolicy {
    /// Changes with every change.
    pub revision: String,
    document: Value,
}

/// A statement that a caller adds: the body of AddPermission and AddLayerVersionPermission.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Permission {
    /// Its name within the policy.
    pub statement_id: String,
    action: String,
    principal: String,
    source_arn: Option<String>,
    source_account: Option<String>,
    function_url_auth_type: Option<String>,
    invoked_via_function_url: Option<bool>,
    event_source_token: Option<String>,
    #[serde(rename = "PrincipalOrgID", alias = "OrganizationId")]
    organization: Option<String>,
    /// The revision that the policy must have.
    pub revision_id: Option<String>,
}

impl Permission {
    /// The statement for a resource.
    ///
    /// # Errors
    /// A value that Lambda refuses.
    pub fn statement(&self, resource: &str) -> Result<Value, ApiError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let id = &self.statement_id;
        if !(1..=100).contains(&id.len()) || !id.bytes().all(plain) {
            return Err(ApiError::invalid_parameter("StatementId: 1 to 100 letters, digits, - and _"));
        }
        let verb = self.action.strip_prefix("lambda:").unwrap_or_default();
        let is_verb = !verb.is_empty() && verb.bytes().all(|byte| byte.is_ascii_alphabetic());
        if !(is_verb || verb == "*" || self.action == "*") {
            return Err(ApiError::invalid_parameter("Action: lambda:NAME, lambda:* or *"));
        }
        let mut statement = json!({
            "Sid": id,
            "Effect": "Allow",
            "Principal": self.principal()?,
            "Action": self.action,
            "Resource": resource,
        });
        if let Some(condition) = self.condition()? {
            statement["Condition"] = condition;
        }
        Ok(statement)
    }

    fn principal(&self) -> Result<Value, ApiError> {
        let principal = self.principal.as_str();
        let is_account = principal.len() == 12 && principal.bytes().all(|byte| byte.is_ascii_digit());
        match principal {
            "*" => Ok(json!("*")),
            account if is_account => Ok(json!({ "AWS": format!("arn:aws:iam::{account}:root") })),
            arn if arn.starts_with("arn:") => Ok(json!({ "AWS": arn })),
            service if service.contains('.') && !service.contains(char::is_whitespace) => {
                Ok(json!({ "Service": service }))
            }
            _ => Err(ApiError::invalid_parameter(
                "The provided principal was invalid. Please check the principal and try again.",
            )),
        }
    }

    fn condition(&self) -> Result<Option<Value>, ApiError> {
        let mut condition = json!({});
        let is_url = matches!(self.action.as_str(), "lambda:InvokeFunctionUrl" | "lambda:*" | "*");
        match self.function_url_auth_type.as_deref() {
            None => {}
            Some("NONE" | "AWS_IAM") if is_url => {}
            Some(_) => {
                return Err(ApiError::invalid_parameter(
                    "FunctionUrlAuthType is NONE or AWS_IAM, and goes with lambda:InvokeFunctionUrl alone",
                ));
            }
        }
        if let Some(arn) = &self.source_arn {
            condition["ArnLike"]["AWS:SourceArn"] = arn.as_str().into();
        }
        for (key, value) in [
            ("AWS:SourceAccount", &self.source_account),
            ("lambda:FunctionUrlAuthType", &self.function_url_auth_type),
            ("lambda:EventSourceToken", &self.event_source_token),
            ("aws:PrincipalOrgID", &self.organization),
        ] {
            if let Some(value) = value {
                condition["StringEquals"][key] = value.as_str().into();
            }
        }
        if let Some(via) = self.invoked_via_function_url {
            condition["Bool"]["lambda:InvokedViaFunctionUrl"] = via.to_string().into();
        }
        Ok(condition.as_object().is_some_and(|map| !map.is_empty()).then_some(condition))
    }
}

impl ResourcePolicy {
    fn new(document: Value) -> Result<ResourcePolicy, ApiError> {
        if document.to_string().len() > MOST_BYTES {
            let text = format!("The final policy size is bigger than the limit ({MOST_BYTES}).");
            return Err(ErrorKind::PolicyLengthExceeded.with(text));
        }
        Ok(ResourcePolicy { revision: uuid::Uuid::new_v4().to_string(), document })
    }

    /// The policy that a caller gives as a whole.
    ///
    /// # Errors
    /// It is no policy.
    pub fn whole(text: &str) -> Result<ResourcePolicy, ApiError> {
        let wrong = |what: &str| ApiError::invalid_parameter(format!("Policy: {what}"));
        let document: Value = serde_json::from_str(text).map_err(|error| wrong(&error.to_string()))?;
        let statements = document.get("Statement").and_then(Value::as_array);
        let statements = statements
            .filter(|list| !list.is_empty())
            .ok_or_else(|| wrong("it needs a list of Statement"))?;
        for statement in statements {
            for key in ["Effect", "Principal", "Action"] {
                if statement.get(key).is_none() {
                    return Err(wrong(&format!("a Statement needs {key}")));
                }
            }
        }
        ResourcePolicy::new(document)
    }

    /// This policy with one more statement; without a policy, a new one.
    ///
    /// # Errors
    /// There is a statement of this name, or it would be too long.
    pub fn with(known: Option<ResourcePolicy>, statement: Value) -> Result<ResourcePolicy, ApiError> {
        let empty = || json!({ "Version": "2012-10-17", "Id": "default", "Statement": [] });
        let mut document = known.map_or_else(empty, |known| known.document);
        let id = &statement["Sid"];
        let statements = document["Statement"].as_array_mut().expect("each policy has statements");
        if statements.iter().any(|known| known.get("Sid") == Some(id)) {
            return Err(ApiError::conflict(format!(
                "The statement id ({}) provided already exists. Please provide a new statement id, or remove the \
                 existing statement.",
                id.as_str().unwrap_or_default()
            )));
        }
        statements.push(statement);
        ResourcePolicy::new(document)
    }

    /// This policy without a statement; none, if it was the last.
    ///
    /// # Errors
    /// There is no such statement.
    pub fn without(mut self, id: &str) -> Result<Option<ResourcePolicy>, ApiError> {
        let statements = self.document["Statement"].as_array_mut().expect("each policy has statements");
        let at = statements.iter().position(|known| known.get("Sid").and_then(Value::as_str) == Some(id));
        let at = at.ok_or_else(|| {
            ApiError::not_found(format!(
                "Statement {} is not found in resource policy.",
                worker_system::text::shown(id)
            ))
        })?;
        statements.remove(at);
        if statements.is_empty() { Ok(None) } else { ResourcePolicy::new(self.document).map(Some) }
    }

    /// What GetPolicy answers.
    pub fn described(&self) -> Value {
        json!({ "Policy": self.document.to_string(), "RevisionId": self.revision })
    }
}

/// What a call about a resource without a policy is answered.
pub fn none() -> ApiError {
    ApiError::not_found("The resource you requested does not exist: no policy is associated with it.")
}

/// `RevisionId` of a request, if given, must be that of the policy.
///
/// # Errors
/// The request names another revision.
pub fn check_revision(wanted: Option<&str>, policy: Option<&ResourcePolicy>) -> Result<(), ApiError> {
    if wanted.is_none_or(|wanted| policy.is_some_and(|policy| policy.revision == wanted)) {
        return Ok(());
    }
    Err(ErrorKind::PreconditionFailed.with("The RevisionId provided does not match the latest RevisionId. Call the GetPolicy API to retrieve the \
         latest RevisionId for your resource.",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::name::ACCOUNT;

    fn statement(given: Value) -> Result<Value, String> {
        let mut body = json!({ "StatementId": "s", "Action": "lambda:InvokeFunction", "Principal": "*" });
        body.as_object_mut().unwrap().extend(given.as_object().unwrap().clone());
        let permission: Permission = serde_json::from_value(body).unwrap();
        permission.statement("r").map_err(|error| error.message)
    }

    #[test]
    fn statements_are_lambdas() {
        let principal =
            |text: &str| statement(json!({ "Principal": text })).map(|made| made["Principal"].clone());
        assert_eq!(principal("s3.amazonaws.com"), Ok(json!({ "Service": "s3.amazonaws.com" })));
        assert_eq!(principal(ACCOUNT), Ok(json!({ "AWS": format!("arn:aws:iam::{ACCOUNT}:root") })));
        assert_eq!(principal("*"), Ok(json!("*")));
        assert!(principal("s3").unwrap_err().contains("principal was invalid"));
        let made =
            statement(json!({ "SourceArn": "arn:a", "SourceAccount": ACCOUNT, "PrincipalOrgID": "o-1" }));
        assert_eq!(
            made.unwrap()["Condition"],
            json!({
                "ArnLike": { "AWS:SourceArn": "arn:a" },
                "StringEquals": { "AWS:SourceAccount": ACCOUNT, "aws:PrincipalOrgID": "o-1" },
            })
        );
        let url = json!({ "Action": "lambda:InvokeFunctionUrl", "FunctionUrlAuthType": "NONE" });
        let made = statement(url).unwrap();
        assert_eq!(made["Condition"], json!({ "StringEquals": { "lambda:FunctionUrlAuthType": "NONE" } }));
        for wrong in [
            json!({ "StatementId": "a b" }),
            json!({ "Action": "s3:GetObject" }),
            json!({ "FunctionUrlAuthType": "NONE" }),
        ] {
            assert!(statement(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn policies_grow_and_shrink_by_statements() {
        let of = |id: &str| statement(json!({ "StatementId": id })).unwrap();
        let one = ResourcePolicy::with(None, of("a")).unwrap();
        assert_eq!(
            ResourcePolicy::with(Some(one.clone()), of("a")).unwrap_err().kind,
            ErrorKind::ResourceConflict
        );
        let two = ResourcePolicy::with(Some(one.clone()), of("b")).unwrap();
        assert!(check_revision(Some(&one.revision), Some(&two)).is_err());
        assert!(
            check_revision(Some(&two.revision), Some(&two)).is_ok() && check_revision(None, None).is_ok()
        );
        assert_eq!(two.clone().without("c").unwrap_err().kind, ErrorKind::ResourceNotFound);
        let left = two.without("a").unwrap().unwrap();
        assert!(left.described()["Policy"].as_str().unwrap().contains(r#""Sid":"b""#));
        assert_eq!(left.without("b").unwrap(), None);
        let whole = json!({ "Version": "2012-10-17", "Statement": [of("a")] }).to_string();
        assert_eq!(ResourcePolicy::whole(&whole).unwrap().without("a").unwrap(), None);
        assert!(ResourcePolicy::whole("{}").is_err() && ResourcePolicy::whole("[]").is_err());
        let long = statement(json!({ "SourceArn": "x".repeat(MOST_BYTES) })).unwrap();
        assert_eq!(ResourcePolicy::with(None, long).unwrap_err().kind, ErrorKind::PolicyLengthExceeded);
    }
}
