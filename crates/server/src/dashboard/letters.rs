//! The list of dead letters: one filter, columns by choice, and acts on those that are selected or on all that match.

use super::fields::{Asked, Fields};
use super::frame::{Frame, Section};
use super::text::{Pill, When, beginning, number, plural, query, shell, short_id};
use super::visitor::{Failure, Visitor};
use super::{render, tables};
use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use redrive_core::dead_letter::{DeadLetter, Status};
use redrive_core::failure::{Category, Reason, Route, Severity};
use redrive_core::filter::{Field, Filter, FilterError};
use redrive_core::priority::Priority;
use redrive_core::query::{Cursor, Page, PageRequest, Query};
use redrive_core::store::{Letters as _, Role, Store as _};
use redrive_core::time::Time;

/// Letters on a page.
const ROWS: usize = 40;

/// The status of a letter as a pill.
pub(super) fn state(status: Status) -> Pill {
    match status {
        Status::Pending => Pill::new("blue", "Pending"),
        Status::Retrying => Pill::new("amber", "Retrying"),
        Status::Review => Pill::new("amber", "In review"),
        Status::Quarantined => Pill::new("", "Quarantined"),
        Status::Resolved => Pill::new("green", "Resolved"),
        Status::Abandoned => Pill::new("", "Abandoned"),
        Status::Purged => Pill::new("", "Purged"),
    }
}

/// A column that can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Status,
    Queue,
    Reason,
    Category,
    Attempts,
    Redrives,
    Priority,
    Owner,
    Dlq,
    Tags,
    Died,
}

const COLUMNS: [(Column, &str, &str); 11] = [
    (Column::Status, "status", "Status"),
    (Column::Queue, "queue", "Queue"),
    (Column::Reason, "reason", "Why it died"),
    (Column::Category, "category", "Category"),
    (Column::Attempts, "attempts", "Attempts"),
    (Column::Redrives, "redrives", "Sent back"),
    (Column::Priority, "priority", "Priority"),
    (Column::Owner, "owner", "Owner"),
    (Column::Dlq, "dlq", "Dead letter queue"),
    (Column::Tags, "tags", "Tags"),
    (Column::Died, "died", "Died"),
];

const USUAL: [Column; 4] = [Column::Status, Column::Queue, Column::Attempts, Column::Died];

impl Column {
    const fn is_number(self) -> bool {
        match self {
            Self::Attempts | Self::Redrives | Self::Died => true,
            Self::Status
            | Self::Queue
            | Self::Reason
            | Self::Category
            | Self::Priority
            | Self::Owner
            | Self::Dlq
            | Self::Tags => false,
        }
    }

    /// The class that hides it on narrow screens.
    const fn width(self) -> &'static str {
        match self {
            Self::Status | Self::Died => "mid",
            Self::Queue
            | Self::Reason
            | Self::Category
            | Self::Attempts
            | Self::Redrives
            | Self::Priority
            | Self::Owner
            | Self::Dlq
            | Self::Tags => "mid",
        }
    }

    fn cell(self, letter: &DeadLetter, now: Time) -> Cell {
        let record = &letter.record;
        let text = match self {
            Self::Status => return Cell::State(state(record.status)),
            Self::Died => return Cell::When(When::rough(record.dead_at, now)),
            Self::Queue => letter.message.envelope.queue.to_string(),
            Self::Reason => record.reason.name().replace('_', " "),
            Self::Category => record.category.to_string(),
            Self::Attempts => number(u64::from(letter.message.attempts)),
            Self::Redrives => number(u64::from(record.redrives)),
            Self::Priority => letter.message.envelope.priority.to_string(),
            Self::Owner => record.owner.clone().unwrap_or_default(),
            Self::Dlq => record.dlq.to_string(),
            Self::Tags => letter
                .message
                .envelope
                .tags
                .iter()
                .chain(&record.labels)
                .cloned()
                .collect::<Vec<_>>()
                .join(", "),
        };
        Cell::Text(text)
    }
}

/// What stands in a column.
enum Cell {
    Text(String),
    State(Pill),
    When(When),
}

/// The head of a column.
struct Head {
    name: &'static str,
    label: &'static str,
    class: String,
    is_shown: bool,
}

struct Row {
    id: String,
    short: String,
    href: String,
    kind: String,
    error_type: String,
    message: String,
    state: Pill,
    cells: Vec<(String, Cell)>,
    is_fresh: bool,
}

