//! `queue`: the contents of queues and their policies. The store has the authoritative policy; `apply` writes the
//! policies of the configuration to the store and shows where the two differ.

use super::report::ReportArgs;
use crate::confirm::confirm;
use crate::connect::{Access, App, Hold, policy_in};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::output::{Column, Sheet, Show, ValueFormat};
use crate::policy_flags::PolicyFlags;
use crate::progress::Progress;
use clap::Subcommand;
use redrive::core::ids::QueueName;
use redrive::core::masking::{MaskedView, Rules};
use redrive::core::policy::QueuePolicy;
use redrive::core::store::{Queue, Store, WaitingFor};
use redrive::core::time::Span;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The commands under `queue`.
#[derive(Debug, Subcommand)]
pub(crate) enum QueueCommand {
    /// List all queues with their counts
    List,
    /// Show one queue with its policy
    Show {
        /// The queue
        #[arg(value_name = "QUEUE")]
        queue: QueueName,
    },
    /// Change the given settings of a queue's policy; creates the queue if it does not exist
    Set {
        /// The queue
        #[arg(value_name = "QUEUE")]
        queue: QueueName,
        #[command(flatten)]
        flags: Box<PolicyFlags>,
        /// The reason, recorded in the audit trail
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Write the [queues.NAME] tables of redrive.toml to the store, and list the changes
    Apply {
        /// Only list the differences
        #[arg(long)]
        dry_run: bool,
    },
    /// Report on all queues: contents, totals, latencies and alerts
    Report(ReportArgs),
    /// Pause leasing; messages can still be enqueued and settled
    Pause {
        /// The queue
        #[arg(value_name = "QUEUE")]
        queue: QueueName,
        /// The reason, shown with the queue
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Resume leasing
    Resume {
        /// The queue
        #[arg(value_name = "QUEUE")]
        queue: QueueName,
    },
    /// Remove all waiting messages; leased messages and dead letters stay
    Purge {
        /// The queue
        #[arg(value_name = "QUEUE")]
        queue: QueueName,
        /// Do not ask for confirmation
        #[arg(long, short)]
        yes: bool,
        /// Only show how many messages would be removed
        #[arg(long)]
        dry_run: bool,
        /// The reason, recorded in the audit trail
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
}

impl QueueCommand {
    /// Whether the command only reads.
    pub(crate) const fn is_read_only(&self) -> bool {
        matches!(self, Self::List | Self::Show { .. } | Self::Report(_))
    }
}

/// A queue with what its messages wait for.
#[derive(Serialize)]
struct QueueView {
    #[serde(flatten)]
    queue: Queue,
    /// Absent if it was not counted: the index is not loaded, and the queues hold too many messages to build it here.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for: Option<WaitingFor>,
}

/// What messages wait for, as text.
pub(super) fn waiting_text(waiting_for: &WaitingFor) -> String {
    let word = |name: &'static str| match name {
        "ordering_key" => "ordering key",
        "idle_worker" => "idle worker",
        name => name,
    };
    let parts: Vec<String> =
        waiting_for.parts().map(|(name, count)| format!("{count} {}", word(name))).collect();
    parts.join(", ")
}

/// Adds to each queue what its messages wait for.
async fn queue_views(store: &dyn Store, queues: Vec<Queue>) -> Result<Vec<QueueView>, CliError> {
    let counted = store.waiting_for().await?;
    let of = |queue: &Queue| counted.as_ref().map(|all| all.get(&queue.name).copied().unwrap_or_default());
    Ok(queues.into_iter().map(|queue| QueueView { waiting_for: of(&queue), queue }).collect())
}

impl Show for QueueView {
    const COLUMNS: &'static [Column] = &[
        Column::whole("name"),
        Column::number("ready"),
        Column::number("scheduled"),
        Column::number("leased"),
        Column::number("dead"),
        Column::number("done"),
        Column::whole("paused"),
        Column::text("waiting_for"),
    ];

    fn masked(&self, rules: &Rules) -> Option<Self> {
        let queue = MaskedView::masked(&self.queue, rules);
        Some(Self { queue, waiting_for: self.waiting_for })
    }

    fn cells(&self, fmt: &ValueFormat) -> Vec<String> {
        let mut cells = self.queue.cells(fmt);
        cells.push(self.waiting_for.as_ref().map(waiting_text).unwrap_or_default());
        cells
    }

    fn sheet(&self, fmt: &ValueFormat) -> Sheet {
        let waits = match &self.waiting_for {
            None => "not counted: too many messages; ask while a worker is running".to_owned(),
            Some(waiting_for) => waiting_text(waiting_for),
        };
        Sheet::default().field("waiting_for", waits).and(self.queue.sheet(fmt))
    }
}

impl Show for Queue {
    const COLUMNS: &'static [Column] = &[
        Column::main("name"),
        Column::number("ready"),
        Column::number("scheduled"),
        Column::number("leased"),
        Column::number("dead"),
        Column::number("done"),
        Column::state("paused"),
    ];

