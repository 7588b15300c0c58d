//! What every command runs with: the resolved flags, the output, and the connection to the store. Only this module
//! knows whether the data directory is opened here or through the process that holds it.

use crate::args::Global;
use crate::config::{self, Config};
use crate::contexts::Server;
use crate::exit_code::{CliError, ExitCode};
use crate::output::choice::Choice;
use crate::output::{ColorWhen, Format, Output};
use crate::progress::ProgressWhen;
use crate::traces;
use redrive::OpenOptions;
use redrive::core::dead_letter::Actor;
use redrive::core::error::{CallError, Refusal, StoreError, StoreErrorKind, StoreResult};
use redrive::core::ids::QueueName;
use redrive::core::policy::QueuePolicy;
use redrive::core::store::Store;
use redrive::maintenance::tidy;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

/// The time limit for maintenance before a command's own work; a commit that has begun is finished.
const TIDY_WITHIN: Duration = Duration::from_millis(100);

/// The name of the data directory in the current directory.
const LOCAL_DATA: &str = "redrive-data";

/// The data directory to create if none is named and none exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewData {
    /// `./redrive-data`, unless the user's data directory exists.
    Here,
    /// The user's data directory, because the command runs in directories that belong to something else.
    Users,
    /// `./redrive-data` in any case.
    OnlyHere,
}

/// The data directory if none is named, the same for every command: `./redrive-data` if it exists, otherwise the
/// user's data directory if it exists, otherwise the one to create.
fn data_directory(new: NewData) -> PathBuf {
    let local = PathBuf::from(LOCAL_DATA);
    match user_data_directory() {
        Some(users) if !local.exists() => match new {
            NewData::Users => users,
            NewData::Here if users.is_dir() => users,
            NewData::Here | NewData::OnlyHere => local,
        },
        Some(_) | None => local,
    }
}

/// The user's data directory according to the XDG base directory specification.
fn user_data_directory() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || absolute("HOME").map(|home| home.join(".local/share"));
    absolute("XDG_DATA_HOME").or_else(home).map(|path| path.join("redrive"))
}

/// Whether a command may create the data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The command may create it.
    Create,
    /// The directory must exist.
    Existing,
}

/// How long a command holds the data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// For a moment; other processes wait.
    Moment,
    /// For long; other processes are served meanwhile.
    Long,
}

/// How long to wait for a server that is being restarted before the request is repeated.
const SERVER_RETRY_AFTER: Duration = Duration::from_millis(500);
/// How often a request is repeated because the process that held the directory went away.
const RETRIES_MAX: u32 = 20;

/// The connection to the store for one command. The process that holds the directory may end while the command runs;
/// [`Link::call`] then continues with the next holder, which may be this process.
pub(crate) struct Link<'a> {
    app: &'a App,
    hold: Hold,
    store: Arc<dyn Store>,
    /// Whether the store has answered a request of this command.
    answered: bool,
}

impl Deref for Link<'_> {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        self.store.as_ref()
    }
}

impl Link<'_> {
    /// The store itself, for tasks that outlive this link.
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    /// Sends a request that is safe to repeat: reading, enqueueing with a fixed id, stepping an operation.
    pub(crate) async fn call<T>(
        &mut self,
        request: impl AsyncFn(&dyn Store) -> StoreResult<T>,
    ) -> StoreResult<T> {
        for _ in 0..RETRIES_MAX {
            match request(self.store.as_ref()).await {
                Err(CallError::Store(error)) if error.kind == StoreErrorKind::Unreachable => {
                    if self.app.server.is_some() {
                        // A server that was never there is reported at once; one that is restarted is waited for.
                        if !self.answered {
                            return Err(error.into());
                        }
                        tokio::time::sleep(SERVER_RETRY_AFTER).await;
                    }
                    self.store = self.app.reach(Access::Existing, self.hold).await?;
                }
                answer => {
                    self.answered = true;
                    return answer;
                }
            }
        }
        request(self.store.as_ref()).await
    }
}

/// The context of a command.
#[derive(Debug)]
pub(crate) struct App {
    /// The data directory.
    pub data: PathBuf,
    data_is_named: bool,
    /// The store in a database that is used instead of the data directory.
    store_url: Option<String>,
    /// The configuration file that was named, if any.
    pub config_path: Option<PathBuf>,
    /// The configuration.
    pub config: Config,
    /// The output.
    pub out: Output,
    actor: String,
    server: Option<Server>,
    exit_hint: Mutex<Option<String>>,
    drain: Mutex<Option<Arc<tokio::sync::Notify>>>,
}

