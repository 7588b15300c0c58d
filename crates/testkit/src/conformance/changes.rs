//! Laws of the change feed: whatever changed is named, once, and nothing that has been reported is reported again.

use super::LawContext;
use super::kit::{fail, max_attempts, msg, operator, q};
use crate::ids::{message_id, operation_id};
use redrive_core::breaker::{BreakerKey, BreakerPolicy};
use redrive_core::changes::{Area, Changes, FeedPosition};
use redrive_core::dead_letter::Act;
use redrive_core::filter::Filter;
use redrive_core::group::GroupAct;
use redrive_core::operation::OperationSpec;
use redrive_core::policy::QueuePolicy;
use redrive_core::store::Settle;
use redrive_core::time::Span;

impl LawContext<'_> {
    /// What changed since a position, without waiting.
    async fn changes(&self, since: Option<FeedPosition>) -> Changes {
        self.store.changes(since, Span::ZERO).await.expect("changes succeeds")
    }

    /// Asserts that exactly these queues and at least these other areas changed, and returns the new position.
    async fn changed(&self, since: FeedPosition, what: &str, areas: &[Area]) -> FeedPosition {
        let changes = self.changes(Some(since)).await;
        assert!(!changes.everything, "{what}: the reader is not behind");
        for area in areas {
            assert!(changes.covers(area), "{what} changes {area:?}, and the feed names {:?}", changes.areas);
        }
        let queues = |areas: &mut dyn Iterator<Item = &Area>| {
            areas.filter(|area| matches!(area, Area::Queue(_))).cloned().collect::<Vec<_>>()
        };
        assert_eq!(queues(&mut changes.areas.iter()), queues(&mut areas.iter()), "{what}");
        let again = self.changes(Some(changes.at)).await;
        assert_eq!(again, Changes::nothing(changes.at), "{what} is reported once");
        changes.at
    }
}

pub(super) async fn every_change_is_named_once(ctx: &LawContext<'_>) {
    let (queue, dlq) = (|| Area::Queue(q("q")), || Area::Dlq(q("q-dlq")));
    let start = ctx.changes(None).await;
    assert!(start.everything, "nobody knows what a new reader has seen");
    assert_eq!(ctx.changes(Some(start.at)).await, Changes::nothing(start.at));
    ctx.configure("q", max_attempts(1)).await;
    let at = ctx.changed(start.at, "a new queue", &[queue(), Area::Audit]).await;
    ctx.send(msg(9, "other")).await;
    let at = ctx.changed(at, "an enqueue", &[Area::Queue(q("other"))]).await;
    ctx.send(msg(1, "q")).await;
    ctx.send(msg(2, "q")).await;
    let at = ctx.changed(at, "two enqueues", &[queue()]).await;
    let leased = ctx.lease("q", 2).await;
    let at = ctx.changed(at, "a lease", &[queue(), Area::Workers]).await;
    ctx.settle(leased[0].token, Settle::Ack).await.expect("held");
    let at = ctx.changed(at, "an ack", &[queue(), Area::Workers]).await;
    ctx.settle(leased[1].token, fail("Bad")).await.expect("held");
    let group = ctx.letter(message_id(2)).await.group;
    let at = ctx.changed(at, "a death", &[queue(), dlq(), Area::Group(group), Area::Workers]).await;
    ctx.act(message_id(2), Act::Review).await.expect("pending");
    let at = ctx.changed(at, "an act", &[dlq(), Area::Audit]).await;
    ctx.act(message_id(2), Act::Assign { to: Some("ada".into()) }).await.expect("open");
    let at = ctx.changed(at, "a change of the record", &[dlq(), Area::Audit]).await;
    ctx.store.act_on_group(group, GroupAct::Acknowledge, operator()).await.expect("new");
    let at = ctx.changed(at, "an act on a group", &[Area::Group(group), Area::Audit]).await;
    ctx.act(message_id(2), Act::retry()).await.expect("open");
    let at = ctx.changed(at, "a retry", &[queue(), dlq(), Area::Audit]).await;
    let again = ctx.lease_one("q").await;
    ctx.settle(again.token, Settle::Ack).await.expect("held");
    let areas = [queue(), dlq(), Area::Group(group), Area::Workers];
    ctx.changed(at, "a success after a retry", &areas).await;
}

pub(super) async fn operations_breakers_markers_and_values_are_named(ctx: &LawContext<'_>) {
    let breaker = Some(BreakerPolicy::new(BreakerKey::Queue));
    ctx.configure("q", QueuePolicy { breaker, ..max_attempts(1) }).await;
    let group = ctx.dead_letter(msg(1, "q"), "Bad").await.group;
    let at = ctx.changes(None).await.at;
    let id = operation_id(1);
    let filter = Filter::parse("queue:q").expect("a filter");
    let spec = OperationSpec::new(id, Act::Resolve, filter, operator());
    ctx.store.start(spec).await.expect("starts");
    let at = ctx.changed(at, "a start", &[Area::Operation(id), Area::Audit]).await;
    ctx.store.step(id).await.expect("steps");
    let at = ctx.changed(at, "a freeze", &[Area::Operation(id)]).await;
    ctx.store.step(id).await.expect("steps");
    let areas = [Area::Operation(id), Area::Dlq(q("q-dlq")), Area::Group(group), Area::Audit];
    let at = ctx.changed(at, "a step", &areas).await;
    ctx.store.force_breaker(q("q"), "q".into(), true, operator()).await.expect("forced");
    let at = ctx.changed(at, "a breaker", &[Area::Breakers, Area::Audit]).await;
    ctx.store.mark("deploy 7".into(), operator()).await.expect("marked");
    let at = ctx.changed(at, "a marker", &[Area::Markers, Area::Audit]).await;
    ctx.store.kv_put("alerts".into(), "k".into(), Some(vec![1]), 0).await.expect("written");
    let at = ctx.changed(at, "a value", &[Area::Kv("alerts".into())]).await;
    ctx.store.pause(q("q"), true, operator()).await.expect("paused");
    ctx.changed(at, "a pause", &[Area::Queue(q("q")), Area::Audit]).await;
}

pub(super) async fn what_is_refused_or_only_read_changes_nothing(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    ctx.dead_letter(msg(1, "q"), "Bad").await;
    let at = ctx.changes(None).await.at;
    ctx.view().await;
    ctx.act(message_id(1), Act::Reopen).await.expect_err("it is open");
    ctx.store.kv_put("alerts".into(), "k".into(), Some(vec![1]), 7).await.expect_err("there is none");
    ctx.store.force_breaker(q("nowhere"), "k".into(), true, operator()).await.expect_err("no such queue");
    assert_eq!(ctx.changes(Some(at)).await, Changes::nothing(at));
}

pub(super) async fn a_position_of_another_process_means_everything(ctx: &LawContext<'_>) {
    ctx.send(msg(1, "q")).await;
    let at = ctx.changes(None).await.at;
    for strange in [
        FeedPosition { epoch: at.epoch.wrapping_add(1), ..at },
        FeedPosition { version: at.version + 1, ..at },
    ] {
        assert_eq!(ctx.changes(Some(strange)).await, Changes::everything(at));
    }
}
