//! The worker of the store suite: the same lifecycle as `enqueue, lease, ack`, but through the library's
//! worker with a handler that does nothing. The difference is the cost of the worker.

use super::measure::{Run, Stopwatch};
use super::store::{many, message, queue, settle_all};
use super::{BenchArgs, BenchError, BenchResult};
use redrive::core::store::Store;
use redrive::{Context, Worker};
use std::sync::Arc;
use std::time::Instant;

/// The number of concurrent handlers.
pub(super) const CONCURRENCY: usize = 256;
/// The number of producers, and of messages per call.
const PRODUCERS: usize = 4;
const BATCH: usize = 64;

/// Sends messages and handles them with a worker until all are done.
pub(super) async fn run(store: Arc<dyn Store>, args: &BenchArgs, messages: u64) -> BenchResult<Run> {
    let share = messages / PRODUCERS as u64;
    let total = share * PRODUCERS as u64;
    let mut ready = Vec::new();
    for producer in 0..PRODUCERS as u64 {
        let mine: Result<Vec<_>, _> =
            (0..share).map(|n| message(args, producer * share + n, false)).collect();
        ready.push(Some(mine?));
    }
    let ready = std::sync::Mutex::new(ready);
    let worker = Worker::builder(Arc::clone(&store))
        .queue(queue()?.as_str())
        .concurrency(CONCURRENCY)
        .fallback(|_: Context| async {})
        .at_most(total)
        .build()?;
    let began = Instant::now();
    let handled = tokio::spawn(async move { worker.run().await });
    let sent = many(PRODUCERS, total, |n| {
        let store = Arc::clone(&store);
        let mut ready = ready.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mine = ready.get_mut(n).and_then(Option::take).unwrap_or_default();
        async move {
            let mut watch = Stopwatch::new();
            for batch in mine.chunks(BATCH) {
                let began = Instant::now();
                let mut batch = batch.to_vec();
                batch.iter_mut().for_each(|message| message.id = redrive::new_id());
                settle_all(store.enqueue(batch).await?)?;
                watch.lap(began);
            }
            Ok(watch)
        }
    })
    .await?;
    let failed = |why: String| BenchError::from(why);
    let counts = handled.await.map_err(|error| failed(format!("the worker panicked: {error}")))??;
    if counts.done != total {
        return Err(failed(format!("{total} messages were sent and {} were done", counts.done)));
    }
    Ok(Run { took: began.elapsed(), ..sent })
}
