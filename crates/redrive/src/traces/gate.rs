//! Records the spans of enqueues and redrives at the one place that all calls pass.

use super::{SCOPE, parent_of, text_of};
use async_trait::async_trait;
use opentelemetry::trace::{Span as _, SpanKind, Tracer as _};
use opentelemetry::{KeyValue, global};
use redrive_core::dead_letter::{Act, ActRequest};
use redrive_core::error::StoreResult;
use redrive_core::message::NewMessage;
use redrive_core::store::{Call, Gate, Store};
use std::sync::Arc;

/// Lets every call pass, and records spans for those that begin or resume the work on a message.
pub(super) struct TraceGate {
    store: Arc<dyn Store>,
}

impl TraceGate {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self { store }
    }

    /// Begins the span of a redrive, in the trace of its message.
    async fn redrive(&self, request: &ActRequest) -> Option<global::BoxedSpan> {
        // A letter that cannot be read is refused by the act itself, with the reason.
        let letter = self.store.letter(request.id).await.ok()?;
        let envelope = &letter.message.envelope;
        let attributes = attributes("redrive", &envelope.queue.to_string(), &request.id.to_string());
        let name = format!("redrive {}", envelope.queue);
        Some(begin(name, SpanKind::Internal, attributes, envelope.trace.as_deref()))
    }
}

#[async_trait]
impl Gate for TraceGate {
    async fn admit(&self, _: &mut Call) -> StoreResult<()> {
        Ok(())
    }

    async fn watch(&self, call: &mut Call) -> Option<Box<dyn Send>> {
        let mut spans = Vec::new();
        if let Call::Enqueue { batch } = call {
            spans.extend(batch.iter_mut().map(enqueue));
        } else if let Call::Act { batch } = call {
            for request in batch.iter().filter(|request| matches!(request.act, Act::Retry(_))) {
                spans.extend(self.redrive(request).await);
            }
        }
        // A span ends when it is dropped.
        (!spans.is_empty()).then(|| Box::new(spans) as Box<dyn Send>)
    }
}

/// Begins the span of an enqueue, and makes it the parent of what happens to the message later.
fn enqueue(message: &mut NewMessage) -> global::BoxedSpan {
    let attributes = attributes("send", message.queue.as_str(), &message.id.to_string());
    let span =
        begin(format!("send {}", message.queue), SpanKind::Producer, attributes, message.trace.as_deref());
    if span.span_context().is_valid() {
        message.trace = Some(text_of(span.span_context()));
    }
    span
}

fn attributes(operation: &'static str, queue: &str, id: &str) -> Vec<KeyValue> {
    vec![
        KeyValue::new("messaging.system", "redrive"),
        KeyValue::new("messaging.operation.type", operation),
        KeyValue::new("messaging.destination.name", queue.to_owned()),
        KeyValue::new("messaging.message.id", id.to_owned()),
    ]
}

fn begin(name: String, kind: SpanKind, attributes: Vec<KeyValue>, trace: Option<&str>) -> global::BoxedSpan {
    let tracer = global::tracer(SCOPE);
    let builder = tracer.span_builder(name).with_kind(kind).with_attributes(attributes);
    builder.start_with_context(&tracer, &parent_of(trace))
}