/// A mistake in a filter, with its place.
pub(super) struct Mistake {
    what: String,
    nearest: Option<String>,
    before: String,
    at: String,
    after: String,
    /// The same filter with the word that was probably meant.
    mended: Option<String>,
}

impl Mistake {
    /// Shows where a filter is wrong.
    pub(super) fn new(error: &FilterError) -> Self {
        let (before, rest) = error.text.split_at_checked(error.at).unwrap_or((error.text.as_str(), ""));
        let end = rest.find(|c: char| c.is_whitespace() || ":=<>()".contains(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at_checked(end).unwrap_or((rest, ""));
        let mended = error.nearest.as_ref().map(|word| format!("{before}{word}{after}"));
        Self {
            what: error.what.clone(),
            nearest: error.nearest.clone(),
            before: before.to_owned(),
            at: if word.is_empty() { " ".into() } else { word.to_owned() },
            after: after.to_owned(),
            mended,
        }
    }
}

/// A filter that people often want.
struct Preset {
    label: &'static str,
    href: String,
    is_chosen: bool,
}

#[derive(Template)]
#[template(path = "letters.html")]
struct LettersPage {
    frame: Frame,
    filter: String,
    mistake: Option<Mistake>,
    fields: String,
    values: String,
    presets: Vec<Preset>,
    heads: Vec<Head>,
    chosen: String,
    rows: Vec<Row>,
    damaged: Vec<String>,
    counted: String,
    total: Option<String>,
    next: Option<String>,
    goes_on: bool,
    is_empty_store: bool,
    may_act: bool,
    cli: String,
    curl: String,
}

/// The names of the fields of the filter language, for completion.
fn field_names() -> String {
    Field::names().collect::<Vec<_>>().join(" ")
}

/// The values of the fields that have only a few, for completion: `status=pending,review priority=critical,high`.
fn field_values() -> String {
    let names = |field: &str, names: Vec<&str>| format!("{field}={}", names.join(","));
    let all = [
        names("status", Status::ALL.iter().map(|status| status.name()).collect()),
        names("reason", Reason::ALL.iter().map(|reason| reason.name()).collect()),
        names("category", Category::ALL.iter().map(|category| category.name()).collect()),
        names("route", Route::ALL.iter().map(|route| route.name()).collect()),
        names("severity", Severity::ALL.iter().map(|severity| severity.name()).collect()),
        names("priority", Priority::ALL.iter().map(|priority| priority.name()).collect()),
    ];
    all.join(" ")
}

/// The columns that are asked for.
fn columns(asked: &Fields) -> Vec<Column> {
    let wanted: Vec<&str> = asked.all("cols").flat_map(|names| names.split(',')).collect();
    let known = COLUMNS.into_iter().filter(|(_, name, _)| wanted.contains(name)).map(|(column, _, _)| column);
    let chosen: Vec<Column> = known.collect();
    if chosen.is_empty() { USUAL.into() } else { chosen }
}

/// `GET /dlq`
pub(super) async fn list(visitor: Visitor, Asked(asked): Asked) -> Result<Response, Failure> {
    let text = asked.raw("filter").map_or_else(|| tables::OPEN.to_owned(), |text| text.trim().to_owned());
    let (filter, mistake) = match Filter::parse(&text) {
        Ok(filter) => (Some(filter), None),
        Err(error) => (None, Some(Mistake::new(&error))),
    };
    let page = match filter {
        Some(filter) => {
            let cursor = asked.owned("cursor").map(Cursor::from_text);
            let query = Query { filter, page: PageRequest { limit: Some(ROWS), cursor } };
            visitor.show(&visitor.caller.store.letters(query).await?)
        }
        None => Page::last(Vec::new()),
    };
    let total = known_total(&visitor, &text).await;
    let is_wrong = mistake.is_some();
    let view = view(&visitor, &asked, text, mistake, &page, total).await;
    let mut response = render(&visitor, &view)?;
    if is_wrong {
        *response.status_mut() = StatusCode::BAD_REQUEST;
    }
    Ok(response)
}

/// The number of matching letters, where a counter knows it.
async fn known_total(visitor: &Visitor, filter: &str) -> Option<u64> {
    let store = &visitor.caller.store;
    if !visitor.sees_all() {
        return None;
    }
    if filter == tables::OPEN {
        let stats = store.stats().await.ok()?;
        return Some(stats.queues.iter().map(|queue| queue.letters_open).sum());
    }
    let rest = filter.strip_prefix("group:")?;
    let (id, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let group = store.group(id.parse().ok()?).await.ok()?;
    (rest == tables::OPEN).then_some(group.open)
}

async fn view(
    visitor: &Visitor,
    asked: &Fields,
    filter: String,
    mistake: Option<Mistake>,
    page: &Page<DeadLetter>,
    total: Option<u64>,
) -> LettersPage {
    let columns = columns(asked);
    let cursor = asked.text("cursor");
    let names: Vec<&str> =
        COLUMNS.iter().filter(|(c, _, _)| columns.contains(c)).map(|(_, name, _)| *name).collect();
    let row =
        |letter: &DeadLetter| row(letter, &columns, &filter, &cursor, visitor.now, visitor.last_visit());
    LettersPage {
        frame: Frame::new(visitor, Section::Letters, "Dead letters").await,
        mistake,
        fields: field_names(),
        values: field_values(),
        presets: presets(&filter),
        heads: COLUMNS
            .map(|(column, name, label)| Head {
                name,
                label,
                class: class_of(column),
                is_shown: columns.contains(&column),
            })
            .into(),
        chosen: if columns == USUAL { String::new() } else { names.join(",") },
        rows: page.items.iter().map(row).collect(),
        damaged: page.damaged.clone(),
        counted: plural(page.items.len() as u64, "letter", "letters"),
        total: total.map(number),
        goes_on: page.next.is_some() && page.items.is_empty(),
        next: page.next.as_ref().map(|next| tables::address(&visitor.here, &[("cursor", next.as_str())])),
        is_empty_store: page.items.is_empty() && filter == tables::OPEN,
        may_act: visitor.may(Role::Operator),
        cli: format!("redrive dlq list {}", shell(&filter)),
        curl: tables::curl("GET", &format!("/api/v1/dlq?filter={}", query(&filter)), None),
        filter,
    }
}

fn class_of(column: Column) -> String {
    let number = if column.is_number() { "num " } else { "" };
    format!("{number}{}", column.width()).trim().to_owned()
}

fn row(
    letter: &DeadLetter,
    columns: &[Column],
    filter: &str,
    cursor: &str,
    now: Time,
    last_visit: Option<Time>,
) -> Row {
    let id = letter.id().to_string();
    let kind = &letter.message.envelope.kind;
    let cursor = if cursor.is_empty() { String::new() } else { format!("&cursor={}", query(cursor)) };
    Row {
        short: short_id(&id),
        href: format!("/dlq/{id}?filter={}{cursor}", query(filter)),
        kind: if kind.is_empty() { letter.message.envelope.queue.to_string() } else { kind.clone() },
        error_type: super::groups::named(&letter.error.error_type),
        message: beginning(&letter.error.message, 180),
        state: state(letter.record.status),
        cells: columns.iter().map(|column| (class_of(*column), column.cell(letter, now))).collect(),
        is_fresh: last_visit.is_some_and(|visit| letter.record.dead_at > visit),
        id,
    }
}

fn presets(filter: &str) -> Vec<Preset> {
    let known = [
        ("Open", tables::OPEN),
        ("Pending", "status:pending"),
        ("In review", "status:review"),
        ("Quarantined", "status:quarantined"),
        ("Retrying", "status:retrying"),
        ("Died in the last hour", "died:1h"),
        ("Closed", "status:resolved,abandoned"),
        ("All", ""),
    ];
    let preset = |(label, text): (&'static str, &str)| Preset {
        label,
        href: format!("/dlq?filter={}", query(text)),
        is_chosen: text == filter,
    };
    known.map(preset).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_shown_at_its_place_with_what_was_meant() {
        let error = Filter::parse("queue:a statsu:pending age>1h").unwrap_err();
        let mistake = Mistake::new(&error);
        assert_eq!((mistake.before.as_str(), mistake.at.as_str()), ("queue:a ", "statsu"));
        assert_eq!(mistake.mended.as_deref(), Some("queue:a status:pending age>1h"));
        let error = Filter::parse("status:").unwrap_err();
        assert_eq!(Mistake::new(&error).at, " ", "the end of the text is a place too");
    }

    #[test]
    fn every_preset_is_a_filter_and_every_field_completes() {
        for preset in presets("") {
            assert!(preset.href.starts_with("/dlq?filter="));
        }
        Filter::parse(tables::OPEN).unwrap();
        assert!(field_names().contains("status") && field_names().contains("payload"));
        for (field, values) in field_values().split(' ').filter_map(|pair| pair.split_once('=')) {
            for value in values.split(',') {
                Filter::parse(&format!("{field}:{value}")).unwrap();
            }
        }
    }
}
