//! Opening a store in PostgreSQL: checking the server, migrating the schema, and taking the store.

use super::Postgres;
use super::base::PgBase;
use super::clock::DatabaseClock;
use super::connect::{Address, Session};
use super::readers::Readers;
use super::schema::{MIGRATIONS, VERSION};
use super::term;
use super::writer::{Shared, Writer};
use crate::clock::{Slewing, Stamp, StoreClock};
use crate::engine::Engine;
use crate::engine::tables::{TableResult, damaged};
use crate::entropy::{Entropy, System};
use crate::staged::Staged;
use redrive_core::audit::AuditKey;
use redrive_core::error::{StoreError, StoreErrorKind};
use redrive_core::limits;
use redrive_core::time::{Clock, Time};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use uuid::Uuid;

/// The oldest server that is supported, as PostgreSQL numbers versions.
const SERVER_VERSION_MIN: i32 = 130_000;
/// The memory for rows that the holder has read or written.
const CACHE_BYTES: usize = 128 * 1024 * 1024;

/// How to open a store in PostgreSQL.
#[derive(Clone)]
pub struct Options {
    /// Whether to create the schema if it does not exist, and to migrate an older one.
    pub create: bool,
    /// How this process is called in messages to people; the name of the machine is a good choice.
    pub node: String,
    /// The clock. Defaults to one that follows the database's.
    pub clock: Option<Arc<dyn Clock>>,
    /// The source of randomness.
    pub entropy: Arc<dyn Entropy>,
    /// How many entries the index of ready messages holds before it spills.
    pub hot_entries: usize,
    /// The key of the audit chain. Without one, the key is kept in the schema.
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

/// Settings of the session that writes: one plan per statement, and never one that reads a whole table to join it with
/// the few rows of a group.
pub(super) fn tune_writer(session: &Session) -> TableResult<()> {
    session.execute_batch(
        "SET enable_seqscan TO off; SET enable_hashjoin TO off; SET enable_mergejoin TO off; \
         SET plan_cache_mode TO force_generic_plan",
    )
}

fn setting(session: &Session, name: &str) -> TableResult<String> {
    session.run(async {
        let row = session.client().query_one(&format!("SHOW {name}"), &[]).await?;
        row.try_get(0)
    })
}

/// Refuses a server that cannot keep the store's promises. Returns what is degraded.
fn check_server(session: &Session) -> TableResult<Vec<String>> {
    let unsupported = |why: String| Err(StoreError::new(StoreErrorKind::Unsupported, why));
    let version = setting(session, "server_version_num")?.parse().unwrap_or(0);
    if version < SERVER_VERSION_MIN {
        return unsupported(format!(
            "this server is PostgreSQL {}, and at least 13 is needed",
            setting(session, "server_version")?
        ));
    }
    let encoding = setting(session, "server_encoding")?;
    if encoding != "UTF8" {
        return unsupported(format!(
            "this database stores text as {encoding}; create one with ENCODING 'UTF8'"
        ));
    }
    // Behind a pooler that hands out a connection per transaction, a session's settings and locks are gone.
    let mark = "SET redrive.session TO 'kept'; COMMIT; BEGIN; COMMIT";
    session.execute_batch(mark)?;
    match setting(session, "redrive.session") {
        Ok(mark) if mark == "kept" => {}
        Err(error) if error.kind == StoreErrorKind::Unreachable => return Err(error),
        Ok(_) | Err(_) => {
            return unsupported(
                "there is a pooler in transaction mode in front of this server, and a store needs a session of its own; \
                 name the server itself, or a pool in session mode"
                    .to_owned(),
            );
        }
    }
    let mut degraded = Vec::new();
    if setting(session, "fsync")? != "on" {
        degraded.push(
            "fsync is off on the PostgreSQL server: a crash of its machine can lose or damage everything"
                .to_owned(),
        );
    }
    if setting(session, "full_page_writes")? != "on" {
        degraded.push(
            "full_page_writes is off on the PostgreSQL server: a crash of its machine can damage tables"
                .to_owned(),
        );
    }
    Ok(degraded)
}

fn fingerprint(key: &AuditKey) -> Vec<u8> {
    Sha256::digest(key.0).to_vec()
}

/// The version of the schema; 0 if there is none.
fn version(session: &Session, schema: &str) -> TableResult<i32> {
    session.run(async {
        let exists = session
            .client()
            .query_one("SELECT to_regclass($1)::text", &[&format!("{schema}.holder")])
            .await?;
        if exists.try_get::<_, Option<String>>(0)?.is_none() {
            return Ok(0);
        }
        let row = session.client().query_opt("SELECT schema_version FROM holder", &[]).await?;
        row.map_or(Ok(0), |row| row.try_get(0))
    })
}

/// Brings the schema to the version of this program. Returns the versions before and after.
fn migrate(session: &Session, schema: &str, options: &Options) -> TableResult<(i32, i32)> {
    let before = version(session, schema)?;
    if before > VERSION {
        let text = format!(
            "schema {schema} has version {before}, this program knows up to {VERSION}; use a newer redrive (nothing was \
             changed)"
        );
        return Err(StoreError::new(StoreErrorKind::Newer, text));
    }
    if before == VERSION {
        return Ok((before, before));
    }
    if !options.create {
        let text = match before {
            0 => format!(
                "there is no Redrive store in schema {schema}; run `redrive migrate`, or name another schema"
            ),
            _ => format!(
                "schema {schema} has version {before} and this program needs {VERSION}; run `redrive migrate`"
            ),
        };
        return Err(StoreError::new(StoreErrorKind::NotAStore, text));
    }
    // The lock is taken before the transaction begins: a transaction that waits does not see what others have created.
    session.execute_batch("SELECT pg_advisory_lock(1380209235)")?;
    let migrated = session.execute_batch("BEGIN").and_then(|()| migrate_locked(session, schema, options));
    let end = if migrated.is_ok() { "COMMIT" } else { "ROLLBACK" };
    session.execute_batch(&format!("{end}; SELECT pg_advisory_unlock(1380209235)"))?;
    migrated
}

/// Migrates inside a transaction, while nobody else does.
fn migrate_locked(session: &Session, schema: &str, options: &Options) -> TableResult<(i32, i32)> {
    let before = version(session, schema)?;
    if before >= VERSION {
        // Somebody else has migrated while this process waited.
        return Ok((before, before));
    }
    if before == 0 {
        session.execute_batch(&format!("CREATE SCHEMA IF NOT EXISTS {schema}"))?;
    }
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > before) {
        session.execute_batch(migration.sql)?;
    }
    if before == 0 {
        let mut key = [0; 32];
        options.entropy.fill(&mut key);
        let own = AuditKey(key);
        let stored = options.audit_key.is_none().then(|| key.to_vec());
        let print = fingerprint(options.audit_key.as_ref().unwrap_or(&own));
        let sql = "INSERT INTO holder(one, term, commit, clock, seen_at, since, schema_version, audit_key, \
                   audit_key_fingerprint) VALUES(1, 0, 0, 0, clock_timestamp(), clock_timestamp(), $1, $2, $3)";
        session.run(session.client().execute(sql, &[&VERSION, &stored, &print]))?;
    } else {
        let sql = "UPDATE holder SET term = term + 1, nonce = NULL, schema_version = $1";
        session.run(session.client().execute(sql, &[&VERSION]))?;
    }
    Ok((before, VERSION))
}

