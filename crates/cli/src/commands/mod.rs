//! The commands, one module each: flags, requests to the store, and output. No command knows which kind of store it
//! talks to.

pub(crate) mod alert;
pub(crate) mod audit;
pub(crate) mod backup;
pub(crate) mod breaker;
pub(crate) mod classify;
pub(crate) mod completions;
pub(crate) mod demo;
pub(crate) mod dlq;
pub(crate) mod doctor;
pub(crate) mod enqueue;
mod evidence;
pub(crate) mod group;
pub(crate) mod init;
pub(crate) mod lease;
pub(crate) mod marker;
pub(crate) mod message;
pub(crate) mod op;
pub(crate) mod queue;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod settle;
pub(crate) mod signature;
pub(crate) mod token;
pub(crate) mod work;
mod work_letters;
pub(crate) mod worker;

use crate::args::{Command, Global, ListArgs, Order, PageArgs, TimeBound};
use crate::config::Config;
use crate::connect::{App, Link, NewData};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::output::{Show, choice, eprint_line, rules, value};
use redrive::core::error::{Refusal, StoreResult};
use redrive::core::failure::ErrorInfo;
use redrive::core::filter::Filter;
use redrive::core::ids::QueueName;
use redrive::core::limits;
use redrive::core::message::Payload;
use redrive::core::query::{Page, PageRequest};
use redrive::core::store::Store;
use serde_json::Value;

/// Loads what a command runs with. `init` and `completions` must not fail on a bad configuration, so they use defaults.
pub(crate) fn load_app(global: Global, command: &Command) -> Result<App, CliError> {
    let global = global.without_empty();
    match command {
        Command::Run(_) => App::load(global, NewData::Users),
        Command::Restore(_) => App::load(global, NewData::OnlyHere),
        Command::Init | Command::Completions(_) => {
            Ok(App::new(global, Config::default(), None, NewData::Here))
        }
        Command::Enqueue(_)
        | Command::Lease(_)
        | Command::Ack(_)
        | Command::Fail(_)
        | Command::Extend(_)
        | Command::Release(_)
        | Command::Work(_)
        | Command::Serve(_)
        | Command::Demo(_)
        | Command::Message(_)
        | Command::Queue(_)
        | Command::Dlq(_)
        | Command::Erase(_)
        | Command::Op(_)
        | Command::Group(_)
        | Command::Marker(_)
        | Command::Breaker(_)
        | Command::Alert(_)
        | Command::Worker(_)
        | Command::Audit(_)
        | Command::Token(_)
        | Command::Backup(_)
        | Command::Doctor(_)
        | Command::Signature(_)
        | Command::Classify(_)
        | Command::Top(_) => App::load(global, NewData::Here),
    }
}

/// Runs a command to its end.
pub(crate) async fn run(app: &App, command: Command) -> CommandResult {
    match command {
        Command::Enqueue(args) => enqueue::run(app, *args).await,
        Command::Lease(args) => lease::run(app, args).await,
        Command::Ack(args) => settle::ack(app, args).await,
        Command::Fail(args) => settle::fail(app, *args).await,
        Command::Extend(args) => settle::extend(app, args).await,
        Command::Release(args) => settle::release(app, args).await,
        Command::Work(args) => work::run(app, *args).await,
        Command::Run(args) => run::run(app, args).await,
        Command::Serve(args) => serve::run(app, *args).await,
        Command::Demo(args) => demo::run(app, args).await,
        Command::Message(command) => message::run(app, command).await,
        Command::Queue(command) => queue::run(app, command).await,
        Command::Dlq(command) => dlq::run(app, command).await,
        Command::Erase(args) => dlq::erase::run(app, *args).await,
        Command::Op(command) => op::run(app, command).await,
        Command::Group(command) => group::run(app, command).await,
        Command::Marker(args) => marker::run(app, args).await,
        Command::Breaker(command) => breaker::run(app, command).await,
        Command::Alert(command) => alert::run(app, command).await,
        Command::Worker(command) => worker::run(app, command).await,
        Command::Audit(command) => audit::run(app, command).await,
        Command::Token(command) => token::run(app, command).await,
        Command::Backup(args) => backup::backup(app, args).await,
        Command::Restore(args) => backup::restore(app, args).await,
        Command::Doctor(args) => doctor::run(app, args).await,
        Command::Classify(args) => classify::run(app, args).await,
        Command::Top(args) => crate::top::run(app, args).await,
        Command::Signature(args) => signature::run(app, args).await,
        Command::Init => init::run(app),
        Command::Completions(args) => completions::run(app, &args),
    }
}

