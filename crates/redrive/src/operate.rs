//! Drives an operation: asks the store for one step after another, as soon as the previous step says the next one
//! makes sense, until the operation needs no more steps. All of its state is in the store, so if the driving process
//! dies, another one can continue. Two processes that drive one operation at once do nothing twice.

use crate::waiting::{GrowingDelay, is_fatal, with_timeout};
use redrive_core::error::{CallError, StoreResult};
use redrive_core::ids::OperationId;
use redrive_core::operation::{Operation, Stage};
use redrive_core::store::Store;
use redrive_core::time::Span;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// The longest wait between two steps, because a person may have paused or changed the operation meanwhile.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// How often a failed store call is repeated before giving up.
const RETRIES_MAX: u32 = 12;

/// Drives an operation until it is over or paused. An operation that redrives letters is over when every message it
/// sent is done or dead again. To stop before that, at [`Stage::Settling`], use [`operate_while`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redrive::core::dead_letter::{Act, Actor};
/// use redrive::core::ids::OperationId;
/// use redrive::core::operation::{Canary, OperationSpec, PreviewRequest, Rollout};
/// use redrive::core::time::Span;
///
/// let store = redrive::memory();
/// // What would it do? The token binds the start to this preview.
/// let filter: redrive::core::filter::Filter = "queue:payments error:timeout".parse()?;
/// let preview = store.preview(PreviewRequest::new(Act::retry(), filter.clone(), 5)).await?;
/// // Ten first; when those are done, 50 per second, and a stop when more than a fifth fails again.
/// let rollout = Rollout {
///     canary: Some(Canary::Count(10)),
///     observe: Span::from_secs(60),
///     rate: Some(50),
///     stop_at: Some(20),
///     stop_on_breaker: true,
///     ..Rollout::default()
/// };
/// let spec = OperationSpec {
///     bound: Some(preview.bound),
///     token: Some(preview.token),
///     rollout,
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
/// Returns a refusal if there is no such operation, or the error of the store if it does not answer for long. No step
/// is left half done, and calling again continues.
pub async fn operate(store: &Arc<dyn Store>, id: OperationId) -> Result<Operation, CallError> {
    operate_while(store.as_ref(), id, |operation| !operation.stage.is_over()).await
}

/// Drives an operation as long as `keep_going` returns `true`, until it is over or paused. `keep_going` is called with
/// the operation before each step and before each wait, so it can also draw a progress bar.
///
/// # Errors
/// The same as [`operate`].
pub async fn operate_while(
    store: &dyn Store,
    id: OperationId,
    mut keep_going: impl FnMut(&Operation) -> bool,
) -> Result<Operation, CallError> {
    let mut operation = with_retries(|| store.operation(id)).await?;
    while keep_going(&operation) && !operation.stage.is_over() && operation.stage != Stage::Paused {
        // An operation that is settling needs no steps: the commits of its messages advance it.
        let updated = if operation.stage.is_moving() {
            with_retries(|| store.step(id)).await?
        } else {
            with_retries(|| store.operation(id)).await?
        };
        let wait = updated.next_in.map_or(LONGEST_WAIT, Span::to_std).min(LONGEST_WAIT);
        operation = updated;
        let unfinished = !operation.stage.is_over() && operation.stage != Stage::Paused;
        if unfinished && !wait.is_zero() && keep_going(&operation) {
            tokio::time::sleep(if operation.stage == Stage::Settling { SETTLING_POLL } else { wait }).await;
        }
    }
    Ok(operation)
}

/// How often to look at an operation that is settling.
const SETTLING_POLL: Duration = Duration::from_millis(300);

/// Repeats a call until the store answers: the process that held it may have ended, and another takes over.
async fn with_retries<T, F: Future<Output = StoreResult<T>>>(mut call: impl FnMut() -> F) -> StoreResult<T> {
    let mut delay = GrowingDelay::new(Duration::from_millis(100), Duration::from_secs(5));
    for _ in 0..RETRIES_MAX {
        match with_timeout(call()).await {
            Err(error @ CallError::Store(_)) if !is_fatal(&error) => tokio::time::sleep(delay.wait()).await,
            result => return result,
        }
    }
    with_timeout(call()).await
}