/// The key of the audit chain: the one that was given, if it is the store's, or the one in the schema.
fn audit_key(session: &Session, given: Option<&AuditKey>) -> TableResult<AuditKey> {
    let (stored, print): (Option<Vec<u8>>, Vec<u8>) = session.run(async {
        let row =
            session.client().query_one("SELECT audit_key, audit_key_fingerprint FROM holder", &[]).await?;
        Ok((row.try_get(0)?, row.try_get(1)?))
    })?;
    let wrong = |why: &str| Err(StoreError::new(StoreErrorKind::Untrusted, why.to_owned()));
    let key = match (given, stored) {
        (Some(key), _) => key.clone(),
        (None, Some(bytes)) => {
            AuditKey(bytes.try_into().map_err(|_| damaged("the audit key in the schema has not 32 bytes"))?)
        }
        (None, None) => return wrong("the audit key of this store is in a file; name it with --audit-key"),
    };
    if fingerprint(&key) == print {
        Ok(key)
    } else {
        wrong("this is not the audit key of the store; every node that may hold it needs the same one")
    }
}

/// A checked and migrated store that this process does not hold yet.
pub(super) struct Prepared {
    pub(super) session: Session,
    pub(super) audit_key: AuditKey,
    degraded: Vec<String>,
}

/// Connects, checks the server and migrates the schema. Blocks, like all functions here.
pub(super) fn prepare(address: &Address, options: &Options) -> TableResult<Prepared> {
    let session = address.connect()?;
    let degraded = check_server(&session)?;
    migrate(&session, &address.schema, options)?;
    let audit_key = audit_key(&session, options.audit_key.as_ref())?;
    tune_writer(&session)?;
    Ok(Prepared { session, audit_key, degraded })
}

