//! The help pages: the grouped list of commands, a separate page for the global options, and an example for every
//! command. The help texts of flags are in their doc comments.

use crate::args::{Cli, Global};
use clap::{Args as _, Command, CommandFactory as _};

/// The first page. It must fit on a screen of 80 columns and 24 lines.
const FIRST_PAGE: &str = "\
The dead letter office for background work.

Usage: redrive COMMAND [OPTIONS]

Work
  enqueue                            add one message, or many as NDJSON
  work, run                          run a command per message, or per item
  serve, demo                        the HTTP API and dashboard; a live trial
  lease, ack, fail, extend, release  the steps of a worker, for scripts
  message, queue, breaker, worker    live messages, queues, breakers, workers
Dead letters
  top                                watch everything in a terminal, and act
  group, dlq                         failures by cause; redrive, close letters
  op                                 bulk operations: watch, pause, undo
  marker, erase                      record a deploy; remove payloads for good
Maintenance
  doctor, audit, alert, token        check the store; audit; alerts; access
  backup, restore                    copy the store while work continues
  init, completions                  write a redrive.toml; shell completion
  signature, classify                show how errors are grouped and classified

Run `redrive help COMMAND` for one command, `redrive help options` for the flags
that every command accepts.
Example: redrive enqueue demo --payload '{\"n\":1}'
";

/// The template of every other page.
const PAGE: &str = "\
{before-help}{about-with-newline}
{usage-heading} {usage}

{all-args}{after-help}

Options that every command accepts, such as --data and -o: redrive help options";

/// The exit codes, shown on the options page.
const EXIT_CODES: &str = "Exit codes: 0 ok, 1 error, 2 usage, 3 nothing matched (--fail-empty), 4 partial, \
5 refused, 6 conflict, 7 not found, 8 auth, 9 unreachable, 10 check failed, 130 interrupted.";

/// The name of the hidden subcommand whose help is the options page.
const OPTIONS: &str = "options";

