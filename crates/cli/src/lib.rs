//! The `redrive` command as a library: [`main`] parses the command line, runs one command and returns its exit code.
//! The binary only calls it. Being a library lets the compiler work on the command line while the store is still
//! being compiled (docs/adr/0039-release-is-for-a-first-look.md).

mod args;
mod commands;
mod config;
mod confirm;
mod connect;
mod contexts;
mod exit_code;
mod help;
mod id_arg;
mod input;
mod log;
mod ndjson;
mod output;
mod policy_flags;
mod progress;
mod top;
mod traces;
mod watch;

use exit_code::{CliError, CommandResult};

/// Runs the command that the process was started with.
#[must_use]
pub fn main() -> std::process::ExitCode {
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

/// Completes on Ctrl-C, or on another signal that asks the process to end.
async fn interrupt() {
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated() => {}
    }
}

/// Completes when the process is asked to end by anything but Ctrl-C, which may be meant for a child process.
pub(crate) async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return hung_up().await };
    tokio::select! {
        _ = terminate.recv() => {}
        () = hung_up() => {}
    }
}

/// Completes when the terminal hangs up; never under `nohup`, which ignores that signal.
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

/// Whether this process was started with the hangup signal ignored; `None` if the system does not say.
fn signal_ignored() -> Option<bool> {
    static AT_START: std::sync::OnceLock<Option<bool>> = std::sync::OnceLock::new();
    *AT_START.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
        Some(u64::from_str_radix(mask.trim(), 16).ok()? & 1 == 1)
    })
}

fn run(cli: args::Cli) -> CommandResult {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::io("start the runtime", &error))?;
    let done = runtime.block_on(async {
        // If the parent ignored SIGCHLD, the kernel would discard the exit status of our children. Installing a handler
        // once resets this, and children start with the default again.
        let _ = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child());
        let watch = cli.global.watch;
        let app = commands::load_app(cli.global, &cli.command)?;
        let interruptible = !cli.command.handles_interrupts();
        let running = watch::run(&app, cli.command, watch);
        tokio::pin!(running);
        tokio::select! {
            // First, so that Ctrl-C is handled before the command does anything.
            biased;
            () = interrupt(), if interruptible => {}
            done = &mut running => return done,
        }
        if !app.notify_interrupt() {
            return Err(app.interrupted());
        }
        // The first interrupt lets the command finish what it has begun, the second makes it stop at once and release
        // what it holds, and the third ends the process without waiting.
        tokio::select! {
            biased;
            () = interrupt() => app.notify_interrupt(),
            done = &mut running => return done,
        };
        tokio::select! {
            biased;
            () = interrupt() => Err(app.interrupted()),
            done = &mut running => done,
        }
    });
    runtime.block_on(traces::end());
    // A thread may still block on input that never comes; it must not keep the process alive.
    runtime.shutdown_background();
    done
}
