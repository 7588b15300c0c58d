//! The machinery behind the table of verbs in [`super`]: the macro that reads the table, the roles that verbs need,
//! and what carries a call to a store in another process. Nothing here knows what a verb does.

use super::{Encoding, LetterSettle, LetterSettlement};
use crate::dead_letter::{Act, ActRequest, Actor};
use crate::error::{CallError, StoreError, StoreErrorKind, StoreResult};
use crate::operation::OperationSpec;
use crate::recording::RecordRequest;
use async_trait::async_trait;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// What a caller must be allowed to do before a verb is carried out on their behalf. A later role of this list may be
/// given to fewer people than an earlier one, but does not include it: a worker need not be allowed to look at letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Looks at messages, letters, groups, queues and the audit trail.
    Viewer,
    /// Enqueues messages.
    Producer,
    /// Leases and settles messages and letters, and keeps the store tidy.
    Worker,
    /// Decides about letters, groups, breakers and operations.
    Operator,
    /// Changes what letters contain.
    Editor,
    /// Configures queues, removes data for good, and reads and writes everything else.
    Admin,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Viewer => "viewer",
            Self::Producer => "producer",
            Self::Worker => "worker",
            Self::Operator => "operator",
            Self::Editor => "editor",
            Self::Admin => "admin",
        })
    }
}

impl Act {
    /// The role that an act on a letter needs.
    #[must_use]
    pub const fn role(&self) -> Role {
        match self {
            Self::Retry(_)
            | Self::Review
            | Self::Quarantine { .. }
            | Self::Release
            | Self::Resolve
            | Self::Abandon
            | Self::Reopen
            | Self::Note
            | Self::Unpurge
            | Self::PullBack
            | Self::Move { .. }
            | Self::Hold { .. }
            | Self::Snooze { .. }
            | Self::Assign { .. }
            | Self::Label { .. } => Role::Operator,
            Self::Edit(_) | Self::Patch(_) | Self::Restore { .. } => Role::Editor,
            Self::Purge | Self::Erase => Role::Admin,
        }
    }
}

/// The role that a batch of acts needs: that of the most demanding one.
pub(super) fn acts_role(batch: &[ActRequest]) -> Role {
    batch.iter().map(|request| request.act.role()).max().unwrap_or(Role::Operator)
}

/// The role that settling leased letters needs. What a consumer does to its letter is an act like any other.
pub(super) fn consumer_role(batch: &[LetterSettlement]) -> Role {
    let act = |settlement: &LetterSettlement| match &settlement.what {
        LetterSettle::Do { act, .. } => act.role(),
        LetterSettle::Fail { .. }
        | LetterSettle::Release
        | LetterSettle::Snooze { .. }
        | LetterSettle::Extend { .. } => Role::Worker,
    };
    batch.iter().map(act).max().unwrap_or(Role::Worker)
}

/// An argument that says who acts.
pub(super) trait NamesActors {
    /// Adds every actor in it to `actors`.
    fn add_actors<'a>(&'a mut self, actors: &mut Vec<&'a mut Actor>);
}

impl NamesActors for Actor {
    fn add_actors<'a>(&'a mut self, actors: &mut Vec<&'a mut Actor>) {
        actors.push(self);
    }
}

impl NamesActors for Vec<ActRequest> {
    fn add_actors<'a>(&'a mut self, actors: &mut Vec<&'a mut Actor>) {
        actors.extend(self.iter_mut().map(|request| &mut request.actor));
    }
}

impl NamesActors for Vec<LetterSettlement> {
    fn add_actors<'a>(&'a mut self, actors: &mut Vec<&'a mut Actor>) {
        for settlement in self {
            match &mut settlement.what {
                LetterSettle::Do { actor, .. } => actors.push(actor),
                LetterSettle::Fail { .. }
                | LetterSettle::Release
                | LetterSettle::Snooze { .. }
                | LetterSettle::Extend { .. } => {}
            }
        }
    }
}

impl NamesActors for Vec<RecordRequest> {
    fn add_actors<'a>(&'a mut self, actors: &mut Vec<&'a mut Actor>) {
        actors.extend(self.iter_mut().map(|request| &mut request.actor));
    }
}

impl NamesActors for OperationSpec {
    fn add_actors<'a>(&'a mut self, actors: &mut Vec<&'a mut Actor>) {
        actors.push(&mut self.actor);
    }
}

