//! A worker's view of when a failing message becomes a dead letter. The declarative rules belong to the policy of the
//! queue, which the store owns: a worker only proposes them and reports differences. A custom `should_dead_letter`
//! decides about single failures. Nothing here retries.

use redrive_core::dead_letter::Actor;
use redrive_core::error::{CallError, Refusal};
use redrive_core::failure::{AnalysedFailure, Route};
use redrive_core::ids::QueueName;
use redrive_core::message::Delivery;
use redrive_core::policy::{ErrorMatch, Override, QueuePolicy};
use redrive_core::store::Store;
use redrive_core::time::Span;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

type OverrideFn = dyn Fn(&Delivery, &AnalysedFailure) -> Option<Override> + Send + Sync;

/// The dead letter policy of a worker: the rules it proposes for its queues, and its own decision about each failure.
///
/// ```
/// use redrive::DeadLetterPolicy;
/// use redrive::core::{failure::Route, time::Span};
///
/// let policy = DeadLetterPolicy::new()
///     .max_attempts(5)
///     .include("ValidationError") // dead at once
///     .exclude("category:transient") // never by count, only when `retry_for` is over
///     .retry_for(Span::from_hours(6))
///     .dlq("payments-dlq")
///     .route(Route::Corruption, "broken-payments")
///     .should_dead_letter(|delivery, failure| {
///         // Some(true): dead letter; Some(false): try again; None: the rules of the queue decide.
///         (failure.report.error.code.as_deref() == Some("insufficient_funds")).then_some(delivery.attempt >= 2)
///     });
/// assert!(policy.check().is_ok());
/// ```
#[derive(Clone, Default)]
pub struct DeadLetterPolicy {
    max_attempts: Option<u32>,
    include: Option<Vec<ErrorMatch>>,
    exclude: Option<Vec<ErrorMatch>>,
    retry_for: Option<Span>,
    dlq: Option<QueueName>,
    routes: BTreeMap<Route, QueueName>,
    custom: Option<Arc<OverrideFn>>,
    apply: bool,
    invalid: Option<Refusal>,
}

impl fmt::Debug for DeadLetterPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetterPolicy")
            .field("max_attempts", &self.max_attempts)
            .field("include", &self.include)
            .field("exclude", &self.exclude)
            .field("retry_for", &self.retry_for)
            .field("dlq", &self.dlq)
            .field("routes", &self.routes)
            .field("custom", &self.custom.is_some())
            .field("apply", &self.apply)
            .finish()
    }
}

/// A return type of a custom `should_dead_letter`: a `bool`, an [`Override`], or an `Option` of either, where `None`
/// leaves the failure to the rules of the queue. `false` tries again after the backoff, however many attempts there
/// were; the queue's `retry_for` still ends it.
pub trait IntoOverride {
    /// Converts the returned value. `None` leaves the failure to the rules of the queue.
    fn into_override(self) -> Option<Override>;
}

impl IntoOverride for Override {
    fn into_override(self) -> Option<Override> {
        Some(self)
    }
}

impl IntoOverride for bool {
    fn into_override(self) -> Option<Override> {
        Some(if self { Override::DeadLetter } else { Override::Retry })
    }
}

impl<T: IntoOverride> IntoOverride for Option<T> {
    fn into_override(self) -> Option<Override> {
        self.and_then(IntoOverride::into_override)
    }
}

/// One setting of a queue that differs from the proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The name of the setting, as in `redrive.toml`.
    pub setting: String,
    /// The value that the policy proposes.
    pub proposed: String,
    /// The value in the store.
    pub stored: String,
}

/// The result of a proposal: how the policy of a queue differs from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Drift {
    /// The queue.
    pub queue: QueueName,
    /// The queue did not exist or had the default policy, and now has the proposed one.
    pub made: bool,
    /// The differences were written to the store because of [`DeadLetterPolicy::apply`].
    pub written: bool,
    /// The settings that differed from the proposal.
    pub differences: Vec<Difference>,
    /// The policy in effect from now on.
    pub policy: QueuePolicy,
}

impl Drift {
    /// Whether the policy in the store still differs from the proposed one.
    #[must_use]
    pub fn is_drift(&self) -> bool {
        !self.written && !self.differences.is_empty()
    }
}

impl DeadLetterPolicy {
    /// Creates a policy that proposes nothing and decides nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The maximum number of attempts, including the first.
    #[must_use]
    pub fn max_attempts(mut self, executions: u32) -> Self {
        self.max_attempts = Some(executions);
        self
    }

    /// Adds failures that are dead-lettered at once: an error type, a glob such as `Http*`, or `category:poison`.
    #[must_use]
    pub fn include(mut self, rule: impl AsRef<str>) -> Self {
        if let Some(rule) = self.parsed("include", rule.as_ref()) {
            self.include.get_or_insert_default().push(rule);
        }
        self
    }

    /// Adds failures that are never dead-lettered because of `max_attempts`, only when [`Self::retry_for`] is over.
    /// Takes precedence over [`Self::include`].
    #[must_use]
    pub fn exclude(mut self, rule: impl AsRef<str>) -> Self {
        if let Some(rule) = self.parsed("exclude", rule.as_ref()) {
            self.exclude.get_or_insert_default().push(rule);
        }
        self
    }

    /// How long excluded failures are retried, counted from the first one.
    #[must_use]
    pub fn retry_for(mut self, span: Span) -> Self {
        self.retry_for = Some(span);
        self
    }

    /// The dead letter queue for failed messages. Defaults to `{queue}-dlq`.
    #[must_use]
    pub fn dlq(mut self, dlq: impl AsRef<str>) -> Self {
        self.dlq = self.parsed("dlq", dlq.as_ref()).or(self.dlq);
        self
    }

