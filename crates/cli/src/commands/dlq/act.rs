//! The commands that change dead letters share this path. A single letter named by its id is changed at once.
//! Anything else is shown and confirmed first. A filter becomes an operation: a frozen set of letters, processed in
//! steps that survive an interruption.

use super::super::op::{Until, drive};
use super::super::{only, print_results, with_term};
use crate::confirm::confirm;
use crate::connect::{Access, App, Hold, Link};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::id_arg::{self, IdArg};
use crate::output::{Column, Show, ValueFormat, eprint_line};
use clap::Args;
use redrive::core::dead_letter::{Act, ActRequest, DeadLetter, Status};
use redrive::core::error::CallError;
use redrive::core::filter::Filter;
use redrive::core::ids::{MessageId, OperationId, QueueName};
use redrive::core::operation::{OperationSpec, PreviewRequest};
use redrive::core::query::{PageRequest, Query};
use redrive::core::short_id::IdKind;
use redrive::core::store::LetterState;
use redrive::core::time::Time;
use serde::Serialize;

/// The number of letters to show before asking for confirmation.
const SAMPLE: usize = 5;
/// The maximum number of ids that a dry run lists.
const IDS_SHOWN_MAX: usize = 10_000;
/// The number of letters to change in one commit when ids are given.
const IDS_PER_COMMIT: usize = 500;

/// Flags that select letters and limit what is changed.
#[derive(Args, Debug)]
pub(crate) struct Selection {
    /// The ids of the messages, or their last digits
    #[arg(value_name = "ID", required_unless_present_any = ["filter", "all", "resume", "job"])]
    ids: Vec<IdArg<MessageId>>,
    /// Select letters that match, such as 'queue:payments error:timeout age>2h'
    #[arg(long, value_name = "EXPR", conflicts_with_all = ["ids", "all", "resume"])]
    filter: Option<String>,
    /// Select the letters of this batch job
    #[arg(long, value_name = "JOB", conflicts_with_all = ["ids", "all", "resume"])]
    job: Option<String>,
    /// Select all letters
    #[arg(long, conflicts_with_all = ["ids", "resume"])]
    all: bool,
    /// Continue an interrupted operation
    #[arg(long, value_name = "OPERATION", conflicts_with_all = ["ids", "dry_run", "max", "reason"])]
    resume: Option<IdArg<OperationId>>,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
    /// Refuse to change more than this many letters
    #[arg(long, value_name = "N")]
    max: Option<u64>,
    /// The reason, recorded in the letters' notes and the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Only if the letter is still at this version; for a single letter
    #[arg(long, value_name = "N", conflicts_with_all = ["filter", "job", "all", "resume"])]
    if_version: Option<u64>,
    /// Exit with 3 if nothing matches
    #[arg(long)]
    fail_empty: bool,
}

impl Selection {
    /// The letters that were named by id.
    pub(super) async fn ids(&self, app: &App) -> Result<Vec<MessageId>, CliError> {
        id_arg::letters(app, &self.ids).await
    }

    /// Whether exactly one letter was named.
    pub(super) fn is_one(&self) -> bool {
        self.ids.len() == 1
    }

    /// Whether to continue an earlier operation.
    pub(super) fn is_resume(&self) -> bool {
        self.resume.is_some()
    }

    /// Whether this is a dry run.
    pub(super) fn is_dry(&self) -> bool {
        self.dry_run
    }

    /// The filter that was given; `None` if letters were named or `--all` was given.
    pub(super) async fn matching(&self, app: &App) -> Result<Option<Filter>, CliError> {
        let mut matching = match &self.filter {
            Some(text) => Some(id_arg::filter(app, text, IdKind::Letter).await?),
            None => None,
        };
        if let Some(job) = &self.job {
            let queue: QueueName = format!("run.{job}")
                .parse()
                .map_err(|_| CliError::usage(format!("--job: {job:?} is not a valid job name")))?;
            matching = Some(with_term(&matching.unwrap_or_default(), &format!("queue:{queue}"))?);
        }
        if matching.as_ref().is_some_and(Filter::is_all) {
            return Err(CliError::usage(
                "the filter is empty and would match everything; say --all if you mean that",
            ));
        }
        Ok(matching)
    }
}

