//! User code and what it says: a [`Handler`] is given a [`Context`] and answers with an [`Outcome`]. Plain
//! async functions are handlers too, with or without a typed payload ([`IntoHandler`]). Nothing here settles
//! anything: the worker turns the outcome into a settlement, the store's judge decides about retries.

use async_trait::async_trait;
use redrive_core::failure::{ErrorInfo, Report};
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

/// What becomes of a delivery, in the words of the handler.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Outcome {
    /// The work is done.
    #[default]
    Done,
    /// The work is done, and this goes to the message's `reply_to` in the same commit.
    Reply(Payload),
    /// It failed; the queue's policy decides about another attempt.
    Fail(HandlerError),
    /// It failed, and trying again is useless: a dead letter at once.
    DeadLetter(HandlerError),
    /// Not now: back to the queue for this long. The attempt does not count, at most 100 times in a row.
    Snooze(Span),
    /// Somebody else may have it, at once. The attempt does not count, at most 100 times in a row.
    Release,
}

impl Outcome {
    /// Done, with an answer as JSON. An answer that cannot be written as JSON is a failure of the message.
    #[must_use]
    pub fn reply<T: Serialize>(answer: &T) -> Self {
        match Payload::json(answer) {
            Ok(payload) => Self::Reply(payload),
            Err(error) => Self::Fail(error.into()),
        }
    }

    /// It failed and should be tried again after this long, within the cap of the queue's backoff. The attempt
    /// counts: whatever asks for one more try for ever ends as a dead letter.
    #[must_use]
    pub fn retry_after(span: Span, why: impl Into<String>) -> Self {
        Self::Fail(HandlerError::new("RetryLater", why).retry_after(span))
    }

    /// It failed for this reason; the queue's policy decides about another attempt.
    #[must_use]
    pub fn fail(error: impl Into<HandlerError>) -> Self {
        Self::Fail(error.into())
    }

    /// A dead letter at once, for this reason.
    #[must_use]
    pub fn dead_letter(reason: impl Into<String>) -> Self {
        Self::DeadLetter(HandlerError::new("Rejected", reason))
    }
}

/// What went wrong, as the handler saw it. Every error type of the standard kind turns into one, so that `?`
/// works in a handler that returns [`Result`].
#[derive(Clone, Debug, PartialEq)]
pub struct HandlerError {
    report: Box<Report>,
}

/// What a fallible handler returns.
pub type Result<T = (), E = HandlerError> = std::result::Result<T, E>;

impl HandlerError {
    /// A failure with a type, such as `CardDeclined`, and a message. The type and the wording of the message,
    /// without its numbers and names, decide which group it belongs to.
    #[must_use]
    pub fn new(error_type: impl Into<String>, message: impl Into<String>) -> Self {
        let error =
            ErrorInfo { error_type: error_type.into(), message: message.into(), ..ErrorInfo::default() };
        Self { report: Box::new(Report { error, ..Report::default() }) }
    }

    /// A failure of which everything is known already.
    #[must_use]
    pub fn of_report(report: Report) -> Self {
        Self { report: Box::new(report) }
    }

    /// From an error whose type is no longer known, such as `Box<dyn Error>` or `anyhow::Error`.
    #[must_use]
    pub fn boxed(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let error = error.into();
        Self::of("Error", error.as_ref())
    }

    /// From a borrowed error of this type.
    pub(crate) fn of(error_type: &str, error: &dyn StdError) -> Self {
        let mut all = Self::new(error_type, error.to_string());
        let mut beneath = error.source();
        let mut causes = Vec::new();
        while let Some(source) = beneath.filter(|_| causes.len() < limits::CAUSES_MAX) {
            causes.push(source.to_string());
            beneath = source.source();
        }
        all.report.error.cause = (!causes.is_empty()).then(|| causes.join(": "));
        all
    }

    /// With a code: an HTTP status, an errno name, an SQLSTATE.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "`code(502)` reads better than `code(&502)`")]
    pub fn code(mut self, code: impl ToString) -> Self {
        self.report.error.code = Some(code.to_string());
        self
    }

