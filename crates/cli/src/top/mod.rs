//! `redrive top`: shows groups, letters and timelines on the screen as they change. State, updates and drawing are
//! pure ([`state`], [`update`], [`view`]); the [`feed`] talks to the store. This module connects them: keys and drawing
//! on one thread, the store on the async runtime.

mod convert;
mod dialogs;
mod feed;
mod rows;
mod screen;
mod state;
#[cfg(test)]
mod tests;
mod update;
mod view;

use crate::commands::filter;
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::output::eprint_line;
use base64::Engine as _;
use clap::Args;
use feed::{Feed, StoreRequest};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use redrive::core::group::GroupAct;
use redrive::core::ids::MessageId;
use redrive::core::time::Span;
use screen::Screen;
use state::{DataRequest, GroupAction, Scope, State, StatusMessage};
use std::ffi::OsString;
use std::io::{BufRead as _, Stdout, stdout};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use update::{Effect, Event, Key, update};

const EXAMPLES: &str = "\
Examples:
  redrive top                                  look only
  redrive top --act                            also retry, redrive, note, resolve, abandon
  redrive top 'queue:payments age<2h'          start with these letters

Keys: Enter opens, Esc goes back, / filters, ? shows all keys, q quits.";

/// The flags of `top`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// Start with the letters that match this filter, instead of the groups
    #[arg(value_name = "FILTER")]
    filter: Option<String>,
    /// Allow keys that change something
    #[arg(long)]
    act: bool,
    /// How often to poll the store
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    every: Span,
}

/// How long to wait for a key before drawing again.
const KEY_TIMEOUT: Duration = Duration::from_millis(100);
/// The capacity of the channels between the two threads.
const EVENTS_MAX: usize = 64;
const REQUESTS_MAX: usize = 64;
/// The shortest and longest poll interval; polling more often would only waste time.
const EVERY_MIN: Span = Span::from_millis(100);
const EVERY_MAX: Span = Span::from_hours(1);

/// Runs `top` until the user quits.
pub(crate) async fn run(app: &App, args: TopArgs) -> CommandResult {
    let typed = args.filter.unwrap_or_default();
    filter(&typed)?;
    if args.every < EVERY_MIN || args.every > EVERY_MAX {
        return Err(CliError::usage(format!("--every: from {EVERY_MIN} to {EVERY_MAX} is allowed")));
    }
    Screen::require_terminal(&app.out)?;
    let link = app.open(Access::Existing, Hold::Long).await?;
    let (width, height) = ratatui::crossterm::terminal::size().unwrap_or((80, 24));
    let mut state = State::new(app.place(), args.act, width, height);
    if !typed.is_empty() {
        state.open_list(Scope { typed, ..Scope::default() });
    }
    let (event_sender, events) = mpsc::channel(EVENTS_MAX);
    let (requests, pending_requests) = mpsc::channel(REQUESTS_MAX);
    let (data_requests, data_request) = watch::channel(state.data_request());
    let feed = Feed::new(app, link.store(), event_sender);
    let stop = app.interrupt_notifier();
    // Dropping it restores the terminal, also if this future is dropped half way.
    let screen = Screen::take_over()?;
    let color = app.out.color;
    let ui =
        Ui { state, events, requests, data_requests, editor: editor(app)?, color, began: Instant::now() };
    let mut drawing = tokio::task::spawn_blocking(move || ui.run());
    let mut ended = None;
    let mut interrupted = false;
    tokio::select! {
        done = &mut drawing => ended = Some(done),
        () = feed.poll(data_request, args.every.to_std()) => {}
        () = feed.execute(pending_requests) => {}
        () = stop_requested(&stop) => interrupted = true,
        () = screen::hung_up() => interrupted = true,
    }
    // Dropping the feed closes the channel, and the UI thread ends by itself; only then is the terminal restored. The
    // thread is left behind if it waits for another program or reads from a terminal that is gone, since it may never
    // end.
    drop(feed);
    if ended.is_none() && !screen::lent() {
        tokio::select! {
            done = &mut drawing => ended = Some(done),
            () = screen::hung_up() => interrupted = true,
        }
    }
    drop(screen);
    if interrupted || !screen::terminal_exists() {
        return Err(app.interrupted());
    }
    if let Some(ended) = ended {
        let panicked = |_| CliError::new(ExitCode::Error, "redrive top failed; the panic above says where");
        ended.map_err(panicked)??;
    }
    if let Some(exit_hint) = app.exit_hint() {
        app.out.note(&exit_hint);
    }
    Ok(ExitCode::Ok)
}

