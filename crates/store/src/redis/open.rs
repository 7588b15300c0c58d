//! Opening a store in Redis: checking the server, loading the functions, and taking the store.

use super::Redis;
use super::base::RedisBase;
use super::clock::ServerClock;
use super::connect::{Address, Session, bytes, function, list, number, text};
use super::term;
use super::writer::{Shared, Writer};
use crate::clock::{Slewing, Stamp, StoreClock};
use crate::engine::Engine;
use crate::engine::tables::{TableResult, damaged};
use crate::entropy::{Entropy, System};
use crate::staged::Staged;
use redis::Value;
use redrive_core::audit::AuditKey;
use redrive_core::error::{StoreError, StoreErrorKind};
use redrive_core::limits;
use redrive_core::time::{Clock, Time};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};

/// The version of the format of keys and rows.
const VERSION: u32 = 1;
/// The oldest server that is supported: the first with functions.
const SERVER_VERSION_MIN: u32 = 7;
/// The memory for rows that the holder has read or written.
const CACHE_BYTES: usize = 128 * 1024 * 1024;
/// How often a process that waits for the store looks whether it is free.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How to open a store in Redis.
#[derive(Clone)]
pub struct Options {
    /// Whether to create the store if there is none under the prefix.
    pub create: bool,
    /// How this process is called in messages to people; the name of the machine is a good choice.
    pub node: String,
    /// The clock. Defaults to one that follows the server's.
    pub clock: Option<Arc<dyn Clock>>,
    /// The source of randomness.
    pub entropy: Arc<dyn Entropy>,
    /// How many entries the index of ready messages holds before it spills.
    pub hot_entries: usize,
    /// The key of the audit chain. Without one, the key is kept under the prefix.
    pub audit_key: Option<AuditKey>,
    /// How long to wait for the store if another process holds it.
    pub wait: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            create: true,
            node: "redrive".into(),
            clock: None,
            entropy: Arc::new(System),
            hot_entries: limits::READY_INDEX_ENTRIES_MAX,
            audit_key: None,
            wait: Duration::ZERO,
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("create", &self.create)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// What the server says about itself.
struct Server {
    facts: HashMap<String, String>,
    /// When the append only file is flushed; `None` if the user may not ask.
    appendfsync: Option<String>,
}

impl Server {
    fn ask(session: &Session) -> TableResult<Self> {
        let said = text(session.run(&redis::cmd("INFO"))?)?;
        let facts = said.lines().filter_map(|line| line.split_once(':'));
        let facts = facts.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect();
        let mut command = redis::cmd("CONFIG");
        command.arg("GET").arg("appendfsync");
        // Managed servers refuse it; then the answer is not known.
        let setting = session.run(&command).ok().and_then(|reply| list(reply).ok());
        let appendfsync = setting.and_then(|values| text(values.into_iter().nth(1)?).ok());
        Ok(Self { facts, appendfsync })
    }

    fn fact(&self, name: &str) -> &str {
        self.facts.get(name).map_or("", String::as_str)
    }

    /// Refuses a server that cannot keep the store's promises.
    fn check(&self) -> TableResult<()> {
        let unsupported = |why: String| Err(StoreError::new(StoreErrorKind::Unsupported, why));
        let version = self.fact("redis_version");
        let major: u32 = version.split('.').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        if major < SERVER_VERSION_MIN {
            return unsupported(format!(
                "this server is Redis {version}, and at least {SERVER_VERSION_MIN} is needed"
            ));
        }
        if self.fact("redis_mode") == "cluster" || self.fact("cluster_enabled") == "1" {
            return unsupported(
                "this Redis server is part of a cluster, and a store needs one that is not: a commit changes many keys at \
                 once, and a slot may move in the middle; name a single server, with replicas if it must not be lost"
                    .to_owned(),
            );
        }
        if self.fact("role") == "slave" {
            return unsupported(format!(
                "this Redis server is a replica of {}:{}; name the primary",
                self.fact("master_host"),
                self.fact("master_port")
            ));
        }
        let policy = self.fact("maxmemory_policy");
        if !matches!(self.fact("maxmemory"), "" | "0") && policy != "noeviction" {
            return unsupported(format!(
                "this Redis server removes keys when memory is short (maxmemory-policy {policy}), which would lose work; set \
                 maxmemory-policy noeviction"
            ));
        }
        Ok(())
    }

