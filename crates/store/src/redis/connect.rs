//! Connections to Redis: where the store is, the library of functions, and sessions for a thread that may block.

use super::errors::{Meaning, from_redis, meaning};
use crate::engine::tables::{TableResult, damaged};
use redis::{Cmd, Connection, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, Pipeline, Value};
use redrive_core::error::{StoreError, StoreErrorKind};
use sha2::{Digest as _, Sha256};
use std::cell::RefCell;
use std::fmt::Write as _;
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

/// The prefix that is used unless the address names another.
pub(super) const PREFIX: &str = "redrive";
const PREFIX_MAX: usize = 100;
/// More replicas than this are never waited for.
const REPLICAS_MAX: u32 = 16;

const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// A server that does not answer for this long is treated as gone.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The functions: a name that depends on their text, so that nodes of different versions do not disturb each other, and
/// the text.
static LIBRARY: LazyLock<(String, String)> = LazyLock::new(|| {
    let parts = [
        include_str!("lua/common.lua"),
        include_str!("lua/commit.lua"),
        include_str!("lua/term.lua"),
        include_str!("lua/read.lua"),
        include_str!("lua/probe.lua"),
    ];
    let text = parts.concat();
    let mut name = "redrive_".to_owned();
    for byte in Sha256::digest(&text).iter().take(6) {
        let _ = write!(name, "{byte:02x}");
    }
    let library = format!("#!lua name={name}\nlocal NAME = '{name}'\n{text}");
    (name, library)
});

/// The name of one of the functions.
pub(super) fn function(name: &str) -> String {
    format!("{}_{name}", LIBRARY.0)
}

/// Commands that a process needs that holds a store. Those that the functions call are checked for the user as well.
const RIGHTS: &str = "+ping +info +select +hello +auth +config|get +wait +time +type +exists +fcall +fcall_ro \
                      +hset +hget +hmget +hdel +hexists +hscan +zadd +zrem +zrange +zlexcount";

/// The command that gives a user the rights to hold the store under a prefix, and no others. Such a user cannot load the
/// functions: a user who may run `FUNCTION LOAD` opens the store first, after every update.
#[must_use]
pub fn acl(user: &str, prefix: &str) -> String {
    format!("ACL SETUSER {user} on >PASSWORD resetkeys ~{{{prefix}}}:* resetchannels -@all {RIGHTS}")
}

/// Where a store is: a server, a database and a prefix.
#[derive(Clone)]
pub(super) struct Address {
    info: ConnectionInfo,
    pub(super) prefix: String,
    /// How many replicas must have a commit before it is acknowledged.
    pub(super) replicas: u32,
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown())
    }
}

fn invalid(why: impl std::fmt::Display) -> StoreError {
    let text = format!(
        "this is no address of a Redis store: {why}; write redis://USER:PASSWORD@HOST:PORT/DATABASE or rediss:// for TLS, \
         with ?prefix=NAME for a prefix other than {PREFIX} and &wait=N to wait for N replicas"
    );
    StoreError::new(StoreErrorKind::NotAStore, text)
}

impl FromStr for Address {
    type Err = StoreError;

    fn from_str(url: &str) -> Result<Self, StoreError> {
        let (server, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut prefix, mut replicas) = (PREFIX.to_owned(), 0);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("prefix", name)) => name.clone_into(&mut prefix),
                Some(("wait", count)) => {
                    replicas = count.parse().ok().filter(|n| *n <= REPLICAS_MAX).ok_or_else(|| {
                        invalid(format!("wait={count} is not a number of replicas from 0 to {REPLICAS_MAX}"))
                    })?;
                }
                Some(_) | None => return Err(invalid(format!("there is no option {pair:?}"))),
            }
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if prefix.is_empty() || prefix.len() > PREFIX_MAX || !prefix.chars().all(plain) {
            return Err(invalid(format!(
                "{prefix:?} cannot be a prefix, which has at most {PREFIX_MAX} letters, digits, dots, dashes and underscores"
            )));
        }
        if !server.starts_with("redis://") && !server.starts_with("rediss://") {
            return Err(invalid("it does not begin with redis:// or rediss://"));
        }
        let info = server.into_connection_info().map_err(|error| invalid(error.category()))?;
        // The driver would say its name with a command that needs a right of its own.
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        let info = info.set_redis_settings(settings);
        Ok(Self { info, prefix, replicas })
    }
}

impl Address {
    /// The address without a password, for people to read.
    pub(super) fn shown(&self) -> String {
        let server = match self.info.addr() {
            ConnectionAddr::Tcp(host, port) => format!("{host}:{port}"),
            ConnectionAddr::TcpTls { host, port, .. } => format!("{host}:{port} over TLS"),
            ConnectionAddr::Unix(path) => path.display().to_string(),
            other => other.to_string(),
        };
        format!("Redis database {} on {server}, prefix {}", self.info.redis_settings().db(), self.prefix)
    }

