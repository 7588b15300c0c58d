//! Maps Redis's errors to the store's. What a caller can do about an error depends on its code alone.

use redis::{ErrorKind, RedisError};
use redrive_core::error::{StoreError, StoreErrorKind};

/// What an error means for the connection and for the call that it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The connection is gone, or the server is not ready: whether the last call took effect is not known.
    Lost,
    /// The server is a replica.
    Replica,
    /// The server is out of memory, or cannot write its files.
    Full,
    /// The functions of this program are not loaded; nothing was done.
    NoFunction,
    /// The server is part of a cluster.
    Cluster,
    /// This user may not do that, or is not known.
    Setup,
    /// A function ended in the middle, which must not happen.
    HalfWay,
    /// Anything else: the call did not take effect.
    Other,
}

/// What an error means.
pub(super) fn meaning(error: &RedisError) -> Meaning {
    let Some(code) = error.code() else {
        let refused =
            matches!(error.kind(), ErrorKind::InvalidClientConfig | ErrorKind::AuthenticationFailed);
        return if refused { Meaning::Setup } else { Meaning::Lost };
    };
    let detail = error.detail().unwrap_or_default();
    match code {
        // Redis names the place when a function itself fails, whatever the code is.
        _ if detail.contains("@user_function") => Meaning::HalfWay,
        "LOADING" | "BUSY" | "MASTERDOWN" | "TRYAGAIN" => Meaning::Lost,
        "READONLY" => Meaning::Replica,
        "OOM" | "MISCONF" => Meaning::Full,
        "MOVED" | "ASK" | "CLUSTERDOWN" | "CROSSSLOT" => Meaning::Cluster,
        "NOAUTH" | "WRONGPASS" | "NOPERM" => Meaning::Setup,
        "ERR" if detail.contains("Function not found") => Meaning::NoFunction,
        _ => Meaning::Other,
    }
}

/// The store's error for an error of the server.
pub(super) fn from_redis(error: &RedisError) -> StoreError {
    let (kind, advice) = match meaning(error) {
        Meaning::Lost => (StoreErrorKind::Unreachable, "the connection to Redis was lost"),
        Meaning::Replica => (
            StoreErrorKind::Unreachable,
            "this Redis server cannot be written to, it is a replica; name the primary",
        ),
        Meaning::Full => (
            StoreErrorKind::Full,
            "the Redis server is out of memory or disk: new work is refused until there is room; leases, acks and purge \
             go on",
        ),
        Meaning::NoFunction => (
            StoreErrorKind::Undone,
            "the Redis server has lost the functions of this program, and nothing happened: try again",
        ),
        Meaning::Cluster => {
            (StoreErrorKind::Unsupported, "this Redis server is part of a cluster; name a server that is not")
        }
        Meaning::Setup => (
            StoreErrorKind::Io,
            "Redis refused access; check the user, the password and the rights in docs/redis.md",
        ),
        Meaning::HalfWay => (
            StoreErrorKind::Stopped,
            "a function of this program failed inside Redis; nothing more is acknowledged: run `redrive doctor`, then \
             start again",
        ),
        Meaning::Other => (StoreErrorKind::Undone, "Redis refused the call, and nothing of it happened"),
    };
    StoreError::new(kind, format!("{advice} ({error})"))
}
