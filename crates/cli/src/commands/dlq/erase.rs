//! `erase`: removes the content of dead letters, selected by key, tag, payload or filter, and leaves tombstones.
//! Letters and messages still at work cannot be erased; the command counts and reports them.

use super::act::with_allowed_status;
use crate::commands::op::{Until, drive};
use crate::commands::with_term;
use crate::confirm::confirm;
use crate::connect::{Access, App, Hold, Link};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::id_arg;
use crate::output::{Column, Show, ValueFormat, eprint_line};
use clap::Args;
use redrive::core::dead_letter::{Act, Status};
use redrive::core::filter::Filter;
use redrive::core::ids::{MessageId, OperationId};
use redrive::core::limits;
use redrive::core::message::Message;
use redrive::core::operation::{OperationSpec, Preview, PreviewRequest};
use redrive::core::query::{PageRequest, Query};
use redrive::core::short_id::IdKind;
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  redrive erase --payload customer.email=ada@example.com --reason 'asked to, ticket 4411'
  redrive erase --tag customer:4411 --cancel-waiting --yes
  redrive erase --key order-4411 --dry-run";

/// The number of letters to show before asking for confirmation.
const SAMPLE: usize = 5;

/// The flags of `erase`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
#[command(group(clap::ArgGroup::new("whose").required(true).multiple(false).args(["key", "tag", "payload", "filter"])))]
pub(crate) struct EraseArgs {
    /// Erase letters with this idempotency key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Erase letters with this tag
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
    /// Erase letters whose JSON payload has this value, such as customer.email=ada@example.com
    #[arg(long, value_name = "PATH=VALUE")]
    payload: Option<String>,
    /// Erase letters that match this filter
    #[arg(long, value_name = "EXPR")]
    filter: Option<String>,
    /// Also cancel waiting messages that match
    #[arg(long)]
    cancel_waiting: bool,
    /// The reason, recorded in the tombstones and the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Refuse to change more than this many
    #[arg(long, value_name = "N")]
    max: Option<u64>,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

/// The number of matches by state.
#[derive(Default, Serialize)]
struct MatchCounts {
    /// Letters that can be erased.
    letters: u64,
    /// Letters that were sent back to work and are not settled yet.
    retrying: u64,
    /// Messages that wait for their first or next attempt.
    waiting: u64,
    /// Messages leased by a worker.
    leased: u64,
}

impl Show for MatchCounts {
    const COLUMNS: &'static [Column] = &[
        Column::number("letters"),
        Column::number("retrying"),
        Column::number("waiting"),
        Column::number("leased"),
    ];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        [self.letters, self.retrying, self.waiting, self.leased].map(|n| n.to_string()).to_vec()
    }
}

