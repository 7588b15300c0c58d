//! User code that handles messages: a [`Handler`] receives a [`Context`] and returns an [`Outcome`]. Async
//! functions are handlers too, with or without a typed payload ([`IntoHandler`]). Handlers do not settle
//! deliveries: the worker turns the outcome into a settlement, and the store decides about retries.

use async_trait::async_trait;
use redrive_core::failure::{ErrorInfo, FailureReport};
use redrive_core::limits;
use redrive_core::message::{Delivery, Envelope, Payload};
use redrive_core::progress::Progress;
use redrive_core::time::Span;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The result of a handler for one delivery.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Outcome {
    /// The work is done.
    #[default]
    Done,
    /// The work is done. The payload is sent to the message's `reply_to` in the same commit.
    Reply(Payload),
    /// The attempt failed. The queue's policy decides about another attempt.
    Fail(HandlerError),
    /// The attempt failed and another one is useless: the message becomes a dead letter at once.
    DeadLetter(HandlerError),
    /// Puts the message back into its queue for this long. The attempt does not count, at most 100 times in a row.
    Snooze(Span),
    /// Puts the message back into its queue, where any worker may lease it at once. The attempt does not count, at
    /// most 100 times in a row.
    Release,
}

impl Outcome {
    /// Done, with a reply as JSON. If `answer` cannot be serialized to JSON, the attempt fails.
    #[must_use]
    pub fn reply<T: Serialize>(answer: &T) -> Self {
        match Payload::json(answer) {
            Ok(payload) => Self::Reply(payload),
            Err(error) => Self::Fail(error.into()),
        }
    }

    /// The attempt failed; the next one should start after `span`, within the cap of the queue's backoff. The
    /// attempt counts, so a message that always asks for a retry ends as a dead letter.
    #[must_use]
    pub fn retry_after(span: Span, reason: impl Into<String>) -> Self {
        Self::Fail(HandlerError::new("RetryLater", reason).retry_after(span))
    }

    /// The attempt failed with this error. The queue's policy decides about another attempt.
    #[must_use]
    pub fn fail(error: impl Into<HandlerError>) -> Self {
        Self::Fail(error.into())
    }

    /// The message becomes a dead letter at once, for this reason.
    #[must_use]
    pub fn dead_letter(reason: impl Into<String>) -> Self {
        Self::DeadLetter(HandlerError::new("Rejected", reason))
    }
}

/// The error of a failed attempt. Every `std::error::Error` converts into it, so `?` works in a handler that
/// returns [`Result`].
#[derive(Clone, Debug, PartialEq)]
pub struct HandlerError {
    report: Box<FailureReport>,
}

/// The return type of a handler that can fail.
pub type Result<T = (), E = HandlerError> = std::result::Result<T, E>;

impl HandlerError {
    /// Creates an error with a type, such as `CardDeclined`, and a message. The type and the wording of the
    /// message, without its numbers and names, decide which group the failure belongs to.
    #[must_use]
    pub fn new(error_type: impl Into<String>, message: impl Into<String>) -> Self {
        let error =
            ErrorInfo { error_type: error_type.into(), message: message.into(), ..ErrorInfo::default() };
        Self { report: Box::new(FailureReport { error, ..FailureReport::default() }) }
    }

    /// Creates an error from a complete failure report.
    #[must_use]
    pub fn from_report(report: FailureReport) -> Self {
        Self { report: Box::new(report) }
    }

    /// Converts an error whose type is no longer known, such as `Box<dyn Error>` or `anyhow::Error`.
    #[must_use]
    pub fn boxed(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let error = error.into();
        Self::of("Error", error.as_ref())
    }

    /// Converts a borrowed error and its sources.
    pub(crate) fn of(error_type: &str, error: &dyn StdError) -> Self {
        let mut converted = Self::new(error_type, error.to_string());
        let mut next = error.source();
        let mut causes = Vec::new();
        while let Some(source) = next.filter(|_| causes.len() < limits::CAUSES_MAX) {
            causes.push(source.to_string());
            next = source.source();
        }
        converted.report.error.cause = (!causes.is_empty()).then(|| causes.join(": "));
        converted
    }

