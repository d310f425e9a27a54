//! Traces by OpenTelemetry: a span for each invocation, sent to a collector by OTLP over HTTP. Off unless
//! `OTEL_EXPORTER_OTLP_ENDPOINT` names one; the standard's other variables hold, too.
//!
//! A caller's own span is the parent, by `X-Amzn-Trace-Id` or `traceparent`; and the function receives the
//! invocation's span as its parent.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response};
use opentelemetry::trace::{
    Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
    Tracer, TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SdkTracer, SdkTracerProvider};
use tokio::runtime::Handle;

use crate::base::error::ApiError;
use crate::base::name::Target;
use crate::http::client;
use crate::invocation::request::{Invocation, Outcome};
use worker_pool::InstanceId;

const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
/// How long a collector may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most bytes of its answer.
const ANSWER_BYTES: u64 = 64 * 1024;

/// Where spans go.
pub(crate) struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// The span of one invocation; ends when it is dropped.
pub(crate) struct Span(opentelemetry_sdk::trace::Span);

impl Traces {
    /// Reads the environment; none if it names no collector. Must be called within a runtime.
    ///
    /// # Errors
    /// The environment asks for something unsupported.
    pub fn of_this_process() -> Result<Option<Traces>> {
        let given = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let Some(endpoint) = ENDPOINTS.iter().find_map(given) else { return Ok(None) };
        ensure!(endpoint.starts_with("http://"), "{}: {endpoint}: only http:// is supported", ENDPOINTS[0]);
        let exporter = SpanExporter::builder().with_http().with_http_client(Client(Handle::current()));
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("mayfly-worker");
        }
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter.build().context(ENDPOINTS[0])?)
            .with_id_generator(Ids::default())
            .with_resource(resource.build())
            .build();
        let tracer = provider.tracer("mayfly");
        Ok(Some(Traces { provider, tracer }))
    }

    /// An invocation begins. The function receives this span as its parent from now on.
    pub fn begin(&self, target: &Target, invocation: &mut Invocation) -> Span {
        let given = Given::parse(&invocation.trace_id);
        let parent = match given {
            Given { trace: Some(trace), span: Some(span), sampled } => {
                let flags = if sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
                let remote = SpanContext::new(trace, span, flags, true, TraceState::default());
                Context::new().with_remote_span_context(remote)
            }
            Given { trace, .. } => {
                NEXT.set(trace);
                Context::new()
            }
        };
        let builder = self.tracer.span_builder(target.name.clone()).with_kind(SpanKind::Server);
        let builder = builder.with_attributes([
            KeyValue::new("faas.name", target.name.clone()),
            KeyValue::new("faas.version", target.qualifier.clone().unwrap_or_else(|| "$LATEST".into())),
            KeyValue::new("faas.invocation_id", invocation.id.to_string()),
        ]);
        let span = self.tracer.build_with_context(builder, &parent);
        NEXT.set(None);
        let own = span.span_context();
        invocation.trace_id = aws_text(own.trace_id(), own.span_id(), own.is_sampled());
        Span(span)
    }

    /// Sends the remaining spans. Waits for the collector; not to be called on a thread of the
    /// runtime's.
    pub fn close(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(PATIENCE) {
            tracing::warn!("traces: {error}");
        }
    }
}

impl Span {
    /// An instance has received the invocation; `cold` if it was started after the invocation's arrival.
    pub fn handed_to(&mut self, instance: InstanceId, cold: bool) {
        self.0.set_attribute(KeyValue::new("faas.coldstart", cold));
        let instance = i64::try_from(instance.0).unwrap_or(i64::MAX);
        self.0.add_event("handed to an instance", vec![KeyValue::new("faas.instance", instance)]);
    }

    /// Ends the span with the invocation's outcome.
    pub fn end(mut self, outcome: &Result<Outcome, ApiError>) {
        let failure = match outcome {
            Ok(outcome) if !outcome.failed => None,
            Ok(outcome) => Some(String::from_utf8_lossy(&outcome.payload).chars().take(200).collect()),
            Err(error) => Some(format!("{}: {}", error.kind.reason(), error.message)),
        };
        if let Some(failure) = failure {
            self.0.set_status(Status::error(failure));
        }
        self.0.end();
    }
}

/// A caller's trace context.
#[derive(Debug, Default, PartialEq, Eq)]
struct Given {
    trace: Option<TraceId>,
    span: Option<SpanId>,
    sampled: bool,
}