impl EraseArgs {
    /// The filter expression for the flags.
    fn expression(&self) -> Result<String, CliError> {
        match (&self.key, &self.tag, &self.payload, &self.filter) {
            (Some(key), ..) => Ok(format!("key:{}", quoted(key))),
            (_, Some(tag), ..) => Ok(format!("tag:{}", quoted(tag))),
            (_, _, Some(payload), _) => match payload.split_once('=') {
                Some((path, value)) if !path.is_empty() => Ok(format!("payload.{path}:{}", literal(value))),
                Some(_) | None => {
                    Err(CliError::usage("--payload: write PATH=VALUE, such as customer.id=4411"))
                }
            },
            (_, _, _, Some(text)) => Ok(text.clone()),
            (None, None, None, None) => {
                Err(CliError::usage("name what to erase with --key, --tag, --payload or --filter"))
            }
        }
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A value that matches text and numbers alike where possible, and is never read as a pattern.
fn literal(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@');
    if !value.is_empty() && value.chars().all(plain) && !value.contains("..") {
        value.to_owned()
    } else {
        quoted(value)
    }
}

/// Runs `erase`.
pub(crate) async fn run(app: &App, args: EraseArgs) -> CommandResult {
    let wanted = id_arg::filter(app, &args.expression()?, IdKind::Letter).await?;
    if wanted.is_all() {
        return Err(CliError::usage("the filter is empty and would erase everything; add a condition"));
    }
    let mut store = app.open(Access::Existing, Hold::Long).await?;
    let live = live_matches(app, &mut store, &wanted).await?;
    let (found, preview) = count(&mut store, &wanted, &live).await?;
    if args.dry_run {
        app.out.one(&found)?;
        return Ok(ExitCode::Ok);
    }
    let waiting: Vec<MessageId> = live.iter().filter(|m| cancellable(m)).map(|m| m.envelope.id).collect();
    let cancels = if args.cancel_waiting { waiting.len() as u64 } else { 0 };
    if let Some(max) = args.max.filter(|max| found.letters + cancels > *max) {
        let what = format!(
            "would erase {} dead letters and cancel {cancels} messages, and --max allows {max}",
            found.letters
        );
        return Err(CliError::new(ExitCode::Refused, what).hint("narrow the selection, or raise --max"));
    }
    if found.letters + cancels == 0 {
        app.out.note("there is nothing to erase");
    } else {
        let and = if cancels > 0 { format!(" and cancel {cancels} waiting messages") } else { String::new() };
        if found.letters > 0 && !(app.out.quiet && args.yes) {
            let some = if found.letters > preview.sample.len() as u64 { "; the latest of them" } else { "" };
            eprint_line(&format!("to erase: {} dead letters{some}:", found.letters));
            app.out.sample(&preview.sample);
        }
        confirm(&format!("erase {} dead letters{and}, for good?", found.letters), args.yes).await?;
    }
    if cancels > 0 {
        for chunk in waiting.chunks(limits::PAGE_ITEMS_MAX) {
            let each = store.cancel(chunk.to_vec(), app.actor(args.reason.clone())).await?;
            // Messages that were leased meanwhile are refused and counted below as leased.
            drop(each);
        }
    }
    let mut code = ExitCode::Ok;
    if found.letters > 0 {
        // Erase exactly what was counted and confirmed, without letters that died since then.
        let id = OperationId::new(redrive::new_id());
        let erasable = with_allowed_status(&Act::Erase, &wanted)?;
        let spec = OperationSpec {
            bound: Some(preview.bound),
            token: Some(preview.token),
            ..OperationSpec::new(id, Act::Erase, erasable, app.actor(args.reason.clone()))
        };
        store.call(async |store| store.start(spec.clone()).await).await?;
        code = drive(app, &mut store, id, Until::Sent).await?;
    }
    drop(store);
    let left = left_over(app, &wanted).await?;
    Ok(if left { ExitCode::Partial } else { code })
}

/// Reports what still matches and could not be erased.
async fn left_over(app: &App, wanted: &Filter) -> Result<bool, CliError> {
    let mut store = app.open(Access::Existing, Hold::Long).await?;
    let live = live_matches(app, &mut store, wanted).await?;
    let (left, _) = count(&mut store, wanted, &live).await?;
    if left.retrying > 0 {
        let n = left.retrying;
        eprint_line(&format!(
            "{n} matching dead letters are being retried and were not erased; erase them when that is over"
        ));
    }
    if left.waiting > 0 {
        let n = left.waiting;
        eprint_line(&format!(
            "{n} matching messages wait in queues and were not touched; use --cancel-waiting to cancel them"
        ));
    }
    if left.leased > 0 {
        eprint_line(&format!("{} matching messages are leased by workers and were not touched", left.leased));
    }
    Ok(left.retrying + left.waiting + left.leased > 0)
}

/// Whether a message waits and is not a retry of a letter.
fn cancellable(message: &Message) -> bool {
    message.leased_by.is_none() && message.generation == 1
}

/// Counts what matches. The preview is of the letters that can be erased.
async fn count(
    store: &mut Link<'_>,
    wanted: &Filter,
    live: &[Message],
) -> Result<(MatchCounts, Preview), CliError> {
    let erasable = with_allowed_status(&Act::Erase, wanted)?;
    let retrying = with_term(wanted, &format!("status:{}", Status::Retrying))?;
    let erasable = PreviewRequest::new(Act::Erase, erasable, SAMPLE);
    let preview = store.call(async |store| store.preview(erasable.clone()).await).await?;
    let retrying = PreviewRequest::new(Act::PullBack, retrying, 0);
    let retrying = store.call(async |store| store.preview(retrying.clone()).await).await?.count;
    // A redriven message is counted with its letter.
    let own = live.iter().filter(|message| message.generation == 1);
    let (waiting, leased): (Vec<_>, Vec<_>) = own.partition(|message| message.leased_by.is_none());
    let (letters, waiting, leased) = (preview.count, waiting.len() as u64, leased.len() as u64);
    Ok((MatchCounts { letters, retrying, waiting, leased }, preview))
}

/// Fetches the live messages that match.
async fn live_matches(app: &App, store: &mut Link<'_>, wanted: &Filter) -> Result<Vec<Message>, CliError> {
    let mut all = Vec::new();
    if wanted.check_for_messages().is_err() {
        app.out.note("the filter uses fields that only dead letters have; live messages were not searched");
        return Ok(all);
    }
    let mut cursor = None;
    loop {
        let query = Query { filter: wanted.clone(), page: PageRequest { limit: None, cursor } };
        let page = store.call(async |store| store.messages(query.clone()).await).await?;
        all.extend(page.items.into_iter().map(|mut message| {
            // Payloads are not needed, and there may be many messages.
            message.envelope.payload.bytes = Vec::new();
            message
        }));
        cursor = page.next;
        if cursor.is_none() {
            return Ok(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_taken_literally() {
        for (value, expected) in [
            ("4411", "4411"),
            ("ada@example.com", "ada@example.com"),
            ("a*", "\"a*\""),
            ("1..9", "\"1..9\""),
            ("a b", "\"a b\""),
            ("", "\"\""),
            ("x\"y\\", "\"x\\\"y\\\\\""),
        ] {
            assert_eq!(literal(value), expected);
            Filter::parse(&format!("payload.a.b:{}", literal(value))).unwrap();
        }
    }
}
