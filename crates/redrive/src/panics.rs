//! Catching a panic of somebody else's code with its words and its place. Only the hook of panics knows the
//! place, and a process has one hook. The one put in here notes the place for a thread that asked for it and hands
//! on to the hook that was there before, whatever the thread. Where somebody else replaces it later, panics are caught
//! without their place.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Once;
use std::task::Poll;

/// A panic that was caught.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Panicked {
    /// What it said. Anything but text is thrown by `panic_any` only.
    pub(crate) words: Option<String>,
    /// Where, as `file:line:column`.
    pub(crate) place: Option<String>,
}

impl Panicked {
    /// A panic somebody else caught.
    pub(crate) fn of(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Self { words: text.map(str::to_owned), place: None }
    }
}

thread_local! {
    static ASKED: Cell<bool> = const { Cell::new(false) };
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

/// Puts the hook in, once, before the one that is there.
fn watch() {
    // A thread that panics may not change the hook.
    if std::thread::panicking() {
        return;
    }
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // Both may be gone in a thread that is ending.
            if ASKED.try_with(Cell::get).unwrap_or(false) {
                let place = panic.location().map(ToString::to_string);
                let _ = PLACE.try_with(|kept| kept.replace(place));
            }
            before(panic);
        }));
    });
}

/// The future's own output, or the panic it ended with. It is never polled again after that, so whatever it left half
/// done inside itself is not seen by anybody.
pub(crate) async fn caught<Fut: Future>(future: Fut) -> Result<Fut::Output, Panicked> {
    watch();
    let mut future = pin!(future);
    poll_fn(|cx| {
        let asked = ASKED.replace(true);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)));
        ASKED.set(asked);
        match polled {
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(payload) => {
                Poll::Ready(Err(Panicked { place: PLACE.take(), ..Panicked::of(payload.as_ref()) }))
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_caught_with_its_words_and_its_place() {
        let line = line!() + 1;
        let panicked = caught(async { panic!("{} broke", "it") }).await.map(|(): ()| ()).unwrap_err();
        assert_eq!(panicked.words.as_deref(), Some("it broke"));
        let place = panicked.place.unwrap();
        assert!(place.contains(&format!("panics.rs:{line}:")), "{place}");
        let strange = caught(async { std::panic::panic_any(7) }).await.map(|(): ()| ()).unwrap_err();
        assert_eq!(strange.words, None);
        assert_eq!(caught(async { 5 }).await, Ok(5));
    }

    #[tokio::test]
    async fn a_panic_of_another_thread_is_not_taken_for_ours() {
        let panicked = caught(async {
            let _ = std::thread::spawn(|| panic!("theirs")).join();
            panic!("ours")
        });
        let panicked = panicked.await.map(|(): ()| ()).unwrap_err();
        assert_eq!(panicked.words.as_deref(), Some("ours"));
        assert!(panicked.place.is_some_and(|place| place.contains("panics.rs")));
    }
}