    /// What a crash or a failover of the server can lose.
    fn degraded(&self, address: &Address) -> Vec<String> {
        let mut degraded = Vec::new();
        match (self.fact("aof_enabled"), self.appendfsync.as_deref()) {
            ("1", Some("always")) => {}
            ("1", Some("everysec")) => degraded.push(
                "a crash of the Redis server can lose up to two seconds of acknowledged work (appendfsync everysec); \
                 appendfsync always loses none"
                    .to_owned(),
            ),
            ("1", Some(other)) => degraded.push(format!(
                "a crash of the Redis server's machine can lose half a minute of acknowledged work or more (appendfsync \
                 {other}); appendfsync always loses none"
            )),
            ("1", None) => degraded.push(
                "how much a crash of the Redis server can lose is not known: this user may not read appendfsync".to_owned(),
            ),
            (_, _) => degraded.push(
                "a crash of the Redis server loses everything since its last snapshot (appendonly no); set appendonly yes and \
                 appendfsync always"
                    .to_owned(),
            ),
        }
        let replicas: u32 = self.fact("connected_slaves").parse().unwrap_or(0);
        if replicas > 0 && address.replicas == 0 {
            degraded.push(format!(
                "a failover to one of the {replicas} replicas of the Redis server can lose what it does not have yet; add \
                 wait=1 to the address to acknowledge only what a replica has"
            ));
        }
        degraded
    }

