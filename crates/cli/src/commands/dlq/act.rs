//! The verbs that change dead letters, all on one path. One letter by its id is acted on at once. Anything
//! else is shown and confirmed first, and a filter becomes an operation: a frozen set, done in steps that
//! survive an interruption.

use super::super::op::{Until, drive};
use super::super::{each, only, with_term};
use crate::confirm::confirm;
use crate::connect::{Access, App, Hold, Link};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::given::{self, Given};
use crate::output::{Column, Look, Show, complain};
use clap::Args;
use redrive::core::dead_letter::{Act, ActRequest, DeadLetter, Status};
use redrive::core::error::Error;
use redrive::core::filter::Filter;
use redrive::core::ids::{MessageId, OperationId, QueueName};
use redrive::core::operation::{OperationSpec, PreviewRequest};
use redrive::core::query::{PageRequest, Query};
use redrive::core::short_id::IdKind;
use redrive::core::store::LetterState;
use redrive::core::time::Time;
use serde::Serialize;

/// How many letters a person is shown before deciding.
const SAMPLE: usize = 5;
/// Ids that a dry run names.
const IDS_SHOWN_MAX: usize = 10_000;
/// Letters acted on in one commit when their ids were given.
const IDS_PER_COMMIT: usize = 500;

/// Which letters, and how careful to be.
#[derive(Args, Debug)]
pub(crate) struct Selection {
    /// The letters, by the ids of their messages or the last digits of each
    #[arg(value_name = "ID", required_unless_present_any = ["filter", "all", "resume", "job"])]
    ids: Vec<Given<MessageId>>,
    /// Those that match, such as 'queue:payments error:timeout age>2h'
    #[arg(long, value_name = "EXPR", conflicts_with_all = ["ids", "all", "resume"])]
    filter: Option<String>,
    /// Those of this batch job
    #[arg(long, value_name = "JOB", conflicts_with_all = ["ids", "all", "resume"])]
    job: Option<String>,
    /// All of them
    #[arg(long, conflicts_with_all = ["ids", "resume"])]
    all: bool,
    /// Go on with an operation that was interrupted
    #[arg(long, value_name = "OPERATION", conflicts_with_all = ["ids", "dry_run", "max", "reason"])]
    resume: Option<Given<OperationId>>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
    /// Refuse to touch more than this many
    #[arg(long, value_name = "N")]
    max: Option<u64>,
    /// Why, for the letters' notes and the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Only if the letter is still at this version; for one letter
    #[arg(long, value_name = "N", conflicts_with_all = ["filter", "job", "all", "resume"])]
    if_version: Option<u64>,
    /// Exit with 3 when nothing matches
    #[arg(long)]
    fail_empty: bool,
}

impl Selection {
    /// The letters that were named one by one.
    pub(super) async fn ids(&self, app: &App) -> Result<Vec<MessageId>, CliError> {
        given::letters(app, &self.ids).await
    }

    /// Whether one letter was named.
    pub(super) fn is_one(&self) -> bool {
        self.ids.len() == 1
    }

    /// Whether an operation is to go on that was begun before.
    pub(super) fn goes_on(&self) -> bool {
        self.resume.is_some()
    }

    /// Whether nothing is to be done.
    pub(super) fn is_dry(&self) -> bool {
        self.dry_run
    }

    /// The filter that was given; nothing when letters were named or all are meant.
    pub(super) async fn matching(&self, app: &App) -> Result<Option<Filter>, CliError> {
        let mut matching = match &self.filter {
            Some(text) => Some(given::filter(app, text, IdKind::Letter).await?),
            None => None,
        };
        if let Some(job) = &self.job {
            let queue: QueueName = format!("run.{job}")
                .parse()
                .map_err(|_| CliError::usage(format!("--job: {job:?} is no job's name")))?;
            matching = Some(with_term(&matching.unwrap_or_default(), &format!("queue:{queue}"))?);
        }
        if matching.as_ref().is_some_and(Filter::is_all) {
            return Err(CliError::usage(
                "the filter is empty and would match everything; say --all if that is meant",
            ));
        }
        Ok(matching)
    }
}

/// The filter, and only letters whose status allows the act: what is counted is what will be done.
pub(super) fn possible(act: &Act, filter: &Filter) -> Result<Filter, CliError> {
    let any = redrive::new_id();
    let allows = |status: &&Status| act.next_status(any, **status).is_ok();
    let allowed: Vec<&str> = Status::ALL.iter().filter(allows).map(|status| status.name()).collect();
    with_term(filter, &format!("status:{}", allowed.join(",")))
}

