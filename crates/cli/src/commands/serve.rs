//! `serve`: answers over HTTP for a data directory. It connects the library's loops and the server to flags, files and
//! signals; the server decides who may do what.

use super::work::Signals;
use crate::config::{ServerSettings, host_name};
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::log::{LogArgs, LogLevel};
use crate::output::{Column, Format, Show, ValueFormat, compact, escape};
use clap::Args;
use redrive::alerts::AlertLoop;
use redrive::core::access::{Access as TokenAccess, Grant};
use redrive::core::dead_letter::Actor;
use redrive::core::error::CallError;
use redrive::core::store::Store;
use redrive::maintenance::Maintenance;
use redrive::push;
use redrive::{BoundGroup, CancellationToken, GroupError, Heartbeat, LoopGroup, Runnable};
use redrive_server::{
    ListenConfig, Listener, Protection, Refusals, TlsFiles, check_bind, create_token, list_tokens, router,
};
use serde::Serialize;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  redrive serve                                  on this machine only; prints an admin token at the first start
  redrive serve --listen 127.0.0.1:0 -o json     on a free port, with one line of JSON about it
  redrive serve --listen 0.0.0.0:443 --host redrive.example --tls-cert cert.pem --tls-key key.pem
  redrive serve --listen 10.0.0.5:7373 --host redrive.example --behind-proxy

The flags can also be set in the [server] section of redrive.toml. SIGTERM and Ctrl-C end the server after the requests
that have begun; a second one ends it at once. Other commands on the same data directory keep working meanwhile.";

/// The port of a server unless another is given.
const PORT: u16 = 7373;
/// The name of the token that the first start creates.
const FIRST_TOKEN: &str = "admin";
/// How often the loop that answers requests shows that it is alive.
const BEAT: Duration = Duration::from_secs(10);

/// The flags of `serve`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// An address to listen on, repeatable; port 0 takes a free one [default: 127.0.0.1:7373 and [::1]:7373]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<SocketAddr>,
    /// A host name under which clients reach the server, repeatable; those of this machine are always known
    #[arg(long = "host", value_name = "NAME", value_parser = host_name)]
    hosts: Vec<String>,
    /// The certificate chain in PEM form; read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of the certificate in PEM form
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// A proxy in front of the server speaks TLS with the clients
    #[arg(long)]
    behind_proxy: bool,
    /// Let everybody on this machine do everything without a token; for trials only
    #[arg(long)]
    no_auth: bool,
    /// The name of this installation, shown to people who have several [default: redrive]
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
    /// The maximum number of requests per second for each token [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    #[command(flatten)]
    log: LogArgs,
}

/// What a server prints when it has started.
#[derive(Serialize)]
struct Started {
    url: String,
    /// The admin token, if this start created it.
    token: Option<String>,
}

impl Show for Started {
    const COLUMNS: &'static [Column] = &[Column::whole("url"), Column::whole("token")];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        vec![self.url.clone(), self.token.clone().unwrap_or_default()]
    }
}

/// Runs `serve`.
pub(crate) async fn run(app: &App, args: ServeArgs) -> CommandResult {
    args.log.begin_at(if app.out.quiet { LogLevel::Warn } else { LogLevel::Info });
    let settings = args.settings(&app.config.server);
    let addresses = settings.addresses(args.no_auth)?;
    let tls = settings.tls()?;
    // Listen for signals before anything begins.
    let mut signals = Signals::listen()?;
    app.refuse_server("serve")?;
    let mut link = app.open(Access::Create, Hold::Long).await?;
    let queues = app.config.queues.keys().cloned().collect();
    app.seed(&mut link, &queues).await?;
    let store = link.store();
    let token = if args.no_auth { None } else { first_token(store.as_ref(), &app.actor(None)).await? };
    let listeners = bind(&addresses, settings.listen.is_empty(), tls.as_ref()).await?;
    let url = settings.url(&listeners)?;
    let stop = CancellationToken::new();
    let config = settings.config(app, args.no_auth, &addresses, stop.clone());
    let http = HttpServer::new(listeners, Arc::clone(&store), config);
    let links = settings.url.clone().unwrap_or_else(|| url.clone());
    let alerts = AlertLoop::new(Arc::clone(&store), app.config.alerts.clone())?.links(links);
    let pushed =
        push::workers(Arc::clone(&store), app.config.push.clone()).classifier_rules(app.config.known.clone());
    // Everything that runs as long as the server does. Each loop has a name, and all of them end with `stop`.
    let loops =
        LoopGroup::new(Arc::clone(&store)).run(http).run(alerts).run(pushed).run(Maintenance::new(store));
    let loops = loops.bind().await.map_err(failed)?;
    announce(app, &args, &Started { url, token })?;
    until_stopped(app, loops, &mut signals, &stop).await
}