/// Restricts a filter to letters whose status allows the act, so that the count is exact.
pub(super) fn with_allowed_status(act: &Act, filter: &Filter) -> Result<Filter, CliError> {
    let any = redrive::new_id();
    let allows = |status: &&Status| act.next_status(any, **status).is_ok();
    let allowed: Vec<&str> = Status::ALL.iter().filter(allows).map(|status| status.name()).collect();
    with_term(filter, &format!("status:{}", allowed.join(",")))
}

impl Show for LetterState {
    const COLUMNS: &'static [Column] =
        &[Column::id("id"), Column::state("status"), Column::number("version")];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        let status = self.status.map_or_else(|| "purged".to_owned(), |status| status.to_string());
        vec![self.id.to_string(), status, self.version.to_string()]
    }
}

/// The result of a dry run.
#[derive(Serialize)]
struct DryRun {
    act: &'static str,
    /// The number of letters that would be changed.
    count: u64,
    /// The ids of these letters, up to [`IDS_SHOWN_MAX`].
    ids: Vec<MessageId>,
    /// Whether there are more letters than `ids` lists.
    more: bool,
    /// The letters that were named but cannot be changed this way.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused: Vec<RefusedId>,
}

/// A letter that was named, and why it is refused.
#[derive(Serialize)]
struct RefusedId {
    id: MessageId,
    why: String,
}

impl Show for DryRun {
    const COLUMNS: &'static [Column] = &[Column::whole("act"), Column::number("count"), Column::text("ids")];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        let ids: Vec<String> = self.ids.iter().map(ToString::to_string).collect();
        vec![self.act.to_owned(), self.count.to_string(), ids.join(" ")]
    }
}

/// Parses a selection from words, to build one in code.
#[derive(clap::Parser, Debug)]
struct SelectionParser {
    #[command(flatten)]
    which: Selection,
}

/// Resolves the letters that match, as `dlq resolve --filter` does.
pub(crate) async fn resolve_matching(
    app: &App,
    filter: &str,
    yes: bool,
    reason: Option<String>,
) -> CommandResult {
    run(app, selection_by_filter(filter, yes, reason)?, |_| Act::Resolve).await
}

/// A selection by filter, for commands that build the filter themselves.
pub(super) fn selection_by_filter(
    filter: &str,
    yes: bool,
    reason: Option<String>,
) -> Result<Selection, CliError> {
    let mut words = vec!["resolve".to_owned(), "--filter".to_owned(), filter.to_owned()];
    words.extend(yes.then(|| "--yes".to_owned()));
    words.extend(reason.map(|reason| format!("--reason={reason}")));
    let parsed = <SelectionParser as clap::Parser>::try_parse_from(words);
    Ok(parsed.map_err(|error| CliError::usage(error.to_string()))?.which)
}

/// Runs a command; `act` is called with the store's time.
pub(crate) async fn run(app: &App, which: Selection, act: impl FnOnce(Time) -> Act) -> CommandResult {
    // A filter that does not parse must not even open the store.
    let matching = which.matching(app).await?;
    if which.if_version.is_some() && which.ids.len() != 1 {
        return Err(CliError::usage("--if-version: name exactly one letter, since each has its own version"));
    }
    let ids = which.ids(app).await?;
    let resume = match &which.resume {
        Some(id) => Some(id.operation(app).await?),
        None => None,
    };
    let hold = if which.is_one() { Hold::Moment } else { Hold::Long };
    let store = app.open(Access::Existing, hold).await?;
    let act = act(store.info().await?.now);
    let mut command = ActCommand { app, store, act, which: &which };
    match (resume, ids.as_slice()) {
        (Some(id), _) => command.resume(id).await,
        (None, []) => command.matching(&matching.unwrap_or_default()).await,
        (None, [id]) => command.one(*id).await,
        (None, several) => command.several(several).await,
    }
}