impl Show for LetterState {
    const COLUMNS: &'static [Column] =
        &[Column::id("id"), Column::state("status"), Column::number("version")];

    fn cells(&self, _: &Look) -> Vec<String> {
        let status = self.status.map_or_else(|| "purged".to_owned(), |status| status.to_string());
        vec![self.id.to_string(), status, self.version.to_string()]
    }
}

/// What would be done.
#[derive(Serialize)]
struct DryRun {
    act: &'static str,
    /// How many it would be done to.
    count: u64,
    /// Which, up to [`IDS_SHOWN_MAX`].
    ids: Vec<MessageId>,
    /// Whether there are more than these.
    more: bool,
    /// Those that were named and cannot be acted on like this.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused: Vec<RefusedId>,
}

/// A letter that was named, and what stands in the way.
#[derive(Serialize)]
struct RefusedId {
    id: MessageId,
    why: String,
}

impl Show for DryRun {
    const COLUMNS: &'static [Column] = &[Column::whole("act"), Column::number("count"), Column::text("ids")];

    fn cells(&self, _: &Look) -> Vec<String> {
        let ids: Vec<String> = self.ids.iter().map(ToString::to_string).collect();
        vec![self.act.to_owned(), self.count.to_string(), ids.join(" ")]
    }
}

/// A selection as it is written on the command line.
#[derive(clap::Parser, Debug)]
struct Written {
    #[command(flatten)]
    which: Selection,
}

/// Resolves the letters that match, as `dlq resolve --filter` does.
pub(crate) async fn resolve_matching(app: &App, filter: &str, yes: bool, reason: Option<String>) -> Done {
    run(app, of_filter(filter, yes, reason)?, |_| Act::Resolve).await
}

/// Those that match, for a command that says itself which.
pub(super) fn of_filter(filter: &str, yes: bool, reason: Option<String>) -> Result<Selection, CliError> {
    let mut words = vec!["resolve".to_owned(), "--filter".to_owned(), filter.to_owned()];
    words.extend(yes.then(|| "--yes".to_owned()));
    words.extend(reason.map(|reason| format!("--reason={reason}")));
    let written = <Written as clap::Parser>::try_parse_from(words);
    Ok(written.map_err(|error| CliError::usage(error.to_string()))?.which)
}

/// Runs a verb; `act` is told the store's time.
pub(crate) async fn run(app: &App, which: Selection, act: impl FnOnce(Time) -> Act) -> Done {
    // A filter that does not parse must not even open the store.
    let matching = which.matching(app).await?;
    if which.if_version.is_some() && which.ids.len() != 1 {
        return Err(CliError::usage("--if-version: name one letter; each has a version of its own"));
    }
    let ids = which.ids(app).await?;
    let resume = match &which.resume {
        Some(id) => Some(id.operation(app).await?),
        None => None,
    };
    let hold = if which.is_one() { Hold::Moment } else { Hold::Long };
    let store = app.open(Access::Existing, hold).await?;
    let act = act(store.info().await?.now);
    let mut verb = Verb { app, store, act, which: &which };
    match (resume, ids.as_slice()) {
        (Some(id), _) => verb.resume(id).await,
        (None, []) => verb.matching(&matching.unwrap_or_default()).await,
        (None, [id]) => verb.one(*id).await,
        (None, several) => verb.several(several).await,
    }
}

/// One verb on its way.
struct Verb<'a> {
    app: &'a App,
    store: Link<'a>,
    act: Act,
    which: &'a Selection,
}

