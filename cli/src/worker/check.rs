//! `mayfly up --check`: what would be served of a template, as a table or as JSON.

use std::io::Write;

use anyhow::Result;
use serde_json::Value;
use worker::service::check::{Checked, CheckedFunction};

/// Prints it; returns the exit code.
///
/// # Errors
/// The output is closed.
pub fn show(checked: &Checked, as_json: bool) -> Result<i32> {
    let mut out = std::io::stdout().lock();
    if as_json {
        serde_json::to_writer_pretty(&mut out, checked)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", text(checked))?;
    }
    Ok(i32::from(checked.functions.iter().any(|function| function.state_reason.is_some())))
}

fn text(checked: &Checked) -> String {
    let mut rows = vec![["function", "runtime", "state"].map(String::from)];
    for function in &checked.functions {
        let runtime = function.settings.get("Runtime").and_then(Value::as_str).unwrap_or("image");
        rows.push([function.function_name.clone(), runtime.into(), state(function)]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (first, second) = (width(0), width(1));
    let mut lines: Vec<String> = rows
        .iter()
        .map(|[name, runtime, state]| format!("{name:<first$}  {runtime:<second$}  {state}"))
        .collect();
    for api in &checked.http_apis {
        for route in api["Routes"].as_array().into_iter().flatten() {
            let text = |key: &str| route[key].as_str().unwrap_or_default();
            lines.push(format!(
                "{} {}: {} {} calls {}",
                api["Type"].as_str().unwrap_or_default(),
                api["Id"].as_str().unwrap_or_default(),
                text("Method"),
                text("Path"),
                text("Function")
            ));
        }
    }
    for (list, kind, key) in
        [(&checked.queues, "queue", "EventSourceArn"), (&checked.schedules, "schedule", "Name")]
    {
        let text = |one: &Value, key: &str| one[key].as_str().unwrap_or_default().to_string();
        lines.extend(
            list.iter().map(|one| format!("{kind} {} calls {}", text(one, key), text(one, "Function"))),
        );
    }
    lines.extend(checked.missing.iter().map(|line| format!("missing: {line}")));
    lines.extend(checked.notes.iter().map(|line| format!("note: {line}")));
    lines.join("\n") + "\n"
}

fn state(function: &CheckedFunction) -> String {
    if let (Some(code), Some(reason)) = (function.state_reason_code, &function.state_reason) {
        return format!("{code}: {reason}");
    }
    if let Some(unbuilt) = &function.unbuilt {
        return format!("served once it is built (sam build): {unbuilt}");
    }
    match &function.installs {
        Some(file) => format!("served; installs {}", file.display()),
        None => "served".into(),
    }
}
