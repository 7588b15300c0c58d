//! Dead letter consumers: leasing letters and saying what became of them. A consumer's own failure never changes a
//! letter; what it decides is an act like that of a person, and needs the same role.

use super::letter_acts::named_act;
use crate::access::Caller;
use crate::problem::Problem;
use crate::reply::{Items, batch};
use crate::request::{BatchBody, OptionalBody, Path};
use axum::Json;
use redrive_core::ids::{LeaseToken, QueueName};
use redrive_core::limits;
use redrive_core::store::{LetterLeaseRequest, LetterSettle, LetterSettlement, LetterState, Letters as _};
use redrive_core::time::{Span, Time};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// What a consumer asks for.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LeaseBody {
    max: Option<usize>,
    #[serde(alias = "lease_ms")]
    lease: Option<Span>,
    worker: Option<String>,
}

/// `POST /api/v1/dlqs/{dlq}/lease`: leases pending letters, oldest death first.
pub(crate) async fn lease(
    caller: Caller,
    Path(dlq): Path<QueueName>,
    OptionalBody(body): OptionalBody<LeaseBody>,
) -> Result<Json<Value>, Problem> {
    let request = LetterLeaseRequest {
        dlq,
        max: body.max.unwrap_or(1),
        lease_for: body.lease,
        worker: body.worker.unwrap_or_else(|| caller.access.name.clone()),
    };
    request.check()?;
    Ok(Json(json!({"items": caller.store.lease_letters(request).await?, "next": null})))
}

/// Several settlements.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SettleBody {
    settle: Vec<Entry>,
}

/// One settlement: a token and exactly one of the five ways.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    token: LeaseToken,
    act: Option<Map<String, Value>>,
    fail: Option<Failed>,
    release: Option<Nothing>,
    snooze: Option<Snoozed>,
    extend: Option<Extended>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Failed {
    note: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Snoozed {
    #[serde(alias = "for_ms")]
    r#for: Span,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Extended {
    #[serde(alias = "by_ms")]
    by: Option<Span>,
}

impl Entry {
    fn settlement(self, caller: &Caller, now: Time) -> Result<LetterSettlement, Problem> {
        let token = self.token;
        let what = match (self.act, self.fail, self.release, self.snooze, self.extend) {
            (Some(act), None, None, None, None) => {
                let (act, reason) = named_act(act, now)?;
                LetterSettle::Do { act, actor: caller.actor(reason).without_request() }
            }
            (None, Some(Failed { note }), None, None, None) => LetterSettle::Fail { note },
            (None, None, Some(Nothing {}), None, None) => LetterSettle::Release,
            (None, None, None, Some(snoozed), None) => LetterSettle::Snooze { span: snoozed.r#for },
            (None, None, None, None, Some(extended)) => LetterSettle::Extend { by: extended.by },
            (_, _, _, _, _) => {
                let what = "each entry has a token and one of act, fail, release, snooze, extend";
                return Err(Problem::bad_request("bad_batch", what));
            }
        };
        Ok(LetterSettlement { token, what })
    }
}

/// `POST /api/v1/letter-deliveries/settle`: says what became of leased letters, with a result for each.
pub(crate) async fn settle(
    caller: Caller,
    BatchBody(body): BatchBody<SettleBody>,
) -> Result<Json<Items<LetterState>>, Problem> {
    if body.settle.is_empty() || body.settle.len() > limits::BATCH_ENTRIES_MAX {
        let what = format!("settle 1 to {} letters", limits::BATCH_ENTRIES_MAX);
        return Err(Problem::bad_request("bad_batch", what));
    }
    let now = caller.now().await?;
    let settlements: Result<Vec<_>, Problem> =
        body.settle.into_iter().map(|entry| entry.settlement(&caller, now)).collect();
    Ok(batch(caller.store.settle_letters(settlements?).await?))
}
