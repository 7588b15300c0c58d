//! Opening, backing up and restoring a data directory. Its content is either ours, intact and of a known version, or
//! it is refused with a reason and left unchanged.

use super::checkpoint::Checkpointer;
use super::commit_mark::CommitMark;
use super::errors::sql_result;
use super::reads::SqlTables;
use super::reserve::{Reserve, free_bytes};
use super::writer::{CHECKPOINT_ALWAYS, Shared, Writer};
use super::{Sqlite, schema};
use crate::clock::{Here, Machine, Slewing, Stamp, StoreClock, Uptime};
use crate::engine::Engine;
use crate::engine::tables::damaged;
use crate::engine::tables::{TableResult, Tables as _};
use crate::entropy::{Entropy, System};
use crate::faults::{self, Fault};
use crate::holder::Holder;
use crate::trust::{self, DATABASE, KEY, LOCK, MARK, RESERVE, RESTORING};
use redrive_core::audit::AuditKey;
use redrive_core::error::{StoreError, StoreErrorKind};
use redrive_core::lifecycle::Phase;
use redrive_core::limits;
use redrive_core::time::{Clock, Span, Time};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::{Semaphore, mpsc};

/// The oldest SQLite version that may be used: older ones can lose data when a checkpoint races a writer.
const SQLITE_FLOOR: i32 = 3_051_003;
/// Free space required, on top of the length of the log, to rewrite the log when the store is opened.
const LOG_REWRITE_SPACE: u64 = 16 * 1024 * 1024;
/// When a directory is opened with `grace`, live leases last at least this long, or their own length if shorter.
const GRACE: Span = Span::from_secs(30);

/// How to open a data directory.
#[derive(Clone)]
pub struct Options {
    /// Whether to create the directory if it does not exist.
    pub create: bool,
    /// Whether to give live leases time to be extended. Set by processes that will hold the directory for long.
    pub grace: bool,
    /// The clock. Defaults to a slewing clock on top of `machine`.
    pub clock: Option<Arc<dyn Clock>>,
    /// The machine's clocks, which the default clock is based on.
    pub machine: Arc<dyn Machine>,
    /// The source of randomness.
    pub entropy: Arc<dyn Entropy>,
    /// How many entries the index of ready messages holds before it spills to disk.
    pub hot_entries: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            create: true,
            grace: false,
            clock: None,
            machine: Arc::new(Here::default()),
            entropy: Arc::new(System),
            hot_entries: limits::READY_INDEX_ENTRIES_MAX,
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("create", &self.create).finish_non_exhaustive()
    }
}

fn refused(what: &str, path: &Path, error: &io::Error) -> StoreError {
    let full = error.kind() == io::ErrorKind::StorageFull;
    let kind = if full { StoreErrorKind::Full } else { StoreErrorKind::Io };
    StoreError::new(kind, format!("cannot {what} {}: {error}", path.display()))
}

/// Makes the entries of a directory durable (I8).
fn sync_directory(path: &Path) -> TableResult<()> {
    File::open(path).and_then(|d| d.sync_all()).map_err(|e| refused("sync the directory", path, &e))
}

/// Creates a directory that only its owner can enter, and makes its name durable. An existing one must belong to this
/// user: somebody else may have just created it.
fn create_directory(path: &Path) -> TableResult<()> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(path);
    created.map_err(|e| refused("create the data directory", path, &e))?;
    trust::check(path)?;
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_directory(parent),
        Some(_) | None => sync_directory(Path::new(".")),
    }
}