/// An example for each command that does not define its own. ID stands for an id.
const EXAMPLES: &[(&str, &str)] = &[
    ("release", "redrive release \"$token\" --delay 5m"),
    ("message", "redrive message list queue:payments"),
    ("message list", "redrive message list 'queue:payments attempts>1 age>5m'"),
    ("message show", "redrive message show ID"),
    ("message cancel", "redrive message cancel ID --reason 'ordered twice'"),
    ("queue", "redrive queue set payments --max-attempts 8"),
    ("queue list", "redrive queue list --watch"),
    ("queue show", "redrive queue show payments"),
    ("queue set", "redrive queue set payments --max-attempts 8 --breaker header:region --lease 2m"),
    ("queue apply", "redrive queue apply --dry-run"),
    ("queue pause", "redrive queue pause payments --reason 'the bank is down'"),
    ("queue resume", "redrive queue resume payments"),
    ("queue purge", "redrive queue purge payments --dry-run"),
    ("dlq", "redrive dlq list 'queue:payments error:timeout'"),
    ("dlq list", "redrive dlq list 'queue:payments error:timeout attempts>3 age<2h'"),
    ("dlq show", "redrive dlq show ID"),
    ("dlq timeline", "redrive dlq timeline ID"),
    ("dlq undo", "redrive dlq undo ID"),
    ("dlq resolve", "redrive dlq resolve ID --reason 'refunded by hand'"),
    ("dlq abandon", "redrive dlq abandon --filter 'queue:mail age>30d' --reason 'too late' --dry-run"),
    ("dlq review", "redrive dlq review ID --reason 'is this a duplicate?'"),
    ("dlq quarantine", "redrive dlq quarantine ID --for 24h"),
    ("dlq release", "redrive dlq release ID"),
    ("dlq move", "redrive dlq move --to payments-old --filter 'queue:payments age>30d' --dry-run"),
    ("dlq snooze", "redrive dlq snooze ID --for 2h"),
    ("dlq assign", "redrive dlq assign ID --to ada"),
    ("dlq label", "redrive dlq label ID --add refund"),
    ("dlq hold", "redrive dlq hold ID --reason 'evidence'"),
    ("dlq unhold", "redrive dlq unhold ID"),
    ("dlq reopen", "redrive dlq reopen ID"),
    ("dlq diff", "redrive dlq diff ID --from 0"),
    ("dlq note", "redrive dlq note ID 'the customer was told'"),
    ("dlq export", "redrive dlq export queue:payments --out payments.ndjson"),
    ("dlq import", "redrive dlq import payments.ndjson"),
    ("dlq purge", "redrive dlq purge --filter 'status:resolved age>90d' --dry-run"),
    ("dlq unpurge", "redrive dlq unpurge ID"),
    ("op", "redrive op list"),
    ("op list", "redrive op list --limit 5"),
    ("op show", "redrive op show ID"),
    ("op watch", "redrive op watch ID"),
    ("op pause", "redrive op pause ID --reason 'the bank is slow'"),
    ("op resume", "redrive op resume ID"),
    ("op cancel", "redrive op cancel ID"),
    ("op undo", "redrive op undo ID"),
    ("op rate", "redrive op rate ID 50/s"),
    ("op members", "redrive op members ID --outcome failed_same"),
    ("group", "redrive group list"),
    ("group show", "redrive group show ID --top 5"),
    ("group ack", "redrive group ack ID"),
    ("group resolve", "redrive group resolve ID --letters --reason 'fixed in 1.4.3'"),
    ("group ignore", "redrive group ignore ID --for 7d --reason 'known, harmless'"),
    ("group reopen", "redrive group reopen ID"),
    ("group assign", "redrive group assign ID ada"),
    ("group note", "redrive group note ID 'only with SEPA'"),
    ("group link", "redrive group link ID https://issues.example/4411"),
    ("group label", "redrive group label ID transient"),
    ("group merge", "redrive group merge --matching 'timed out' --dry-run"),
    ("breaker", "redrive breaker list"),
    ("breaker list", "redrive breaker list payments"),
    ("breaker open", "redrive breaker open payments eu --reason 'announced downtime'"),
    ("breaker close", "redrive breaker close payments eu"),
    ("alert", "redrive alert list"),
    ("alert list", "redrive alert list --rules"),
    ("alert test", "redrive alert test ops"),
    ("alert silence", "redrive alert silence payments --for 2h --reason 'bank maintenance'"),
    ("alert unsilence", "redrive alert unsilence payments"),
    ("worker", "redrive worker list"),
    ("worker list", "redrive worker list payments"),
    ("audit", "redrive audit list --since 24h"),
    ("audit list", "redrive audit list --act resolve --since 24h"),
    ("audit verify", "redrive audit verify"),
    ("token", "redrive token list"),
    ("token create", "redrive token create ci --role producer --queue 'payments*' --expires 90d"),
    ("token list", "redrive token list"),
    ("token revoke", "redrive token revoke 42b0c556a7b5"),
    ("backup", "redrive backup /backups/monday"),
    ("restore", "redrive restore /backups/monday --data restored"),
    ("init", "redrive init"),
];

/// The command line with its help pages.
pub(crate) fn command() -> Command {
    let cli = Cli::command();
    let pages = cli.mut_subcommands(|sub| explained(sub, "")).subcommand(options());
    // The global options have their own page and are hidden on all others.
    let short = pages.mut_args(|arg| if arg.is_global_set() { arg.hide(true) } else { arg });
    short.override_help(FIRST_PAGE)
}