/// A command in progress.
struct ActCommand<'a> {
    app: &'a App,
    store: Link<'a>,
    act: Act,
    which: &'a Selection,
}

impl ActCommand<'_> {
    fn request(&self, id: MessageId) -> ActRequest {
        let actor = self.app.actor(self.which.reason.clone());
        ActRequest { id, act: self.act.clone(), actor, expected_version: self.which.if_version }
    }

    async fn one(&mut self, id: MessageId) -> CommandResult {
        if self.which.dry_run {
            let letter = self.store.letter(id).await?;
            self.act.next_status(id, letter.record.status)?;
            return self.show_dry_run(1, vec![id], Vec::new(), &[letter]);
        }
        let acted = only(self.store.act(vec![self.request(id)]).await?);
        let state = match acted {
            Ok(state) => state,
            Err(error) => return Err(self.with_current_state(id, error).await),
        };
        self.app.out.one(&state)?;
        if matches!(self.act, Act::Retry(_)) && state.status == Some(Status::Resolved) {
            self.app
                .out
                .note("work with the same key is done: resolved, not sent back; use --force to send it");
        }
        Ok(ExitCode::Ok)
    }

    /// Adds the letter's current state to a conflict, so that the user can decide again.
    async fn with_current_state(&self, id: MessageId, error: CliError) -> CliError {
        if error.code != ExitCode::Conflict || error.hint.is_some() {
            return error;
        }
        let Ok(letter) = self.store.letter(id).await else { return error };
        let record = &letter.record;
        let by = record.closed_by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
        error.hint(format!("it is {}{by} now, at version {}", record.status, record.version))
    }

    async fn several(&mut self, ids: &[MessageId]) -> CommandResult {
        let ids: std::collections::BTreeSet<MessageId> = ids.iter().copied().collect();
        if self.which.dry_run {
            return self.try_several(ids).await;
        }
        let mut sample = Vec::new();
        for id in ids.iter().take(SAMPLE) {
            sample.push(self.store.letter(*id).await?);
        }
        self.confirm_change(ids.len() as u64, &sample).await?;
        let (mut results, ids) = (Vec::new(), ids.into_iter().collect::<Vec<_>>());
        for chunk in ids.chunks(IDS_PER_COMMIT) {
            let batch = chunk.iter().map(|id| self.request(*id)).collect();
            results.extend(self.store.act(batch).await?);
        }
        print_results(self.app, results)
    }

    async fn matching(&mut self, filter: &Filter) -> CommandResult {
        let filter = with_allowed_status(&self.act, filter)?;
        let request = PreviewRequest::new(self.act.clone(), filter.clone(), SAMPLE);
        let preview = self.store.call(async |store| store.preview(request.clone()).await).await?;
        if preview.count == 0 {
            self.app.out.note(&format!("there is nothing to {}", self.act.name()));
            if self.which.dry_run {
                self.show_dry_run(0, Vec::new(), Vec::new(), &[])?;
            }
            return Ok(if self.which.fail_empty { ExitCode::NothingMatched } else { ExitCode::Ok });
        }
        if self.which.dry_run {
            let ids = self.matching_ids(filter).await?;
            return self.show_dry_run(preview.count, ids, Vec::new(), &preview.sample);
        }
        self.confirm_change(preview.count, &preview.sample).await?;
        let actor = self.app.actor(self.which.reason.clone());
        let id = OperationId::new(redrive::new_id());
        let spec = OperationSpec {
            bound: Some(preview.bound),
            token: Some(preview.token),
            ..OperationSpec::new(id, self.act.clone(), filter, actor)
        };
        self.store.call(async |store| store.start(spec.clone()).await).await?;
        drive(self.app, &mut self.store, id, Until::Sent).await
    }

    async fn resume(&mut self, id: OperationId) -> CommandResult {
        let operation = self.store.operation(id).await?;
        if operation.act.name() != self.act.name() {
            let (is, wanted) = (operation.act.name(), self.act.name());
            return Err(CliError::usage(format!("operation {id} is to {is}, not to {wanted}"))
                .hint(format!("redrive dlq {is} --resume {id}")));
        }
        drive(self.app, &mut self.store, id, Until::Sent).await
    }

    /// Checks for each of the named letters whether it could be changed.
    async fn try_several(&self, ids: impl IntoIterator<Item = MessageId>) -> CommandResult {
        let (mut allowed, mut refused, mut sample) = (Vec::new(), Vec::new(), Vec::new());
        for id in ids {
            let tried = match self.store.letter(id).await {
                Ok(letter) => self.act.next_status(id, letter.record.status).map(|_| letter),
                Err(CallError::Refused(refusal)) => Err(refusal),
                Err(error @ CallError::Store(_)) => return Err(error.into()),
            };
            match tried {
                Ok(letter) => {
                    allowed.push(id);
                    sample.push(letter);
                    sample.truncate(SAMPLE);
                }
                Err(refusal) => refused.push(RefusedId { id, why: refusal.to_string() }),
            }
        }
        let partial = !refused.is_empty();
        self.show_dry_run(allowed.len() as u64, allowed, refused, &sample)?;
        Ok(if partial { ExitCode::Partial } else { ExitCode::Ok })
    }

    /// The ids of the letters that match, latest death first, up to [`IDS_SHOWN_MAX`].
    async fn matching_ids(&self, filter: Filter) -> Result<Vec<MessageId>, CliError> {
        let (mut ids, mut query) = (Vec::new(), Query { filter, page: PageRequest::first(1_000) });
        loop {
            let page = self.store.letters(query.clone()).await?;
            ids.extend(page.items.iter().map(DeadLetter::id));
            query.page.cursor = page.next;
            if query.page.cursor.is_none() || ids.len() >= IDS_SHOWN_MAX {
                ids.truncate(IDS_SHOWN_MAX);
                return Ok(ids);
            }
        }
    }

    /// Shows what would be changed and asks for confirmation.
    async fn confirm_change(&self, count: u64, sample: &[DeadLetter]) -> Result<(), CliError> {
        if let Some(max) = self.which.max
            && count > max
        {
            let what = format!("would {} {count} dead letters, and --max allows {max}", self.act.name());
            return Err(CliError::new(ExitCode::Refused, what).hint("narrow the filter, or raise --max"));
        }
        if !(self.app.out.quiet && self.which.yes) {
            self.show_sample(count, sample);
        }
        confirm(&format!("{} {count} dead letters?", self.act.name()), self.which.yes).await
    }

    fn show_sample(&self, count: u64, sample: &[DeadLetter]) {
        let some = if count > sample.len() as u64 { "; the latest of them" } else { "" };
        eprint_line(&format!("to {}: {count} dead letters{some}:", self.act.name()));
        self.app.out.sample(sample);
    }

    fn show_dry_run(
        &self,
        count: u64,
        ids: Vec<MessageId>,
        refused: Vec<RefusedId>,
        sample: &[DeadLetter],
    ) -> CommandResult {
        if !self.app.out.quiet && count > 0 {
            self.show_sample(count, sample);
        }
        for RefusedId { id, why } in &refused {
            eprint_line(&format!("refused {id}: {why}"));
        }
        let more = count > ids.len() as u64;
        if more {
            let shown = ids.len();
            self.app
                .out
                .note(&format!("the latest {shown} of {count} ids; run `redrive dlq list --all` to see all"));
        }
        self.app.out.one(&DryRun { act: self.act.name(), count, ids, more, refused })?;
        Ok(ExitCode::Ok)
    }
}