    /// Adds an error code: an HTTP status, an errno name, an SQLSTATE.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "`code(502)` reads better than `code(&502)`")]
    pub fn code(mut self, code: impl ToString) -> Self {
        self.report.error.code = Some(code.to_string());
        self
    }

    /// Adds the name of the step that failed.
    #[must_use]
    pub fn step(mut self, step: impl Into<String>) -> Self {
        self.report.step = Some(step.into());
        self
    }

    /// Adds one line that says what was being done, outermost first.
    #[must_use]
    pub fn context(mut self, doing: impl Into<String>) -> Self {
        self.report.error.context.push(doing.into());
        self
    }

    /// Sets when to try again, for example because the remote side said so. Honoured within the cap of the queue's
    /// backoff.
    #[must_use]
    pub fn retry_after(mut self, span: Span) -> Self {
        self.report.retry_after = Some(span);
        self
    }

    /// Marks the failure as permanent: another attempt is useless, and the message becomes a dead letter at once.
    #[must_use]
    pub fn permanent(mut self) -> Self {
        self.report.permanent = true;
        self
    }

    /// The failure report behind this error.
    #[must_use]
    pub fn report(&self) -> &FailureReport {
        &self.report
    }

    /// The failure report behind this error, mutably.
    pub fn report_mut(&mut self) -> &mut FailureReport {
        &mut self.report
    }

    /// Converts this error into its failure report.
    #[must_use]
    pub fn into_report(self) -> FailureReport {
        *self.report
    }
}

// `HandlerError` is not an error type itself: with that, this conversion from every error type would not compile.
impl<E: StdError + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self::of(&short_name_of::<E>(), &error)
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = &self.report.error;
        write!(f, "{}: {}", error.error_type, error.message)
    }
}

/// The short name of a type.
pub(crate) fn short_name_of<T: ?Sized>() -> String {
    short_type_name(std::any::type_name::<T>())
}

/// Shortens `a::b::Error<c::D>` to `b::Error`: the last module says whose `Error` it is. A module named `error` does
/// not say that; then the result is the whole path without that module, as in `std::io::Error`.
fn short_type_name(full: &str) -> String {
    let path = full.split('<').next().unwrap_or(full);
    let mut parts: Vec<&str> = path.split("::").collect();
    let name = parts.pop().unwrap_or(path);
    let whose = match (name, parts.last()) {
        ("Error", Some(&("error" | "errors"))) => {
            parts.pop();
            parts.join("::")
        }
        ("Error", Some(module)) => (*module).to_owned(),
        _ => String::new(),
    };
    if whose.is_empty() { name.to_owned() } else { format!("{whose}::{name}") }
}

/// The argument of a handler: the delivery, a way to report progress, and a signal to stop.
#[derive(Clone, Debug)]
pub struct Context {
    delivery: Arc<Delivery>,
    cancelled: CancellationToken,
    progress_slot: Arc<ProgressSlot>,
}

/// Holds the last progress report of one delivery until the worker saves it.
#[derive(Debug, Default)]
pub(crate) struct ProgressSlot {
    last: Mutex<Option<Progress>>,
    reported: Arc<Notify>,
}

impl ProgressSlot {
    /// Creates a slot that notifies `reported` of each new report.
    pub(crate) fn notifying(reported: Arc<Notify>) -> Self {
        Self { last: Mutex::default(), reported }
    }

    /// Removes and returns the last report.
    pub(crate) fn take(&self) -> Option<Progress> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Context {
    pub(crate) fn new(
        delivery: Arc<Delivery>,
        cancelled: CancellationToken,
        progress_slot: Arc<ProgressSlot>,
    ) -> Self {
        Self { delivery, cancelled, progress_slot }
    }

    /// Creates a context outside a worker, for calling a handler directly or in a test. Progress is discarded.
    #[must_use]
    pub fn detached(delivery: Delivery, cancelled: CancellationToken) -> Self {
        Self { delivery: Arc::new(delivery), cancelled, progress_slot: Arc::default() }
    }

    /// The whole delivery.
    #[must_use]
    pub fn delivery(&self) -> &Delivery {
        &self.delivery
    }

    /// The same context with another payload, for handlers that wrap other handlers.
    #[must_use]
    pub(crate) fn with_payload(&self, payload: Payload) -> Self {
        let mut delivery = Delivery::clone(&self.delivery);
        delivery.message.envelope.payload = payload;
        Self { delivery: Arc::new(delivery), ..self.clone() }
    }

    /// The immutable part of the message: id, queue, kind, headers, tags, payload.
    #[must_use]
    pub fn message(&self) -> &Envelope {
        &self.delivery.message.envelope
    }

    /// The number of this attempt. The first is 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.delivery.attempt
    }

