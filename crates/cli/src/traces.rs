//! Traces for OpenTelemetry, for commands that enqueue, redrive or work: sent if the environment names a collector, as the
//! OpenTelemetry specification says, and if this build has the feature `otel`. Without the feature nothing is sent, and a
//! command says so if it was asked to.

use redrive::core::store::Store;
use std::sync::Arc;

/// The variables that name a collector.
const VARIABLES: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// The collector that the environment names.
fn endpoint() -> Option<String> {
    let named =
        VARIABLES.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))?;
    let disabled = std::env::var("OTEL_SDK_DISABLED").is_ok_and(|value| value.eq_ignore_ascii_case("true"));
    (!disabled).then(|| named.trim_end_matches("/v1/traces").to_owned())
}

#[cfg(feature = "otel")]
mod running {
    use redrive::traces::Traces;
    use std::sync::OnceLock;

    static TRACES: OnceLock<Option<Traces>> = OnceLock::new();

    /// The traces of this process, started when they are first needed.
    pub(super) fn started() -> Option<&'static Traces> {
        let start = || {
            let started = Traces::start(&super::endpoint()?);
            started.inspect_err(|error| crate::output::eprint_line(&format!("warning: {error}"))).ok()
        };
        TRACES.get_or_init(start).as_ref()
    }

    /// The traces of this process, if they were started.
    pub(super) fn already_started() -> Option<&'static Traces> {
        TRACES.get()?.as_ref()
    }
}

/// A store whose enqueues and redrives are traced, if traces are sent.
#[cfg(feature = "otel")]
pub(crate) fn observe(store: Arc<dyn Store>) -> Arc<dyn Store> {
    match running::started() {
        Some(traces) => traces.observe(store),
        None => store,
    }
}

/// Sends what still waits.
#[cfg(feature = "otel")]
pub(crate) async fn end() {
    if let Some(traces) = running::already_started() {
        traces.end().await;
    }
}

/// Notes once that this build sends no traces although the environment names a collector.
#[cfg(not(feature = "otel"))]
pub(crate) fn observe(store: Arc<dyn Store>) -> Arc<dyn Store> {
    static NOTED: std::sync::Once = std::sync::Once::new();
    if let Some(collector) = endpoint() {
        NOTED.call_once(|| {
            tracing::warn!(collector, "this build sends no traces; build it with the feature otel")
        });
    }
    store
}

/// There is nothing to send.
#[cfg(not(feature = "otel"))]
#[expect(clippy::unused_async, reason = "with the feature `otel`, it waits for the collector")]
pub(crate) async fn end() {}
