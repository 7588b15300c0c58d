//! Opening, backing up and restoring a data directory. What is found there is either ours, whole and of a
//! version we know, or it is refused with a reason and left as it is.

use super::checkpoint::Checkpointer;
use super::errors::{damaged, kept};
use super::mark::Mark;
use super::reads::SqlTables;
use super::reserve::{Reserve, free_bytes};
use super::writer::{CHECKPOINT_ALWAYS, Shared, Writer};
use super::{Sqlite, schema};
use crate::clock::{Here, Machine, Slewing, Stamp, Uptime};
use crate::engine::Engine;
use crate::engine::tables::{Kept, Tables as _};
use crate::entropy::{Entropy, System};
use crate::faults::{self, Fault};
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

/// The oldest SQLite that may be used: older ones lose data when a checkpoint races a writer.
const SQLITE_FLOOR: i32 = 3_051_003;
/// Free room beyond the length of the log below which the log is left as it is.
const ROOM_TO_SETTLE: u64 = 16 * 1024 * 1024;
/// A lease that lives when its holder is opened again gets at least this long, or its own length.
const GRACE: Span = Span::from_secs(30);

/// How to open a directory.
#[derive(Clone)]
pub struct Options {
    /// Make it when it is not there.
    pub create: bool,
    /// Give live leases time to be extended: set by whoever will hold the directory for long.
    pub grace: bool,
    /// The clock; without one, a slewing clock on the machine's.
    pub clock: Option<Arc<dyn Clock>>,
    /// The machine that clock goes by.
    pub machine: Arc<dyn Machine>,
    /// The randomness.
    pub entropy: Arc<dyn Entropy>,
    /// Entries of the index of ready messages before it spills.
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
            hot_entries: limits::HOT_ENTRIES_MAX,
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

/// Makes the names in a directory durable (I8).
fn sync_directory(path: &Path) -> Kept<()> {
    File::open(path).and_then(|d| d.sync_all()).map_err(|e| refused("sync the directory", path, &e))
}

/// Makes a directory that only its owner can enter, and its name durable. One that is there already must be this
/// user's own: somebody else may have made it a moment ago.
fn make_directory(path: &Path) -> Kept<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|e| refused("make the data directory", path, &e))?;
    trust::check(path)?;
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_directory(parent),
        Some(_) | None => sync_directory(Path::new(".")),
    }
}

pub(super) fn open(directory: &Path, options: Options) -> Kept<Sqlite> {
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
        make_directory(directory)?;
    }
    refuse_network(directory)?;
    let lock = take_lock(directory)?;
    let connection = connect(directory).or_else(|error| retry_with_reserve(directory, error))?;
    let (commits, stamp) = head(&connection)?;
    let mark = Mark::open(&directory.join(MARK), commits)?;
    settle_log(directory, &connection)?;
    let audit_key = audit_key(directory, options.entropy.as_ref())?;
    sync_directory(directory)?;

    let clock = match &options.clock {
        Some(clock) => StoreClock::Given(Arc::clone(clock)),
        None => StoreClock::Own(Arc::new(Slewing::resume(Arc::clone(&options.machine), stamp))),
    };
    let mut tables = SqlTables::new(connection);
    if options.grace {
        give_grace(&mut tables, clock.now())?;
        lay_out_log(directory)?;
    }
    start(directory, tables, lock, Started { options, commits, mark, audit_key, clock })
}

/// What has been found out before the writer starts.
struct Started {
    options: Options,
    commits: u64,
    mark: Mark,
    audit_key: AuditKey,
    clock: StoreClock,
}

/// The clock of a store: its own, or one that somebody brought along.
#[derive(Clone)]
pub(super) enum StoreClock {
    Own(Arc<Slewing>),
    Given(Arc<dyn Clock>),
}

impl StoreClock {
    pub(super) fn now(&self) -> Time {
        self.stamp().time
    }

    /// What is persisted with a commit.
    pub(super) fn stamp(&self) -> Stamp {
        match self {
            Self::Own(clock) => clock.stamp(),
            Self::Given(clock) => Stamp { time: clock.now(), uptime: None },
        }
    }

