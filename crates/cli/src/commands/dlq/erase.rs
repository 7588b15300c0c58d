//! `erase`: removes what dead letters say, by key, tag, payload or filter, in every status, and keeps tombstones.
//! What is still at work cannot be erased; it is counted and named, so that nobody takes silence for done.

use super::act::possible;
use crate::commands::op::{Until, drive};
use crate::commands::with_term;
use crate::confirm::confirm;
use crate::connect::{Access, App, Hold, Link};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::given;
use crate::output::{Column, Look, Show, complain};
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

/// How many letters a person is shown before deciding.
const SAMPLE: usize = 5;

/// The flags of `erase`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
#[command(group(clap::ArgGroup::new("whose").required(true).multiple(false).args(["key", "tag", "payload", "filter"])))]
pub(crate) struct EraseArgs {
    /// Letters with this idempotency key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Letters with this tag
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
    /// Letters whose JSON payload has this value there, such as customer.email=ada@example.com
    #[arg(long, value_name = "PATH=VALUE")]
    payload: Option<String>,
    /// Letters that match
    #[arg(long, value_name = "EXPR")]
    filter: Option<String>,
    /// Also take back messages that match and wait for work
    #[arg(long)]
    cancel_waiting: bool,
    /// Why, for the tombstones and the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Refuse to touch more than this many
    #[arg(long, value_name = "N")]
    max: Option<u64>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

/// What matches, and where it is.
#[derive(Default, Serialize)]
struct Found {
    /// Letters that can be erased.
    letters: u64,
    /// Letters that were sent back to work and are not over.
    retrying: u64,
    /// Messages that wait for their first or next attempt.
    waiting: u64,
    /// Messages in a worker's hands.
    leased: u64,
}

impl Show for Found {
    const COLUMNS: &'static [Column] = &[
        Column::number("letters"),
        Column::number("retrying"),
        Column::number("waiting"),
        Column::number("leased"),
    ];

    fn cells(&self, _: &Look) -> Vec<String> {
        [self.letters, self.retrying, self.waiting, self.leased].map(|n| n.to_string()).to_vec()
    }
}

impl EraseArgs {
    /// What was asked for, in the one language for it.
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
                Err(CliError::usage("say which: --key, --tag, --payload or --filter"))
            }
        }
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A value that matches a text and a number alike where that is possible, and is never taken for a pattern.
fn literal(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@');
    if !value.is_empty() && value.chars().all(plain) && !value.contains("..") {
        value.to_owned()
    } else {
        quoted(value)
    }
}

/// Runs `erase`.
pub(crate) async fn run(app: &App, args: EraseArgs) -> Done {
    let wanted = given::filter(app, &args.expression()?, IdKind::Letter).await?;
    if wanted.is_all() {
        return Err(CliError::usage("the filter is empty and would erase everything"));
    }
    let mut store = app.open(Access::Existing, Hold::Long).await?;
    let live = live(app, &mut store, &wanted).await?;
    let (found, preview) = count(&mut store, &wanted, &live).await?;
    if args.dry_run {
        app.out.one(&found)?;
        return Ok(ExitCode::Ok);
    }
    let waiting: Vec<MessageId> = live.iter().filter(|m| cancellable(m)).map(|m| m.envelope.id).collect();
    let cancels = if args.cancel_waiting { waiting.len() as u64 } else { 0 };
    if let Some(max) = args.max.filter(|max| found.letters + cancels > *max) {
        let what = format!(
            "would erase {} dead letters and take back {cancels} messages, and --max allows {max}",
            found.letters
        );
        return Err(CliError::new(ExitCode::Refused, what).hint("narrow it, or raise --max"));
    }
    if found.letters + cancels == 0 {
        app.out.note("there is nothing to erase");
    } else {
        let and =
            if cancels > 0 { format!(" and take back {cancels} waiting messages") } else { String::new() };
        if found.letters > 0 && !(app.out.quiet && args.yes) {
            let some = if found.letters > preview.sample.len() as u64 { "; the latest of them" } else { "" };
            complain(&format!("to erase: {} dead letters{some}:", found.letters));
            app.out.sample(&preview.sample);
        }
        confirm(&format!("erase {} dead letters{and}, for good?", found.letters), args.yes).await?;
    }
    if cancels > 0 {
        for chunk in waiting.chunks(limits::PAGE_ITEMS_MAX) {
            let each = store.cancel(chunk.to_vec(), app.actor(args.reason.clone())).await?;
            // One that was leased meanwhile is counted below as what it is now.
            drop(each);
        }
    }
    let mut code = ExitCode::Ok;
    if found.letters > 0 {
        // Just what was counted and confirmed: what died since then is not in it.
        let id = OperationId::new(redrive::new_id());
        let erasable = possible(&Act::Erase, &wanted)?;
        let spec = OperationSpec {
            bound: Some(preview.bound),
            token: Some(preview.token),
            ..OperationSpec::new(id, Act::Erase, erasable, app.actor(args.reason.clone()))
        };
        store.ask(async |store| store.start(spec.clone()).await).await?;
        code = drive(app, &mut store, id, Until::Sent).await?;
    }
    drop(store);
    let left = left_over(app, &wanted).await?;
    Ok(if left { ExitCode::Partial } else { code })
}