impl App {
    /// Combines flags, environment and configuration, in this order of precedence.
    pub(crate) fn new(global: Global, config: Config, server: Option<Server>, new: NewData) -> Self {
        let format = global.output.or(global.template.as_ref().map(|_| Format::Template)).or(config.output);
        let color = if global.no_color { ColorWhen::Never } else { global.color.unwrap_or(ColorWhen::Auto) };
        let choice = Choice::global(global.columns.map(|named| named.0), global.template);
        let format = format.unwrap_or(Format::Table);
        let verbosity = (global.quiet, global.progress_as.unwrap_or(ProgressWhen::Auto));
        let out = Output::new(format, global.time.or(config.time), color, verbosity, choice);
        crate::output::mask_with(config.known.masking.clone());
        let actor = global.actor.or_else(|| config.actor.clone());
        let named = global.data.or_else(|| config.data.clone());
        let data_is_named = named.is_some();
        Self {
            data: named.unwrap_or_else(|| data_directory(new)),
            data_is_named,
            store_url: global.store.clone(),
            actor: actor.filter(|name| !name.is_empty()).unwrap_or_else(redrive::host::user),
            config_path: global.config,
            out,
            config,
            server,
            exit_hint: Mutex::new(None),
            drain: Mutex::new(None),
        }
    }

    /// Reads the configuration that the flags name, and combines both.
    pub(crate) fn load(global: Global, new: NewData) -> Result<Self, CliError> {
        let config = config::load(global.config.as_deref())?;
        let server = Server::named_by(&global)?;
        let production = server.as_ref().is_some_and(|server| server.production);
        if production && global.lacks_reason {
            let what = "the context is marked as production, where every change needs a --reason";
            return Err(CliError::new(ExitCode::Refused, what));
        }
        Ok(Self::new(global, config, server, new))
    }

    /// The actor for the audit trail.
    pub(crate) fn actor(&self, reason: Option<String>) -> Actor {
        Actor { reason, ..Actor::new(self.actor.clone(), "cli") }
    }

    /// The name of the user who runs the command.
    pub(crate) fn user(&self) -> &str {
        &self.actor
    }

    /// Sets the hint to print if Ctrl-C ends the command from here on.
    pub(crate) fn set_interrupt_hint(&self, hint: String) {
        *self.exit_hint.lock().unwrap_or_else(PoisonError::into_inner) = Some(hint);
    }