    /// How far it is ahead of the wall, in milliseconds.
    pub(super) fn skew_ms(&self) -> i64 {
        match self {
            Self::Own(clock) => clock.skew_ms(),
            Self::Given(_) => 0,
        }
    }
}

fn start(directory: &Path, mut tables: SqlTables, lock: File, found: Started) -> Kept<Sqlite> {
    let log_pages = Arc::new(AtomicI32::new(0));
    let seen = Arc::clone(&log_pages);
    kept(tables.connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages| {
        seen.store(pages, Ordering::Relaxed);
        Ok(())
    })))?;
    let mut engine = Engine::new(tables, Arc::clone(&found.options.entropy), found.audit_key.clone());
    engine.hold_at_most(found.options.hot_entries);
    let reserve = Reserve::at(directory.join(RESERVE));
    let shared = Arc::new(Shared::default());
    engine.crowd = Arc::clone(&shared.waiting);
    // Without a reserve the disk is nearly full: what is left is for what frees space.
    shared.full.store(!reserve.is_filled(), Ordering::SeqCst);
    let writer = Writer {
        engine,
        clock: found.clock.clone(),
        shared: Arc::clone(&shared),
        mark: found.mark,
        reserve,
        commits: found.commits,
        log_pages,
        checkpointer: Checkpointer::of(directory, &shared),
        try_again_at: 0,
    };
    let (jobs, waiting) = mpsc::channel(limits::WRITER_QUEUE_MAX);
    let spawned = std::thread::Builder::new().name("redrive-writer".into()).spawn(move || {
        writer.run(waiting);
        // The directory is given up only when the last write is done.
        drop(lock);
    });
    let thread = spawned.map_err(|e| refused("start the writer of", directory, &e))?;
    Ok(Sqlite {
        jobs: Some(jobs),
        thread: Some(thread),
        readers: Arc::new(Mutex::new(Vec::new())),
        places: Arc::new(Semaphore::new(limits::READERS_MAX)),
        shared,
        directory: directory.to_owned(),
        clock: found.clock,
        audit_key: found.audit_key,
        #[cfg(feature = "remote")]
        server: Mutex::new(None),
    })
}

/// File systems on which locks and syncs cannot be relied upon: NFS, SMB, CIFS, SMB2.
const NETWORK: [i64; 4] = [0x6969, 0x517B, 0xFF53_4D42, 0xFE53_4D42];

fn refuse_network(directory: &Path) -> Kept<()> {
    let Ok(stat) = rustix::fs::statfs(directory) else { return Ok(()) };
    #[expect(clippy::useless_conversion, reason = "the type of f_type differs between machines")]
    if NETWORK.contains(&i64::from(stat.f_type)) {
        let why =
            format!("{} is on a network file system, where locks cannot be trusted", directory.display());
        return Err(StoreError::new(StoreErrorKind::Unsupported, why));
    }
    Ok(())
}

fn take_lock(directory: &Path) -> Kept<File> {
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

/// Opens the writer's connection and brings the file to the present version.
fn connect(directory: &Path) -> Kept<Connection> {
    let path = directory.join(DATABASE);
    refuse_foreign(directory, &path)?;
    // Made by us first, so that it is nobody else's to read.
    let made = trust::private().create(true).truncate(false).write(true).open(&path);
    made.map_err(|e| refused("open", &path, &e))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = kept(Connection::open_with_flags(&path, flags))?;
    let place = path.display().to_string();
    let version = schema::check(&connection, &place)?;
    set_up(&connection)?;
    schema::migrate(connection, version)
}

/// What every connection needs that writes to the file.
fn set_up(connection: &Connection) -> Kept<()> {
    let synchronous = if faults::is(Fault::MissingFsync) { "OFF" } else { "FULL" };
    kept(connection.execute_batch(&format!(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous}; PRAGMA wal_autocheckpoint = 0; \
         PRAGMA mmap_size = 0; PRAGMA cache_size = -16384; PRAGMA temp_store = MEMORY; PRAGMA busy_timeout = 5000;"
    )))?;
    // Closing would otherwise checkpoint by itself, also on a full disk.
    kept(connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true))?;
    plan_by_text(connection)
}

