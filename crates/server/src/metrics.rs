//! What the server measures about the requests it answers, and `GET /metrics`. Routes are told apart by their
//! templates, methods by a fixed list and statuses by their class, so that the number of series is bounded.

use crate::access::Caller;
use crate::app::App;
use crate::problem::Problem;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http_body_util::BodyExt as _;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use redrive_core::metrics::{Definition, http};
use redrive_core::store::Store as _;
use std::sync::Arc;
use std::time::Instant;

/// The content type of OpenMetrics text.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The label of requests that no route takes.
const NO_ROUTE: &str = "none";
/// The upper bounds of the buckets for replies, in seconds. Long polls take up to half a minute.
const BOUNDS: [f64; 14] =
    [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];

/// What requests are counted by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    method: &'static str,
    status: &'static str,
}

/// What the time of replies is measured by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    route: String,
    method: &'static str,
}

/// What the server measures.
pub(crate) struct HttpMetrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    seconds: Family<RouteLabels, Histogram, fn() -> Histogram>,
    in_flight: Gauge,
    long_polls: Gauge,
    event_streams: Gauge,
}

impl Default for HttpMetrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            requests: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(BOUNDS)),
            in_flight: Gauge::default(),
            long_polls: Gauge::default(),
            event_streams: Gauge::default(),
        };
        register(&mut metrics.registry, http::REQUESTS, metrics.requests.clone());
        register(&mut metrics.registry, http::SECONDS, metrics.seconds.clone());
        register(&mut metrics.registry, http::IN_FLIGHT, metrics.in_flight.clone());
        register(&mut metrics.registry, http::LONG_POLLS, metrics.long_polls.clone());
        register(&mut metrics.registry, http::EVENT_STREAMS, metrics.event_streams.clone());
        metrics
    }
}

/// Registers a metric under the name and meaning of the table. The encoder adds the ending of a counter and the full
/// stop.
fn register(registry: &mut Registry, definition: Definition, metric: impl Metric) {
    let name = definition.name.trim_end_matches("_total");
    registry.register(name, definition.help.trim_end_matches('.'), metric);
}

impl HttpMetrics {
    /// Adds the metrics of the server to those before, and ends the text.
    fn text(&self, mut before: String, long_polls: usize) -> String {
        self.long_polls.set(i64::try_from(long_polls).unwrap_or(i64::MAX));
        // Writing to a string cannot fail.
        let _ = encode_registry(&mut before, &self.registry);
        let _ = encode_eof(&mut before);
        before
    }
}

/// Raises a gauge until it is dropped.
struct Raised(Gauge);

impl Raised {
    fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Measures a request and its reply.
pub(crate) async fn observe(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let matched = request.extensions().get::<MatchedPath>();
    let route = matched.map_or(NO_ROUTE, MatchedPath::as_str).to_owned();
    let method = method_label(request.method());
    let in_flight = Raised::new(&app.metrics.in_flight);
    let began = Instant::now();
    let response = next.run(request).await;
    drop(in_flight);
    let took = began.elapsed().as_secs_f64();
    app.metrics.seconds.get_or_create(&RouteLabels { route: route.clone(), method }).observe(took);
    let labels = RequestLabels { route, method, status: class(response.status()) };
    app.metrics.requests.get_or_create(&labels).inc();
    match is_event_stream(response.headers()) {
        true => response.map(|body| counted(body, &app.metrics.event_streams)),
        false => response,
    }
}

fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}

fn class(status: StatusCode) -> &'static str {
    match status.as_u16() / 100 {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        _ => "5xx",
    }
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// A body that raises a gauge for as long as it exists.
fn counted(body: Body, gauge: &Gauge) -> Body {
    let open = Raised::new(gauge);
    Body::new(body.map_frame(move |frame| {
        let _still_open = &open;
        frame
    }))
}

/// `GET /metrics`: the counters of the store, what this process measured, and the requests of this server. It needs a
/// token that may read statistics.
pub(crate) async fn show(caller: Caller) -> Result<Response, Problem> {
    let before = match caller.app.config.process_metrics {
        Some(render) => render(caller.store.stats().await?, &caller.store.info().await?),
        None => {
            // Asked for all the same: whoever may not read statistics may not read these either.
            caller.store.stats().await?;
            String::new()
        }
    };
    let text = caller.app.metrics.text(before, caller.app.long_polls());
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_stream_is_open_until_its_body_is_dropped() {
        let metrics = HttpMetrics::default();
        let body = counted(Body::from("data: 1\n\n"), &metrics.event_streams);
        assert!(metrics.text(String::new(), 3).contains("redrive_http_event_streams 1\n"));
        drop(body);
        let text = metrics.text("# before\n".into(), 3);
        assert!(text.contains("redrive_http_event_streams 0\n"), "{text}");
        assert!(text.contains("redrive_http_long_polls 3\n"), "{text}");
        assert!(text.starts_with("# before\n") && text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn labels_are_bounded() {
        assert_eq!(method_label(&Method::from_bytes(b"BREW").unwrap()), "other");
        assert_eq!(method_label(&Method::PATCH), "PATCH");
        let classes = [100, 204, 302, 404, 503, 999].map(|code| class(StatusCode::from_u16(code).unwrap()));
        assert_eq!(classes, ["1xx", "2xx", "3xx", "4xx", "5xx", "5xx"]);
    }
}