    /// With the step that failed.
    #[must_use]
    pub fn step(mut self, step: impl Into<String>) -> Self {
        self.report.step = Some(step.into());
        self
    }

    /// With one more line of what was being done, outermost first.
    #[must_use]
    pub fn context(mut self, doing: impl Into<String>) -> Self {
        self.report.error.context.push(doing.into());
        self
    }

    /// The other side said when to come back; honoured within the cap of the queue's backoff.
    #[must_use]
    pub fn retry_after(mut self, span: Span) -> Self {
        self.report.retry_after = Some(span);
        self
    }

    /// Trying again is useless: a dead letter at once.
    #[must_use]
    pub fn permanent(mut self) -> Self {
        self.report.permanent = true;
        self
    }

    /// Everything a worker can report about a failure.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The same, to be changed.
    pub fn report_mut(&mut self) -> &mut Report {
        &mut self.report
    }

    /// The report itself.
    #[must_use]
    pub fn into_report(self) -> Report {
        *self.report
    }
}

// Not an error type itself: otherwise the conversion from every error type could not be written.
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

/// `a::b::Error<c::D>` is `b::Error`: the last module says whose `Error` it is, the rest is noise. A module that is
/// called `error` says nothing: then it is the whole path without it, as in `std::io::Error`.
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

/// What a handler is given: the delivery, and the means to say how far it is and to hear that it should stop.
#[derive(Clone, Debug)]
pub struct Context {
    delivery: Arc<Delivery>,
    cancelled: CancellationToken,
    reported: Arc<Reported>,
}

/// The last progress report of one delivery that nobody has kept yet.
#[derive(Debug, Default)]
pub(crate) struct Reported {
    last: Mutex<Option<Progress>>,
    told: Arc<Notify>,
}

impl Reported {
    /// One whose reports are announced through `told`.
    pub(crate) fn telling(told: Arc<Notify>) -> Self {
        Self { last: Mutex::default(), told }
    }

    /// The last report, once.
    pub(crate) fn take(&self) -> Option<Progress> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Context {
    pub(crate) fn new(
        delivery: Arc<Delivery>,
        cancelled: CancellationToken,
        reported: Arc<Reported>,
    ) -> Self {
        Self { delivery, cancelled, reported }
    }

    /// A context outside a worker: to call a handler by hand, or in a test. Progress goes nowhere.
    #[must_use]
    pub fn detached(delivery: Delivery, cancelled: CancellationToken) -> Self {
        Self { delivery: Arc::new(delivery), cancelled, reported: Arc::default() }
    }

    /// The whole delivery.
    #[must_use]
    pub fn delivery(&self) -> &Delivery {
        &self.delivery
    }

    /// The same context with another payload, for handlers around handlers.
    #[must_use]
    pub(crate) fn with_payload(&self, payload: Payload) -> Self {
        let mut delivery = Delivery::clone(&self.delivery);
        delivery.message.envelope.payload = payload;
        Self { delivery: Arc::new(delivery), ..self.clone() }
    }

    /// What never changes about the message: id, queue, kind, headers, tags, payload.
    #[must_use]
    pub fn message(&self) -> &Envelope {
        &self.delivery.message.envelope
    }

    /// Which execution this is; 1 is the first.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.delivery.attempt
    }

    /// The payload as it was sent, bit by bit.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.message().payload.bytes
    }

    /// The payload, decoded from JSON. A handler that takes the type as its argument need not call this.
    ///
    /// # Errors
    /// A [`HandlerError`] that makes the message a dead letter with its bytes intact.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(self.bytes()).map_err(|error| undecodable::<T>(&error))
    }

    /// Says how far the work is. Kept with the message, at most one report a second; never waits.
    pub fn progress(&self, done: u64, total: Option<u64>, note: impl Into<String>) {
        let report = Progress::new(done, total, note);
        *self.reported.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
        self.reported.told.notify_one();
    }

    /// How far the last attempt said it was.
    #[must_use]
    pub fn last_progress(&self) -> Option<&Progress> {
        self.delivery.message.progress.as_ref()
    }

    /// Ends when the handler should stop: its time is over, its lease is lost or the worker drains for longer
    /// than its grace time. A handler that returns [`Outcome::Release`] then has not used up an attempt.
    pub async fn cancelled(&self) {
        self.cancelled.cancelled().await;
    }

    /// Whether it should stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }

    /// The token behind [`Self::cancelled`], to be handed on.
    #[must_use]
    pub fn cancellation(&self) -> &CancellationToken {
        &self.cancelled
    }
}

