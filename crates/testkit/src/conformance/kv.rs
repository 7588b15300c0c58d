//! Laws of the small values: compare and set, nothing else.

use super::Stage;
use super::kit::{field, refused};
use redrive_core::error::{Outcome, Refusal};
use redrive_core::limits;
use redrive_core::store::KvEntry;

impl Stage<'_> {
    async fn get(&self, namespace: &str, key: &str) -> Option<KvEntry> {
        self.store.kv_get(namespace.into(), key.into()).await.expect("kv_get answers")
    }

    async fn put(&self, key: &str, value: Option<&[u8]>, expected: u64) -> Outcome<u64> {
        self.store.kv_put("n".into(), key.into(), value.map(<[u8]>::to_vec), expected).await
    }
}

pub(super) async fn a_value_is_written_only_over_what_was_read(stage: &Stage<'_>) {
    assert_eq!(stage.get("n", "k").await, None);
    let conflict = Refusal::KvConflict { namespace: "n".into(), key: "k".into() };
    assert_eq!(refused(stage.put("k", Some(b"x"), 1).await), conflict);
    assert_eq!(stage.get("n", "k").await, None);
    assert_eq!(stage.put("k", Some(b"one"), 0).await, Ok(1));
    assert_eq!(refused(stage.put("k", Some(b"lost"), 0).await), conflict, "somebody was first");
    assert_eq!(stage.put("k", Some(&[0, 255, 10]), 1).await, Ok(2));
    assert_eq!(stage.get("n", "k").await, Some(KvEntry { value: vec![0, 255, 10], version: 2 }));
    assert_eq!(refused(stage.put("k", None, 1).await), conflict);
    assert_eq!(stage.put("k", None, 2).await, Ok(0));
    assert_eq!(stage.get("n", "k").await, None);
    assert_eq!(stage.put("k", Some(b""), 0).await, Ok(1), "gone is as if never there");
    assert_eq!(stage.get("n", "k").await, Some(KvEntry { value: Vec::new(), version: 1 }));
}

pub(super) async fn namespaces_and_keys_are_apart(stage: &Stage<'_>) {
    assert_eq!(stage.put("k", Some(b"1"), 0).await, Ok(1));
    assert_eq!(stage.put("", Some(b"2"), 0).await, Ok(1));
    assert_eq!(stage.store.kv_put("m".into(), "k".into(), Some(b"3".to_vec()), 0).await, Ok(1));
    for (namespace, key, value) in [("n", "k", b"1"), ("n", "", b"2"), ("m", "k", b"3")] {
        assert_eq!(stage.get(namespace, key).await, Some(KvEntry { value: value.to_vec(), version: 1 }));
    }
    assert_eq!(stage.get("nk", "").await, None);
    assert_eq!(stage.trail().await, [], "no act of an operator");
}

pub(super) async fn i49_values_are_bounded(stage: &Stage<'_>) {
    let full = vec![7; limits::KV_BYTES_MAX];
    assert_eq!(stage.put("k", Some(&full), 0).await, Ok(1));
    let too_long = vec![7; limits::KV_BYTES_MAX + 1];
    assert_eq!(field(refused(stage.put("k", Some(&too_long), 1).await)), "value");
    assert_eq!(stage.get("n", "k").await, Some(KvEntry { value: full, version: 1 }));
}