/// Opens a store and takes it.
pub(super) fn open(address: &Address, options: &Options) -> TableResult<Postgres> {
    let prepared = prepare(address, options)?;
    let term = take(&prepared.session, options)?;
    hold(address, prepared, term, options)
}

/// Starts the writer of a store that was taken.
pub(super) fn hold(
    address: &Address,
    Prepared { session, audit_key, degraded }: Prepared,
    term: term::Term,
    options: &Options,
) -> TableResult<Postgres> {
    let database_clock = Arc::new(DatabaseClock::new(term.wall));
    let clock = match &options.clock {
        Some(clock) => StoreClock::Given(Arc::clone(clock)),
        None => {
            let last = Stamp { time: Time::from_millis(term.clock), uptime: None };
            StoreClock::Own(Arc::new(Slewing::resume(Arc::clone(&database_clock) as _, last)))
        }
    };
    let tables = Staged::with_cache(PgBase { session }, CACHE_BYTES);
    let mut engine = Engine::new(tables, Arc::clone(&options.entropy), audit_key.clone());
    engine.set_ready_index_max(options.hot_entries);
    let shared = Arc::new(Shared::new());
    engine.waiting_writers = Arc::clone(&shared.waiting);
    engine.waiting_workers = shared.holder.waiting();
    let writer = Writer {
        engine,
        address: address.clone(),
        term,
        node: options.node.clone(),
        entropy: Arc::clone(&options.entropy),
        clock: clock.clone(),
        database_clock,
        shared: Arc::clone(&shared),
    };
    let (jobs, waiting) = mpsc::channel(limits::WRITER_QUEUE_MAX);
    let spawned =
        std::thread::Builder::new().name("redrive-writer".into()).spawn(move || writer.run(waiting));
    let failed = |e| StoreError::new(StoreErrorKind::Stopped, format!("cannot start the writer: {e}"));
    Ok(Postgres {
        jobs: Some(jobs),
        thread: Some(spawned.map_err(failed)?),
        readers: Readers::new(address),
        shared,
        address: address.clone(),
        clock,
        audit_key,
        degraded,
    })
}

/// How often a process that waits for the store looks whether it is free.
const LOOK_EVERY: Duration = Duration::from_millis(100);

fn take(session: &Session, options: &Options) -> TableResult<term::Term> {
    let began = std::time::Instant::now();
    loop {
        let mut nonce = [0; 16];
        options.entropy.fill(&mut nonce);
        match term::acquire(session, &options.node, Uuid::from_bytes(nonce))? {
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
