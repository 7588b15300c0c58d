//! Catches panics of user code with their message and location. Only the panic hook knows the location, and a
//! process has one hook. The hook installed here records the location for threads that are catching panics, and
//! always calls the previous hook. If other code replaces it later, panics are caught without their location.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Once;
use std::task::Poll;

/// A caught panic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CaughtPanic {
    /// The message of the panic. `None` if `panic_any` was called with something other than text.
    pub(crate) message: Option<String>,
    /// The location of the panic, as `file:line:column`.
    pub(crate) location: Option<String>,
}

impl CaughtPanic {
    /// Converts the payload of a panic that was caught elsewhere. Its location is not known.
    pub(crate) fn from_payload(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Self { message: text.map(str::to_owned), location: None }
    }
}

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static LOCATION: RefCell<Option<String>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

/// Installs the hook once, in front of the current one.
fn install_hook() {
    // A panicking thread must not change the hook.
    if std::thread::panicking() {
        return;
    }
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // The thread-locals may be destroyed already if the thread is ending.
            if CATCHING.try_with(Cell::get).unwrap_or(false) {
                let location = panic.location().map(ToString::to_string);
                let _ = LOCATION.try_with(|slot| slot.replace(location));
            }
            previous(panic);
        }));
    });
}

/// Runs the future and returns its output, or the panic it ended with. A future that panicked is never polled again,
/// so nobody sees a state that the panic left inconsistent.
pub(crate) async fn catch_panic<Fut: Future>(future: Fut) -> Result<Fut::Output, CaughtPanic> {
    install_hook();
    let mut future = pin!(future);
    poll_fn(|cx| {
        let was_catching = CATCHING.replace(true);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)));
        CATCHING.set(was_catching);
        match polled {
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(payload) => Poll::Ready(Err(CaughtPanic {
                location: LOCATION.take(),
                ..CaughtPanic::from_payload(payload.as_ref())
            })),
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_caught_with_its_message_and_location() {
        let line = line!() + 1;
        let panicked = catch_panic(async { panic!("{} broke", "it") }).await.map(|(): ()| ()).unwrap_err();
        assert_eq!(panicked.message.as_deref(), Some("it broke"));
        let location = panicked.location.unwrap();
        assert!(location.contains(&format!("panics.rs:{line}:")), "{location}");
        let strange = catch_panic(async { std::panic::panic_any(7) }).await.map(|(): ()| ()).unwrap_err();
        assert_eq!(strange.message, None);
        assert_eq!(catch_panic(async { 5 }).await, Ok(5));
    }

    #[tokio::test]
    async fn a_panic_of_another_thread_is_not_mistaken_for_ours() {
        let panicked = catch_panic(async {
            let _ = std::thread::spawn(|| panic!("theirs")).join();
            panic!("ours")
        });
        let panicked = panicked.await.map(|(): ()| ()).unwrap_err();
        assert_eq!(panicked.message.as_deref(), Some("ours"));
        assert!(panicked.location.is_some_and(|location| location.contains("panics.rs")));
    }
}