    /// Opens a session.
    pub(super) fn connect(&self) -> TableResult<Session> {
        if matches!(self.info.addr(), ConnectionAddr::TcpTls { .. }) {
            // Another provider that was chosen before is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let connected = redis::Client::open(self.info.clone()).and_then(|client| {
            let connection = client.get_connection_with_timeout(CONNECT_WITHIN)?;
            connection.set_read_timeout(Some(ANSWER_WITHIN))?;
            connection.set_write_timeout(Some(ANSWER_WITHIN))?;
            Ok(connection)
        });
        let connection = connected.map_err(|error| {
            let kind = match meaning(&error) {
                Meaning::Setup => StoreErrorKind::Io,
                Meaning::Lost
                | Meaning::Replica
                | Meaning::Full
                | Meaning::NoFunction
                | Meaning::Cluster
                | Meaning::HalfWay
                | Meaning::Other => StoreErrorKind::Unreachable,
            };
            let text = format!(
                "cannot use {} ({error}); check that it runs and that this user may connect",
                self.shown()
            );
            StoreError::new(kind, text)
        })?;
        Ok(Session { connection: RefCell::new(connection), prefix: format!("{{{}}}:", self.prefix) })
    }
}

/// A connection that a thread waits on.
pub(super) struct Session {
    connection: RefCell<Connection>,
    /// What all keys begin with.
    prefix: String,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session")
    }
}

impl Session {
    /// A key of the store.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Sends a command and waits for its reply.
    pub(super) fn run(&self, command: &Cmd) -> TableResult<Value> {
        self.send(command).map_err(|error| from_redis(&error))
    }

    fn send(&self, command: &Cmd) -> Result<Value, redis::RedisError> {
        command.query(&mut *self.connection.borrow_mut())
    }

    /// Sends several commands at once and waits for their replies.
    pub(super) fn run_all(&self, commands: &Pipeline) -> TableResult<Vec<Value>> {
        let replies = commands.query::<Vec<Value>>(&mut *self.connection.borrow_mut());
        replies.map_err(|error| from_redis(&error))
    }

    /// Calls one of the functions. If the server has lost them, they are loaded again: nothing had been done.
    pub(super) fn call(&self, command: &Cmd) -> TableResult<Value> {
        match self.send(command) {
            Err(error) if meaning(&error) == Meaning::NoFunction => {
                self.load()?;
                self.run(command)
            }
            result => result.map_err(|error| from_redis(&error)),
        }
    }

    /// Loads the functions.
    pub(super) fn load(&self) -> TableResult<()> {
        let mut command = redis::cmd("FUNCTION");
        command.arg("LOAD").arg("REPLACE").arg(&LIBRARY.1);
        let refused = |error: redis::RedisError| match meaning(&error) {
            Meaning::Setup => StoreError::new(
                StoreErrorKind::Io,
                format!(
                    "this user may not load functions into Redis ({error}); open the store once with a user that may, or \
                     allow FUNCTION LOAD"
                ),
            ),
            Meaning::Lost
            | Meaning::Replica
            | Meaning::Full
            | Meaning::NoFunction
            | Meaning::Cluster
            | Meaning::HalfWay
            | Meaning::Other => from_redis(&error),
        };
        self.send(&command).map_err(refused).map(|_| ())
    }
}

/// The values of a reply that is a list.
pub(super) fn list(value: Value) -> TableResult<Vec<Value>> {
    if let Value::Array(values) = value { Ok(values) } else { Err(unexpected(&value)) }
}

/// The bytes of a reply; `None` if there is nothing.
pub(super) fn bytes(value: Value) -> TableResult<Option<Vec<u8>>> {
    if let Value::BulkString(bytes) = value {
        Ok(Some(bytes))
    } else if let Value::SimpleString(text) = value {
        Ok(Some(text.into_bytes()))
    } else if value == Value::Nil {
        Ok(None)
    } else {
        Err(unexpected(&value))
    }
}

/// The text of a reply.
pub(super) fn text(value: Value) -> TableResult<String> {
    let found = bytes(value)?.unwrap_or_default();
    String::from_utf8(found).map_err(|_| damaged("Redis replied with bytes where a text belongs"))
}

/// A reply that is a number, or a text that is one.
pub(super) fn number(value: Value) -> TableResult<i64> {
    if let Value::Int(number) = value {
        return Ok(number);
    }
    let text = text(value)?;
    text.parse().map_err(|_| damaged(format!("Redis replied {text:?} where a number belongs")))
}

fn unexpected(value: &Value) -> StoreError {
    damaged(format!("Redis replied with something else than was asked for: {value:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_are_taken_out_of_the_address_and_the_rest_is_the_servers() {
        let address: Address = "redis://ada:secret@cache.example:6380/2?prefix=jobs&wait=1".parse().unwrap();
        assert_eq!((address.prefix.as_str(), address.replicas), ("jobs", 1));
        assert_eq!(address.shown(), "Redis database 2 on cache.example:6380, prefix jobs");
        assert!(!format!("{address:?}").contains("secret"));
        let tls: Address = "rediss://cache.example".parse().unwrap();
        assert_eq!(tls.shown(), "Redis database 0 on cache.example:6379 over TLS, prefix redrive");
        for wrong in [
            "redis://h/0?prefix=a b",
            "redis://h/0?prefix=",
            "redis://h?wait=many",
            "redis://h?nonsense=1",
            "http://h",
            "redis://h/text",
        ] {
            let error = wrong.parse::<Address>().unwrap_err();
            assert!(error.text.contains("redis://USER:PASSWORD@HOST"), "{error}");
        }
    }
}