/// Adds the example and the page template to a command and to all of its subcommands.
fn explained(command: Command, above: &str) -> Command {
    let path = format!("{above}{}", command.get_name());
    let example = EXAMPLES.iter().find(|(name, _)| *name == path).map(|(_, example)| *example);
    let command = match (command.get_after_help(), example) {
        (None, Some(example)) => command.after_help(format!("Example: {example}")),
        (Some(_), _) | (None, None) => command,
    };
    let under = format!("{path} ");
    command.help_template(PAGE).mut_subcommands(|sub| explained(sub, &under))
}

/// The options page.
fn options() -> Command {
    let mut page =
        Global::augment_args(Command::new("redrive")).after_help(EXIT_CODES).disable_help_flag(true);
    let text = page.render_help().to_string();
    // Keep only the list of options; the usage line names a command that does not exist.
    let list = text.find("Global options:").and_then(|at| text.get(at..)).unwrap_or(&text).to_owned();
    let text = format!("Options that every command accepts; environment variables in brackets.\n\n{list}");
    Command::new(OPTIONS)
        .about("Show the options that every command accepts")
        .override_help(text)
        .hide(true)
        .arg_required_else_help(true)
        .arg(clap::Arg::new("nothing").hide(true).required(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_page_names_every_command_and_fits_a_screen() {
        let lines: Vec<&str> = FIRST_PAGE.lines().collect();
        assert!(lines.len() <= 24 && lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
        let named = |name: &str| FIRST_PAGE.split([' ', ',', '\n']).any(|word| word == name);
        let cli = Cli::command();
        let missing: Vec<&str> = cli.get_subcommands().map(Command::get_name).filter(|n| !named(n)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn every_page_ends_with_an_example_and_a_pointer_to_the_options() {
        fn check(command: &mut Command, path: &str, wrong: &mut Vec<String>) {
            let text = command.render_help().to_string();
            let example = text.contains("Example: redrive ") || text.contains("Examples:\n");
            let brief = !text.contains("--no-color") && !text.contains("--progress-as");
            if !example || !brief || !text.trim_end().ends_with("redrive help options") {
                wrong.push(format!("{path}: {text}"));
            }
            let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
            for name in names.iter().filter(|name| *name != "help") {
                check(command.find_subcommand_mut(name).unwrap(), &format!("{path} {name}"), wrong);
            }
        }
        let mut wrong = Vec::new();
        let mut cli = command();
        cli.build();
        let names: Vec<String> = cli.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
        for name in names.iter().filter(|name| !["help", OPTIONS].contains(&name.as_str())) {
            check(cli.find_subcommand_mut(name).unwrap(), name, &mut wrong);
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n---\n"));
    }

    /// Splits a line into words as a shell would, with quotes but without escapes.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut quote) = (vec![String::new()], None);
        for c in line.chars() {
            match (c, quote) {
                ('\'' | '"', None) => quote = Some(c),
                (c, Some(q)) if c == q => quote = None,
                (' ', None) => words.push(String::new()),
                (c, _) => words.last_mut().unwrap().push(c),
            }
        }
        words
    }

    #[test]
    fn every_example_is_a_command_line_that_is_understood() {
        let token = "0".repeat(64);
        for (path, example) in EXAMPLES {
            let id = if path.starts_with("group") {
                "0000000000000001"
            } else {
                "01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00"
            };
            let words = words(example).into_iter().map(|word| match word.as_str() {
                "ID" => id.to_owned(),
                "$token" => token.clone(),
                _ => word,
            });
            let words: Vec<String> = words.collect();
            assert!(words.join(" ").starts_with(&format!("redrive {path}")), "{path}: {example}");
            if let Err(error) = command().try_get_matches_from(&words) {
                panic!("{example}: {error}");
            }
        }
    }

    #[test]
    fn the_options_page_lists_every_global_option() {
        let page = command().find_subcommand_mut(OPTIONS).unwrap().render_help().to_string();
        let global = Global::augment_args(Command::new("x"));
        for flag in global.get_arguments().filter_map(|arg| arg.get_long()) {
            assert!(page.contains(&format!("--{flag}")), "{flag}: {page}");
        }
    }
}