    fn masked(&self, rules: &Rules) -> Option<Self> {
        Some(MaskedView::masked(self, rules))
    }

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        let c = &self.counts;
        let name = self.name.to_string();
        let numbers =
            [self.ready.to_string(), self.scheduled.to_string(), c.leased.to_string(), c.dead.to_string()];
        let mut cells = vec![name];
        cells.extend(numbers);
        cells.extend([c.done.to_string(), if self.paused { "yes" } else { "no" }.to_owned()]);
        cells
    }

    fn sheet(&self, _: &ValueFormat) -> Sheet {
        let c = &self.counts;
        let settings: Vec<String> =
            settings(&self.policy).into_iter().map(|(name, value)| format!("{name} = {value}")).collect();
        Sheet::default()
            .field("name", &self.name)
            .field("paused", self.paused)
            .field("paused_by", self.paused_by.clone().unwrap_or_default())
            .field("ready", self.ready)
            .field("scheduled", self.scheduled)
            .field("leased", c.leased)
            .field("dead", c.dead)
            .field("done", c.done)
            .field("cancelled", c.cancelled)
            .field("expired", c.expired)
            .field("purged", c.purged)
            .field("enqueued", c.enqueued)
            .field("bytes", c.bytes)
            .block("policy", settings.join("\n"))
    }
}

/// The settings of a policy as flat names and values, spelled as in flags and `redrive.toml`.
fn settings(policy: &QueuePolicy) -> Vec<(String, String)> {
    fn flatten(prefix: &str, value: &Value, into: &mut Vec<(String, String)>) {
        match value {
            Value::Object(map) => {
                for (name, value) in map {
                    let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                    flatten(&name, value, into);
                }
            }
            Value::String(text) => into.push((prefix.to_owned(), text.clone())),
            Value::Number(ms) if prefix.ends_with("_ms") => {
                let span = Span::from_millis(ms.as_u64().unwrap_or_default());
                into.push((prefix.trim_end_matches("_ms").to_owned(), span.to_string()));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
                into.push((prefix.to_owned(), value.to_string()));
            }
        }
    }
    let mut all = Vec::new();
    // Serializing plain data does not fail; if it ever does, show no settings.
    flatten("", &serde_json::to_value(policy).unwrap_or_default(), &mut all);
    all
}

/// A setting of a queue that differs between the store and the configuration.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Drift {
    queue: QueueName,
    setting: String,
    store: Option<String>,
    config: Option<String>,
}

impl Show for Drift {
    const COLUMNS: &'static [Column] =
        &[Column::whole("queue"), Column::main("setting"), Column::text("store"), Column::text("config")];

    fn masked(&self, rules: &Rules) -> Option<Self> {
        let shown = |value: &Option<String>| {
            value.as_ref().map(|value| match value.contains("${env.") {
                true => value.clone(),
                false => rules.mask_field(&self.setting, value),
            })
        };
        let (store, config) = (shown(&self.store), shown(&self.config));
        Some(Self { queue: self.queue.clone(), setting: self.setting.clone(), store, config })
    }

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        vec![self.queue.to_string(), self.setting.clone(), text(&self.store), text(&self.config)]
    }
}

/// Lists where two policies differ; `stored` is `None` if the store does not have the queue.
fn drift(queue: &QueueName, stored: Option<&QueuePolicy>, config: &QueuePolicy) -> Vec<Drift> {
    let stored: BTreeMap<_, _> = stored.map(settings).unwrap_or_default().into_iter().collect();
    let config: BTreeMap<_, _> = settings(config).into_iter().collect();
    let names: BTreeSet<&String> = stored.keys().chain(config.keys()).collect();
    let differs = names.into_iter().filter(|name| stored.get(*name) != config.get(*name));
    let one = |name: &String| Drift {
        queue: queue.clone(),
        setting: name.clone(),
        store: stored.get(name).cloned(),
        config: config.get(name).cloned(),
    };
    differs.map(one).collect()
}

/// The result of a purge.
#[derive(Serialize)]
struct PurgeReport {
    queue: QueueName,
    purged: u64,
}

impl Show for PurgeReport {
    const COLUMNS: &'static [Column] = &[Column::whole("queue"), Column::number("purged")];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        vec![self.queue.to_string(), self.purged.to_string()]
    }
}

