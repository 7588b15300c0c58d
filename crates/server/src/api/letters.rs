//! Dead letters: looking at them. What can be done to them is in [`super::letter_acts`].

use super::ids::IdInPath;
use super::messages::FilterParams;
use super::queues::Reason;
use crate::access::Caller;
use crate::problem::Problem;
use crate::reply::with_version;
use crate::request::{OptionalBody, Params, Path};
use axum::Json;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use redrive_core::content_diff::{ContentDiff, RevisionSummary};
use redrive_core::disclosure::{Disclosed, Disclosure};
use redrive_core::revision::Revision;
use redrive_core::store::Letters as _;
use serde::Deserialize;
use serde_json::{Value, json};

/// `GET /api/v1/dlq`
pub(crate) async fn list(
    caller: Caller,
    uri: Uri,
    Params(params): Params<FilterParams>,
) -> Result<Response, Problem> {
    Ok(caller.page(&uri, &caller.store.letters(params.query()?).await?))
}

/// `GET /api/v1/dlq/{id}`
pub(crate) async fn show(caller: Caller, Path(id): Path<IdInPath>) -> Result<Response, Problem> {
    let letter = caller.store.letter(id.letter(&caller).await?).await?;
    Ok(with_version(letter.record.version, caller.show(&letter)))
}

/// `GET /api/v1/dlq/{id}/timeline`
pub(crate) async fn timeline(caller: Caller, Path(id): Path<IdInPath>) -> Result<Json<Value>, Problem> {
    let letter = caller.show(&caller.store.letter(id.letter(&caller).await?).await?).into_inner();
    Ok(Json(json!({"items": letter.timeline(), "next": null})))
}

/// `GET /api/v1/dlq/{id}/revisions`
pub(crate) async fn revisions(caller: Caller, Path(id): Path<IdInPath>) -> Result<Json<Value>, Problem> {
    let revisions = caller.store.revisions(id.letter(&caller).await?).await?;
    Ok(Json(json!({"items": caller.show(&revisions).into_inner(), "next": null})))
}

/// Which revisions to compare.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiffParams {
    from: Option<u32>,
    to: Option<u32>,
}

/// `GET /api/v1/dlq/{id}/diff`: what changed between two revisions, masked.
pub(crate) async fn diff(
    caller: Caller,
    Path(id): Path<IdInPath>,
    Params(params): Params<DiffParams>,
) -> Result<Json<Value>, Problem> {
    let id = id.letter(&caller).await?;
    let revisions = caller.store.revisions(id).await?;
    let Some(present) = revisions.last() else {
        let what = format!("the content of dead letter {id} was erased, with all revisions");
        return Err(Problem::new(StatusCode::CONFLICT, "erased", what));
    };
    let find = |n: u32| {
        let missing = || {
            let what = format!("dead letter {id} has no revision {n}; the current one is {}", present.n);
            Problem::new(StatusCode::NOT_FOUND, "no_such_revision", what)
        };
        revisions.iter().find(|revision| revision.n == n).ok_or_else(missing)
    };
    let (from, to) = (find(params.from.unwrap_or(0))?, find(params.to.unwrap_or(present.n))?);
    let names = (format!("revision {}", from.n), format!("revision {}", to.n));
    let rules = caller.rules();
    let changes = ContentDiff::between(&from.content, &to.content, (&names.0, &names.1), rules);
    let head = |revision: &Revision| RevisionSummary::from(revision).masked(rules);
    Ok(Json(json!({
        "id": id,
        "from": head(from),
        "to": head(to),
        "diff": changes.text,
        "masked_only": changes.masked_only,
    })))
}

/// `POST /api/v1/dlq/{id}/reveal`: the letter as it is, which the audit trail records first.
pub(crate) async fn reveal(
    caller: Caller,
    Path(id): Path<IdInPath>,
    OptionalBody(body): OptionalBody<Reason>,
) -> Result<Response, Problem> {
    let id = id.letter(&caller).await?;
    let letter = caller.store.letter(id).await?;
    caller.store.disclose(Disclosure::of(Disclosed::Letter, id), caller.actor(body.reason)).await?;
    Ok(with_version(letter.record.version, Json(letter)))
}