fn undecodable<T>(error: &serde_json::Error) -> HandlerError {
    let wanted = short_name_of::<T>();
    let mut all = HandlerError::new(
        redrive_core::failure::UNDECODABLE,
        format!("the payload is not a {wanted}: {error}"),
    );
    all.report.permanent = true;
    all
}

/// User code run per message.
#[async_trait]
pub trait Handler: Send + Sync {
    /// Works on one delivery. A panic is a failure of this message only.
    async fn handle(&self, context: Context) -> Outcome;
}

#[async_trait]
impl<H: Handler + ?Sized> Handler for Arc<H> {
    async fn handle(&self, context: Context) -> Outcome {
        (**self).handle(context).await
    }
}

/// What a handler may return: [`Outcome`], nothing, or a [`Result`] of either.
pub trait IntoOutcome {
    /// The outcome.
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

/// What can be registered as a handler: a [`Handler`], or an async function of `Context`, of a payload type,
/// or of both. `How` is found by the compiler and need never be written.
pub trait IntoHandler<How> {
    /// The handler.
    fn into_handler(self) -> Arc<dyn Handler>;
}

/// How a [`Handler`] is one.
#[derive(Debug)]
pub struct AsItIs;
/// How a function of [`Context`] is one.
#[derive(Debug)]
pub struct OfContext;
/// How a function of a payload is one.
#[derive(Debug)]
pub struct OfPayload<T>(PhantomData<fn(T)>);
/// How a function of a payload and [`Context`] is one.
#[derive(Debug)]
pub struct OfBoth<T>(PhantomData<fn(T)>);

impl<H: Handler + 'static> IntoHandler<AsItIs> for H {
    fn into_handler(self) -> Arc<dyn Handler> {
        Arc::new(self)
    }
}

struct Function<F, How> {
    function: F,
    how: PhantomData<fn(How)>,
}

fn function<F, How>(function: F) -> Function<F, How> {
    Function { function, how: PhantomData }
}

#[async_trait]
impl<F, Fut, O> Handler for Function<F, OfContext>
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
impl<T, F, Fut, O> Handler for Function<F, OfPayload<T>>
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
impl<T, F, Fut, O> Handler for Function<F, OfBoth<T>>
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

impl<F, Fut, O> IntoHandler<OfContext> for F
where
    F: Fn(Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = O> + Send + 'static,
    O: IntoOutcome + 'static,
{
    fn into_handler(self) -> Arc<dyn Handler> {
        Arc::new(function::<F, OfContext>(self))
    }
}

impl<T, F, Fut, O> IntoHandler<OfPayload<T>> for F
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(T) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = O> + Send + 'static,
    O: IntoOutcome + 'static,
{
    fn into_handler(self) -> Arc<dyn Handler> {
        Arc::new(function::<F, OfPayload<T>>(self))
    }
}

impl<T, F, Fut, O> IntoHandler<OfBoth<T>> for F
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(T, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = O> + Send + 'static,
    O: IntoOutcome + 'static,
{
    fn into_handler(self) -> Arc<dyn Handler> {
        Arc::new(function::<F, OfBoth<T>>(self))
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
    fn what_a_function_returns_is_an_outcome() {
        assert_eq!(().into_outcome(), Outcome::Done);
        let failed: Result = Err(HandlerError::new("A", "b"));
        assert!(matches!(failed.into_outcome(), Outcome::Fail(_)));
        let nested: Result<Outcome> = Ok(Outcome::Release);
        assert_eq!(nested.into_outcome(), Outcome::Release);
        assert!(matches!(Outcome::reply(&1), Outcome::Reply(p) if p.bytes == b"1"));
    }
}
