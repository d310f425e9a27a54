//! Metrics in Prometheus' text format 0.0.4, which page stores, the worker and the node agent serve.
//!
//! A metric is a head (its help and type) and then all its values, a line each: a head that comes twice, or
//! values apart from it, are an error to those who read the format. The caller keeps that order.

use std::fmt::{Display, Write};

/// The `Content-Type` of an answer with this text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

/// The text so far.
#[derive(Debug, Default)]
pub struct PrometheusText(String);

impl PrometheusText {
    /// Begins a metric. `kind` is its type, as `counter`; `help` is one line without an end mark.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}.\n# TYPE {name} {kind}"); // strings take all
    }

    /// A value of the metric that was begun last. Labels' values may be any text.
    pub fn value(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"{}\"", if at == 0 { '{' } else { ',' }, escaped(text));
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// A metric with one value, without labels.
    pub fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.value(name, &[], value);
    }

    /// Adds text that is in the format already: whole metrics.
    pub fn push(&mut self, text: &str) {
        self.0.push_str(text);
    }

    /// The whole.
    #[must_use]
    pub fn into_string(self) -> String {
        self.0
    }
}

/// A label's value as the format wants it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_a_head_and_escaped_labels() {
        let mut text = PrometheusText::default();
        text.single("up", "gauge", "Whether it is up", 1);
        text.head("calls_total", "counter", "Calls");
        text.value("calls_total", &[("pod", "a\"b\\\nc\u{1}"), ("by", "")], 2.5);
        let wanted = "# HELP up Whether it is up.\n# TYPE up gauge\nup 1\n\
            # HELP calls_total Calls.\n# TYPE calls_total counter\n\
            calls_total{pod=\"a\\\"b\\\\\\nc\u{1}\",by=\"\"} 2.5\n";
        assert_eq!(text.into_string(), wanted);
    }
}
