//! What every command works with: the resolved flags, the output, and the way to the store. Whether the
//! directory is opened here or through the process that holds it is nobody's concern beyond this file.

use crate::args::Global;
use crate::config::{self, Config};
use crate::exit_code::{CliError, ExitCode};
use crate::output::{Format, Output};
use redrive::OpenOptions;
use redrive::core::dead_letter::Actor;
use redrive::core::error::{Error, Refusal};
use redrive::core::ids::QueueName;
use redrive::core::store::Store;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Where the data is when nobody says.
const DEFAULT_DATA: &str = "redrive-data";

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

/// The surroundings of a command.
#[derive(Debug)]
pub(crate) struct App {
    /// The data directory.
    pub data: PathBuf,
    /// The configuration file that was named, if one was.
    pub config_path: Option<PathBuf>,
    /// What it says.
    pub config: Config,
    /// Where and how to print.
    pub out: Output,
    actor: String,
    server: Option<String>,
    farewell: Mutex<Option<String>>,
}

impl App {
    /// Puts flags, environment and configuration together, in this order of precedence.
    pub(crate) fn new(global: Global, config: Config) -> Self {
        let format = global.output.or(config.output).unwrap_or(Format::Table);
        let out = Output::new(format, global.time.or(config.time), global.no_color, global.quiet);
        let user = || std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).ok();
        let actor = global.actor.or_else(|| config.actor.clone()).or_else(user);
        Self {
            data: global.data.or_else(|| config.data.clone()).unwrap_or_else(|| DEFAULT_DATA.into()),
            actor: actor.filter(|name| !name.is_empty()).unwrap_or_else(|| "unknown".into()),
            config_path: global.config,
            out,
            config,
            server: global.server,
            farewell: Mutex::new(None),
        }
    }

    /// The same from the flags alone, reading the configuration they name.
    pub(crate) fn load(global: Global) -> Result<Self, CliError> {
        let config = config::load(global.config.as_deref())?;
        Ok(Self::new(global, config))
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

    /// The error of a command that Ctrl-C ended.
    pub(crate) fn interrupted(&self) -> CliError {
        let say = self.farewell.lock().unwrap_or_else(PoisonError::into_inner).take();
        let error = CliError::new(ExitCode::Interrupted, "interrupted");
        match say {
            Some(say) => error.hint(say),
            None => error,
        }
    }

    /// Opens the store.
    pub(crate) async fn open(&self, access: Access, hold: Hold) -> Result<Arc<dyn Store>, CliError> {
        self.refuse_server()?;
        if access == Access::Existing {
            self.require_data()?;
        }
        let create = access == Access::Create;
        let options = OpenOptions { create, serve: hold == Hold::Long, ..OpenOptions::default() };
        Ok(redrive::open(&self.data, options).await?)
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

    fn require_data(&self) -> Result<(), CliError> {
        match std::fs::symlink_metadata(&self.data) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(CliError::new(
                ExitCode::NotFound,
                format!(
                    "no data directory at {}; enqueue something first or pass --data",
                    self.data.display()
                ),
            )),
            // Whatever else is wrong with it, the store says it better.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Gives queues the store does not know yet the policy that the configuration proposes.
    pub(crate) async fn seed(&self, store: &dyn Store, queues: &BTreeSet<QueueName>) -> Result<(), CliError> {
        for queue in queues {
            let Some(policy) = self.config.queues.get(queue) else { continue };
            match store.queue(queue.clone()).await {
                Ok(_) => {}
                Err(Error::Refused(Refusal::NoSuchQueue { .. })) => {
                    let actor = self.actor(Some("from redrive.toml".into()));
                    store.configure(queue.clone(), policy.clone(), actor).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