/// One row of the table of verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verb {
    /// The name of the method, which is also the name of the call.
    pub name: &'static str,
    /// Whether the call says who acts.
    pub names_actor: bool,
}

/// The version of [`super::Call`] and the replies between processes that may be of different releases. It changes
/// whenever one of their types does in a way that the previous version does not understand.
pub const CALL_VERSION: u32 = 1;

/// The oldest version whose calls are still understood: the one before [`CALL_VERSION`], unless that change was too great.
pub const CALL_VERSION_OLDEST: u32 = 1;

/// The header in which both sides of an HTTP connection state [`CALL_VERSION`].
pub const CALL_VERSION_HEADER: &str = "redrive-call-version";

/// Carries calls to a store that somebody else holds. Whoever can do that is a [`super::Store`].
#[async_trait]
pub trait Caller: Send + Sync {
    /// Has the call carried out, and returns the reply as [`super::Call::apply`] encoded it.
    async fn call(&self, call: super::Call) -> StoreResult<Vec<u8>>;

    /// How the replies are encoded.
    fn encoding(&self) -> Encoding {
        Encoding::Json
    }
}

/// Decides about every call before it reaches a store.
#[async_trait]
pub trait Gate: Send + Sync {
    /// Lets a call pass, perhaps with other arguments: the name of who acts, a narrower filter.
    ///
    /// # Errors
    /// Why the call may not be carried out.
    async fn admit(&self, call: &mut super::Call) -> StoreResult<()>;

    /// Looks at a call that was admitted, before it is carried out. What this returns is dropped when the call has ended,
    /// which is how a gate can tell how long it took.
    async fn watch(&self, call: &mut super::Call) -> Option<Box<dyn Send>> {
        let _ = call;
        None
    }
}

/// A store behind a gate. Whoever has only this cannot carry out a call that the gate has not admitted.
pub struct Gated {
    pub(super) gate: Arc<dyn Gate>,
    pub(super) store: Arc<dyn super::Store>,
}

impl Gated {
    /// Puts a store behind a gate.
    #[must_use]
    pub fn new(gate: Arc<dyn Gate>, store: Arc<dyn super::Store>) -> Self {
        Self { gate, store }
    }
}

