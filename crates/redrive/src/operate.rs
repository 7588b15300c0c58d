//! Driving an operation: asking the store for steps, as often as each step says one makes sense, until nobody has to
//! see to it any more. All that is kept is in the store, so whoever drives may die at any point and another goes on;
//! two who drive at once do nothing twice.

use crate::pace::{Pace, ask, is_final};
use redrive_core::error::{Error, Outcome};
use redrive_core::ids::OperationId;
use redrive_core::operation::{Operation, Stage};
use redrive_core::store::Store;
use redrive_core::time::Span;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// The longest wait between two looks: a person may have steered it meanwhile.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How often a store that does not answer is asked again before giving up.
const ASK_AGAIN_MAX: u32 = 12;

/// Drives an operation until it is over or paused: for one that sends letters back, until every message it sent is
/// done or dead again. Whoever does not want to wait for that stops at [`Stage::Settling`] with [`operate_while`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redrive::core::dead_letter::{Act, Actor};
/// use redrive::core::ids::OperationId;
/// use redrive::core::operation::{Canary, OperationSpec, Pace, PreviewRequest};
/// use redrive::core::time::Span;
///
/// let store = redrive::memory();
/// // What would it do? The token binds the start to what was looked at.
/// let filter: redrive::core::filter::Filter = "queue:payments error:timeout".parse()?;
/// let look = PreviewRequest::new(Act::retry(), filter.clone(), 5);
/// let seen = store.preview(look).await?;
/// // Ten first; when those are done, 50 per second, and a halt when more than a fifth comes back.
/// let pace = Pace {
///     canary: Some(Canary::Count(10)),
///     observe: Span::from_secs(60),
///     rate: Some(50),
///     stop_at: Some(20),
///     stop_on_breaker: true,
///     ..Pace::default()
/// };
/// let spec = OperationSpec {
///     bound: Some(seen.bound),
///     token: Some(seen.token),
///     pace,
///     ..OperationSpec::new(OperationId::new(redrive::new_id()), Act::retry(), filter, Actor::new("me", "library"))
/// };
/// let operation = store.start(spec).await?;
/// let ended = redrive::operate(&store, operation.id).await?;
/// println!("{}: {:?}", ended.stage, ended.outcomes);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A refusal when there is no such operation; the store's error when it cannot be asked for long. What was begun is
/// whole, and calling again goes on.
pub async fn operate(store: &Arc<dyn Store>, id: OperationId) -> Result<Operation, Error> {
    operate_while(store.as_ref(), id, |operation| !operation.stage.is_over()).await
}

/// Drives an operation as long as `wanted` says after each look, and not beyond its end or a pause. `wanted` is shown
/// everything on the way: a progress bar looks there.
///
/// # Errors
/// As for [`operate`].
pub async fn operate_while(
    store: &dyn Store,
    id: OperationId,
    mut wanted: impl FnMut(&Operation) -> bool,
) -> Result<Operation, Error> {
    let mut operation = patiently(|| store.operation(id)).await?;
    while wanted(&operation) && !operation.stage.is_over() && operation.stage != Stage::Paused {
        // Nobody has to see to one that settles: the commits of its messages do.
        let told = if operation.stage.is_moving() {
            patiently(|| store.step(id)).await?
        } else {
            patiently(|| store.operation(id)).await?
        };
        let nap = told.next_in.map_or(LOOK_AGAIN, Span::to_std).min(LOOK_AGAIN);
        operation = told;
        let goes_on = !operation.stage.is_over() && operation.stage != Stage::Paused;
        if goes_on && !nap.is_zero() && wanted(&operation) {
            tokio::time::sleep(if operation.stage == Stage::Settling { SETTLING } else { nap }).await;
        }
    }
    Ok(operation)
}

/// How often to look at one that settles.
const SETTLING: Duration = Duration::from_millis(300);

/// Asks until there is an answer: the process that held the store may have gone, and another takes over.
async fn patiently<T, F: Future<Output = Outcome<T>>>(mut question: impl FnMut() -> F) -> Outcome<T> {
    let mut waits = Pace::new(Duration::from_millis(100), Duration::from_secs(5));
    for _ in 0..ASK_AGAIN_MAX {
        match ask(question()).await {
            Err(error @ Error::Store(_)) if !is_final(&error) => tokio::time::sleep(waits.wait()).await,
            answer => return answer,
        }
    }
    ask(question()).await
}
