//! `redrive top`: groups, letters and timelines on the screen, as they change. Three parts that know little of each
//! other: the state and what changes it are pure ([`state`], [`update`]), so is drawing ([`view`]); the [`feed`] talks
//! to the store. This file puts them together: keys and drawing on one thread, the store on the runtime.

mod dialogs;
mod feed;
mod rows;
mod screen;
mod state;
mod story;
#[cfg(test)]
mod tests;
mod update;
mod view;

use crate::commands::filter;
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::output::complain;
use base64::Engine as _;
use clap::Args;
use feed::{Deed, Feed};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use redrive::core::group::GroupAct;
use redrive::core::ids::MessageId;
use redrive::core::time::Span;
use screen::Screen;
use state::{GroupWord, Said, Scope, State, Want};
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
  redrive top 'queue:payments age<2h'          begin with these letters

Keys: Enter opens, Esc goes back, / filters, ? shows all keys, q quits.";

/// The flags of `top`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// Begin with the letters that match; with the groups when not said
    #[arg(value_name = "FILTER")]
    filter: Option<String>,
    /// Allow keys that change something
    #[arg(long)]
    act: bool,
    /// How often to ask the store
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    every: Span,
}

/// How long a key is waited for before the screen is looked at again.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// News that wait to be taken, and deeds that wait to be done.
const NEWS_MAX: usize = 64;
const DEEDS_MAX: usize = 64;
/// Asking more often than this would only heat the machine.
const EVERY_MIN: Span = Span::from_millis(100);
const EVERY_MAX: Span = Span::from_hours(1);

/// Runs it until it is quit.
pub(crate) async fn run(app: &App, args: TopArgs) -> Done {
    let typed = args.filter.unwrap_or_default();
    filter(&typed)?;
    if args.every < EVERY_MIN || args.every > EVERY_MAX {
        return Err(CliError::usage(format!("--every: from {EVERY_MIN} to {EVERY_MAX}")));
    }
    Screen::required(&app.out)?;
    let link = app.open(Access::Existing, Hold::Long).await?;
    let (width, height) = ratatui::crossterm::terminal::size().unwrap_or((80, 24));
    let mut state = State::new(app.data.display().to_string(), args.act, width, height);
    if !typed.is_empty() {
        state.list(Scope { typed, ..Scope::default() });
    }
    let (news, hear) = mpsc::channel(NEWS_MAX);
    let (deeds, todo) = mpsc::channel(DEEDS_MAX);
    let (wants, want) = watch::channel(state.want());
    let feed = Feed::new(app, link.store(), news);
    let stop = app.on_interrupt_drain();
    // Ends what it holds of the terminal also when this future is dropped half way.
    let screen = Screen::borrow()?;
    let color = app.out.color;
    let desk = Desk { state, hear, deeds, wants, editor: editor(app)?, color, began: Instant::now() };
    let mut drawing = tokio::task::spawn_blocking(move || desk.work());
    let mut ended = None;
    let mut interrupted = false;
    tokio::select! {
        done = &mut drawing => ended = Some(done),
        () = feed.watch(want, args.every.to_std()) => {}
        () = feed.carry_out(todo) => {}
        () = told_to_stop(&stop) => interrupted = true,
        () = screen::hung_up() => interrupted = true,
    }
    // Without anybody to hear from, the desk ends by itself; only then is the terminal given back. A desk that waits for
    // another program, or reads from a terminal that is gone, may never end, and is left behind.
    drop(feed);
    if ended.is_none() && !screen::lent() {
        tokio::select! {
            done = &mut drawing => ended = Some(done),
            () = screen::hung_up() => interrupted = true,
        }
    }
    drop(screen);
    if interrupted || !screen::there() {
        return Err(app.interrupted());
    }
    if let Some(ended) = ended {
        let broke = |_| CliError::new(ExitCode::Error, "redrive top broke; the panic above says where");
        ended.map_err(broke)??;
    }
    if let Some(farewell) = app.farewell() {
        app.out.note(&farewell);
    }
    Ok(ExitCode::Ok)
}

