//! Traces of messages for OpenTelemetry: one span for the enqueue of a message, one for each delivery and one for each
//! redrive, in the trace that the message's `trace` names. A message that is enqueued without one starts a trace, and
//! its `trace` is set to it. Nothing is recorded until [`Traces::start`] was called. Payloads, headers and the texts of
//! errors never become part of a span.

mod client;
mod gate;

use crate::traces::client::OtlpClient;
use opentelemetry::trace::{
    Span as _, SpanContext, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceState, Tracer as _,
};
use opentelemetry::{Context, KeyValue, global};
use opentelemetry_otlp::{WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use redrive_core::message::Delivery;
use redrive_core::store::{Gated, Settle, Store};
use redrive_core::trace::TraceParent;
use std::borrow::Cow;
use std::sync::Arc;

/// The name of the instrumentation scope.
const SCOPE: &str = "redrive";

/// The traces of this process. Call [`Traces::end`] before the process ends: it sends the spans that still wait.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// Sends spans to this collector, for example `http://localhost:4318`; the path `/v1/traces` is added. What the
    /// OpenTelemetry specification sets by environment variables (headers, sampler, size of batches, name of the
    /// service) is read from there. Must be called on a tokio runtime.
    ///
    /// # Errors
    /// Returns why the collector's address cannot be used.
    pub fn start(endpoint: &str) -> Result<Self, String> {
        let wrong = |why: String| {
            format!("cannot send traces to {endpoint}: {why}; give an address such as http://localhost:4318")
        };
        let url = url::Url::parse(endpoint).map_err(|error| wrong(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
            return Err(wrong("it is not an http or https address".into()));
        }
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(OtlpClient::new(tokio::runtime::Handle::current()))
            .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
            .build()
            .map_err(|error| wrong(error.to_string()))?;
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let mut resource = Resource::builder().with_attribute(version);
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("redrive");
        }
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.build())
            .with_batch_exporter(exporter)
            .build();
        global::set_tracer_provider(provider.clone());
        Ok(Self { provider })
    }

    /// A store that records a span for each message that is enqueued and for each letter that is redriven.
    #[must_use]
    pub fn observe(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Gated::new(Arc::new(gate::TraceGate::new(Arc::clone(&store))), store))
    }

    /// Sends the spans that still wait, and stops. Errors are those of the collector; they are logged.
    pub async fn end(&self) {
        let provider = self.provider.clone();
        let ended = tokio::task::spawn_blocking(move || provider.shutdown()).await;
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the last traces could not be sent"),
            Err(error) => tracing::warn!(%error, "the last traces could not be sent"),
        }
    }
}

/// The context of a remote parent, or of none.
fn parent_of(trace: Option<&str>) -> Context {
    let Some(parent) = trace.and_then(|text| text.parse::<TraceParent>().ok()) else { return Context::new() };
    let flags = if parent.sampled { TraceFlags::SAMPLED } else { TraceFlags::default() };
    let (trace_id, span_id) = (parent.trace_id.into(), parent.span_id.into());
    let remote = SpanContext::new(trace_id, span_id, flags, true, TraceState::default());
    Context::new().with_remote_span_context(remote)
}

/// The trace context that names a span as the parent of what comes next.
fn text_of(span: &SpanContext) -> String {
    TraceParent {
        trace_id: u128::from_be_bytes(span.trace_id().to_bytes()),
        span_id: u64::from_be_bytes(span.span_id().to_bytes()),
        sampled: span.is_sampled(),
    }
    .to_string()
}

/// The span of one delivery, from the call of its handler to the outcome.
pub(crate) struct DeliverySpan(global::BoxedSpan);

impl DeliverySpan {
    /// Begins the span of a delivery.
    pub(crate) fn begin(delivery: &Delivery) -> Self {
        let message = &delivery.message;
        let envelope = &message.envelope;
        let attributes = [
            KeyValue::new("messaging.system", "redrive"),
            KeyValue::new("messaging.operation.type", "process"),
            KeyValue::new("messaging.destination.name", envelope.queue.to_string()),
            KeyValue::new("messaging.message.id", envelope.id.to_string()),
            KeyValue::new("redrive.kind", envelope.kind.clone()),
            KeyValue::new("redrive.attempt", i64::from(delivery.attempt)),
            KeyValue::new("redrive.generation", i64::from(message.generation)),
        ];
        let span = global::tracer(SCOPE)
            .span_builder(format!("process {}", envelope.queue))
            .with_kind(SpanKind::Consumer)
            .with_attributes(attributes)
            .start_with_context(&global::tracer(SCOPE), &parent_of(envelope.trace.as_deref()));
        Self(span)
    }

    /// Ends the span with how the delivery ended.
    pub(crate) fn end(mut self, settle: &Settle) {
        let (outcome, failed): (&str, Option<Cow<'static, str>>) = match settle {
            Settle::Ack => ("ack", None),
            Settle::Reply { .. } => ("reply", None),
            Settle::Release => ("release", None),
            Settle::Snooze { .. } => ("snooze", None),
            Settle::Extend { .. } | Settle::Progress { .. } => ("progress", None),
            Settle::Fail { failure, .. } => ("fail", Some(failure.report.error.error_type.clone().into())),
        };
        self.0.set_attribute(KeyValue::new("redrive.outcome", outcome.to_owned()));
        if let Some(error_type) = failed {
            self.0.set_attribute(KeyValue::new("error.type", error_type.to_string()));
            self.0.set_status(Status::error(error_type));
        }
        self.0.end();
    }
}