    /// The payload, byte for byte as it was sent.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.message().payload.bytes
    }

    /// Decodes the payload from JSON. A handler that takes the payload type as its argument need not call this.
    ///
    /// # Errors
    /// Returns a [`HandlerError`] that makes the message a dead letter, with its payload unchanged.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(self.bytes()).map_err(|error| undecodable::<T>(&error))
    }

    /// Reports how far the work is. The report is saved with the message, at most once a second. Never blocks.
    pub fn progress(&self, done: u64, total: Option<u64>, note: impl Into<String>) {
        let report = Progress::new(done, total, note);
        *self.progress_slot.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
        self.progress_slot.reported.notify_one();
    }

    /// The last progress report of the previous attempt.
    #[must_use]
    pub fn last_progress(&self) -> Option<&Progress> {
        self.delivery.message.progress.as_ref()
    }

    /// Completes when the handler should stop: it reached its time limit, its lease is lost, or the worker is
    /// stopping and most of its grace time is over. A handler that then returns [`Outcome::Release`] does not use
    /// up an attempt, unless it reached its time limit.
    pub async fn cancelled(&self) {
        self.cancelled.cancelled().await;
    }

    /// Whether the handler should stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }

    /// The token behind [`Self::cancelled`], for passing on to other code.
    #[must_use]
    pub fn cancellation(&self) -> &CancellationToken {
        &self.cancelled
    }
}

fn undecodable<T>(error: &serde_json::Error) -> HandlerError {
    let expected = short_name_of::<T>();
    let message = format!("the payload is not a {expected}: {error}");
    HandlerError::new(redrive_core::failure::UNDECODABLE, message).permanent()
}

/// User code that handles one message at a time.
#[async_trait]
pub trait Handler: Send + Sync {
    /// Handles one delivery. A panic fails this delivery and nothing else.
    async fn handle(&self, context: Context) -> Outcome;
}

#[async_trait]
impl<H: Handler + ?Sized> Handler for Arc<H> {
    async fn handle(&self, context: Context) -> Outcome {
        (**self).handle(context).await
    }
}

/// A return type of a handler: [`Outcome`], `()`, or a [`Result`] of either.
pub trait IntoOutcome {
    /// Converts the returned value into an outcome.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Done
    }
}

impl<O: IntoOutcome, E: Into<HandlerError>> IntoOutcome for std::result::Result<O, E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(outcome) => outcome.into_outcome(),
            Err(error) => Outcome::Fail(error.into()),
        }
    }
}

/// Types that can be registered as a handler: a [`Handler`], or an async function of [`Context`], of a payload type,
/// or of both. The compiler infers `Marker`; it never has to be written.
pub trait IntoHandler<Marker> {
    /// Converts `self` into a handler.
    fn into_handler(self) -> Arc<dyn Handler>;
}

/// Marks an [`IntoHandler`] that is a [`Handler`] already.
#[derive(Debug)]
pub struct FromHandler;
/// Marks an [`IntoHandler`] that is a function of [`Context`].
#[derive(Debug)]
pub struct FromContext;
/// Marks an [`IntoHandler`] that is a function of a payload.
#[derive(Debug)]
pub struct FromPayload<T>(PhantomData<fn(T)>);
/// Marks an [`IntoHandler`] that is a function of a payload and a [`Context`].
#[derive(Debug)]
pub struct FromPayloadAndContext<T>(PhantomData<fn(T)>);

impl<H: Handler + 'static> IntoHandler<FromHandler> for H {
    fn into_handler(self) -> Arc<dyn Handler> {
        Arc::new(self)
    }
}

struct Function<F, Marker> {
    function: F,
    marker: PhantomData<fn(Marker)>,
}