/// Prints a list page by page until the limit is reached.
async fn pages<T: Show>(
    app: &App,
    mut store: Link<'_>,
    args: &PageArgs,
    fetch: impl AsyncFn(&dyn Store, PageRequest) -> StoreResult<Page<T>>,
) -> CommandResult {
    if args.limit == 0 {
        return Err(CliError::usage("--limit: 0 is too small, use at least 1"));
    }
    let mut list = app.out.list();
    let mut wanted = if args.all { usize::MAX } else { args.limit };
    let mut cursor = args.cursor.clone();
    let mut walk = ListWalk::new(args.all);
    let next = loop {
        let request = PageRequest { limit: Some(wanted.min(limits::PAGE_ITEMS_MAX)), cursor };
        let page = store.call(async |store| fetch(store, request.clone()).await).await?;
        list.add(&page.items)?;
        wanted = wanted.saturating_sub(page.items.len());
        let continues = walk.add_page(&page, &mut store).await? && wanted > 0;
        match page.next {
            Some(next) if continues => cursor = Some(next),
            next => break next,
        }
    };
    let count = list.end(next.as_ref())?;
    walk.print_notes(app, next.is_some());
    Ok(if count == 0 && args.fail_empty { ExitCode::NothingMatched } else { ExitCode::Ok })
}

/// The state of a walk through a list: how many pages in a row were empty, and which records were damaged.
struct ListWalk {
    all: bool,
    empty_pages: usize,
    damaged: Vec<String>,
}

impl ListWalk {
    fn new(all: bool) -> Self {
        Self { all, empty_pages: 0, damaged: Vec::new() }
    }

    /// Records a page and returns whether to continue. If a filter was cut short, this also adds some of the letters it
    /// would have to scan to the text index, so that the next search finds them there.
    async fn add_page<T>(&mut self, page: &Page<T>, store: &mut Link<'_>) -> Result<bool, CliError> {
        self.damaged.extend(page.damaged.iter().cloned());
        if !page.items.is_empty() || page.next.is_none() {
            self.empty_pages = 0;
            return Ok(true);
        }
        self.empty_pages += 1;
        store.call(async |store| store.index_text(limits::INDEX_TEXT_MAX).await).await?;
        Ok(self.all || self.empty_pages < limits::EMPTY_PAGES_MAX)
    }

    /// Prints notes about parts of the list that are not shown.
    fn print_notes(&self, app: &App, more: bool) {
        if more && self.empty_pages >= limits::EMPTY_PAGES_MAX {
            app.out.note("no item matched in the part that was searched; the rest was not searched");
        }
        for what in &self.damaged {
            app.out.note(&format!("not shown because it is damaged: {what}"));
        }
    }
}

/// The maximum number of items that `--sort` with `--all` sorts.
const SORTED_MAX: usize = 100_000;

/// Prints a list in the requested order.
async fn sorted_pages<T: Show>(
    app: &App,
    mut store: Link<'_>,
    args: &ListArgs,
    fetch: impl AsyncFn(&dyn Store, PageRequest) -> StoreResult<Page<T>>,
) -> CommandResult {
    let Some(order) = &args.sort else { return pages(app, store, &args.page, fetch).await };
    if args.page.limit == 0 {
        return Err(CliError::usage("--limit: 0 is too small, use at least 1"));
    }
    // Sorting reads the whole list, but never keeps more items than it will print.
    let wanted = if args.page.all { SORTED_MAX } else { args.page.limit };
    let (mut kept, mut cursor, mut left_out) = (Vec::new(), None, 0usize);
    let mut walk = ListWalk::new(true);
    loop {
        let request = PageRequest { limit: Some(limits::PAGE_ITEMS_MAX), cursor };
        let page = store.call(async |store| fetch(store, request.clone()).await).await?;
        walk.add_page(&page, &mut store).await?;
        for item in page.items {
            // The order of masked values would reveal them, so sort by what is shown.
            let shown = value(item.masked(rules()).as_ref().unwrap_or(&item))?;
            kept.push((choice::at(&shown, &order.field), item));
        }
        kept.sort_by(|(a, _), (b, _)| in_order(order, a.as_ref(), b.as_ref()));
        left_out += kept.len().saturating_sub(wanted);
        kept.truncate(wanted);
        match page.next {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    if args.page.all && left_out > 0 {
        let what = format!("--sort with --all sorts at most {SORTED_MAX} items, and this list has more");
        return Err(CliError::new(ExitCode::Refused, what).hint("narrow the filter, or use --limit"));
    }
    if !kept.is_empty() && kept.iter().all(|(key, _)| key.is_none()) {
        app.out
            .note(&format!("nothing here has {}; --sort takes a path into the JSON of an item", order.field));
    }
    let items: Vec<T> = kept.into_iter().map(|(_, item)| item).collect();
    let mut list = app.out.list();
    list.add(&items)?;
    let count = list.end(None)?;
    walk.print_notes(app, false);
    if left_out > 0 {
        app.out.note(&format!("{left_out} more items follow"));
    }
    Ok(if count == 0 && args.page.fail_empty { ExitCode::NothingMatched } else { ExitCode::Ok })
}

/// Compares numbers by value and text alphabetically. Items without the field come last in either direction.
fn in_order(order: &Order, a: Option<&Value>, b: Option<&Value>) -> std::cmp::Ordering {
    let kind = |value: Option<&Value>| match value {
        Some(Value::Bool(_)) => 0,
        Some(Value::Number(_)) => 1,
        Some(Value::String(_)) => 2,
        Some(Value::Array(_) | Value::Object(_)) => 3,
        Some(Value::Null) | None => 4,
    };
    let absent = |value| kind(value) == 4;
    if absent(a) || absent(b) {
        return kind(a).cmp(&kind(b));
    }
    let number = |value: Option<&Value>| value.and_then(Value::as_f64).unwrap_or(0.0);
    let text = |value: Option<&Value>| value.map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned));
    let by = kind(a).cmp(&kind(b)).then(number(a).total_cmp(&number(b))).then_with(|| text(a).cmp(&text(b)));
    if order.descending { by.reverse() } else { by }
}

