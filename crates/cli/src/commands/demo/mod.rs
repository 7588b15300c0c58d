//! `demo`: a live, failing workload with its dashboard, to look at and to heal. Everything is real: a store on disk,
//! handlers that call services over HTTP on loopback, workers, maintenance and the server. Only the business is made up,
//! and the store is removed at the end.

mod client;
mod shop;
mod world;

use super::serve::{HttpServer, until_stopped};
use super::work::Signals;
use crate::connect::App;
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::log::{LogArgs, LogLevel};
use crate::output::{Column, Format, Show, ValueFormat, compact, escape};
use clap::Args;
use redrive::alerts::AlertLoop;
use redrive::core::access::Access;
use redrive::core::alert::AlertSettings;
use redrive::core::dead_letter::Actor;
use redrive::maintenance::Maintenance;
use redrive::{CancellationToken, LoopGroup, OpenOptions};
use redrive_server::{Config, Listener, LoginCodes, create_token};
use serde::Serialize;
use shop::{Customers, Shop};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use world::World;

const EXAMPLES: &str = "\
Examples:
  redrive demo                       opens the dashboard in a browser, or prints its address
  redrive demo --keep ./demo-data    keeps the store, for `redrive --data ./demo-data …`
  redrive demo --headless -o json    for scripts: one line of JSON with the address, the login and a token

Within a minute: failures form groups, the breaker of `payments` opens, a message that crashes its worker is quarantined.
Then the payment service comes back, and the bad deploy is mended: a canary heals those groups. The group of `support`
does not heal: its service answers the same way every time.";

/// The flags of `demo`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DemoArgs {
    /// The address of the dashboard, on this machine; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Do not open a browser
    #[arg(long)]
    headless: bool,
    /// Keep the store in this new directory [default: a temporary one, removed at the end]
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    #[command(flatten)]
    log: LogArgs,
}

/// What the demo prints when it has started.
#[derive(Serialize)]
struct Started {
    /// The address of the server.
    url: String,
    /// The address that logs a browser in, once, within a minute.
    login: String,
    /// A token for the API and the command line.
    token: String,
    /// The data directory.
    data: PathBuf,
}

impl Show for Started {
    const COLUMNS: &'static [Column] =
        &[Column::whole("login"), Column::whole("url"), Column::whole("token"), Column::whole("data")];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        vec![self.login.clone(), self.url.clone(), self.token.clone(), self.data.display().to_string()]
    }
}

/// Runs `demo`.
pub(crate) async fn run(app: &App, args: DemoArgs) -> CommandResult {
    // Failures are the point of the demo, so they are not logged one by one.
    args.log.begin_at(LogLevel::Off);
    if !args.listen.ip().is_loopback() {
        let what = format!("{} is not an address of this machine alone", args.listen.ip());
        return Err(
            CliError::new(ExitCode::Refused, what).hint("use 127.0.0.1, or `redrive serve` for others")
        );
    }
    let mut signals = Signals::listen()?;
    let directory = Directory::new(args.keep.clone())?;
    let options = OpenOptions { create: true, serve: true, ..OpenOptions::default() };
    let store = redrive::open(directory.path(), options).await?;
    shop::configure(store.as_ref()).await?;
    let services = World::start().await.map_err(|error| CliError::io("start the demo's services", &error))?;

    let listener = Listener::bind(args.listen, None).await.map_err(|error| {
        CliError::io(format_args!("listen on {}", args.listen), &error).hint("name another with --listen")
    })?;
    let address = listener.address().map_err(|error| CliError::io("find the address of the demo", &error))?;
    let (stop, codes) = (CancellationToken::new(), LoginCodes::default());
    let config = Config {
        instance: "demo".into(),
        login_codes: codes.clone(),
        masking: app.config.known.masking.clone(),
        stop: stop.clone(),
        process_metrics: Some(redrive::metrics::render_open_ended),
        ..Config::default()
    };
    let visitor = Access::everything("visitor");
    let by = Actor::new("demo", "cli");
    let (token, _) = create_token(store.as_ref(), visitor.clone(), &by, None).await?;
    let http = HttpServer::new(vec![listener], Arc::clone(&store), config);
    let loops = LoopGroup::new(Arc::clone(&store))
        .run(http)
        .run(Maintenance::new(Arc::clone(&store)))
        .run(AlertLoop::new(Arc::clone(&store), AlertSettings::default())?)
        .run(Shop { store: Arc::clone(&store), services })
        .run(Customers { store: Arc::clone(&store) });
    let loops = loops.bind().await.map_err(super::serve::failed)?;

    let code = codes.issue(Arc::new(visitor)).map_err(|error| {
        CliError::new(ExitCode::Error, format!("the system has no randomness for a login: {error}"))
    })?;
    let url = format!("http://{address}");
    let login = format!("{url}/login?code={code}");
    let data = directory.path().to_owned();
    announce(app, &Started { login: login.clone(), url, token: token.reveal(), data })?;
    if !args.headless {
        open_browser(&login);
    }
    let ended = until_stopped(app, loops, &mut signals, &stop).await;
    drop(store);
    directory.finish(app);
    ended
}

fn announce(app: &App, started: &Started) -> Result<(), CliError> {
    match app.out.format {
        Format::Json => app.out.raw((escape::json(compact(started)?) + "\n").as_bytes())?,
        Format::Table
        | Format::Wide
        | Format::Ndjson
        | Format::Csv
        | Format::Yaml
        | Format::Template
        | Format::None => app.out.one(started)?,
    }
    app.out.note(
        "the login works once, within a minute; the token logs in later, too. \
         Failures form groups within a minute. Ctrl-C ends the demo",
    );
    Ok(())
}

/// Opens the dashboard where there is a desktop. Whether that works does not matter: the address is printed, too.
fn open_browser(url: &str) {
    let desktop = cfg!(target_os = "macos")
        || ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    if desktop {
        let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
        let quiet = || Stdio::null();
        let _ = Command::new(opener).arg(url).stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn();
    }
}

/// Where the store of the demo is.
enum Directory {
    /// Removed at the end.
    Temporary(tempfile::TempDir),
    /// Kept.
    Kept(PathBuf),
}

impl Directory {
    fn new(keep: Option<PathBuf>) -> Result<Self, CliError> {
        let Some(path) = keep else {
            let made = tempfile::Builder::new().prefix("redrive-demo-").tempdir();
            return made
                .map(Self::Temporary)
                .map_err(|error| CliError::io("create a temporary directory", &error));
        };
        let used = std::fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some());
        if used {
            let what = format!("{} is not empty; the demo needs a directory of its own", path.display());
            return Err(CliError::new(ExitCode::Refused, what).hint("name a new directory with --keep"));
        }
        Ok(Self::Kept(path))
    }

    fn path(&self) -> &Path {
        match self {
            Self::Temporary(directory) => directory.path(),
            Self::Kept(path) => path,
        }
    }

    fn finish(self, app: &App) {
        match self {
            Self::Temporary(directory) => {
                if let Err(error) = directory.close() {
                    app.out.note(&format!("the temporary directory could not be removed: {error}"));
                }
            }
            Self::Kept(path) => {
                let path = path.display();
                app.out.note(&format!("the store is kept: redrive --data {path} group list"));
            }
        }
    }
}