pub(super) fn open(directory: &Path, options: Options) -> TableResult<Sqlite> {
    if rusqlite::version_number() < SQLITE_FLOOR {
        let why = format!("SQLite {} is too old: it can lose data", rusqlite::version());
        return Err(StoreError::new(StoreErrorKind::Unsupported, why));
    }
    if options.create { trust::check_new(directory) } else { trust::check(directory) }?;
    if !directory.join(DATABASE).exists() {
        if !options.create {
            let why = format!(
                "no Redrive data in {}; enqueue something first, or name another directory with --data",
                directory.display()
            );
            return Err(StoreError::new(StoreErrorKind::NotAStore, why));
        }
        create_directory(directory)?;
    }
    refuse_network(directory)?;
    let lock = take_lock(directory)?;
    let connection = connect(directory).or_else(|error| retry_with_reserve(directory, error))?;
    let (commits, stamp) = head(&connection)?;
    let mark = CommitMark::open(&directory.join(MARK), commits)?;
    rewrite_log(directory, &connection)?;
    let audit_key = audit_key(directory, options.entropy.as_ref())?;
    sync_directory(directory)?;

    let clock = match &options.clock {
        Some(clock) => StoreClock::Given(Arc::clone(clock)),
        None => StoreClock::Own(Arc::new(Slewing::resume(Arc::clone(&options.machine), stamp))),
    };
    let mut tables = SqlTables::new(connection);
    if options.grace {
        give_grace(&mut tables, clock.now())?;
        preallocate_log(directory)?;
    }
    start(directory, tables, lock, OpenedDirectory { options, commits, mark, audit_key, clock })
}

/// What opening the directory found, as input for the writer.
struct OpenedDirectory {
    options: Options,
    commits: u64,
    mark: CommitMark,
    audit_key: AuditKey,
    clock: StoreClock,
}

fn start(
    directory: &Path,
    mut tables: SqlTables,
    lock: File,
    opened: OpenedDirectory,
) -> TableResult<Sqlite> {
    let log_pages = Arc::new(AtomicI32::new(0));
    let hook_pages = Arc::clone(&log_pages);
    sql_result(tables.connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages| {
        hook_pages.store(pages, Ordering::Relaxed);
        Ok(())
    })))?;
    let mut engine = Engine::new(tables, Arc::clone(&opened.options.entropy), opened.audit_key.clone());
    engine.set_ready_index_max(opened.options.hot_entries);
    let reserve = Reserve::new(directory.join(RESERVE));
    let shared = Arc::new(Shared::new(Arc::new(Holder::new())));
    engine.waiting_writers = Arc::clone(&shared.waiting);
    engine.waiting_workers = shared.holder.waiting();
    // Without a reserve the disk is nearly full: the rest is for operations that free space.
    shared.full.store(!reserve.is_filled(), Ordering::SeqCst);
    let writer = Writer {
        engine,
        clock: opened.clock.clone(),
        shared: Arc::clone(&shared),
        mark: opened.mark,
        reserve,
        commits: opened.commits,
        log_pages,
        checkpointer: Checkpointer::new(directory, &shared),
        retry_at_pages: 0,
    };
    let (jobs, waiting) = mpsc::channel(limits::WRITER_QUEUE_MAX);
    let spawned = std::thread::Builder::new().name("redrive-writer".into()).spawn(move || {
        writer.run(waiting);
        // The lock on the directory is released only after the last write.
        drop(lock);
    });
    let thread = spawned.map_err(|e| refused("start the writer of", directory, &e))?;
    Ok(Sqlite {
        jobs: Some(jobs),
        thread: Some(thread),
        readers: Arc::new(Mutex::new(Vec::new())),
        reader_permits: Arc::new(Semaphore::new(limits::READERS_MAX)),
        shared,
        directory: directory.to_owned(),
        clock: opened.clock,
        audit_key: opened.audit_key,
        #[cfg(feature = "remote")]
        server: Mutex::new(None),
    })
}

/// File systems whose locks and syncs cannot be relied upon: NFS, SMB, CIFS, SMB2.
const NETWORK: [i64; 4] = [0x6969, 0x517B, 0xFF53_4D42, 0xFE53_4D42];

fn refuse_network(directory: &Path) -> TableResult<()> {
    let Ok(stat) = rustix::fs::statfs(directory) else { return Ok(()) };
    #[expect(clippy::useless_conversion, reason = "the type of f_type differs between machines")]
    if NETWORK.contains(&i64::from(stat.f_type)) {
        let why =
            format!("{} is on a network file system, where locks cannot be trusted", directory.display());
        return Err(StoreError::new(StoreErrorKind::Unsupported, why));
    }
    Ok(())
}