/// Says what still matches and could not be erased.
async fn left_over(app: &App, wanted: &Filter) -> Result<bool, CliError> {
    let mut store = app.open(Access::Existing, Hold::Long).await?;
    let live = live(app, &mut store, wanted).await?;
    let (left, _) = count(&mut store, wanted, &live).await?;
    if left.retrying > 0 {
        let n = left.retrying;
        complain(&format!(
            "{n} dead letters were sent back to work and are not touched; erase them when that is over"
        ));
    }
    if left.waiting > 0 {
        let n = left.waiting;
        complain(&format!(
            "{n} messages match, wait for work and are not touched; --cancel-waiting takes them back"
        ));
    }
    if left.leased > 0 {
        complain(&format!("{} messages match, are in workers' hands and are not touched", left.leased));
    }
    Ok(left.retrying + left.waiting + left.leased > 0)
}

/// A message whose letter is not waiting for it.
fn cancellable(message: &Message) -> bool {
    message.leased_by.is_none() && message.generation == 1
}

/// Counts what matches; the preview is of the letters that can be erased.
async fn count(
    store: &mut Link<'_>,
    wanted: &Filter,
    live: &[Message],
) -> Result<(Found, Preview), CliError> {
    let erasable = possible(&Act::Erase, wanted)?;
    let retrying = with_term(wanted, &format!("status:{}", Status::Retrying))?;
    let erasable = PreviewRequest::new(Act::Erase, erasable, SAMPLE);
    let preview = store.ask(async |store| store.preview(erasable.clone()).await).await?;
    let retrying = PreviewRequest::new(Act::PullBack, retrying, 0);
    let retrying = store.ask(async |store| store.preview(retrying.clone()).await).await?.count;
    // A redriven message is counted with its letter.
    let own = live.iter().filter(|message| message.generation == 1);
    let (waiting, leased): (Vec<_>, Vec<_>) = own.partition(|message| message.leased_by.is_none());
    let (letters, waiting, leased) = (preview.count, waiting.len() as u64, leased.len() as u64);
    Ok((Found { letters, retrying, waiting, leased }, preview))
}

/// Live messages that match.
async fn live(app: &App, store: &mut Link<'_>, wanted: &Filter) -> Result<Vec<Message>, CliError> {
    let mut all = Vec::new();
    if wanted.check_for_messages().is_err() {
        app.out.note("the filter asks for what only dead letters have; live messages were not looked at");
        return Ok(all);
    }
    let mut cursor = None;
    loop {
        let query = Query { filter: wanted.clone(), page: PageRequest { limit: None, cursor } };
        let page = store.ask(async |store| store.messages(query.clone()).await).await?;
        all.extend(page.items.into_iter().map(|mut message| {
            // Only who and where is needed, and there may be many.
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
