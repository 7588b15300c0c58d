//! Laws of short ids: the last digits of an id find every id of the requested kind that ends in them, through
//! pages of any size.

use super::LawContext;
use super::kit::msg;
use crate::ids::message_id;
use redrive_core::query::PageRequest;
use redrive_core::short_id::{IdKind, IdSuffixQuery};

impl LawContext<'_> {
    async fn ids_ending(&self, of: IdKind, tail: &str, limit: usize) -> Vec<String> {
        let tail = tail.parse().expect("digits");
        let (mut found, mut page) = (Vec::new(), PageRequest::first(limit));
        loop {
            let ids = self.store.ids_ending(IdSuffixQuery { of, tail, page }).await.expect("succeeds");
            assert!(ids.items.len() <= limit);
            found.extend(ids.items);
            match ids.next {
                Some(next) => page = PageRequest { limit: Some(limit), cursor: Some(next) },
                None => return found,
            }
        }
    }
}

pub(super) async fn i49_a_short_id_finds_every_id_that_ends_in_it(ctx: &LawContext<'_>) {
    let live = [0x1_beef, 0x2_beef, 0x3_beef];
    for n in live.into_iter().chain([0xcafe]) {
        ctx.send(msg(n, "q")).await;
    }
    let letter = ctx.dead_letter(msg(0x4_beef, "other"), "Bad").await;
    let whole = |n: u64| message_id(n).to_string();
    for limit in [1, 2, 100] {
        assert_eq!(
            ctx.ids_ending(IdKind::Message, "beef", limit).await,
            live.map(whole),
            "in the order of ids"
        );
    }
    assert_eq!(ctx.ids_ending(IdKind::Message, "2BEEF", 9).await, [whole(0x2_beef)]);
    assert_eq!(ctx.ids_ending(IdKind::Message, &whole(0xcafe)[1..], 9).await, [whole(0xcafe)]);
    assert_eq!(
        ctx.ids_ending(IdKind::Letter, "beef", 9).await,
        [whole(0x4_beef)],
        "live messages are not letters"
    );
    let group = letter.group.to_string();
    assert_eq!(ctx.ids_ending(IdKind::Group, &group[8..], 9).await, [group]);
    for of in [IdKind::Message, IdKind::Letter, IdKind::Operation, IdKind::Group] {
        assert!(ctx.ids_ending(of, "abcdef01", 9).await.is_empty(), "{of}");
    }
}
