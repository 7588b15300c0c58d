//! Settings: who you are here, the tokens, what is kept for how long, and the health of the store.

use super::fields::Sent;
use super::frame::{Frame, Section};
use super::render;
use super::text::{When, plural, span};
use super::visitor::{Failure, Visitor, see_other};
use crate::access::{create_token, list_tokens, revoke_token};
use crate::problem::Problem;
use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use redrive_core::access::{Access, Grant, QueuePattern, TokenId, TokenRecord};
use redrive_core::store::{Queue, Role, Store as _, StoreInfo, VerifyRequest, Work as _};
use redrive_core::time::{Span, Time};

struct TokenRow {
    id: String,
    name: String,
    roles: String,
    queues: String,
    created: String,
    expires: String,
    used: Option<When>,
}

struct Kept {
    queue: String,
    closed: String,
    open: String,
}

/// What a check of the store found.
struct Checkup {
    is_sound: bool,
    text: String,
    problems: Vec<String>,
}

#[derive(Template)]
#[template(path = "settings.html")]
struct SettingsPage {
    frame: Frame,
    who: String,
    roles: String,
    queues: String,
    tokens: Option<Vec<TokenRow>>,
    /// A token that was just created; the only time it is shown.
    created: Option<String>,
    grants: Vec<&'static str>,
    kept: Vec<Kept>,
    store: Vec<(&'static str, String)>,
    degraded: Vec<String>,
    checkup: Option<Checkup>,
    may_check: bool,
}

fn token_row(record: &TokenRecord, now: Time) -> TokenRow {
    let names = |all: Vec<String>| all.join(", ");
    TokenRow {
        id: record.id.to_string(),
        name: record.access.name.clone(),
        roles: names(record.access.roles.iter().map(ToString::to_string).collect()),
        queues: if record.access.queues.is_empty() {
            "all".into()
        } else {
            names(record.access.queues.iter().map(ToString::to_string).collect())
        },
        created: format!("{} by {}", super::text::ago(record.created_at, now), record.created_by),
        expires: match record.expires_at {
            Some(at) if at <= now => "expired".into(),
            Some(at) => super::text::ago(at, now),
            None => "never".into(),
        },
        used: record.last_used_at.map(|at| When::ago(at, now)),
    }
}

fn kept(queue: &Queue) -> Kept {
    Kept {
        queue: queue.name.to_string(),
        closed: span(queue.policy.retention),
        open: queue.policy.open_ttl.map_or_else(|| "for ever".into(), span),
    }
}

fn facts(info: &StoreInfo) -> Vec<(&'static str, String)> {
    vec![
        ("kind", info.backend.clone()),
        ("place", info.place.clone()),
        ("survives a power cut", if info.durable { "yes".into() } else { "no".into() }),
        ("clock", super::text::exact(info.now)),
        ("ahead of the wall clock", format!("{} ms", info.skew_ms)),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
    ]
}

async fn page(
    visitor: &Visitor,
    created: Option<String>,
    checkup: Option<Checkup>,
) -> Result<Response, Failure> {
    let store = &visitor.caller.store;
    let is_admin = visitor.may(Role::Admin) && visitor.sees_all();
    let tokens = if is_admin {
        let records = list_tokens(store.as_ref()).await?;
        Some(records.iter().map(|record| token_row(record, visitor.now)).collect())
    } else {
        None
    };
    let info = store.info().await.ok();
    let queues = store.queues().await.unwrap_or_default();
    let access = &visitor.caller.access;
    let view = SettingsPage {
        frame: Frame::new(visitor, Section::Settings, "Settings").await,
        who: access.name.clone(),
        roles: access.roles.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        queues: if access.queues.is_empty() {
            "all queues".into()
        } else {
            access.queues.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        },
        tokens,
        created,
        grants: Grant::ALL.iter().map(|grant| grant.name()).collect(),
        kept: queues.iter().map(kept).collect(),
        store: info.as_ref().map(facts).unwrap_or_default(),
        degraded: info.map(|info| info.degraded).unwrap_or_default(),
        checkup,
        may_check: is_admin,
    };
    render(visitor, &view)
}

/// `GET /settings`
pub(super) async fn show(visitor: Visitor) -> Result<Response, Failure> {
    page(&visitor, None, None).await
}

/// `POST /settings`: creates or revokes a token, or checks the store.
pub(super) async fn act(visitor: Visitor, Sent(fields): Sent) -> Result<Response, Failure> {
    let store = visitor.caller.store.as_ref();
    match fields.get("act").unwrap_or_default() {
        "create" => {
            let wrong = |what: String| Problem::bad_request("bad_field", what);
            let roles: Result<_, String> = fields.all("role").map(str::parse::<Grant>).collect();
            let queues: Result<Vec<QueuePattern>, _> = fields
                .text("queues")
                .split([',', ' '])
                .filter(|name| !name.is_empty())
                .map(str::parse)
                .collect();
            let access = Access {
                name: fields.need("name")?,
                roles: roles.map_err(wrong)?,
                queues: queues.map_err(|error| wrong(error.to_string()))?,
            };
            if access.roles.is_empty() {
                return Err(wrong("a token needs at least one role".into()).into());
            }
            let lifetime: Option<Span> = fields.read("expires_in")?;
            let (token, _) = create_token(store, access, &visitor.actor(None), lifetime).await?;
            page(&visitor, Some(token.reveal()), None).await
        }
        "revoke" => {
            let id: TokenId = fields.need("id")?;
            let gone = revoke_token(store, id, &visitor.actor(None)).await?;
            visitor.caller.app.revoked(id);
            gone.ok_or_else(|| {
                Problem::new(StatusCode::NOT_FOUND, "no_such_token", format!("there is no token {id}"))
            })?;
            Ok(see_other("/settings"))
        }
        "verify" => {
            let found = store.verify(VerifyRequest::default()).await?;
            let problems: Vec<String> =
                found.findings.iter().take(20).map(|finding| finding.what.clone()).collect();
            let text = match found.findings_total {
                0 => "Everything was recounted and agrees.".to_owned(),
                n => format!(
                    "{} found. `redrive doctor` says what to do.",
                    plural(n, "problem was", "problems were")
                ),
            };
            page(&visitor, None, Some(Checkup { is_sound: problems.is_empty(), text, problems })).await
        }
        _ => Err(Problem::bad_request("bad_field", "there is no such act here").into()),
    }
}
