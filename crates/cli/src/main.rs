//! The redrive command. It reads the command line, runs one command and ends with its exit code; everything
//! else stands in the modules.

mod args;
mod commands;
mod config;
mod confirm;
mod connect;
mod exit_code;
mod given;
mod help;
mod input;
mod log;
mod ndjson;
mod output;
mod policy_change;
mod progress;
mod target_change;
mod top;
mod watch;

use exit_code::{CliError, Done};

fn main() -> std::process::ExitCode {
    let cli = match args::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let code = run(cli).unwrap_or_else(|error| {
        output::report(&error);
        error.code
    });
    code.into()
}

/// Ctrl-C, or whoever asks the process to end.
async fn interrupt() {
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated() => {}
    }
}

/// Ends when the process is asked to end by anything but Ctrl-C, which may be meant for another program.
pub(crate) async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return hung_up().await };
    tokio::select! {
        _ = terminate.recv() => {}
        () = hung_up() => {}
    }
}

/// Ends when the terminal is gone; never under `nohup`, which asks for just that.
pub(crate) async fn hung_up() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal_ignored() {
        Some(false) => {}
        Some(true) | None => return std::future::pending().await,
    }
    match signal(SignalKind::hangup()) {
        Ok(mut hangup) => drop(hangup.recv().await),
        Err(_) => std::future::pending().await,
    }
}

/// Whether this process was started with hang-ups ignored; nothing where the system does not say.
fn signal_ignored() -> Option<bool> {
    static AT_START: std::sync::OnceLock<Option<bool>> = std::sync::OnceLock::new();
    *AT_START.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
        Some(u64::from_str_radix(mask.trim(), 16).ok()? & 1 == 1)
    })
}

fn run(cli: args::Cli) -> Done {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::io("start the runtime", &error))?;
    let done = runtime.block_on(async {
        // Listening once ends it when whoever started us ignores the ends of children: the system would throw away
        // how ours ended. What we start gets the ordinary rule again.
        let _ = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child());
        let watch = cli.global.watch;
        let app = commands::surroundings(cli.global, &cli.command)?;
        let interruptible = !cli.command.drains();
        let running = watch::run(&app, cli.command, watch);
        tokio::pin!(running);
        tokio::select! {
            // First, so that Ctrl-C is listened to before the command does anything.
            biased;
            () = interrupt(), if interruptible => {}
            done = &mut running => return done,
        }
        if !app.drains() {
            return Err(app.interrupted());
        }
        // The command brings what it has begun to an end; whoever asks again does not want to wait for that, and
        // whoever asks a third time not even for what has to be given back.
        tokio::select! {
            biased;
            () = interrupt() => app.drains(),
            done = &mut running => return done,
        };
        tokio::select! {
            biased;
            () = interrupt() => Err(app.interrupted()),
            done = &mut running => done,
        }
    });
    // A thread may still wait for input that never comes; it must not keep the process.
    runtime.shutdown_background();
    done
}