/// Runs the loops until they end: in order after the first signal, at once after the second.
pub(super) async fn until_stopped(
    app: &App,
    loops: BoundGroup,
    signals: &mut Signals,
    stop: &CancellationToken,
) -> CommandResult {
    let mut running = std::pin::pin!(loops.until(stop.clone()));
    loop {
        tokio::select! {
            ended = &mut running => {
                ended.map_err(failed)?;
                return Ok(ExitCode::Ok);
            }
            _ = signals.next() => {
                if stop.is_cancelled() {
                    return Err(app.interrupted());
                }
                app.out.note("stopping: waiting for the requests that have begun; interrupt again to stop at once");
                stop.cancel();
            }
        }
    }
}

/// Prints where the server is, and its first token.
fn announce(app: &App, args: &ServeArgs, started: &Started) -> Result<(), CliError> {
    if args.no_auth {
        app.out.alarm(
            "no authentication: every process and every user of this machine can do everything (--no-auth)",
        );
    }
    let shown_once = started.token.is_some();
    match app.out.format {
        // One line, so that a program can read it from a pipe.
        Format::Json => app.out.raw((escape::json(compact(started)?) + "\n").as_bytes())?,
        Format::Table
        | Format::Wide
        | Format::Ndjson
        | Format::Csv
        | Format::Yaml
        | Format::Template
        | Format::None => app.out.one(started)?,
    }
    if shown_once {
        app.out.note(
            "this admin token is shown only now; keep it, for example in REDRIVE_TOKEN. \
             `redrive token create` makes tokens for others",
        );
    }
    Ok(())
}

pub(super) fn failed(error: GroupError) -> CliError {
    match error {
        GroupError::Failed { error, .. } => error.into(),
        error @ (GroupError::Stuck { .. } | GroupError::Aborted { .. } | GroupError::Setup(_)) => {
            CliError::new(ExitCode::Error, error.to_string())
        }
    }
}

/// Creates a token for the administrator if there is no token at all, and returns its text.
async fn first_token(store: &dyn Store, by: &Actor) -> Result<Option<String>, CliError> {
    if !list_tokens(store).await?.is_empty() {
        return Ok(None);
    }
    let access =
        TokenAccess { name: FIRST_TOKEN.into(), roles: BTreeSet::from([Grant::Admin]), queues: Vec::new() };
    let (token, _) = create_token(store, access, by, None).await?;
    Ok(Some(token.reveal()))
}

/// Binds the addresses. The default ones share a port; a machine without IPv6 is served without it.
async fn bind(
    addresses: &[SocketAddr],
    by_default: bool,
    tls: Option<&Arc<TlsFiles>>,
) -> Result<Vec<Listener>, CliError> {
    let mut listeners = Vec::new();
    for address in addresses {
        match Listener::bind(*address, tls.cloned()).await {
            Ok(listener) => listeners.push(listener),
            Err(_) if by_default && address.is_ipv6() && !listeners.is_empty() => {}
            Err(error) => {
                let error = CliError::io(format_args!("listen on {address}"), &error);
                return Err(error.hint("name another address with --listen; port 0 takes a free one"));
            }
        }
    }
    Ok(listeners)
}

impl ServeArgs {
    /// The settings of the flags, and for those that are not given, of the configuration.
    fn settings(&self, config: &ServerSettings) -> ServerSettings {
        let or = |flag: &[String], file: &[String]| if flag.is_empty() { file } else { flag }.to_vec();
        let (tls_cert, tls_key) = match (&self.tls_cert, &self.tls_key) {
            (None, None) => (config.tls_cert.clone(), config.tls_key.clone()),
            (cert, key) => (cert.clone(), key.clone()),
        };
        ServerSettings {
            listen: if self.listen.is_empty() { config.listen.clone() } else { self.listen.clone() },
            hosts: or(&self.hosts, &config.hosts),
            tls_cert,
            tls_key,
            behind_proxy: self.behind_proxy || config.behind_proxy,
            instance: self.instance.clone().or_else(|| config.instance.clone()),
            colour: config.colour,
            rate: self.rate.or(config.rate),
            body_bytes_max: config.body_bytes_max,
            batch_bytes_max: config.batch_bytes_max,
            url: config.url.clone(),
        }
    }
}