/// Ends when a signal asks for the end. Ctrl-C while another program has the terminal is meant for that program.
async fn told_to_stop(stop: &tokio::sync::Notify) {
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

/// Keys, state and screen, on a thread of their own: the store never makes a key wait.
struct Desk {
    state: State,
    hear: mpsc::Receiver<Event>,
    deeds: mpsc::Sender<Deed>,
    wants: watch::Sender<Want>,
    editor: EditCommand,
    color: bool,
    began: Instant,
}

impl Desk {
    fn work(mut self) -> Result<(), CliError> {
        let failed = |error: std::io::Error| CliError::io("use the terminal", &error);
        let mut terminal = Terminal::new(CrosstermBackend::new(stdout())).map_err(failed)?;
        let mut told = self.state.want();
        loop {
            if !self.listen() || !screen::borrowed() {
                return Ok(());
            }
            terminal.draw(|frame| view::render(frame, &self.state, self.color)).map_err(failed)?;
            if event::poll(LOOK_EVERY).map_err(failed)? {
                self.tick();
                let happened = event::read().map_err(failed)?;
                if let Some(effect) = translated(&happened).and_then(|event| update(&mut self.state, event))
                    && !self.follow(effect, &mut terminal)?
                {
                    return Ok(());
                }
            }
            if let Some(want) = update::changed(&self.state, &mut told) {
                // Nobody there: the next look at the news says so.
                let _ = self.wants.send(want);
            }
        }
    }

    fn tick(&mut self) {
        update(&mut self.state, Event::Tick(self.began.elapsed()));
    }

    /// Takes what there is of news; false when the other side is gone.
    fn listen(&mut self) -> bool {
        self.tick();
        loop {
            match self.hear.try_recv() {
                Ok(event) => drop(update(&mut self.state, event)),
                Err(mpsc::error::TryRecvError::Empty) => return true,
                Err(mpsc::error::TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Lets the person edit a letter in their own editor; the command that does it checks, shows and asks.
    fn edit(&mut self, id: MessageId, version: u64) -> Result<(), CliError> {
        let ended = screen::lend(|| self.editor.run(id, version))?;
        let (text, bad) = match ended {
            Ok(ended) if ended.success() => (format!("edited {id}"), false),
            Ok(ended) => (format!("not edited: redrive dlq edit ended with {ended}"), true),
            Err(error) => (format!("not edited: {error}"), true),
        };
        self.state.said = Some(Said { text, bad });
        Ok(())
    }

    /// Does what follows from a key; false when that is the end.
    fn follow(
        &mut self,
        effect: Effect,
        terminal: &mut Terminal<CrosstermBackend<Stdout>>,
    ) -> Result<bool, CliError> {
        let deed = match effect {
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
            Effect::Act(intent) => Deed::Act(intent),
            Effect::OnGroup(id, word, text) => {
                let act = match word {
                    GroupWord::Acknowledge => GroupAct::Acknowledge,
                    GroupWord::Resolve => GroupAct::Resolve,
                    GroupWord::Note => GroupAct::Note { text: text.clone() },
                };
                Deed::OnGroup(id, act, text.filter(|_| word == GroupWord::Resolve))
            }
            Effect::Preview(intent) => Deed::Preview(intent),
            Effect::Start(preview) => Deed::Start(Box::new(preview)),
        };
        if self.deeds.try_send(deed).is_err() {
            self.state.dialog = None;
            let text = "not done: the store has not finished what was asked before".to_owned();
            self.state.said = Some(Said { text, bad: true });
        }
        Ok(true)
    }
}

/// The `redrive` that edits a letter: this one, on the same directory, for the same person.
fn editor(app: &App) -> Result<EditCommand, CliError> {
    let program = std::env::current_exe().map_err(|error| CliError::io("find this program", &error))?;
    let mut args: Vec<OsString> = ["--data".into(), app.data.clone().into_os_string()].into();
    args.extend(["--actor".into(), app.user().into()]);
    if let Some(path) = &app.config_path {
        args.extend(["--config".into(), path.clone().into_os_string()]);
    }
    Ok(EditCommand { program, args })
}

/// How the command that edits is run.
struct EditCommand {
    program: PathBuf,
    args: Vec<OsString>,
}

impl EditCommand {
    /// Runs it in the terminal, and leaves what it said in sight until somebody has read it.
    fn run(&self, id: MessageId, version: u64) -> std::io::Result<std::process::ExitStatus> {
        let words =
            ["dlq", "edit", &id.to_string(), "--if-version", &version.to_string()].map(OsString::from);
        let ended = Command::new(&self.program).args(&self.args).args(words).status()?;
        complain("Enter goes back to redrive top");
        std::io::stdin().lock().read_line(&mut String::new())?;
        Ok(ended)
    }
}

/// Hands text to the terminal's clipboard (OSC 52); a terminal that has none ignores it.
fn copy(terminal: &mut impl std::io::Write, text: &str) -> Result<(), CliError> {
    let coded = base64::engine::general_purpose::STANDARD.encode(text);
    let sent = write!(terminal, "\u{1b}]52;c;{coded}\u{7}").and_then(|()| terminal.flush());
    sent.map_err(|error| CliError::io("use the terminal", &error))
}

/// Keys that have a name.
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

fn translated(happened: &event::Event) -> Option<Event> {
    match happened {
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