/// Plans go by what a statement says, not by what is bound to it: else SQLite makes many of ours anew on every call,
/// to see whether a partial index would do.
fn plan_by_text(connection: &Connection) -> Kept<()> {
    kept(connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)).map(|_| ())
}

/// Opens the connection that moves the log into the file.
pub(super) fn checkpointer(directory: &Path) -> Kept<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = kept(Connection::open_with_flags(directory.join(DATABASE), flags))?;
    set_up(&connection)?;
    Ok(connection)
}

/// Writes what the log holds into the file anew and empties the log. After a failed sync the log can be read
/// although parts of it will never reach the disk, and a later sync does not bring them back; what is written
/// anew is synced as it should be. A nearly full disk has to wait with that: the room is for acks.
fn settle_log(directory: &Path, connection: &Connection) -> Kept<()> {
    let length = fs::metadata(directory.join(format!("{DATABASE}-wal"))).map_or(0, |m| m.len());
    if free_bytes(directory) < length.saturating_add(ROOM_TO_SETTLE) {
        return Ok(());
    }
    let settled =
        kept(connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0)));
    match settled {
        Ok(_) => Ok(()),
        Err(error) if error.kind == StoreErrorKind::Full => Ok(()),
        Err(error) => Err(error),
    }
}

/// Refuses a file that does not begin as SQLite's do, before SQLite takes a short one for an empty database.
/// Beside a journal the beginning may be half written, and SQLite will mend it.
fn refuse_foreign(directory: &Path, path: &Path) -> Kept<()> {
    const MAGIC: &[u8] = b"SQLite format 3\0";
    let mending = ["-journal", "-wal"].iter().any(|end| directory.join(format!("{DATABASE}{end}")).exists());
    let mut head = Vec::new();
    let read = trust::private()
        .read(true)
        .open(path)
        .and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut head));
    if read.is_err() || mending || head.is_empty() || head == MAGIC {
        return Ok(());
    }
    let why = format!("{} is not a Redrive store; name another directory with --data", path.display());
    Err(StoreError::new(StoreErrorKind::NotAStore, why))
}

/// Opens a connection that can only read.
pub(super) fn reader(directory: &Path) -> Kept<SqlTables> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = kept(Connection::open_with_flags(directory.join(DATABASE), flags))?;
    kept(
        connection
            .execute_batch("PRAGMA mmap_size = 0; PRAGMA cache_size = -16384; PRAGMA busy_timeout = 5000;"),
    )?;
    plan_by_text(&connection)?;
    Ok(SqlTables::new(connection))
}

fn head(connection: &Connection) -> Kept<(u64, Stamp)> {
    let read = |row: &rusqlite::Row<'_>| {
        let (boot, ms): (Option<String>, Option<i64>) = (row.get(2)?, row.get(3)?);
        let boot = boot.and_then(|text| u128::from_str_radix(&text, 16).ok());
        let uptime = boot.zip(ms).map(|(boot, ms)| Uptime { boot, ms });
        Ok((row.get(0)?, Stamp { time: Time::from_millis(row.get(1)?), uptime }))
    };
    kept(connection.query_row("SELECT commits, clock, boot, uptime FROM head", [], read))
}

/// Forgets how long the machine was up when the clock was persisted: a backup may be opened on another machine and
/// long after, where only the wall can tell what time it is.
fn forget_uptime(file: &Path) -> Kept<()> {
    let connection = kept(Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE))?;
    kept(connection.execute_batch("UPDATE head SET boot = NULL, uptime = NULL"))
}

/// Gives every live lease at least thirty seconds, or its own length if that was shorter: its worker could
/// not reach anybody while the directory was not held.
fn give_grace(tables: &mut SqlTables, now: Time) -> Kept<()> {
    kept(tables.connection.execute_batch("BEGIN IMMEDIATE"))?;
    for mut live in tables.leased()? {
        let Phase::Leased(lease) = &mut live.life.phase else { continue };
        let length = lease.expires_at.since(lease.granted_at);
        let until = now.plus(length.min(GRACE));
        if lease.expires_at < until {
            // The grant moves with its end: the length of a lease stays what it was, however often this is done.
            (lease.granted_at, lease.expires_at) = (until.minus(length), until);
            tables.put_life(&live.slip, &live.life)?;
        }
    }
    kept(tables.connection.execute_batch("COMMIT"))
}