fn function<F, Marker>(function: F) -> Function<F, Marker> {
    Function { function, marker: PhantomData }
}

#[async_trait]
impl<F, Fut, O> Handler for Function<F, FromContext>
where
    F: Fn(Context) -> Fut + Send + Sync,
    Fut: Future<Output = O> + Send,
    O: IntoOutcome,
{
    async fn handle(&self, context: Context) -> Outcome {
        (self.function)(context).await.into_outcome()
    }
}

#[async_trait]
impl<T, F, Fut, O> Handler for Function<F, FromPayload<T>>
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(T) -> Fut + Send + Sync,
    Fut: Future<Output = O> + Send,
    O: IntoOutcome,
{
    async fn handle(&self, context: Context) -> Outcome {
        match context.payload() {
            Ok(payload) => (self.function)(payload).await.into_outcome(),
            Err(error) => Outcome::DeadLetter(error),
        }
    }
}

#[async_trait]
impl<T, F, Fut, O> Handler for Function<F, FromPayloadAndContext<T>>
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(T, Context) -> Fut + Send + Sync,
    Fut: Future<Output = O> + Send,
    O: IntoOutcome,
{
    async fn handle(&self, context: Context) -> Outcome {
        match context.payload() {
            Ok(payload) => (self.function)(payload, context).await.into_outcome(),
            Err(error) => Outcome::DeadLetter(error),
        }
    }
}

impl<F, Fut, O> IntoHandler<FromContext> for F
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = O> + Send + 'static,
    O: IntoOutcome + 'static,
{
    fn into_handler(self) -> Arc<dyn Handler> {
        Arc::new(function::<F, FromContext>(self))
    }
}

impl<T, F, Fut, O> IntoHandler<FromPayload<T>> for F
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(T) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = O> + Send + 'static,
    O: IntoOutcome + 'static,
{
    fn into_handler(self) -> Arc<dyn Handler> {
        Arc::new(function::<F, FromPayload<T>>(self))
    }
}

impl<T, F, Fut, O> IntoHandler<FromPayloadAndContext<T>> for F
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(T, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = O> + Send + 'static,
    O: IntoOutcome + 'static,
{
    fn into_handler(self) -> Arc<dyn Handler> {
        Arc::new(function::<F, FromPayloadAndContext<T>>(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_names_are_short_and_say_whose_error_it_is() {
        assert_eq!(short_name_of::<std::io::Error>(), "std::io::Error");
        assert_eq!(short_name_of::<serde_json::Error>(), "serde_json::Error");
        assert_eq!(short_name_of::<fmt::Error>(), "fmt::Error");
        assert_eq!(short_name_of::<std::num::ParseIntError>(), "ParseIntError");
        assert_eq!(short_type_name("shop::db::Error"), "db::Error");
        assert_eq!(short_type_name("shop::CardDeclined"), "CardDeclined");
        assert_eq!(short_type_name("shop::Wrapped<alloc::string::String>"), "Wrapped");
        assert_eq!(short_type_name("Error"), "Error");
    }

    #[test]
    fn the_causes_of_an_error_are_kept() {
        #[derive(Debug)]
        struct Outer(std::io::Error);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the charge failed")
            }
        }
        impl StdError for Outer {
            fn source(&self) -> Option<&(dyn StdError + 'static)> {
                Some(&self.0)
            }
        }
        let error = HandlerError::from(Outer(std::io::Error::other("connection reset"))).code(502);
        assert_eq!(error.report().error.error_type, "Outer");
        assert_eq!(error.report().error.cause.as_deref(), Some("connection reset"));
        assert_eq!(error.report().error.code.as_deref(), Some("502"));
    }

    #[test]
    fn return_types_of_handlers_convert_into_outcomes() {
        assert_eq!(().into_outcome(), Outcome::Done);
        let failed: Result = Err(HandlerError::new("A", "b"));
        assert!(matches!(failed.into_outcome(), Outcome::Fail(_)));
        let nested: Result<Outcome> = Ok(Outcome::Release);
        assert_eq!(nested.into_outcome(), Outcome::Release);
        assert!(matches!(Outcome::reply(&1), Outcome::Reply(p) if p.bytes == b"1"));
    }
}