/// Completes when a signal asks to stop. Ctrl-C while another program has the terminal is meant for that program.
async fn stop_requested(stop: &tokio::sync::Notify) {
    let interrupted = async {
        loop {
            stop.notified().await;
            if !screen::lent() {
                return;
            }
        }
    };
    tokio::select! {
        () = interrupted => {}
        () = crate::terminated() => {}
    }
}

/// Keys, state and screen, on a thread of their own, so that a slow store never delays a key.
struct Ui {
    state: State,
    events: mpsc::Receiver<Event>,
    requests: mpsc::Sender<StoreRequest>,
    data_requests: watch::Sender<DataRequest>,
    editor: EditCommand,
    color: bool,
    began: Instant,
}

impl Ui {
    fn run(mut self) -> Result<(), CliError> {
        let failed = |error: std::io::Error| CliError::io("use the terminal", &error);
        let mut terminal = Terminal::new(CrosstermBackend::new(stdout())).map_err(failed)?;
        let mut last_request = self.state.data_request();
        loop {
            if !self.apply_events() || !screen::taken_over() {
                return Ok(());
            }
            terminal.draw(|frame| view::render(frame, &self.state, self.color)).map_err(failed)?;
            if event::poll(KEY_TIMEOUT).map_err(failed)? {
                self.tick();
                let input = event::read().map_err(failed)?;
                if let Some(effect) = translate(&input).and_then(|event| update(&mut self.state, event))
                    && !self.carry_out(effect, &mut terminal)?
                {
                    return Ok(());
                }
            }
            if let Some(request) = update::changed_request(&self.state, &mut last_request) {
                // If the feed is gone, the next look at the events finds that out.
                let _ = self.data_requests.send(request);
            }
        }
    }

    fn tick(&mut self) {
        update(&mut self.state, Event::Tick(self.began.elapsed()));
    }