    /// Whether what is acknowledged survives a power cut.
    fn durable(&self) -> bool {
        self.fact("aof_enabled") == "1" && self.appendfsync.as_deref() == Some("always")
    }
}

/// Loads the functions if they are not there, and refuses a user who lacks a right that they need: a commit must not stop
/// in the middle.
fn check_rights(session: &Session) -> TableResult<()> {
    let mut command = redis::cmd("FCALL");
    command.arg(function("probe")).arg(1).arg(session.key("holder"));
    let mut reply = list(session.call(&command)?)?.into_iter();
    let mut next = || reply.next().unwrap_or(Value::Nil);
    if number(next())? == 1 {
        return Ok(());
    }
    let (command, why) = (text(next())?, text(next())?);
    let text = format!(
        "this Redis user may not run {command}, which a commit needs, so the store was not opened ({why}); docs/redis.md has \
         the rights"
    );
    Err(StoreError::new(StoreErrorKind::Io, text))
}

fn fingerprint(key: &AuditKey) -> Vec<u8> {
    Sha256::digest(key.0).to_vec()
}

/// Creates the store if that is wanted, and returns the key of its audit chain.
fn create(session: &Session, options: &Options, prefix: &str) -> TableResult<AuditKey> {
    let holder = session.key("holder");
    let stored = if options.create {
        let mut own = [0; 32];
        options.entropy.fill(&mut own);
        let own = AuditKey(own);
        let kept: &[u8] = if options.audit_key.is_none() { &own.0 } else { &[] };
        let print = fingerprint(options.audit_key.as_ref().unwrap_or(&own));
        let mut command = redis::cmd("FCALL");
        command.arg(function("create")).arg(1).arg(holder).arg(VERSION).arg(kept).arg(print);
        session.call(&command)?
    } else {
        let mut command = redis::cmd("HMGET");
        command.arg(holder).arg("version").arg("audit_key").arg("fingerprint");
        session.run(&command)?
    };
    let mut stored = list(stored)?.into_iter();
    let mut next = || -> TableResult<Option<Vec<u8>>> { bytes(stored.next().unwrap_or(Value::Nil)) };
    let Some(version) = next()? else {
        let text = format!(
            "there is no Redrive store under the prefix {prefix}; run `redrive migrate`, or name another"
        );
        return Err(StoreError::new(StoreErrorKind::NotAStore, text));
    };
    let version: u32 = String::from_utf8(version)
        .ok()
        .and_then(|version| version.parse().ok())
        .ok_or_else(|| damaged("the version of the store cannot be read"))?;
    if version != VERSION {
        let text = format!(
            "the store under the prefix {prefix} has version {version}, this program knows {VERSION}; use a newer redrive \
             (nothing was changed)"
        );
        return Err(StoreError::new(StoreErrorKind::Newer, text));
    }
    let (kept, print) = (next()?.filter(|key| !key.is_empty()), next()?.unwrap_or_default());
    audit_key(options.audit_key.as_ref(), kept, &print)
}

/// The key of the audit chain: the one that was given, if it is the store's, or the one under the prefix.
fn audit_key(given: Option<&AuditKey>, kept: Option<Vec<u8>>, print: &[u8]) -> TableResult<AuditKey> {
    let wrong = |why: &str| Err(StoreError::new(StoreErrorKind::Untrusted, why.to_owned()));
    let key = match (given, kept) {
        (Some(key), _) => key.clone(),
        (None, Some(bytes)) => AuditKey(
            bytes.try_into().map_err(|_| damaged("the audit key under the prefix has not 32 bytes"))?,
        ),
        (None, None) => return wrong("the audit key of this store is in a file; name it with --audit-key"),
    };
    if fingerprint(&key) == print {
        Ok(key)
    } else {
        wrong("this is not the audit key of the store; every node that may hold it needs the same one")
    }
}

/// Opens a store and takes it. Blocks, so it is called on a thread where that is allowed.
pub(super) fn open(address: &Address, options: &Options) -> TableResult<Redis> {
    let session = address.connect()?;
    let server = Server::ask(&session)?;
    server.check()?;
    check_rights(&session)?;
    let audit_key = create(&session, options, &address.prefix)?;
    let term = take(&session, options)?;
    let server_clock = Arc::new(ServerClock::new(term.wall));
    let clock = match &options.clock {
        Some(clock) => StoreClock::Given(Arc::clone(clock)),
        None => {
            let last = Stamp { time: Time::from_millis(term.clock), uptime: None };
            StoreClock::Own(Arc::new(Slewing::resume(Arc::clone(&server_clock) as _, last)))
        }
    };
    let tables = Staged::with_cache(RedisBase { session }, CACHE_BYTES);
    let mut engine = Engine::new(tables, Arc::clone(&options.entropy), audit_key.clone());
    engine.set_ready_index_max(options.hot_entries);
    let shared = Arc::new(Shared::new());
    engine.waiting_writers = Arc::clone(&shared.waiting);
    engine.waiting_workers = shared.holder.waiting();
    let failed = |e| StoreError::new(StoreErrorKind::Stopped, format!("cannot start the writer: {e}"));
    let writer = Writer {
        engine,
        address: address.clone(),
        term,
        node: options.node.clone(),
        entropy: Arc::clone(&options.entropy),
        clock: clock.clone(),
        server_clock,
        shared: Arc::clone(&shared),
        runtime: tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(failed)?,
        full_since: None,
    };
    let (jobs, waiting) = mpsc::channel(limits::WRITER_QUEUE_MAX);
    let spawned =
        std::thread::Builder::new().name("redrive-writer".into()).spawn(move || writer.run(waiting));
    Ok(Redis {
        jobs: Some(jobs),
        thread: Some(spawned.map_err(failed)?),
        readers: Arc::new(Mutex::new(Vec::new())),
        reader_permits: Arc::new(Semaphore::new(limits::READERS_MAX)),
        shared,
        address: address.clone(),
        clock,
        audit_key,
        degraded: server.degraded(address),
        durable: server.durable(),
    })
}

fn take(session: &Session, options: &Options) -> TableResult<term::Term> {
    let began = std::time::Instant::now();
    loop {
        let mut nonce = [0; 16];
        options.entropy.fill(&mut nonce);
        match term::acquire(session, &options.node, nonce)? {
            Ok(term) => return Ok(term),
            Err(_) if began.elapsed() < options.wait => std::thread::sleep(LOOK_EVERY),
            Err(held) => {
                let text = format!(
                    "{} holds this store under term {} and was seen {} ms ago; one process holds a store at a time",
                    held.node, held.term, held.seen_ago_ms
                );
                return Err(StoreError::new(StoreErrorKind::Locked, text));
            }
        }
    }
}

/// Opens a session for reading.
pub(super) fn reader(address: &Address) -> TableResult<Staged<RedisBase>> {
    Ok(Staged::reader(RedisBase { session: address.connect()? }))
}