    /// Lets the command handle interrupts itself from here on: every Ctrl-C notifies the returned object. The command
    /// finishes its work after the first one and hurries after the second.
    pub(crate) fn interrupt_notifier(&self) -> Arc<tokio::sync::Notify> {
        let notify = Arc::new(tokio::sync::Notify::new());
        *self.drain.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&notify));
        notify
    }

    /// Notifies the command of an interrupt; returns `false` if it does not handle interrupts itself.
    pub(crate) fn notify_interrupt(&self) -> bool {
        let drain = self.drain.lock().unwrap_or_else(PoisonError::into_inner);
        drain.as_ref().map(|notify| notify.notify_one()).is_some()
    }

    /// Takes the hint about work that continues after the command has ended.
    pub(crate) fn exit_hint(&self) -> Option<String> {
        self.exit_hint.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The error of a command that Ctrl-C ended.
    pub(crate) fn interrupted(&self) -> CliError {
        let hint = self.exit_hint();
        let error = CliError::new(ExitCode::Interrupted, "interrupted");
        match hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }

    /// Opens the store. If this process holds the directory, it first runs one short pass of maintenance, so that
    /// retention and text search also work where no worker runs.
    pub(crate) async fn open(&self, access: Access, hold: Hold) -> Result<Link<'_>, CliError> {
        let link = self.open_without_maintenance(access, hold).await?;
        if let Err(error) = tidy(&*link, TIDY_WITHIN).await {
            // The command's own request reports the problem better, and may not be affected by it.
            tracing::warn!(%error, "maintenance failed; the command continues");
        }
        Ok(link)
    }

    /// Opens the store without maintenance, to inspect or copy it unchanged.
    pub(crate) async fn open_without_maintenance(
        &self,
        access: Access,
        hold: Hold,
    ) -> Result<Link<'_>, CliError> {
        if self.server.is_none() && self.store_url.is_none() {
            if access == Access::Existing {
                self.require_data()?;
            }
            self.note_data_directory();
        }
        Ok(Link { app: self, hold, store: self.reach(access, hold).await?, answered: false })
    }

    async fn reach(&self, access: Access, hold: Hold) -> Result<Arc<dyn Store>, StoreError> {
        if let Some(server) = &self.server {
            return Ok(Arc::clone(&server.store) as Arc<dyn Store>);
        }
        let create = access == Access::Create;
        let options = OpenOptions { create, serve: hold == Hold::Long, ..OpenOptions::default() };
        let place = self.store_url.as_ref().map_or(self.data.as_path(), Path::new);
        Ok(traces::observe(redrive::open(place, options).await?))
    }

    /// Refuses a server for a command that opens the store itself.
    pub(crate) fn refuse_server(&self, command: &str) -> Result<(), CliError> {
        if self.server.is_none() {
            return Ok(());
        }
        let what = format!("`redrive {command}` opens the store itself, and cannot go through a server");
        let hint = "name the store with --data or --store, or unset REDRIVE_URL and REDRIVE_CONTEXT";
        Err(CliError::usage(what).hint(hint))
    }

    /// Refuses everything but a data directory.
    pub(crate) fn require_directory(&self, command: &str) -> Result<(), CliError> {
        if self.server.is_none() && self.store_url.is_none() {
            return Ok(());
        }
        let what =
            format!("`redrive {command}` works on a data directory of this machine, not through a server");
        let hint = "name the directory with --data, or unset REDRIVE_URL, REDRIVE_STORE and REDRIVE_CONTEXT";
        Err(CliError::usage(what).hint(hint))
    }

    /// The server that the command talks to, if it does not use a data directory.
    pub(crate) fn server(&self) -> Option<&Server> {
        self.server.as_ref()
    }

    /// Where the data is, as it is shown to people: a directory, or the URL of a server.
    pub(crate) fn place(&self) -> String {
        match &self.server {
            Some(server) => server.store.url().to_owned(),
            None => match &self.store_url {
                Some(url) => redrive::without_password(url),
                None => self.data.display().to_string(),
            },
        }
    }

    /// The flags with which another process of this program uses the same data.
    pub(crate) fn place_flags(&self) -> Vec<OsString> {
        match &self.server {
            Some(server) => server.flags(),
            None if self.store_url.is_some() => {
                vec!["--store".into(), self.store_url.clone().unwrap_or_default().into()]
            }
            None => vec!["--data".into(), self.data.clone().into_os_string()],
        }
    }

    /// Notes once which directory is used, if it is neither `./redrive-data` nor named by the user.
    fn note_data_directory(&self) {
        static NOTED: Once = Once::new();
        if !self.data_is_named && self.data != Path::new(LOCAL_DATA) {
            let path = self.data.display();
            NOTED
                .call_once(|| self.out.note(&format!("using {path}, since there is no ./{LOCAL_DATA} here")));
        }
    }

    fn require_data(&self) -> Result<(), CliError> {
        let absent = match std::fs::read_dir(&self.data) {
            Ok(mut entries) => entries.next().is_none(),
            // The store reports any other problem better.
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        };
        if absent {
            let path = self.data.display();
            let what =
                format!("no data directory at {path}; enqueue a message first, or name one with --data");
            return Err(CliError::new(ExitCode::NotFound, what));
        }
        Ok(())
    }

    /// Gives new queues the policy from the configuration.
    pub(crate) async fn seed(
        &self,
        store: &mut Link<'_>,
        queues: &BTreeSet<QueueName>,
    ) -> Result<(), CliError> {
        for queue in queues {
            let Some(policy) = self.config.queues.get(queue).map(|proposal| &proposal.fresh) else {
                continue;
            };
            let seeded = self.seed_one(store, queue, policy).await;
            match seeded {
                // Somebody who may only send or work cannot set policies on a server, and need not.
                Err(CallError::Refused(Refusal::NotAllowed { .. })) if self.server.is_some() => {}
                seeded => seeded?,
            }
        }
        Ok(())
    }
}

impl App {
    async fn seed_one(
        &self,
        store: &mut Link<'_>,
        queue: &QueueName,
        policy: &QueuePolicy,
    ) -> StoreResult<()> {
        if store.call(async |s| policy_in(s, queue).await).await?.is_none() {
            let actor = self.actor(Some("from redrive.toml".into()));
            store.call(async |s| s.configure(queue.clone(), policy.clone(), actor.clone()).await).await?;
        }
        Ok(())
    }
}

/// The policy of a queue in the store; `None` if the store does not have the queue.
pub(crate) async fn policy_in(store: &dyn Store, queue: &QueueName) -> StoreResult<Option<QueuePolicy>> {
    match store.queue(queue.clone()).await {
        Ok(found) => Ok(Some(found.policy)),
        Err(CallError::Refused(Refusal::NoSuchQueue { .. })) => Ok(None),
        Err(error) => Err(error),
    }
}