fn take_lock(directory: &Path) -> TableResult<File> {
    let path = directory.join(LOCK);
    let opened = trust::private().create(true).truncate(false).write(true).open(&path);
    let file = opened.map_err(|e| refused("use the data directory", directory, &e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::new(
            StoreErrorKind::Locked,
            format!("another process holds {} and does not answer on its socket", directory.display()),
        )),
        Err(TryLockError::Error(e)) => Err(refused("lock", &path, &e)),
    }
}

/// Opens the writer's connection and migrates the database to the current version.
fn connect(directory: &Path) -> TableResult<Connection> {
    let path = directory.join(DATABASE);
    refuse_foreign(directory, &path)?;
    // Created by us first, so that its mode lets nobody else read it.
    let created = trust::private().create(true).truncate(false).write(true).open(&path);
    created.map_err(|e| refused("open", &path, &e))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = sql_result(Connection::open_with_flags(&path, flags))?;
    let version = schema::check(&connection, &path.display().to_string())?;
    configure_connection(&connection)?;
    schema::migrate(connection, version)
}

/// Settings of every connection that writes to the file.
fn configure_connection(connection: &Connection) -> TableResult<()> {
    let synchronous = if faults::is(Fault::MissingFsync) { "OFF" } else { "FULL" };
    sql_result(connection.execute_batch(&format!(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous}; PRAGMA wal_autocheckpoint = 0; \
         PRAGMA mmap_size = 0; PRAGMA cache_size = -16384; PRAGMA temp_store = MEMORY; PRAGMA busy_timeout = 5000;"
    )))?;
    // Otherwise SQLite makes a checkpoint when it closes, even on a full disk.
    sql_result(connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true))?;
    plan_by_statement(connection)
}

/// Makes query plans depend on the statement alone, not on the bound values. Otherwise SQLite prepares many of our
/// statements again on every call, to see whether a partial index could be used.
fn plan_by_statement(connection: &Connection) -> TableResult<()> {
    sql_result(connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)).map(|_| ())
}

/// Opens the connection of the background checkpoint thread.
pub(super) fn checkpointer(directory: &Path) -> TableResult<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = sql_result(Connection::open_with_flags(directory.join(DATABASE), flags))?;
    configure_connection(&connection)?;
    Ok(connection)
}

/// Copies the log into the database file and empties it. After a failed sync, the log can be readable although parts
/// of it will never reach the disk, and a later sync does not help; copying writes and syncs the data again. On a
/// nearly full disk this is skipped, because the space is needed for acks.
fn rewrite_log(directory: &Path, connection: &Connection) -> TableResult<()> {
    let length = fs::metadata(directory.join(format!("{DATABASE}-wal"))).map_or(0, |m| m.len());
    if free_bytes(directory) < length.saturating_add(LOG_REWRITE_SPACE) {
        return Ok(());
    }
    let rewritten =
        sql_result(connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0)));
    match rewritten {
        Ok(_) => Ok(()),
        Err(error) if error.kind == StoreErrorKind::Full => Ok(()),
        Err(error) => Err(error),
    }
}

/// Refuses a file that does not begin like a SQLite database, before SQLite takes a short one for an empty database.
/// If there is a journal, the beginning may be half written, and SQLite will recover it.
fn refuse_foreign(directory: &Path, path: &Path) -> TableResult<()> {
    const MAGIC: &[u8] = b"SQLite format 3\0";
    let recovering =
        ["-journal", "-wal"].iter().any(|end| directory.join(format!("{DATABASE}{end}")).exists());
    let mut head = Vec::new();
    let read = trust::private()
        .read(true)
        .open(path)
        .and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut head));
    if read.is_err() || recovering || head.is_empty() || head == MAGIC {
        return Ok(());
    }
    let why = format!("{} is not a Redrive store; name another directory with --data", path.display());
    Err(StoreError::new(StoreErrorKind::NotAStore, why))
}

/// Opens a read-only connection.
pub(super) fn reader(directory: &Path) -> TableResult<SqlTables> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = sql_result(Connection::open_with_flags(directory.join(DATABASE), flags))?;
    sql_result(
        connection
            .execute_batch("PRAGMA mmap_size = 0; PRAGMA cache_size = -16384; PRAGMA busy_timeout = 5000;"),
    )?;
    plan_by_statement(&connection)?;
    Ok(SqlTables::new(connection))
}