/// Runs a `queue` command.
pub(crate) async fn run(app: &App, command: QueueCommand) -> CommandResult {
    match command {
        QueueCommand::List => {
            let store = app.open(Access::Existing, Hold::Moment).await?;
            app.out.all(&queue_views(&*store, store.queues().await?).await?)?;
        }
        QueueCommand::Show { queue } => {
            let store = app.open(Access::Existing, Hold::Moment).await?;
            let mut shown = queue_views(&*store, vec![store.queue(queue).await?]).await?;
            if let Some(shown) = shown.pop() {
                app.out.one(&shown)?;
            }
        }
        QueueCommand::Set { queue, flags, reason } => {
            let store = app.open(Access::Create, Hold::Moment).await?;
            let stored = policy_in(&*store, &queue).await?;
            let proposed = app.config.queues.get(&queue).map(|proposal| proposal.fresh.clone());
            let now = stored.clone().or(proposed).unwrap_or_default();
            let change = flags.change().map_err(CliError::usage)?;
            let policy = change.apply(&now).map_err(|refusal| CliError::usage(refusal.to_string()))?;
            if stored.as_ref() == Some(&policy) {
                app.out.note("nothing changed: the queue already has these settings");
            }
            app.out.one(&store.configure(queue, policy, app.actor(reason)).await?)?;
        }
        QueueCommand::Apply { dry_run } => return apply(app, dry_run).await,
        QueueCommand::Report(args) => return super::report::run(app, &args).await,
        QueueCommand::Pause { queue, reason } => {
            let store = app.open(Access::Create, Hold::Moment).await?;
            app.out.one(&store.pause(queue, true, app.actor(reason)).await?)?;
        }
        QueueCommand::Resume { queue } => {
            let store = app.open(Access::Existing, Hold::Moment).await?;
            app.out.one(&store.pause(queue, false, app.actor(None)).await?)?;
        }
        QueueCommand::Purge { queue, yes, dry_run, reason } => {
            return purge(app, queue, yes, dry_run, reason).await;
        }
    }
    Ok(ExitCode::Ok)
}

async fn apply(app: &App, dry_run: bool) -> CommandResult {
    if app.config.queues.is_empty() {
        let what = "the configuration proposes nothing: it has no [queues.NAME] table";
        return Err(CliError::usage(what).hint("run `redrive init` to write a redrive.toml with examples"));
    }
    let access = if dry_run { Access::Existing } else { Access::Create };
    let store = app.open(access, Hold::Moment).await?;
    let (mut list, mut changed) = (app.out.list::<Drift>(), 0_u64);
    for (queue, proposal) in &app.config.queues {
        let stored = policy_in(&*store, queue).await?;
        let policy =
            proposal.on(stored.as_ref()).map_err(|what| CliError::usage(format!("queue {queue}: {what}")))?;
        if stored.as_ref() == Some(&policy) {
            continue;
        }
        changed += 1;
        if !dry_run {
            let actor = app.actor(Some("queue apply".into()));
            store.configure(queue.clone(), policy.clone(), actor).await?;
        }
        list.add(&drift(queue, stored.as_ref(), &policy))?;
    }
    list.end(None)?;
    let did = if dry_run { "would change" } else { "changed" };
    app.out.note(&format!("{changed} of {} queues {did}", app.config.queues.len()));
    Ok(ExitCode::Ok)
}

async fn purge(
    app: &App,
    queue: QueueName,
    yes: bool,
    dry_run: bool,
    reason: Option<String>,
) -> CommandResult {
    let store = app.open(Access::Existing, Hold::Long).await?;
    let waiting = u64::try_from(store.queue(queue.clone()).await?.counts.waiting).unwrap_or(0);
    let mut report = PurgeReport { queue: queue.clone(), purged: 0 };
    if dry_run {
        app.out.note(&format!("would remove {waiting} waiting messages from {queue}"));
        app.out.one(&report)?;
        return Ok(ExitCode::Ok);
    }
    confirm(&format!("remove {waiting} waiting messages from {queue} for good?"), yes).await?;
    let mut progress = Progress::new(&app.out, "purging", Some(waiting));
    loop {
        let step = store.purge(queue.clone(), app.actor(reason.clone())).await?;
        report.purged += step.purged;
        progress.add(step.purged);
        app.set_interrupt_hint(format!(
            "{} messages were removed; run the command again for the rest",
            report.purged
        ));
        if !step.more {
            break;
        }
    }
    drop(progress);
    app.out.one(&report)?;
    Ok(ExitCode::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_names_the_settings_that_differ() {
        let queue: QueueName = "q".parse().unwrap();
        let stored = QueuePolicy::default();
        let lease = Span::from_secs(45);
        let config = QueuePolicy { max_attempts: 7, max_messages: Some(3), lease, ..QueuePolicy::default() };
        assert!(drift(&queue, Some(&stored), &stored).is_empty());
        let found = drift(&queue, Some(&stored), &config);
        let found_settings: Vec<(&str, Option<&str>, Option<&str>)> =
            found.iter().map(|d| (d.setting.as_str(), d.store.as_deref(), d.config.as_deref())).collect();
        let expected = [
            ("lease", Some("30s"), Some("45s")),
            ("max_attempts", Some("5"), Some("7")),
            ("max_messages", None, Some("3")),
        ];
        assert_eq!(found_settings, expected);
        assert!(drift(&queue, None, &config).iter().all(|d| d.store.is_none()));
    }
}
