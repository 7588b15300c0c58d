//! Pages of large payloads end early, with a cursor, so that they can be sent, and nothing is skipped.

use redrive_core::failure::{ErrorInfo, FailureReport};
use redrive_core::ids::MessageId;
use redrive_core::limits;
use redrive_core::message::{NewMessage, Payload};
use redrive_core::query::{Cursor, PageRequest, Query};
use redrive_core::store::{LeaseRequest, Letters as _, Settle, Settlement, Work as _};
use redrive_store::memory::MemoryStore;

/// One more than fits into a page.
const COUNT: u8 = 9;

fn next(cursor: Option<Cursor>) -> Query {
    Query { page: PageRequest { cursor, ..PageRequest::first(limits::PAGE_ITEMS_MAX) }, ..Query::default() }
}

#[tokio::test]
async fn a_page_of_large_payloads_ends_early_and_the_next_page_continues() {
    let store = MemoryStore::new();
    for n in 1..=COUNT {
        let payload = Payload { bytes: vec![n; limits::PAYLOAD_BYTES_MAX], content_type: String::new() };
        let new = NewMessage::new(MessageId::new(u64::from(n), [n; 10]), "q".parse().unwrap(), payload);
        store.enqueue(vec![new]).await.unwrap().remove(0).unwrap();
    }
    let first = store.messages(next(None)).await.unwrap();
    assert_eq!((first.items.len(), first.next.is_some()), (8, true));
    let last = store.messages(next(first.next)).await.unwrap();
    assert_eq!((last.items.len(), last.next), (1, None));

    let request = LeaseRequest {
        queues: vec!["q".parse().unwrap()],
        max: 100,
        lease_for: None,
        worker: "w".into(),
        ..LeaseRequest::default()
    };
    for _ in 0..COUNT {
        let error = ErrorInfo { error_type: "Bad".into(), ..ErrorInfo::default() };
        let failure = FailureReport { error, permanent: true, ..FailureReport::default() }.analyse();
        let what = Settle::Fail { failure: Box::new(failure), policy_override: None };
        for taken in store.lease(request.clone()).await.unwrap() {
            store.settle(vec![Settlement { token: taken.token, what: what.clone() }]).await.unwrap();
        }
    }
    let first = store.letters(next(None)).await.unwrap();
    assert_eq!((first.items.len(), first.next.is_some()), (8, true));
    let last = store.letters(next(first.next)).await.unwrap();
    assert_eq!((last.items.len(), last.next), (1, None));
}