fn head(connection: &Connection) -> TableResult<(u64, Stamp)> {
    let read = |row: &rusqlite::Row<'_>| {
        let (boot, ms): (Option<String>, Option<i64>) = (row.get(2)?, row.get(3)?);
        let boot = boot.and_then(|text| u128::from_str_radix(&text, 16).ok());
        let uptime = boot.zip(ms).map(|(boot, ms)| Uptime { boot, ms });
        Ok((row.get(0)?, Stamp { time: Time::from_millis(row.get(1)?), uptime }))
    };
    sql_result(connection.query_row("SELECT commits, clock, boot, uptime FROM head", [], read))
}

/// Clears the machine's uptime in a backup: it may be opened on another machine or much later, where only the wall
/// clock can tell the time.
fn clear_uptime(file: &Path) -> TableResult<()> {
    let connection = sql_result(Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE))?;
    sql_result(connection.execute_batch("UPDATE head SET boot = NULL, uptime = NULL"))
}

/// Gives every live lease at least thirty seconds, or its own length if that is shorter: its worker could not reach
/// the store while no process held the directory.
fn give_grace(tables: &mut SqlTables, now: Time) -> TableResult<()> {
    sql_result(tables.connection.execute_batch("BEGIN IMMEDIATE"))?;
    for mut live in tables.leased()? {
        let Phase::Leased(lease) = &mut live.lifecycle.phase else { continue };
        let length = lease.expires_at.since(lease.granted_at);
        let until = now.plus(length.min(GRACE));
        if lease.expires_at < until {
            // The time of the grant moves too, so that the length of the lease stays the same however often this runs.
            (lease.granted_at, lease.expires_at) = (until.minus(length), until);
            tables.put_lifecycle(&live.meta, &live.lifecycle)?;
        }
    }
    sql_result(tables.connection.execute_batch("COMMIT"))
}

/// Connects again after releasing the reserve: on a full disk SQLite may be unable to open its log.
fn retry_with_reserve(directory: &Path, error: StoreError) -> TableResult<Connection> {
    let no_room = matches!(error.kind, StoreErrorKind::Full | StoreErrorKind::Stopped);
    if no_room && fs::remove_file(directory.join(RESERVE)).is_ok() { connect(directory) } else { Err(error) }
}

/// Extends the log to its usual length with zeros, which SQLite reads as "nothing
/// written here": syncing writes into a file that does not grow is much cheaper. Done
/// by processes that hold the directory for long, if the disk has plenty of space.
fn preallocate_log(directory: &Path) -> TableResult<()> {
    let path = directory.join(format!("{DATABASE}-wal"));
    let Ok(file) = trust::private().append(true).open(&path) else { return Ok(()) };
    let length = file.metadata().map_or(0, |m| m.len());
    let wanted = u64::try_from(CHECKPOINT_ALWAYS).unwrap_or(0) * 4_120;
    let missing = wanted.saturating_sub(length);
    if missing == 0 || free_bytes(directory) / 16 < missing {
        return Ok(());
    }
    let mut file = &file;
    let zeros = vec![0; usize::try_from(missing).unwrap_or(0)];
    match file.write_all(&zeros).and_then(|()| file.sync_all()) {
        Err(e) if e.kind() == io::ErrorKind::StorageFull => {
            file.set_len(length).map_err(|e| refused("free space in", &path, &e))
        }
        written => written.map_err(|e| refused("extend", &path, &e)),
    }
}

/// Reads the key of the audit chain, or creates it. If a store has lost its key, verifying the chain reveals it.
fn audit_key(directory: &Path, entropy: &dyn Entropy) -> TableResult<AuditKey> {
    let path = directory.join(KEY);
    match trust::private().read(true).open(&path).and_then(io::read_to_string) {
        Ok(text) => parse_key(&text).ok_or_else(|| damaged(format!("{} is not a key", path.display()))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let mut key = [0; 32];
            entropy.fill(&mut key);
            write_key(&path, &AuditKey(key))?;
            Ok(AuditKey(key))
        }
        Err(e) => Err(refused("read", &path, &e)),
    }
}

