//! Letters out of and into a store, as streams of JSON lines: one letter on each line, in the form of `dlq export`.

use crate::access::Caller;
use crate::ndjson::{self, Answers, Line, Lines};
use crate::problem::Problem;
use crate::request::{Params, check_encoding};
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::{StreamExt as _, stream};
use redrive_core::dead_letter::{Act, DeadLetter};
use redrive_core::disclosure::{Disclosed, Disclosure};
use redrive_core::error::StoreResult;
use redrive_core::filter::Filter;
use redrive_core::masking::Rules;
use redrive_core::operation::PreviewRequest;
use redrive_core::query::{Cursor, Page, PageRequest, Query};
use redrive_core::store::{Letters as _, Role};
use redrive_core::transfer::check_import;
use serde::Deserialize;
use serde_json::{Value, json};

/// The number of letters that are read at once.
const PAGE: usize = 200;

/// Which letters to export.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExportParams {
    filter: Option<String>,
    full: Option<bool>,
    reason: Option<String>,
}

/// The letters that are still to be exported.
struct Export {
    caller: Caller,
    filter: Filter,
    full: bool,
}

impl Export {
    async fn page(&self, cursor: Option<Cursor>) -> StoreResult<Page<DeadLetter>> {
        let page = PageRequest { limit: Some(PAGE), cursor };
        self.caller.store.export(Query { filter: self.filter.clone(), page }).await
    }

    /// A page as lines. A letter that cannot be read is a line too, so that nobody takes the export for complete.
    fn lines(&self, page: &Page<DeadLetter>) -> Bytes {
        let off = Rules::off();
        let rules = if self.full { &off } else { self.caller.rules() };
        let letter = |letter: &DeadLetter| serde_json::to_string(&rules.letter(letter)).unwrap_or_default();
        let damaged = |what: &String| {
            let problem = Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "damaged", what.clone());
            json!({"error": problem.document()}).to_string()
        };
        let all = page.items.iter().map(letter).chain(page.damaged.iter().map(damaged));
        Bytes::from(all.map(|line| line + "\n").collect::<String>())
    }
}

/// `GET /api/v1/dlq/export`: every letter that matches, oldest death first. Masked, unless `full` is asked for, which
/// the audit trail records before the first letter leaves.
pub(crate) async fn export(
    caller: Caller,
    Params(params): Params<ExportParams>,
) -> Result<Response, Problem> {
    let filter = Filter::parse(params.filter.as_deref().unwrap_or_default())?;
    let full = params.full.unwrap_or(false);
    caller.require(Role::Operator, "export")?;
    if full {
        // A note is possible in every status, so this counts all letters.
        let count = caller.store.preview(PreviewRequest::new(Act::Note, filter.clone(), 0)).await?.count;
        let disclosure = Disclosure::matching(Disclosed::Export, filter.clone(), count);
        caller.store.disclose(disclosure, caller.actor(params.reason)).await?;
    }
    let export = Export { caller, filter, full };
    // The first page comes before the status of the reply, so that a refusal is a refusal.
    let first = export.page(None).await?;
    let pages = stream::unfold((export, Some(first)), |(export, page)| async move {
        let page = page?;
        let lines = export.lines(&page);
        let next = match page.next {
            None => None,
            Some(cursor) => match export.page(Some(cursor)).await {
                Ok(page) => Some(page),
                // A reply that breaks off is the only way to say so once it has begun.
                Err(error) => return Some((Err(std::io::Error::other(error.to_string())), (export, None))),
            },
        };
        Some((Ok(lines), (export, next)))
    });
    Ok(ndjson::reply(Body::from_stream(pages.fuse())))
}

/// Why letters are imported.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImportParams {
    reason: Option<String>,
}

/// `POST /api/v1/dlq/import`: files the letters of a full export, with a result for each line.
pub(crate) async fn import(
    caller: Caller,
    Params(params): Params<ImportParams>,
    request: Request,
) -> Result<Response, Problem> {
    caller.require(Role::Admin, "import")?;
    if !ndjson::is_stream(request.headers()) {
        let what = format!("send the letters as `Content-Type: {}`, one on each line", ndjson::MEDIA_TYPE);
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "wrong_content_type", what));
    }
    check_encoding(request.headers())?;
    let lines = Lines::new(request.into_body());
    Ok(ndjson::answer(lines, (caller, params.reason), |(caller, reason), batch| async move {
        import_batch(&caller, reason, batch).await
    }))
}

async fn import_batch(caller: &Caller, reason: Option<String>, batch: Vec<Line>) -> Answers {
    let (mut letters, mut order) = (Vec::new(), Vec::new());
    for Line { number, text } in batch {
        let letter = text.and_then(|text| letter(&text));
        order.push((number, letter.as_ref().err().cloned()));
        letters.extend(letter.ok());
    }
    let results = if letters.is_empty() {
        Ok(Vec::new())
    } else {
        // Each letter is filed once by its id; a request key would cover the first batch only.
        caller.store.import(letters, caller.actor(reason).without_request()).await
    };
    merged(order, results, |id| json!({"id": id}))
}

/// Reads one letter of an export.
fn letter(text: &[u8]) -> Result<DeadLetter, Problem> {
    let letter: DeadLetter = crate::request::parse(text)?;
    check_import(&letter)?;
    Ok(letter)
}

/// The answers to a batch: the results of the store for the lines that got there, in the order of all lines.
pub(super) fn merged<T>(
    order: Vec<(usize, Option<Problem>)>,
    results: StoreResult<Vec<Result<T, redrive_core::error::Refusal>>>,
    show: impl Fn(T) -> Value,
) -> Answers {
    let (results, failure) = match results {
        Ok(results) => (results, None),
        Err(error) => (Vec::new(), Some(Problem::from(error))),
    };
    let mut results = results.into_iter();
    let mut lines = Vec::with_capacity(order.len());
    for (number, problem) in order {
        let result = match (problem, &failure) {
            (Some(problem), _) => Err(problem),
            (None, Some(failure)) => Err(failure.clone()),
            (None, None) => match results.next() {
                Some(result) => result.map_err(Problem::from),
                None => Err(Problem::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "undone",
                    "the store answered nothing",
                )),
            },
        };
        let mut line = match result {
            Ok(done) => show(done),
            Err(problem) => json!({"error": problem.document()}),
        };
        if let Some(members) = line.as_object_mut() {
            members.insert("line".into(), number.into());
        }
        lines.push(line);
    }
    Answers { lines, go_on: failure.is_none() }
}
