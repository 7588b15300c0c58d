//! Laws of key-value entries: compare and set.

use super::LawContext;
use super::kit::{refused, refused_field};
use redrive_core::error::{Refusal, StoreResult};
use redrive_core::limits;
use redrive_core::query::{Cursor, Page, PageRequest};
use redrive_core::store::{KvEntry, KvItem};

impl LawContext<'_> {
    async fn get(&self, namespace: &str, key: &str) -> Option<KvEntry> {
        self.store.kv_get(namespace.into(), key.into()).await.expect("kv_get succeeds")
    }

    async fn put(&self, key: &str, value: Option<&[u8]>, expected: u64) -> StoreResult<u64> {
        self.store.kv_put("n".into(), key.into(), value.map(<[u8]>::to_vec), expected).await
    }

    async fn list(&self, prefix: &str, page: PageRequest) -> Page<KvItem> {
        self.store.kv_list("n".into(), prefix.into(), page).await.expect("kv_list succeeds")
    }

    /// Reads a list in pages of this many items; every page but the last is full.
    async fn read_pages(&self, prefix: &str, limit: usize) -> Vec<KvItem> {
        let (mut all, mut cursor) = (Vec::new(), None);
        loop {
            let Page { items, next, .. } =
                self.list(prefix, PageRequest { limit: Some(limit), cursor }).await;
            assert!(items.len() == limit || next.is_none() && items.len() < limit);
            all.extend(items);
            match next {
                Some(next) => cursor = Some(next),
                None => return all,
            }
        }
    }
}

pub(super) async fn a_value_is_written_only_over_the_expected_version(ctx: &LawContext<'_>) {
    assert_eq!(ctx.get("n", "k").await, None);
    let conflict = Refusal::KvConflict { namespace: "n".into(), key: "k".into() };
    assert_eq!(refused(ctx.put("k", Some(b"x"), 1).await), conflict);
    assert_eq!(ctx.get("n", "k").await, None);
    assert_eq!(ctx.put("k", Some(b"one"), 0).await, Ok(1));
    assert_eq!(refused(ctx.put("k", Some(b"lost"), 0).await), conflict, "another writer was first");
    assert_eq!(ctx.put("k", Some(&[0, 255, 10]), 1).await, Ok(2));
    assert_eq!(ctx.get("n", "k").await, Some(KvEntry { value: vec![0, 255, 10], version: 2 }));
    assert_eq!(refused(ctx.put("k", None, 1).await), conflict);
    assert_eq!(ctx.put("k", None, 2).await, Ok(0));
    assert_eq!(ctx.get("n", "k").await, None);
    assert_eq!(ctx.put("k", Some(b""), 0).await, Ok(1), "a deleted entry starts again at version 1");
    assert_eq!(ctx.get("n", "k").await, Some(KvEntry { value: Vec::new(), version: 1 }));
}

pub(super) async fn namespaces_and_keys_are_separate(ctx: &LawContext<'_>) {
    assert_eq!(ctx.put("k", Some(b"1"), 0).await, Ok(1));
    assert_eq!(ctx.put("", Some(b"2"), 0).await, Ok(1));
    assert_eq!(ctx.store.kv_put("m".into(), "k".into(), Some(b"3".to_vec()), 0).await, Ok(1));
    for (namespace, key, value) in [("n", "k", b"1"), ("n", "", b"2"), ("m", "k", b"3")] {
        assert_eq!(ctx.get(namespace, key).await, Some(KvEntry { value: value.to_vec(), version: 1 }));
    }
    assert_eq!(ctx.get("nk", "").await, None);
    assert_eq!(ctx.audit_trail().await, [], "key-value writes are not audited");
}

pub(super) async fn a_list_has_the_entries_of_a_prefix_in_the_order_of_keys(ctx: &LawContext<'_>) {
    assert_eq!(ctx.list("", PageRequest::default()).await, Page::last(Vec::new()));
    // Upper case comes before lower case, and a key before those that it begins.
    let keys = ["", "A", "a", "a/", "a/1", "a/10", "a/2", "a0", "\u{e4}"];
    for key in keys.iter().rev() {
        assert_eq!(ctx.put(key, Some(key.as_bytes()), 0).await, Ok(1));
    }
    assert_eq!(ctx.put("a/2", Some(b"other"), 1).await, Ok(2));
    assert_eq!(ctx.store.kv_put("m".into(), "a/3".into(), Some(b"3".to_vec()), 0).await, Ok(1));
    let item = |key: &str| match key {
        "a/2" => KvItem { key: key.into(), value: b"other".to_vec(), version: 2 },
        _ => KvItem { key: key.into(), value: key.as_bytes().to_vec(), version: 1 },
    };
    assert_eq!(ctx.list("", PageRequest::default()).await, Page::last(keys.map(item).to_vec()));
    let under_a = Page::last(["a/", "a/1", "a/10", "a/2"].map(item).to_vec());
    assert_eq!(ctx.list("a/", PageRequest::default()).await, under_a);
    assert_eq!(ctx.list("b", PageRequest::default()).await, Page::last(Vec::new()));
    for limit in 1..=5 {
        let paged = ctx.read_pages("a/", limit).await;
        assert_eq!(paged, under_a.items, "in pages of {limit}");
    }
    assert_eq!(ctx.put("a/1", None, 1).await, Ok(0));
    let rest =
        ctx.list("a/", PageRequest { limit: Some(2), cursor: Some(Cursor::after_key("k", "a/1")) }).await;
    assert_eq!(rest, Page::last(["a/10", "a/2"].map(item).to_vec()), "a position outlives its entry");
    let foreign = PageRequest { limit: None, cursor: Some(Cursor::after("o", 1)) };
    let refusal = refused(ctx.store.kv_list("n".into(), String::new(), foreign).await);
    assert_eq!(refused_field(refusal), "cursor");
}

pub(super) async fn i49_a_list_returns_a_bounded_number_of_bytes(ctx: &LawContext<'_>) {
    let large = vec![7; limits::KV_BYTES_MAX];
    let on_one_page = limits::KV_PAGE_BYTES_MAX / limits::KV_BYTES_MAX;
    for n in 0..=on_one_page {
        assert_eq!(ctx.put(&format!("{n:03}"), Some(&large), 0).await, Ok(1));
    }
    let page = PageRequest { limit: Some(limits::PAGE_ITEMS_MAX), cursor: None };
    let first = ctx.store.kv_list("n".into(), String::new(), page).await.expect("a list");
    assert_eq!(first.items.len(), on_one_page);
    let rest = PageRequest { limit: None, cursor: first.next };
    let rest = ctx.store.kv_list("n".into(), String::new(), rest).await.expect("a list");
    let last = KvItem { key: format!("{on_one_page:03}"), value: large, version: 1 };
    assert_eq!(rest, Page::last(vec![last]));
}

pub(super) async fn i49_values_are_bounded(ctx: &LawContext<'_>) {
    let full = vec![7; limits::KV_BYTES_MAX];
    assert_eq!(ctx.put("k", Some(&full), 0).await, Ok(1));
    let too_long = vec![7; limits::KV_BYTES_MAX + 1];
    assert_eq!(refused_field(refused(ctx.put("k", Some(&too_long), 1).await)), "value");
    assert_eq!(ctx.get("n", "k").await, Some(KvEntry { value: full, version: 1 }));
}