    /// The dead letter queue for failures of one route.
    #[must_use]
    pub fn route(mut self, route: Route, dlq: impl AsRef<str>) -> Self {
        if let Some(dlq) = self.parsed("routes", dlq.as_ref()) {
            self.routes.insert(route, dlq);
        }
        self
    }

    /// A function that decides about every failure before the rules of the queue do. It runs in the worker. If it
    /// panics, the rules of the queue decide.
    #[must_use]
    pub fn should_dead_letter<F, V>(mut self, decide: F) -> Self
    where
        F: Fn(&Delivery, &AnalysedFailure) -> V + Send + Sync + 'static,
        V: IntoOverride,
    {
        self.custom = Some(Arc::new(move |delivery, failure| decide(delivery, failure).into_override()));
        self
    }

    /// Writes the proposal even if the queue exists with other rules.
    #[must_use]
    pub fn apply(mut self) -> Self {
        self.apply = true;
        self
    }

    fn parsed<T: std::str::FromStr<Err: ToString>>(&mut self, field: &str, text: &str) -> Option<T> {
        match text.parse() {
            Ok(value) => Some(value),
            Err(error) => {
                self.invalid.get_or_insert_with(|| Refusal::invalid(field, T::Err::to_string(&error)));
                None
            }
        }
    }

    /// Checks the rules and names.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] for the first rule or name that cannot be parsed.
    pub fn check(&self) -> Result<(), Refusal> {
        self.invalid.clone().map_or(Ok(()), Err)
    }

    /// Returns `base` with the rules that this policy sets.
    #[must_use]
    pub fn over(&self, base: QueuePolicy) -> QueuePolicy {
        let mut routes = base.routes.clone();
        routes.extend(self.routes.clone());
        QueuePolicy {
            max_attempts: self.max_attempts.unwrap_or(base.max_attempts),
            include: self.include.clone().unwrap_or_else(|| base.include.clone()),
            exclude: self.exclude.clone().unwrap_or_else(|| base.exclude.clone()),
            retry_for: self.retry_for.unwrap_or(base.retry_for),
            dlq: self.dlq.clone().or_else(|| base.dlq.clone()),
            routes,
            ..base
        }
    }

    /// Proposes the declarative rules to the store. A queue that does not exist is created with them, and a queue with
    /// the default policy, as the first enqueue creates it, gets them. A queue with other rules is left unchanged and
    /// the drift is reported, unless [`Self::apply`] was called. Harmless to repeat.
    ///
    /// # Errors
    /// Returns a refusal if a rule is invalid, or the error of the store.
    pub async fn propose(
        &self,
        store: &dyn Store,
        queue: &QueueName,
        actor: Actor,
    ) -> Result<Drift, CallError> {
        self.check()?;
        let known = match store.queue(queue.clone()).await {
            Ok(known) => Some(known.policy),
            Err(CallError::Refused(Refusal::NoSuchQueue { .. })) => None,
            Err(error) => return Err(error),
        };
        let unknown = known.is_none();
        let stored = known.unwrap_or_default();
        let proposed = self.over(stored.clone());
        proposed.check(queue)?;
        // Producers often come before workers, so a default policy was chosen by nobody and may be replaced.
        let made = unknown || (stored == QueuePolicy::default() && proposed != stored);
        let differences = if made { Vec::new() } else { differences(&proposed, &stored) };
        let written = self.apply && !differences.is_empty();
        let policy = if made || written {
            store.configure(queue.clone(), proposed, actor).await?.policy
        } else {
            stored
        };
        let drift = Drift { queue: queue.clone(), made, written, differences, policy };
        drift.log();
        Ok(drift)
    }

    /// Asks the custom `should_dead_letter` about a failure. Returns `None` if there is none or if it leaves the
    /// failure to the rules of the queue.
    #[must_use]
    pub fn decide(&self, delivery: &Delivery, failure: &AnalysedFailure) -> Option<Override> {
        let custom = self.custom.as_ref()?;
        catch_unwind(AssertUnwindSafe(|| custom(delivery, failure))).unwrap_or_else(|_| {
            let id = delivery.message.envelope.id;
            tracing::warn!(message = %id, "should_dead_letter panicked; the rules of the queue decide");
            None
        })
    }
}

impl Drift {
    fn log(&self) {
        let queue = self.queue.as_str();
        for Difference { setting, proposed, stored } in &self.differences {
            if self.written {
                tracing::info!(
                    queue,
                    setting,
                    before = stored,
                    now = proposed,
                    "the policy of a queue was changed"
                );
            } else {
                tracing::warn!(
                    queue,
                    setting,
                    proposed,
                    stored,
                    "a queue has other rules than the worker proposes; the stored ones are in effect"
                );
            }
        }
    }
}

fn differences(proposed: &QueuePolicy, stored: &QueuePolicy) -> Vec<Difference> {
    let fields = |policy: &QueuePolicy| match serde_json::to_value(policy) {
        Ok(serde_json::Value::Object(fields)) => fields,
        Ok(_) | Err(_) => serde_json::Map::new(),
    };
    let (proposed, stored) = (fields(proposed), fields(stored));
    let text =
        |value: Option<&serde_json::Value>| value.map_or_else(|| "unset".to_owned(), ToString::to_string);
    let differs = |setting: &&String| proposed.get(*setting) != stored.get(*setting);
    let one = |setting: &String| Difference {
        setting: setting.clone(),
        proposed: text(proposed.get(setting)),
        stored: text(stored.get(setting)),
    };
    proposed.keys().filter(differs).map(one).collect()
}
