//! The overview: what is wrong in one sentence, four numbers, what died and what was closed by hour, and the state of
//! everything else in a few lines.

use super::chart::{Columns, Mark, Svg, by_hour};
use super::diagnosis::{Diagnosis, Figure, Situation, hours};
use super::frame::{Frame, Section};
use super::groups::{self, Row, situation};
use super::queues::{self, QueueRow};
use super::text::{beginning, hour, number};
use super::visitor::{Failure, Visitor, see_other};
use super::{operations, render, tables, workers};
use askama::Template;
use axum::response::Response;
use redrive_core::group::{Group, GroupStatus};
use redrive_core::query::PageRequest;
use redrive_core::store::{Letters as _, Work as _};

/// The hours of the chart.
const HOURS: u64 = 24;
/// The groups with a colour of their own.
const COLOURS: [&str; 5] = ["c1", "c2", "c3", "c4", "c5"];
/// Rows of each list.
const FEW: usize = 5;

/// A series of the chart, for its legend.
struct Series {
    class: &'static str,
    name: String,
    href: Option<String>,
    count: String,
}

/// A row of the table behind the chart.
struct Hourly {
    hour: String,
    died: String,
    closed: String,
}

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
    diagnosis: Diagnosis,
    figures: Vec<Figure>,
    chart: Svg,
    legend: Vec<Series>,
    hourly: Vec<Hourly>,
    fresh: Vec<Row>,
    queues: Vec<QueueRow>,
    operations: Vec<operations::Row>,
    workers: Vec<workers::Brief>,
    workers_count: String,
    is_empty: bool,
    cli: &'static str,
    curl: String,
}

/// `GET /`
pub(super) async fn show(visitor: Visitor) -> Result<Response, Failure> {
    if !visitor.sees_all() {
        return Ok(see_other("/dlq"));
    }
    let situation = situation(&visitor).await?;
    let store = &visitor.caller.store;
    let (queues, operations, workers) =
        tokio::join!(store.queues(), store.operations(PageRequest::first(20)), store.workers());
    let (workers, workers_count) = workers::brief(workers?, FEW, visitor.now);
    let running = visitor.show(&operations?.items);
    let running = running.iter().filter(|operation| !operation.stage.is_over()).take(FEW);
    let fresh =
        |group: &&Group| group.open > 0 && matches!(group.status, GroupStatus::New | GroupStatus::Regressed);
    let mut newest: Vec<&Group> = situation.groups.iter().filter(fresh).collect();
    newest.sort_by_key(|group| std::cmp::Reverse((group.status == GroupStatus::Regressed, group.last_seen)));
    let all_open = situation.groups.iter().map(|group| group.open).sum();
    let mut rows = queues::rows(&queues?, &situation.stats, &situation.breakers);
    rows.sort_by_key(|row| std::cmp::Reverse(row.trouble));
    rows.truncate(8);
    let (chart, legend) = chart(&situation);
    let view = OverviewPage {
        frame: Frame::new(&visitor, Section::Overview, "Overview").await,
        diagnosis: situation.diagnosis(),
        figures: situation.figures(),
        hourly: hourly(&situation),
        chart,
        legend,
        fresh: newest
            .into_iter()
            .take(FEW)
            .map(|g| groups::row(g, all_open, visitor.now, visitor.last_visit()))
            .collect(),
        queues: rows,
        operations: running.map(|operation| operations::row(operation, visitor.now)).collect(),
        workers,
        workers_count,
        is_empty: situation.groups.is_empty(),
        cli: "redrive dlq stats",
        curl: tables::curl("GET", "/api/v1/stats/report", None),
    };
    render(&visitor, &view)
}

/// Deaths by hour, stacked by the groups with most of them, and closed letters as a line.
fn chart(situation: &Situation) -> (Svg, Vec<Series>) {
    let by_deaths = situation.by_deaths(HOURS);
    let top: Vec<&(&Group, u64)> =
        by_deaths.iter().filter(|(_, deaths)| *deaths > 0).take(COLOURS.len()).collect();
    let of = |group: &Group| by_hour(hours(group), HOURS, situation.now, |hour| hour.deaths);
    let mut series: Vec<(&str, Vec<u64>)> =
        top.iter().zip(COLOURS).map(|((group, _), class)| (class, of(group))).collect();
    let mut rest = situation.sum(HOURS, |hour| hour.deaths);
    for (_, values) in &series {
        rest.iter_mut().zip(values).for_each(|(left, value)| *left = left.saturating_sub(*value));
    }
    let others: u64 = rest.iter().sum();
    series.insert(0, ("c6", rest));
    let mut legend: Vec<Series> = top
        .iter()
        .zip(COLOURS)
        .map(|((group, deaths), class)| Series {
            class,
            name: beginning(&groups::named(&group.error_type), 32),
            href: Some(format!("/groups/{}", group.id)),
            count: number(*deaths),
        })
        .collect();
    if others > 0 {
        legend.push(Series { class: "c6", name: "others".into(), href: None, count: number(others) });
    }
    let marks =
        situation.markers.iter().map(|m| Mark { at: m.at, text: m.text.clone(), is_event: false }).collect();
    let line = Some(situation.sum(HOURS, |hour| hour.closed));
    let label = format!("Messages that died and letters that were closed, by hour, last {HOURS} h");
    (Columns { series, line, marks, now: situation.now, label }.draw(), legend)
}

fn hourly(situation: &Situation) -> Vec<Hourly> {
    let (died, closed) = (situation.sum(HOURS, |hour| hour.deaths), situation.sum(HOURS, |hour| hour.closed));
    let at = |back: u64| situation.now.minus(redrive_core::time::Span::from_hours(back));
    let rows = died.iter().zip(closed).zip((0..HOURS).rev());
    rows.map(|((died, closed), back)| Hourly {
        hour: format!("{}:00", hour(at(back)).get(..2).unwrap_or_default()),
        died: number(*died),
        closed: number(closed),
    })
    .collect()
}