    /// Applies all pending events; returns `false` if the feed is gone.
    fn apply_events(&mut self) -> bool {
        self.tick();
        loop {
            match self.events.try_recv() {
                Ok(event) => drop(update(&mut self.state, event)),
                Err(mpsc::error::TryRecvError::Empty) => return true,
                Err(mpsc::error::TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Opens a letter in the user's editor with `redrive dlq edit`, which checks the change and asks for confirmation.
    fn edit(&mut self, id: MessageId, version: u64) -> Result<(), CliError> {
        let ended = screen::lend(|| self.editor.run(id, version))?;
        let (text, is_error) = match ended {
            Ok(ended) if ended.success() => (format!("edited {id}"), false),
            Ok(ended) => (format!("not edited: redrive dlq edit ended with {ended}"), true),
            Err(error) => (format!("not edited: {error}"), true),
        };
        self.state.message = Some(StatusMessage { text, is_error });
        Ok(())
    }

    /// Carries out an effect; returns `false` to quit.
    fn carry_out(
        &mut self,
        effect: Effect,
        terminal: &mut Terminal<CrosstermBackend<Stdout>>,
    ) -> Result<bool, CliError> {
        let request = match effect {
            Effect::Quit => return Ok(false),
            Effect::Copy(text) => {
                copy(terminal.backend_mut(), &text)?;
                return Ok(true);
            }
            Effect::Edit(id, version) => {
                self.edit(id, version)?;
                terminal.clear().map_err(|error| CliError::io("use the terminal", &error))?;
                return Ok(true);
            }
            Effect::Act(intent) => StoreRequest::Act(intent),
            Effect::OnGroup(id, action, text) => {
                let act = match action {
                    GroupAction::Acknowledge => GroupAct::Acknowledge,
                    GroupAction::Resolve => GroupAct::Resolve,
                    GroupAction::Note => GroupAct::Note { text: text.clone() },
                };
                StoreRequest::OnGroup(id, act, text.filter(|_| action == GroupAction::Resolve))
            }
            Effect::Preview(intent) => StoreRequest::Preview(intent),
            Effect::Start(preview) => StoreRequest::Start(Box::new(preview)),
        };
        if self.requests.try_send(request).is_err() {
            self.state.dialog = None;
            let text = "not done: the store is still busy with earlier requests".to_owned();
            self.state.message = Some(StatusMessage { text, is_error: true });
        }
        Ok(true)
    }
}

/// The command that edits a letter: this program, with the same directory and actor.
fn editor(app: &App) -> Result<EditCommand, CliError> {
    let program = std::env::current_exe().map_err(|error| CliError::io("find this program", &error))?;
    let mut args = app.place_flags();
    args.extend(["--actor".into(), app.user().into()]);
    if let Some(path) = &app.config_path {
        args.extend(["--config".into(), path.clone().into_os_string()]);
    }
    Ok(EditCommand { program, args })
}

/// The program and global flags for `redrive dlq edit`.
struct EditCommand {
    program: PathBuf,
    args: Vec<OsString>,
}

impl EditCommand {
    /// Runs the command in the terminal, and waits for Enter so that its output can be read.
    fn run(&self, id: MessageId, version: u64) -> std::io::Result<std::process::ExitStatus> {
        let words =
            ["dlq", "edit", &id.to_string(), "--if-version", &version.to_string()].map(OsString::from);
        let ended = Command::new(&self.program).args(&self.args).args(words).status()?;
        eprint_line("press Enter to return to redrive top");
        std::io::stdin().lock().read_line(&mut String::new())?;
        Ok(ended)
    }
}

/// Copies text to the terminal's clipboard (OSC 52); terminals without one ignore it.
fn copy(terminal: &mut impl std::io::Write, text: &str) -> Result<(), CliError> {
    let coded = base64::engine::general_purpose::STANDARD.encode(text);
    let sent = write!(terminal, "\u{1b}]52;c;{coded}\u{7}").and_then(|()| terminal.flush());
    sent.map_err(|error| CliError::io("use the terminal", &error))
}

/// Keys other than characters.
const NAMED: [(KeyCode, Key); 11] = [
    (KeyCode::Up, Key::Up),
    (KeyCode::Down, Key::Down),
    (KeyCode::PageUp, Key::PageUp),
    (KeyCode::PageDown, Key::PageDown),
    (KeyCode::Home, Key::Home),
    (KeyCode::End, Key::End),
    (KeyCode::Enter, Key::Enter),
    (KeyCode::Right, Key::Enter),
    (KeyCode::Left, Key::Esc),
    (KeyCode::Esc, Key::Esc),
    (KeyCode::Backspace, Key::Backspace),
];

fn translate(input: &event::Event) -> Option<Event> {
    match input {
        event::Event::Key(key) if key.kind != KeyEventKind::Release => key_of(key).map(Event::Key),
        event::Event::Paste(text) => Some(Event::Paste(text.clone())),
        event::Event::Resize(width, height) => Some(Event::Resize(*width, *height)),
        event::Event::Key(_)
        | event::Event::FocusGained
        | event::Event::FocusLost
        | event::Event::Mouse(_) => None,
    }
}

fn key_of(key: &KeyEvent) -> Option<Key> {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    if let KeyCode::Char(c) = key.code {
        return match (c, control) {
            ('c', true) => Some(Key::Interrupt),
            ('u', true) => Some(Key::Clear),
            (_, true) => None,
            (c, false) => Some(Key::Char(c)),
        };
    }
    NAMED.iter().find(|(code, _)| *code == key.code).map(|(_, key)| *key)
}