impl ServerSettings {
    /// The addresses to listen on. All of them must be safe.
    fn addresses(&self, no_auth: bool) -> Result<Vec<SocketAddr>, CliError> {
        let addresses = if self.listen.is_empty() {
            vec![SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)), SocketAddr::from((Ipv6Addr::LOCALHOST, PORT))]
        } else {
            self.listen.clone()
        };
        let protection =
            Protection { auth: !no_auth, tls: self.tls_cert.is_some(), behind_proxy: self.behind_proxy };
        for address in &addresses {
            check_bind(*address, protection)
                .map_err(|why| CliError::new(ExitCode::Refused, format!("not started: {why}")))?;
        }
        Ok(addresses)
    }

    fn tls(&self) -> Result<Option<Arc<TlsFiles>>, CliError> {
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        let files = TlsFiles::load(certificate.clone(), key.clone());
        files.map(|files| Some(Arc::new(files))).map_err(|why| CliError::usage(format!("TLS: {why}")))
    }

    /// The URL under which the first address is reached.
    fn url(&self, listeners: &[Listener]) -> Result<String, CliError> {
        let unknown = |error: &std::io::Error| CliError::io("find the address of the server", error);
        let nothing = || CliError::new(ExitCode::Error, "there is no address to listen on");
        let address = listeners.first().ok_or_else(nothing)?.address().map_err(|error| unknown(&error))?;
        let scheme = if self.tls_cert.is_some() { "https" } else { "http" };
        // A certificate is for a name, and an address such as 0.0.0.0 is not one that clients can use.
        let by_name = self.tls_cert.is_some() || address.ip().is_unspecified();
        Ok(match self.hosts.first() {
            Some(name) if by_name => format!("{scheme}://{name}:{}", address.port()),
            Some(_) | None if address.ip().is_unspecified() => {
                format!("{scheme}://localhost:{}", address.port())
            }
            Some(_) | None => format!("{scheme}://{address}"),
        })
    }

    fn config(
        &self,
        app: &App,
        no_auth: bool,
        addresses: &[SocketAddr],
        stop: CancellationToken,
    ) -> redrive_server::Config {
        let defaults = redrive_server::Config::default();
        let literal = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        // An address in a URL cannot be redirected by a DNS server, so those that were named are known, too.
        let ips = addresses.iter().map(SocketAddr::ip).filter(|ip| !ip.is_unspecified());
        redrive_server::Config {
            instance: self.instance.clone().unwrap_or(defaults.instance),
            colour: self.colour,
            hosts: self.hosts.iter().cloned().chain(ips.map(literal)).collect(),
            masking: app.config.known.masking.clone(),
            known: app.config.known.clone(),
            rate_per_token: self.rate,
            without_auth: no_auth.then(|| Arc::new(TokenAccess::everything("anyone"))),
            tls: self.tls_cert.is_some() || self.behind_proxy,
            stop,
            alerts: app.config.alerts.without_channels(),
            body_bytes_max: self.body_bytes_max.unwrap_or(defaults.body_bytes_max),
            batch_bytes_max: self.batch_bytes_max.unwrap_or(defaults.batch_bytes_max),
            login_codes: defaults.login_codes,
            refusals: defaults.refusals,
            process_metrics: Some(redrive::metrics::render_open_ended),
        }
    }
}

/// Answers requests, as a loop among the others.
pub(super) struct HttpServer {
    /// The bound addresses; empty once the loop has taken them.
    listeners: Mutex<Vec<Listener>>,
    router: redrive_server::Router,
    store: Arc<dyn Store>,
    refusals: Refusals,
    stop: CancellationToken,
}

impl HttpServer {
    /// A server over this store on these addresses, until the configuration says to stop.
    pub(super) fn new(
        listeners: Vec<Listener>,
        store: Arc<dyn Store>,
        config: redrive_server::Config,
    ) -> Self {
        let (refusals, stop) = (config.refusals.clone(), config.stop.clone());
        let router = router(Arc::clone(&store), config);
        Self { listeners: Mutex::new(listeners), router, store, refusals, stop }
    }
}

#[redrive::async_trait]
impl Runnable for HttpServer {
    fn name(&self) -> String {
        "http".into()
    }

    async fn run(&self, _: CancellationToken, heartbeat: Heartbeat) -> Result<(), CallError> {
        let listeners = std::mem::take(&mut *self.listeners.lock().unwrap_or_else(PoisonError::into_inner));
        let router = self.router.clone();
        let serving = redrive_server::serve(listeners, router, ListenConfig::default(), self.stop.clone());
        tokio::pin!(serving);
        loop {
            heartbeat.beat();
            tokio::select! {
                () = &mut serving => break,
                () = tokio::time::sleep(BEAT) => {}
            }
        }
        // No request is left that could be refused.
        self.refusals.write(self.store.as_ref()).await;
        Ok(())
    }
}
