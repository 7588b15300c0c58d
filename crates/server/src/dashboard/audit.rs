//! The audit trail: who did what, when and why, and whether the chain is whole.

use super::fields::Asked;
use super::frame::{Frame, Section};
use super::text::{When, number, plural, short_id};
use super::visitor::{Failure, Visitor, see_other};
use super::{render, tables};
use askama::Template;
use axum::response::Response;
use redrive_core::audit::{AuditReport, AuditRow};
use redrive_core::ids::{MessageId, OperationId};
use redrive_core::query::{Cursor, PageRequest};
use redrive_core::store::Letters as _;

/// Rows on a page.
const ROWS: usize = 50;

struct Row {
    n: String,
    when: When,
    actor: String,
    source: String,
    act: String,
    target: String,
    href: Option<String>,
    count: String,
    why: String,
    result: Option<String>,
}

/// What a verification found.
struct Verdict {
    is_whole: bool,
    text: String,
    head: String,
}

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    frame: Frame,
    rows: Vec<Row>,
    verdict: Option<Verdict>,
    next: Option<String>,
    cli: String,
    curl: String,
}

/// The page of what a row was done to, where its act says what that is.
fn link(act: &str, target: &str) -> Option<String> {
    if act.ends_with(" group") || act.starts_with("group ") {
        return Some(format!("/groups/{target}"));
    }
    let is_id = target.len() == 36 && target.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_id.then(|| format!("/find?id={target}"))
}

/// `GET /find`: the page of a letter or an operation, whichever has this id.
pub(super) async fn find(visitor: Visitor, Asked(asked): Asked) -> Result<Response, Failure> {
    let id: MessageId = asked.need("id")?;
    let store = &visitor.caller.store;
    if store.letter(id).await.is_ok() {
        return Ok(see_other(&format!("/dlq/{id}")));
    }
    store.operation(OperationId::new(id)).await?;
    Ok(see_other(&format!("/operations/{id}")))
}

fn row(row: &AuditRow) -> Row {
    let entry = &row.entry;
    let parts = [
        entry.reason.as_ref().map(|reason| format!("“{reason}”")),
        entry.detail.clone(),
        entry.filter.clone(),
    ];
    Row {
        n: number(row.n),
        when: When::exact(entry.at),
        actor: entry.actor.clone(),
        source: entry.source.clone(),
        act: entry.act.clone(),
        href: link(&entry.act, &entry.target),
        target: short_id(&entry.target),
        count: number(entry.count),
        why: parts.into_iter().flatten().collect::<Vec<_>>().join(" · "),
        result: entry.result.clone(),
    }
}

fn verdict(report: AuditReport) -> Verdict {
    let rows = plural(report.rows, "row was", "rows were");
    let text = match &report.broken {
        None if report.trimmed > 0 => format!(
            "{rows} checked and the chain is whole; {} before them were trimmed and are covered by an anchor.",
            number(report.trimmed)
        ),
        None => format!("{rows} checked and the chain is whole: nothing was changed, removed or added."),
        Some(what) => format!("{rows} checked, and the chain is broken: {what}."),
    };
    Verdict { is_whole: report.broken.is_none(), text, head: report.head }
}

/// `GET /audit`
pub(super) async fn list(visitor: Visitor, Asked(asked): Asked) -> Result<Response, Failure> {
    let store = &visitor.caller.store;
    let request = PageRequest { limit: Some(ROWS), cursor: asked.owned("cursor").map(Cursor::from_text) };
    let page = visitor.show(&store.audit(request).await?);
    let verdict = match asked.get("verify") {
        Some(_) => Some(verdict(store.audit_verify(asked.owned("head")).await?)),
        None => None,
    };
    let view = AuditPage {
        frame: Frame::new(&visitor, Section::Audit, "Audit").await,
        rows: page.items.iter().map(row).collect(),
        verdict,
        next: page
            .next
            .as_ref()
            .map(|next| tables::address(&visitor.here, &[("cursor", next.as_str()), ("verify", "")])),
        cli: "redrive audit verify".into(),
        curl: tables::curl("GET", "/api/v1/audit", None),
    };
    render(&visitor, &view)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_lead_to_what_they_were_done_to() {
        let id = "01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00";
        assert_eq!(link("retry", id), Some(format!("/find?id={id}")));
        assert_eq!(link("acknowledge group", "00ff"), Some("/groups/00ff".into()));
        assert_eq!(link("pause", "payments"), None);
    }
}