fn write_key(path: &Path, key: &AuditKey) -> TableResult<()> {
    let text: String = key.0.iter().map(|b| format!("{b:02x}")).collect();
    // Renamed last: a key that was not completely written does not exist.
    let part = path.with_extension("part");
    let opened = trust::private().create(true).truncate(true).write(true).open(&part);
    let written = opened.and_then(|mut f| f.write_all(text.as_bytes()).and_then(|()| f.sync_all()));
    written.and_then(|()| fs::rename(&part, path)).map_err(|e| refused("write", path, &e))
}

fn parse_key(text: &str) -> Option<AuditKey> {
    let text = text.trim();
    let mut key = [0; 32];
    if text.len() != 64 {
        return None;
    }
    for (n, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * n..2 * n + 2)?, 16).ok()?;
    }
    Some(AuditKey(key))
}

/// Copies the store to a new directory as of one commit, while work goes on (I9). Returns the bytes written.
pub(super) fn backup(directory: &Path, target: &Path, key: &AuditKey) -> TableResult<u64> {
    trust::check_new(target)?;
    let file = target.join(DATABASE);
    if file.exists() {
        let why = format!("{} holds a store already; name a new directory", target.display());
        return Err(StoreError::new(StoreErrorKind::Io, why));
    }
    create_directory(target)?;
    let created = trust::private().create_new(true).write(true).open(&file);
    created.map_err(|e| refused("create", &file, &e))?;
    let reader = reader(directory)?;
    let name = file.to_str().ok_or_else(|| {
        StoreError::new(StoreErrorKind::Io, format!("the path {} is not text", file.display()))
    })?;
    sql_result(reader.connection.execute("VACUUM INTO ?1", [name]))?;
    clear_uptime(&file)?;
    File::open(&file).and_then(|f| f.sync_all()).map_err(|e| refused("sync", &file, &e))?;
    write_key(&target.join(KEY), key)?;
    sync_directory(target)?;
    fs::metadata(&file).map(|m| m.len()).map_err(|e| refused("read", &file, &e))
}

/// Creates a data directory from a backup; refuses to overwrite an existing one. Returns the bytes copied.
///
/// # Errors
/// A [`StoreError`] if the backup is not intact or the target is not empty.
pub fn restore(backup: &Path, directory: &Path) -> Result<u64, StoreError> {
    let (from, to) = (backup.join(DATABASE), directory.join(DATABASE));
    if !from.exists() {
        let why = format!("{} is not a backup: it has no {DATABASE}", backup.display());
        return Err(StoreError::new(StoreErrorKind::NotAStore, why));
    }
    trust::check_new(directory)?;
    if to.exists() {
        let why = format!("{} holds a store already; restore into a new directory", directory.display());
        return Err(StoreError::new(StoreErrorKind::Io, why));
    }
    check_backup(&from)?;
    create_directory(directory)?;
    let _lock = take_lock(directory)?;
    let part = directory.join(RESTORING);
    let bytes = copy(&from, &part).map_err(|e| refused("copy the backup to", &part, &e))?;
    if backup.join(KEY).exists() {
        let text = fs::read_to_string(backup.join(KEY)).map_err(|e| refused("read", backup, &e))?;
        let key = parse_key(&text).ok_or_else(|| damaged("the backup's audit key is not a key"))?;
        write_key(&directory.join(KEY), &key)?;
    }
    // Renamed last: a directory that was not completely restored contains no store.
    fs::rename(&part, &to).map_err(|e| refused("name", &to, &e))?;
    sync_directory(directory)?;
    Ok(bytes)
}

/// Copies a file, durably, to one that only its owner can read.
fn copy(from: &Path, to: &Path) -> io::Result<u64> {
    let mut target = trust::private().create(true).truncate(true).write(true).open(to)?;
    let bytes = io::copy(&mut File::open(from)?, &mut target)?;
    target.sync_all()?;
    Ok(bytes)
}

fn check_backup(file: &Path) -> TableResult<()> {
    let connection = sql_result(Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY))?;
    schema::check(&connection, &file.display().to_string())?;
    let verdict: String = sql_result(connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)))?;
    if verdict == "ok" { Ok(()) } else { Err(damaged(format!("the backup is damaged: {verdict}"))) }
}