impl Verb<'_> {
    fn request(&self, id: MessageId) -> ActRequest {
        let actor = self.app.actor(self.which.reason.clone());
        ActRequest { id, act: self.act.clone(), actor, expected_version: self.which.if_version }
    }

    async fn one(&mut self, id: MessageId) -> Done {
        if self.which.dry_run {
            let letter = self.store.letter(id).await?;
            self.act.next_status(id, letter.file.status)?;
            return self.show_dry_run(1, vec![id], Vec::new(), &[letter]);
        }
        let acted = only(self.store.act(vec![self.request(id)]).await?);
        let state = match acted {
            Ok(state) => state,
            Err(error) => return Err(self.as_it_is_now(id, error).await),
        };
        self.app.out.one(&state)?;
        if matches!(self.act, Act::Retry(_)) && state.status == Some(Status::Resolved) {
            self.app.out.note("work with its key is done already: closed, not sent back; --force sends it");
        }
        Ok(ExitCode::Ok)
    }

    /// A conflict says what the letter is now, so that whoever asked can decide anew.
    async fn as_it_is_now(&self, id: MessageId, error: CliError) -> CliError {
        if error.code != ExitCode::Conflict || error.hint.is_some() {
            return error;
        }
        let Ok(letter) = self.store.letter(id).await else { return error };
        let file = &letter.file;
        let by = file.closed_by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
        error.hint(format!("it is {}{by} now, at version {}", file.status, file.version))
    }

    async fn several(&mut self, ids: &[MessageId]) -> Done {
        let ids: std::collections::BTreeSet<MessageId> = ids.iter().copied().collect();
        if self.which.dry_run {
            return self.try_several(ids).await;
        }
        let mut sample = Vec::new();
        for id in ids.iter().take(SAMPLE) {
            sample.push(self.store.letter(*id).await?);
        }
        self.agree(ids.len() as u64, &sample).await?;
        let (mut results, ids) = (Vec::new(), ids.into_iter().collect::<Vec<_>>());
        for chunk in ids.chunks(IDS_PER_COMMIT) {
            let batch = chunk.iter().map(|id| self.request(*id)).collect();
            results.extend(self.store.act(batch).await?);
        }
        each(self.app, results)
    }

    async fn matching(&mut self, filter: &Filter) -> Done {
        let filter = possible(&self.act, filter)?;
        let request = PreviewRequest::new(self.act.clone(), filter.clone(), SAMPLE);
        let preview = self.store.ask(async |store| store.preview(request.clone()).await).await?;
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
        self.agree(preview.count, &preview.sample).await?;
        let actor = self.app.actor(self.which.reason.clone());
        let id = OperationId::new(redrive::new_id());
        let spec = OperationSpec {
            bound: Some(preview.bound),
            token: Some(preview.token),
            ..OperationSpec::new(id, self.act.clone(), filter, actor)
        };
        self.store.ask(async |store| store.start(spec.clone()).await).await?;
        drive(self.app, &mut self.store, id, Until::Sent).await
    }

    async fn resume(&mut self, id: OperationId) -> Done {
        let operation = self.store.operation(id).await?;
        if operation.act.name() != self.act.name() {
            let (is, wanted) = (operation.act.name(), self.act.name());
            return Err(CliError::usage(format!("operation {id} is to {is}, not to {wanted}"))
                .hint(format!("redrive dlq {is} --resume {id}")));
        }
        drive(self.app, &mut self.store, id, Until::Sent).await
    }

    /// Whether each of the letters that were named could be acted on.
    async fn try_several(&self, ids: impl IntoIterator<Item = MessageId>) -> Done {
        let (mut able, mut refused, mut sample) = (Vec::new(), Vec::new(), Vec::new());
        for id in ids {
            let tried = match self.store.letter(id).await {
                Ok(letter) => self.act.next_status(id, letter.file.status).map(|_| letter),
                Err(Error::Refused(refusal)) => Err(refusal),
                Err(error @ Error::Store(_)) => return Err(error.into()),
            };
            match tried {
                Ok(letter) => {
                    able.push(id);
                    sample.push(letter);
                    sample.truncate(SAMPLE);
                }
                Err(refusal) => refused.push(RefusedId { id, why: refusal.to_string() }),
            }
        }
        let partial = !refused.is_empty();
        self.show_dry_run(able.len() as u64, able, refused, &sample)?;
        Ok(if partial { ExitCode::Partial } else { ExitCode::Ok })
    }

    /// The ids of those that match, latest death first, up to [`IDS_SHOWN_MAX`].
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

    /// Shows what is about to happen and asks.
    async fn agree(&self, count: u64, sample: &[DeadLetter]) -> Result<(), CliError> {
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
        complain(&format!("to {}: {count} dead letters{some}:", self.act.name()));
        self.app.out.sample(sample);
    }

    fn show_dry_run(
        &self,
        count: u64,
        ids: Vec<MessageId>,
        refused: Vec<RefusedId>,
        sample: &[DeadLetter],
    ) -> Done {
        if !self.app.out.quiet && count > 0 {
            self.show_sample(count, sample);
        }
        for RefusedId { id, why } in &refused {
            complain(&format!("not {id}: {why}"));
        }
        let more = count > ids.len() as u64;
        if more {
            let shown = ids.len();
            self.app.out.note(&format!("the latest {shown} of {count} ids; `dlq list --all` has every one"));
        }
        self.app.out.one(&DryRun { act: self.act.name(), count, ids, more, refused })?;
        Ok(ExitCode::Ok)
    }
}