/// Adds the time bounds of `--since` and `--until` to a filter; `field` is the filter field to compare with.
fn with_time_bounds(filter: Filter, args: &ListArgs, field: &str) -> Result<Filter, CliError> {
    let mut filter = filter;
    for (bound, at, ago) in [(args.since, ">=", "<="), (args.until, "<=", ">=")] {
        filter = match bound {
            None => filter,
            Some(TimeBound::At(time)) => with_term(&filter, &format!("{field}{at}{time}"))?,
            Some(TimeBound::Ago(span)) => with_term(&filter, &format!("age{ago}{span}"))?,
        };
    }
    Ok(filter)
}

/// Prints the results of a batch: successes as data, refusals as errors.
fn print_results<T: Show>(app: &App, results: Vec<Result<T, Refusal>>) -> CommandResult {
    let total = results.len();
    let mut done = Vec::new();
    let mut refused: Vec<CliError> = Vec::new();
    for result in results {
        match result {
            Ok(item) => done.push(item),
            Err(refusal) => refused.push(refusal.into()),
        }
    }
    let some = !done.is_empty();
    if some || (total > 1 && !app.out.format.is_table()) {
        app.out.all(&done)?;
    }
    for error in refused.iter().filter(|_| total > 1) {
        eprint_line(&format!("error: {}", error.what));
    }
    match refused.into_iter().next() {
        None => Ok(ExitCode::Ok),
        Some(_) if some => Ok(ExitCode::Partial),
        Some(first) if total > 1 => Ok(first.code),
        Some(only) => Err(only),
    }
}

/// Returns the only result of a batch of one.
fn only<T>(results: Vec<Result<T, Refusal>>) -> Result<T, CliError> {
    let none = || CliError::new(ExitCode::Error, "the store returned no result for the entry");
    Ok(results.into_iter().next().ok_or_else(none)??)
}

/// Parses a filter from the command line.
pub(crate) fn filter(text: &str) -> Result<Filter, CliError> {
    Filter::parse(text).map_err(|error| CliError::usage(format!("filter: {error}")))
}

/// Adds a condition to a filter. The value comes from a parsed flag and needs no quoting.
fn narrowed(filter: Filter, field: &str, value: Option<&QueueName>) -> Result<Filter, CliError> {
    match value {
        None => Ok(filter),
        Some(value) => with_term(&filter, &format!("{field}:{value}")),
    }
}

/// Combines a filter with one more term.
fn with_term(filter: &Filter, term: &str) -> Result<Filter, CliError> {
    let both = if filter.is_all() { term.to_owned() } else { format!("{term} ({})", filter.text()) };
    self::filter(&both)
}

/// The type and message of an error in one line.
pub(crate) fn error_text(error: &ErrorInfo) -> String {
    format!("{}: {}", error.error_type, error.message)
}

/// The number of bytes of a payload to show.
const PAYLOAD_SHOWN: usize = 2 * 1024;

/// A payload as readable text, shortened if it is long; only the size if it is not UTF-8.
pub(crate) fn payload_text(payload: &Payload) -> String {
    let size = payload.bytes.len();
    match std::str::from_utf8(&payload.bytes) {
        Ok(text) if size <= PAYLOAD_SHOWN => text.to_owned(),
        Ok(text) => {
            let start: String = text.chars().take(PAYLOAD_SHOWN).collect();
            format!("{start}… ({size} bytes in all)")
        }
        Err(_) => format!("{size} bytes that are not text"),
    }
}