/// A full disk can keep SQLite from opening its log: what was kept back for that makes room.
fn retry_with_reserve(directory: &Path, error: StoreError) -> Kept<Connection> {
    let no_room = matches!(error.kind, StoreErrorKind::Full | StoreErrorKind::Stopped);
    if no_room && fs::remove_file(directory.join(RESERVE)).is_ok() { connect(directory) } else { Err(error) }
}

/// Gives the log its usual length beforehand, as zeros, which SQLite reads as "nothing written here": syncing
/// bytes into a file that does not grow is much cheaper than syncing its growth. For those who hold the
/// directory for long, on a disk with plenty of room.
fn lay_out_log(directory: &Path) -> Kept<()> {
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
            file.set_len(length).map_err(|e| refused("take back room from", &path, &e))
        }
        written => written.map_err(|e| refused("lay out", &path, &e)),
    }
}

/// Reads the key of the audit chain, or makes it. A store that has lost its key says so when it is verified.
fn audit_key(directory: &Path, entropy: &dyn Entropy) -> Kept<AuditKey> {
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

fn write_key(path: &Path, key: &AuditKey) -> Kept<()> {
    let text: String = key.0.iter().map(|b| format!("{b:02x}")).collect();
    // The name appears last: a key that was not written whole is not there.
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

/// Copies the store to a new directory as of one commit, while work goes on (I9). Gives the bytes written.
pub(super) fn backup(directory: &Path, target: &Path, key: &AuditKey) -> Kept<u64> {
    trust::check_new(target)?;
    let file = target.join(DATABASE);
    if file.exists() {
        let why = format!("{} holds a store already; name a new directory", target.display());
        return Err(StoreError::new(StoreErrorKind::Io, why));
    }
    make_directory(target)?;
    let made = trust::private().create_new(true).write(true).open(&file);
    made.map_err(|e| refused("make", &file, &e))?;
    let reader = reader(directory)?;
    let name = file.to_str().ok_or_else(|| {
        StoreError::new(StoreErrorKind::Io, format!("the path {} is not text", file.display()))
    })?;
    kept(reader.connection.execute("VACUUM INTO ?1", [name]))?;
    forget_uptime(&file)?;
    File::open(&file).and_then(|f| f.sync_all()).map_err(|e| refused("sync", &file, &e))?;
    write_key(&target.join(KEY), key)?;
    sync_directory(target)?;
    fs::metadata(&file).map(|m| m.len()).map_err(|e| refused("read", &file, &e))
}

/// Makes a data directory from a backup; refuses to write over one. Gives the bytes copied.
///
/// # Errors
/// A [`StoreError`] when the backup is not whole or the target is not empty.
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
    make_directory(directory)?;
    let _lock = take_lock(directory)?;
    let part = directory.join(RESTORING);
    let bytes = copy(&from, &part).map_err(|e| refused("copy the backup to", &part, &e))?;
    if backup.join(KEY).exists() {
        let text = fs::read_to_string(backup.join(KEY)).map_err(|e| refused("read", backup, &e))?;
        let key = parse_key(&text).ok_or_else(|| damaged("the backup's audit key is not a key"))?;
        write_key(&directory.join(KEY), &key)?;
    }
    // The name appears last: a directory that was not restored whole has no store in it.
    fs::rename(&part, &to).map_err(|e| refused("name", &to, &e))?;
    sync_directory(directory)?;
    Ok(bytes)
}

/// Copies a file to one that only its owner can read, durably.
fn copy(from: &Path, to: &Path) -> io::Result<u64> {
    let mut target = trust::private().create(true).truncate(true).write(true).open(to)?;
    let bytes = io::copy(&mut File::open(from)?, &mut target)?;
    target.sync_all()?;
    Ok(bytes)
}

fn check_backup(file: &Path) -> Kept<()> {
    let connection = kept(Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY))?;
    schema::check(&connection, &file.display().to_string())?;
    let verdict: String = kept(connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)))?;
    if verdict == "ok" { Ok(()) } else { Err(damaged(format!("the backup is damaged: {verdict}"))) }
}