impl Given {
    /// `Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1`; malformed parts are
    /// ignored.
    fn parse(text: &str) -> Given {
        let mut given = Given::default();
        for (name, value) in text.split(';').filter_map(|part| part.trim().split_once('=')) {
            match name {
                "Root" => {
                    let digits = value.strip_prefix("1-").map(|digits| digits.replacen('-', "", 1));
                    given.trace = digits.filter(|digits| is_hex(digits, 32)).and_then(|digits| {
                        TraceId::from_hex(&digits).ok().filter(|trace| *trace != TraceId::INVALID)
                    });
                }
                "Parent" => {
                    let span = Some(value).filter(|value| is_hex(value, 16)).map(SpanId::from_hex);
                    given.span = span.and_then(Result::ok).filter(|span| *span != SpanId::INVALID);
                }
                "Sampled" => given.sampled = value == "1",
                _ => {}
            }
        }
        given
    }
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn aws_text(trace: TraceId, span: SpanId, sampled: bool) -> String {
    let digits = trace.to_string();
    let (first, rest) = digits.split_at(8);
    format!("Root=1-{first}-{rest};Parent={span};Sampled={}", u8::from(sampled))
}

/// W3C's `traceparent` in the format of `X-Amzn-Trace-Id`.
pub(crate) fn of_traceparent(text: &str) -> Option<String> {
    let [version, trace, span, flags] = text.split('-').collect::<Vec<_>>()[..] else { return None };
    let is_known = version == "00" && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2);
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
    (is_known && trace != TraceId::INVALID && span != SpanId::INVALID).then(|| aws_text(trace, span, sampled))
}

thread_local! {
    /// The id of the trace that the next span of this thread begins.
    static NEXT: Cell<Option<TraceId>> = const { Cell::new(None) };
}

/// Makes ids. A trace that a caller has only named keeps its id.
#[derive(Debug, Default)]
struct Ids(RandomIdGenerator);

impl IdGenerator for Ids {
    fn new_trace_id(&self) -> TraceId {
        NEXT.take().unwrap_or_else(|| self.0.new_trace_id())
    }

    fn new_span_id(&self) -> SpanId {
        self.0.new_span_id()
    }
}

/// Sends the exporter's requests. The exporter calls from a thread of its own.
#[derive(Debug)]
struct Client(Handle);

#[async_trait::async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        Ok(self.0.spawn(send(request)).await??)
    }
}

async fn send(request: Request<Bytes>) -> Result<Response<Bytes>> {
    let (mut parts, body) = request.into_parts();
    let host = parts.uri.host().context("no host is named")?.to_string();
    let place = (host, parts.uri.port_u16().unwrap_or(80));
    let address = tokio::net::lookup_host(place).await?.next().context("the host has no address")?;
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_string();
    parts.uri = path.parse()?;
    let request = Request::from_parts(parts, Full::new(body));
    let (parts, body) = client::send(address, request, PATIENCE).await?.into_parts();
    let mut answer = Vec::new();
    client::read(body, ANSWER_BYTES, |part| {
        answer.extend_from_slice(part);
        Ok(())
    })
    .await?;
    Ok(Response::from_parts(parts, answer.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "5759e988bd862e3fe1be46a994272793";
    const SPAN: &str = "53995c3f42cd8ad8";

    #[test]
    fn a_trace_is_read_and_written_in_both_forms() {
        let text = format!("Root=1-5759e988-bd862e3fe1be46a994272793;Parent={SPAN};Sampled=1");
        let given = Given::parse(&text);
        assert_eq!(given.trace.map(|trace| trace.to_string()).as_deref(), Some(TRACE));
        assert!(given.span.is_some_and(|span| span.to_string() == SPAN) && given.sampled);
        assert_eq!(of_traceparent(&format!("00-{TRACE}-{SPAN}-01")), Some(text.clone()));
        assert_eq!(
            of_traceparent(&format!("00-{TRACE}-{SPAN}-00")).as_deref(),
            Some(&*text.replace("Sampled=1", "Sampled=0"))
        );
    }

    #[test]
    fn malformed_headers_are_ignored() {
        for text in ["", ";;=", "Root=1-5759e988", "Root=1-é;Parent=x", "Parent=+53995c3f42cd8ad"] {
            assert_eq!(Given::parse(text), Given::default(), "{text}");
        }
        let zeros = "0".repeat(32);
        for text in
            ["", "00-1-2-3", "01-x", &format!("00-{zeros}-{SPAN}-01"), &format!("ff-{TRACE}-{SPAN}-01")]
        {
            assert_eq!(of_traceparent(text), None, "{text}");
        }
    }
}
