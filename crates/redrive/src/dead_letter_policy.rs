//! When a failing message becomes a dead letter, as the code that works on it sees it. The declarative part is
//! the policy of the queue, and the store holds the authority over that: here it is only proposed, and what
//! differs is reported. Only a custom `should_dead_letter` speaks about a single failure. Nothing here retries.

use redrive_core::dead_letter::Actor;
use redrive_core::error::{Error, Refusal};
use redrive_core::failure::{Analysed, Route};
use redrive_core::ids::QueueName;
use redrive_core::message::Delivery;
use redrive_core::policy::{ErrorMatch, Override, QueuePolicy};
use redrive_core::store::Store;
use redrive_core::time::Span;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

type Custom = dyn Fn(&Delivery, &Analysed) -> Option<Override> + Send + Sync;

/// The dead-letter policy of a worker: what its queue should do about failures, and what it says itself.
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
///         // Some(true) buries it, Some(false) tries again, None leaves it to the rules of the queue.
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
    custom: Option<Arc<Custom>>,
    apply: bool,
    wrong: Option<Refusal>,
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

/// What a custom `should_dead_letter` may answer: yes or no, an [`Override`], or an option of either, where
/// nothing leaves the failure to the rules of the queue. `false` tries again when the backoff says, whatever
/// the count says; the queue's `retry_for` still ends it.
pub trait IntoOverride {
    /// The word that goes with the failure; nothing when there is none.
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

/// One setting of a queue that is not as proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The name of the setting, as in `redrive.toml`.
    pub setting: String,
    /// What the policy proposes.
    pub proposed: String,
    /// What the store had.
    pub stored: String,
}

/// What became of a proposal.
#[derive(Clone, Debug, PartialEq)]
pub struct Drift {
    /// The queue.
    pub queue: QueueName,
    /// The queue was unknown, or nobody had given it rules, and it is now as proposed.
    pub made: bool,
    /// The differences were written to the store: the policy was told to [`DeadLetterPolicy::apply`].
    pub written: bool,
    /// What was not as proposed.
    pub differences: Vec<Difference>,
    /// The rules in effect from now on.
    pub policy: QueuePolicy,
}

impl Drift {
    /// Whether the store's rules are others than the proposed ones.
    #[must_use]
    pub fn is_drift(&self) -> bool {
        !self.written && !self.differences.is_empty()
    }
}

impl DeadLetterPolicy {
    /// A policy that proposes nothing and says nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Executions allowed, the first included.
    #[must_use]
    pub fn max_attempts(mut self, executions: u32) -> Self {
        self.max_attempts = Some(executions);
        self
    }

    /// Failures that are dead-lettered at once: an error type, a glob such as `Http*`, or `category:poison`.
    #[must_use]
    pub fn include(mut self, rule: impl AsRef<str>) -> Self {
        if let Some(rule) = self.parsed("include", rule.as_ref()) {
            self.include.get_or_insert_default().push(rule);
        }
        self
    }

    /// Failures that are never dead-lettered by count, only when [`Self::retry_for`] is over. Beats include.
    #[must_use]
    pub fn exclude(mut self, rule: impl AsRef<str>) -> Self {
        if let Some(rule) = self.parsed("exclude", rule.as_ref()) {
            self.exclude.get_or_insert_default().push(rule);
        }
        self
    }

    /// The time budget of excluded failures, from the first one on.
    #[must_use]
    pub fn retry_for(mut self, span: Span) -> Self {
        self.retry_for = Some(span);
        self
    }

    /// The drawer the dead letters lie in; `{queue}-dlq` when not said.
    #[must_use]
    pub fn dlq(mut self, drawer: impl AsRef<str>) -> Self {
        self.dlq = self.parsed("dlq", drawer.as_ref()).or(self.dlq);
        self
    }

    /// The drawer for failures of one route.
    #[must_use]
    pub fn route(mut self, route: Route, drawer: impl AsRef<str>) -> Self {
        if let Some(drawer) = self.parsed("routes", drawer.as_ref()) {
            self.routes.insert(route, drawer);
        }
        self
    }

    /// Code that is asked about every failure before the rules of the queue are. It runs in the worker; one that
    /// panics has said nothing.
    #[must_use]
    pub fn should_dead_letter<F, V>(mut self, decide: F) -> Self
    where
        F: Fn(&Delivery, &Analysed) -> V + Send + Sync + 'static,
        V: IntoOverride,
    {
        self.custom = Some(Arc::new(move |delivery, failure| decide(delivery, failure).into_override()));
        self
    }

    /// Write the proposal also when the queue exists with other rules.
    #[must_use]
    pub fn apply(mut self) -> Self {
        self.apply = true;
        self
    }

    fn parsed<T: std::str::FromStr<Err: ToString>>(&mut self, field: &str, text: &str) -> Option<T> {
        match text.parse() {
            Ok(value) => Some(value),
            Err(why) => {
                self.wrong.get_or_insert_with(|| Refusal::invalid(field, T::Err::to_string(&why)));
                None
            }
        }
    }

    /// Whether everything that was said can be meant.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for the first rule or name that cannot be read.
    pub fn check(&self) -> Result<(), Refusal> {
        self.wrong.clone().map_or(Ok(()), Err)
    }

    /// These rules where this policy says something, those of `base` elsewhere.
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

    /// Proposes the declarative part to the store. An unknown queue is made so, and one that has only the default
    /// rules, as a first enqueue makes it, gets these. A queue with other rules is left as it is and the drift is
    /// reported, unless [`Self::apply`] was said. Harmless to repeat.
    ///
    /// # Errors
    /// A refusal when a rule cannot be meant; the store's error when it cannot be asked.
    pub async fn propose(&self, store: &dyn Store, queue: &QueueName, actor: Actor) -> Result<Drift, Error> {
        self.check()?;
        let known = match store.queue(queue.clone()).await {
            Ok(known) => Some(known.policy),
            Err(Error::Refused(Refusal::NoSuchQueue { .. })) => None,
            Err(error) => return Err(error),
        };
        let unknown = known.is_none();
        let stored = known.unwrap_or_default();
        let proposed = self.over(stored.clone());
        proposed.check(queue)?;
        // Producers often come before workers: rules that nobody chose are nobody's to keep.
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

    /// What the custom part says about a failure; nothing when there is none or it leaves it to the queue.
    #[must_use]
    pub fn said(&self, delivery: &Delivery, failure: &Analysed) -> Option<Override> {
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
                    "the rules of a queue were changed"
                );
            } else {
                tracing::warn!(
                    queue,
                    setting,
                    proposed,
                    stored,
                    "a queue has other rules than this policy proposes; the stored ones are in effect"
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
