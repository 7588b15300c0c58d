//! Two workers on one directory, and the one that holds it goes away.

use crate::support::{enqueue, eventually, message, queue};
use redrive::core::time::Span;
use redrive::{Context, OpenOptions, Worker};
use std::sync::Arc;

/// The other worker takes the holder's place and goes on; what the first had begun is given back or done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_takes_the_place_of_the_holder() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("data");
    let holder = redrive::open(&path, OpenOptions::default()).await.unwrap();
    let guest = redrive::open(&path, OpenOptions::default()).await.unwrap();
    let work = |store| {
        Worker::builder(store)
            .queue("q")
            .concurrency(4)
            .grace(Span::from_secs(600))
            .fallback(|_: Context| async {})
            .build()
            .unwrap()
    };
    let (first, second) = (work(Arc::clone(&holder)), work(Arc::clone(&guest)));
    let (first_handle, second_handle) = (first.handle(), second.handle());
    let first = tokio::spawn(async move { first.run().await.unwrap() });
    let second = tokio::spawn(async move { second.run().await.unwrap() });

    enqueue(&guest, (0..200).map(|n| message("q", "k", &n.to_string())).collect()).await;
    eventually("both work", async || first_handle.counts().done + second_handle.counts().done == 200).await;

    first_handle.stop();
    let first = first.await.unwrap();
    drop(holder);
    eventually("somebody holds the directory again", async || guest.queues().await.is_ok()).await;
    enqueue(&guest, (0..200).map(|n| message("q", "k", &n.to_string())).collect()).await;
    eventually("the other has done it", async || second_handle.counts().done + first.done == 400).await;

    // Whoever comes now finds it held and is served.
    let third = redrive::open(&path, OpenOptions::default()).await.unwrap();
    let all = queue(&third, "q").await;
    assert_eq!((all.ready, all.scheduled, all.counts.leased), (0, 0, 0));
    assert_eq!(all.counts.done, 400);
    second_handle.stop();
    second.await.unwrap();
}
