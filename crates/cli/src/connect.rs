//! What every command works with: the resolved flags, the output, and the way to the store. Whether the
//! directory is opened here or through the process that holds it is nobody's concern beyond this file.

use crate::args::Global;
use crate::config::{self, Config};
use crate::exit_code::{CliError, ExitCode};
use crate::output::choice::Choice;
use crate::output::{ColorWhen, Format, Output};
use crate::progress::ProgressWhen;
use redrive::OpenOptions;
use redrive::core::dead_letter::Actor;
use redrive::core::error::{Error, Outcome, Refusal, StoreError, StoreErrorKind};
use redrive::core::ids::QueueName;
use redrive::core::policy::QueuePolicy;
use redrive::core::store::Store;
use redrive::maintenance::tidy;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

/// How long a command sees to maintenance before its own work; a commit that has begun is finished.
const TIDY_WITHIN: Duration = Duration::from_millis(100);

/// The data directory of a directory that has one.
const LOCAL_DATA: &str = "redrive-data";

/// Which data directory a command makes when nobody names one and neither is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewData {
    /// `./redrive-data`, or the user's own if that is there.
    Here,
    /// The user's own, since the command is run in other people's directories.
    Users,
    /// `./redrive-data`, whatever else is there.
    OnlyHere,
}

/// The data directory when nobody names one, the same for every command: `./redrive-data` if it is there, else the
/// user's own if that is there, else the one to make.
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

/// The directory for the data of this user, as the XDG base directory specification has it.
fn user_data_directory() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || absolute("HOME").map(|home| home.join(".local/share"));
    absolute("XDG_DATA_HOME").or_else(home).map(|place| place.join("redrive"))
}

/// Whether a command may make the data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// It may.
    Create,
    /// It must be there.
    Existing,
}

/// How long a command keeps the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// For a moment; others wait.
    Moment,
    /// For long; others are served meanwhile.
    Long,
}

/// How often a question is asked anew because whoever held the directory went away.
const ASK_AGAIN_MAX: u32 = 20;

/// The way to the store for one command. The process that held the directory may end while the command runs;
/// [`Link::ask`] then goes on with whoever holds it next, this process included.
pub(crate) struct Link<'a> {
    app: &'a App,
    hold: Hold,
    store: Arc<dyn Store>,
}

impl Deref for Link<'_> {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        self.store.as_ref()
    }
}

impl Link<'_> {
    /// The store itself, for what outlives this link.
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    /// Asks the store something that may be asked twice: reading, enqueueing with a fixed id, stepping.
    pub(crate) async fn ask<T>(&mut self, question: impl AsyncFn(&dyn Store) -> Outcome<T>) -> Outcome<T> {
        for _ in 0..ASK_AGAIN_MAX {
            match question(self.store.as_ref()).await {
                Err(Error::Store(error)) if error.kind == StoreErrorKind::Unreachable => {
                    self.store = self.app.reach(Access::Existing, self.hold).await?;
                }
                answer => return answer,
            }
        }
        question(self.store.as_ref()).await
    }
}

/// The surroundings of a command.
#[derive(Debug)]
pub(crate) struct App {
    /// The data directory.
    pub data: PathBuf,
    data_is_named: bool,
    /// The configuration file that was named, if one was.
    pub config_path: Option<PathBuf>,
    /// What it says.
    pub config: Config,
    /// Where and how to print.
    pub out: Output,
    actor: String,
    server: Option<String>,
    farewell: Mutex<Option<String>>,
    drain: Mutex<Option<Arc<tokio::sync::Notify>>>,
}

impl App {
    /// Puts flags, environment and configuration together, in this order of precedence.
    pub(crate) fn new(global: Global, config: Config, new: NewData) -> Self {
        let format = global.output.or(global.template.as_ref().map(|_| Format::Template)).or(config.output);
        let color = if global.no_color { ColorWhen::Never } else { global.color.unwrap_or(ColorWhen::Auto) };
        let choice = Choice::made(global.columns.map(|named| named.0), global.template);
        let format = format.unwrap_or(Format::Table);
        let loudness = (global.quiet, global.progress_as.unwrap_or(ProgressWhen::Auto));
        let out = Output::new(format, global.time.or(config.time), color, loudness, choice);
        crate::output::mask_with(config.known.masking.clone());
        let actor = global.actor.or_else(|| config.actor.clone());
        let named = global.data.or_else(|| config.data.clone());
        let data_is_named = named.is_some();
        Self {
            data: named.unwrap_or_else(|| data_directory(new)),
            data_is_named,
            actor: actor.filter(|name| !name.is_empty()).unwrap_or_else(redrive::here::user),
            config_path: global.config,
            out,
            config,
            server: global.server,
            farewell: Mutex::new(None),
            drain: Mutex::new(None),
        }
    }

    /// The same from the flags alone, reading the configuration they name.
    pub(crate) fn load(global: Global, new: NewData) -> Result<Self, CliError> {
        let config = config::load(global.config.as_deref())?;
        Ok(Self::new(global, config, new))
    }

    /// Who acts, as the audit trail will say.
    pub(crate) fn actor(&self, reason: Option<String>) -> Actor {
        Actor { reason, ..Actor::new(self.actor.clone(), "cli") }
    }