/// Chooses, for every call, the store that carries it out.
#[async_trait]
pub trait Route: Send + Sync {
    /// The store that carries out this verb, named as in the table of verbs.
    ///
    /// # Errors
    /// Why there is none at the moment.
    async fn route(&self, verb: &'static str) -> StoreResult<Arc<dyn super::Store>>;
}

/// A store that passes every call on to the one that its route chooses.
pub struct Routed {
    pub(super) route: Arc<dyn Route>,
}

impl Routed {
    /// A store behind a route.
    #[must_use]
    pub fn new(route: Arc<dyn Route>) -> Self {
        Self { route }
    }
}

/// A gate replaced the call by one of another verb, which is a bug in the gate.
pub(super) fn another_verb(call: &super::Call) -> CallError {
    let text = format!("the call came out of its gate as {}; nothing was done", call.verb());
    CallError::Store(StoreError::new(StoreErrorKind::Undone, text))
}

/// Appends a reply as JSON to `buffer`.
///
/// # Errors
/// [`StoreErrorKind::Protocol`] if the reply has no JSON form.
pub fn encode_reply<T: Serialize>(buffer: &mut Vec<u8>, reply: &StoreResult<T>) -> Result<(), StoreError> {
    Encoding::Json.encode(buffer, reply)
}

/// Reads a reply.
pub(super) fn decode_reply<T: DeserializeOwned>(encoding: Encoding, reply: &[u8]) -> StoreResult<T> {
    encoding.decode::<StoreResult<T>>(reply)?
}

/// Reads the table of verbs and writes what follows from it: the traits, [`super::Call`] with its role, its actors and
/// the way to carry it out, and the implementation of the traits for everything that can send a call.
macro_rules! verbs {
    ($(
        $(#[$about:meta])*
        pub trait $trait:ident: $parent:ident + $other_parent:ident {$(
            $(#[$doc:meta])*
            fn $method:ident($($arg:ident: $type:ty),* $(,)?) -> $reply:ty
                as $call:ident, needs $role:tt $(, by $actor:ident)?;
        )*}
    )*) => {
        $(
            $(#[$about])*
            #[async_trait]
            pub trait $trait: $parent + $other_parent {$(
                $(#[$doc])*
                async fn $method(&self, $($arg: $type),*) -> StoreResult<$reply>;
            )*}

            #[async_trait]
            impl<C: Caller> $trait for C {$(
                async fn $method(&self, $($arg: $type),*) -> StoreResult<$reply> {
                    read_reply::$method(self.encoding(), &self.call(Call::$call { $($arg),* }).await?)
                }
            )*}
        )*

        $(
            #[async_trait]
            impl $trait for Gated {$(
                async fn $method(&self, $($arg: $type),*) -> StoreResult<$reply> {
                    let mut call = Call::$call { $($arg),* };
                    self.gate.admit(&mut call).await?;
                    let _until_it_has_ended = self.gate.watch(&mut call).await;
                    match call {
                        Call::$call { $($arg),* } => self.store.$method($($arg),*).await,
                        #[allow(clippy::wildcard_enum_match_arm, reason = "a gate changes arguments, not verbs")]
                        other => Err(another_verb(&other)),
                    }
                }
            )*}
        )*

        $(
            #[async_trait]
            impl $trait for Routed {$(
                async fn $method(&self, $($arg: $type),*) -> StoreResult<$reply> {
                    self.route.route(stringify!($method)).await?.$method($($arg),*).await
                }
            )*}
        )*

        /// One call of a verb with its arguments, as it travels between processes.
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case", tag = "verb", content = "with")]
        #[expect(missing_docs, reason = "the arguments are those of the verb")]
        #[allow(clippy::large_enum_variant, reason = "a call is built once and carried out once")]
        pub enum Call {
            $($(
                #[doc = concat!("[`", stringify!($trait), "::", stringify!($method), "`].")]
                $call { $($arg: $type),* },
            )*)*
        }

        /// Reads the replies to each verb. These functions are not generic, so that reading is compiled once and not
        /// again for everything that carries calls.
        mod read_reply {
            use super::*;

            $($(
                #[inline(never)]
                pub(super) fn $method(encoding: Encoding, reply: &[u8]) -> StoreResult<$reply> {
                    decode_reply(encoding, reply)
                }
            )*)*
        }

        /// Every verb, in the order of the table.
        pub const VERBS: &[Verb] = &[
            $($(Verb {
                name: stringify!($method),
                names_actor: verbs!(@is_there $($actor)?),
            },)*)*
        ];

        impl Call {
            /// The name of the verb.
            #[must_use]
            pub const fn verb(&self) -> &'static str {
                match self {
                    $($(Self::$call { .. } => stringify!($method),)*)*
                }
            }

            /// What the caller must be allowed to do.
            #[must_use]
            #[expect(unused_variables, reason = "only some roles depend on the arguments")]
            pub fn role(&self) -> Role {
                match self {
                    $($(Self::$call { $($arg),* } => verbs!(@role $role),)*)*
                }
            }

            /// Everybody in whose name the call acts. A server that knows who is calling replaces their names, so that
            /// nobody acts as somebody else.
            #[expect(unused_variables, reason = "most arguments name nobody")]
            pub fn actors_mut(&mut self) -> Vec<&mut Actor> {
                #[allow(unused_mut, reason = "most verbs name nobody")]
                let mut actors = Vec::new();
                match self {
                    $($(Self::$call { $($arg),* } => {
                        $(NamesActors::add_actors($actor, &mut actors);)?
                    })*)*
                }
                actors
            }

            /// Carries the call out on `store` and appends the reply as JSON to `buffer`.
            ///
            /// # Errors
            /// [`StoreErrorKind::Protocol`] if the reply cannot be encoded. What the store refuses is a reply.
            pub async fn apply(self, store: &dyn Store, buffer: &mut Vec<u8>) -> Result<(), StoreError> {
                self.apply_as(Encoding::Json, store, buffer).await
            }

            /// Carries the call out on `store` and appends the encoded reply to `buffer`.
            ///
            /// # Errors
            /// [`StoreErrorKind::Protocol`] if the reply cannot be encoded. What the store refuses is a reply.
            pub async fn apply_as(
                self,
                encoding: Encoding,
                store: &dyn Store,
                buffer: &mut Vec<u8>,
            ) -> Result<(), StoreError> {
                match self {
                    $($(Self::$call { $($arg),* } => {
                        encoding.encode(buffer, &store.$method($($arg),*).await)
                    })*)*
                }
            }
        }
    };
    (@role $role:ident) => { Role::$role };
    (@role { $role:expr }) => { $role };
    (@is_there) => { false };
    (@is_there $actor:ident) => { true };
}
pub(super) use verbs;