    /// The name of whoever runs the command.
    pub(crate) fn user(&self) -> &str {
        &self.actor
    }

    /// What to say if Ctrl-C ends the command from here on.
    pub(crate) fn on_interrupt(&self, say: String) {
        *self.farewell.lock().unwrap_or_else(PoisonError::into_inner) = Some(say);
    }

    /// From here on the command ends by itself, and in order, when this is notified: the first Ctrl-C does so.
    /// The second one notifies it again.
    pub(crate) fn on_interrupt_drain(&self) -> Arc<tokio::sync::Notify> {
        let notify = Arc::new(tokio::sync::Notify::new());
        *self.drain.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&notify));
        notify
    }

    /// Tells the command to end, and if it has been told already, to hurry; false when it cannot.
    pub(crate) fn drains(&self) -> bool {
        let drain = self.drain.lock().unwrap_or_else(PoisonError::into_inner);
        drain.as_ref().map(|notify| notify.notify_one()).is_some()
    }

    /// What there is to say to whoever leaves while something goes on.
    pub(crate) fn farewell(&self) -> Option<String> {
        self.farewell.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The error of a command that Ctrl-C ended.
    pub(crate) fn interrupted(&self) -> CliError {
        let say = self.farewell();
        let error = CliError::new(ExitCode::Interrupted, "interrupted");
        match say {
            Some(say) => error.hint(say),
            None => error,
        }
    }

    /// Opens the store. Where that means the directory itself, one short pass of maintenance is done first, so that
    /// retention is kept and text is found also where no worker runs.
    pub(crate) async fn open(&self, access: Access, hold: Hold) -> Result<Link<'_>, CliError> {
        let link = self.open_as_it_is(access, hold).await?;
        if let Err(error) = tidy(&*link, TIDY_WITHIN).await {
            // The command's own call says it better, and may not need what failed here.
            tracing::warn!(%error, "maintenance failed; the command goes on");
        }
        Ok(link)
    }

    /// Opens the store without maintenance, for whoever wants to see or copy it as it is.
    pub(crate) async fn open_as_it_is(&self, access: Access, hold: Hold) -> Result<Link<'_>, CliError> {
        self.refuse_server()?;
        if access == Access::Existing {
            self.require_data()?;
        }
        self.say_where();
        Ok(Link { app: self, hold, store: self.reach(access, hold).await? })
    }

    async fn reach(&self, access: Access, hold: Hold) -> Result<Arc<dyn Store>, StoreError> {
        let create = access == Access::Create;
        let options = OpenOptions { create, serve: hold == Hold::Long, ..OpenOptions::default() };
        redrive::open(&self.data, options).await
    }

    /// Refuses to guess what a server address means before there are servers.
    pub(crate) fn refuse_server(&self) -> Result<(), CliError> {
        if self.server.is_none() {
            return Ok(());
        }
        let what = "this version cannot talk to a server: servers come with `redrive serve`, which it does not have yet";
        let hint = "leave out --server and REDRIVE_URL, and name a data directory with --data";
        Err(CliError::new(ExitCode::Unreachable, what).hint(hint))
    }

    /// Says once which directory is used when that is neither the one here nor one that somebody named.
    fn say_where(&self) {
        static SAID: Once = Once::new();
        if !self.data_is_named && self.data != Path::new(LOCAL_DATA) {
            let place = self.data.display();
            SAID.call_once(|| {
                self.out.note(&format!("using {place}, since there is no ./{LOCAL_DATA} here"))
            });
        }
    }

    fn require_data(&self) -> Result<(), CliError> {
        let absent = match std::fs::read_dir(&self.data) {
            Ok(mut entries) => entries.next().is_none(),
            // Whatever else is wrong with it, the store says it better.
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        };
        if absent {
            let place = self.data.display();
            let what = format!("no data directory at {place}; enqueue something first or pass --data");
            return Err(CliError::new(ExitCode::NotFound, what));
        }
        Ok(())
    }

    /// Gives queues the store does not know yet the policy that the configuration proposes.
    pub(crate) async fn seed(
        &self,
        store: &mut Link<'_>,
        queues: &BTreeSet<QueueName>,
    ) -> Result<(), CliError> {
        for queue in queues {
            let Some(policy) = self.config.queues.get(queue).map(|proposal| &proposal.fresh) else {
                continue;
            };
            if store.ask(async |s| policy_in(s, queue).await).await?.is_none() {
                let actor = self.actor(Some("from redrive.toml".into()));
                store.ask(async |s| s.configure(queue.clone(), policy.clone(), actor.clone()).await).await?;
            }
        }
        Ok(())
    }
}

/// The policy a queue has in the store; nothing when the store does not know the queue.
pub(crate) async fn policy_in(store: &dyn Store, queue: &QueueName) -> Outcome<Option<QueuePolicy>> {
    match store.queue(queue.clone()).await {
        Ok(found) => Ok(Some(found.policy)),
        Err(Error::Refused(Refusal::NoSuchQueue { .. })) => Ok(None),
        Err(error) => Err(error),
    }
}
