//! The flags of `queue set` that say what delivers a queue's messages. They change a target in part; in
//! `redrive.toml` the table `[queues.NAME.target]` is the target itself.

use crate::policy_change::{Maybe, set, word};
use clap::Args;
use redrive::core::address::Network;
use redrive::core::target::{CommandTarget, HttpTarget, Method, PayloadBy, Target};
use redrive::core::time::Span;

/// One `NAME: VALUE`.
fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("write NAME: VALUE, such as 'X-Team: billing'")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// One `NAME=VALUE`.
pub(crate) fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// What to change about a queue's target.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TargetChange {
    /// Deliver by an HTTP request to this URL; `none` for no target
    #[arg(long, value_name = "URL")]
    target: Option<Maybe<String>>,
    /// Deliver by a command: the program, and again for each argument
    #[arg(long, value_name = "WORD", allow_hyphen_values = true, conflicts_with = "target")]
    target_command: Option<Vec<String>>,
    /// Deliver by a line for the shell
    #[arg(long, value_name = "LINE", conflicts_with_all = ["target", "target_command"])]
    target_shell: Option<String>,
    /// How long one delivery may take
    #[arg(long, value_name = "DURATION")]
    target_timeout: Option<Span>,
    /// The method of the request
    #[arg(long, value_name = "METHOD", value_parser = word::<Method>(&["GET", "POST", "PUT", "PATCH", "DELETE"]))]
    target_method: Option<Method>,
    /// A header of the request; repeatable. Replaces all; values may use ${env.NAME}, ${header.NAME}, ${id}
    #[arg(long, value_name = "NAME: VALUE", value_parser = header)]
    target_header: Option<Vec<(String, String)>>,
    /// The body as a template, with ${payload.PATH}; `none` for the payload as it is
    #[arg(long, value_name = "TEMPLATE")]
    target_body: Option<Maybe<String>>,
    /// The content type of that body
    #[arg(long, value_name = "TYPE")]
    target_content_type: Option<Maybe<String>>,
    /// Statuses that make a message a dead letter at once
    #[arg(long, value_name = "STATUS,…", value_delimiter = ',')]
    target_dead_letter_on: Option<Vec<Maybe<u16>>>,
    /// How many redirects are followed
    #[arg(long, value_name = "N")]
    target_redirects: Option<u8>,
    /// Whether this machine and private networks may be reached
    #[arg(long, value_name = "true|false")]
    target_allow_private: Option<bool>,
    /// Addresses and networks that may be reached whatever they are; repeatable, `none` for no exception
    #[arg(long, value_name = "NETWORK")]
    target_allow: Option<Vec<Maybe<Network>>>,
    /// Certificates to trust beside the system's, on the worker's machine
    #[arg(long, value_name = "FILE")]
    target_ca_file: Option<Maybe<String>>,
    /// How the command gets the payload
    #[arg(long, value_name = "HOW", value_parser = word::<PayloadBy>(&["stdin", "file"]))]
    target_payload: Option<PayloadBy>,
    /// Where the command runs; `none` for where the worker runs
    #[arg(long, value_name = "DIR")]
    target_directory: Option<Maybe<String>>,
    /// A variable for the command; repeatable. Replaces all
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    target_env: Option<Vec<(String, String)>>,
}

/// Sets or takes away an optional value if that was asked for.
fn set_maybe<T: Clone>(target: &mut Option<T>, given: Option<&Maybe<T>>) {
    if let Some(value) = given {
        *target = value.clone().into_option();
    }
}

fn listed<T: Clone>(given: &[Maybe<T>]) -> Vec<T> {
    given.iter().filter_map(|one| one.clone().into_option()).collect()
}

impl TargetChange {
    /// The target with these changes.
    ///
    /// # Errors
    /// Text for settings of a target that is not there or is of the other kind.
    pub(crate) fn apply(&self, old: Option<Target>) -> Result<Option<Target>, String> {
        let target = match (self.target.clone().map(Maybe::into_option), old) {
            (Some(None), _) => return Ok(None),
            (Some(Some(url)), Some(Target::Http(old))) => Some(Target::Http(HttpTarget { url, ..old })),
            (Some(Some(url)), _) => Some(Target::Http(HttpTarget::new(url))),
            (None, old) => self.commanded(old),
        };
        match target {
            None if self.details().next().is_some() => Err(
                "there is no target to change; name one with --target, --target-command or --target-shell"
                    .into(),
            ),
            None => Ok(None),
            Some(Target::Http(http)) => self.http(http).map(|http| Some(Target::Http(http))),
            Some(Target::Command(command)) => self.command(command).map(|c| Some(Target::Command(c))),
        }
    }

    fn commanded(&self, old: Option<Target>) -> Option<Target> {
        if self.target_command.is_none() && self.target_shell.is_none() {
            return old;
        }
        let (argv, shell) = (self.target_command.clone().unwrap_or_default(), self.target_shell.clone());
        let kept = match old {
            Some(Target::Command(old)) => old,
            Some(Target::Http(_)) | None => CommandTarget::default(),
        };
        Some(Target::Command(CommandTarget { argv, shell, ..kept }))
    }

    /// The settings that were given, by flag, and whether they belong to a request, a command or both.
    fn details(&self) -> impl Iterator<Item = (&'static str, Option<bool>)> {
        let http = Some(true);
        let command = Some(false);
        let given = [
            (self.target_timeout.is_some(), "--target-timeout", None),
            (self.target_method.is_some(), "--target-method", http),
            (self.target_header.is_some(), "--target-header", http),
            (self.target_body.is_some(), "--target-body", http),
            (self.target_content_type.is_some(), "--target-content-type", http),
            (self.target_dead_letter_on.is_some(), "--target-dead-letter-on", http),
            (self.target_redirects.is_some(), "--target-redirects", http),
            (self.target_allow_private.is_some(), "--target-allow-private", http),
            (self.target_allow.is_some(), "--target-allow", http),
            (self.target_ca_file.is_some(), "--target-ca-file", http),
            (self.target_payload.is_some(), "--target-payload", command),
            (self.target_directory.is_some(), "--target-directory", command),
            (self.target_env.is_some(), "--target-env", command),
        ];
        given.into_iter().filter(|(given, ..)| *given).map(|(_, flag, kind)| (flag, kind))
    }

    fn refuse(&self, http: bool) -> Result<(), String> {
        match self.details().find(|(_, kind)| kind.is_some_and(|kind| kind != http)) {
            Some((flag, _)) if http => Err(format!("{flag} belongs to a command, and this target is a URL")),
            Some((flag, _)) => Err(format!("{flag} belongs to a URL, and this target is a command")),
            None => Ok(()),
        }
    }

    fn http(&self, mut http: HttpTarget) -> Result<HttpTarget, String> {
        self.refuse(true)?;
        set(&mut http.timeout, self.target_timeout.as_ref());
        set(&mut http.method, self.target_method.as_ref());
        set(&mut http.redirects, self.target_redirects.as_ref());
        set(&mut http.allow_private, self.target_allow_private.as_ref());
        set_maybe(&mut http.body, self.target_body.as_ref());
        set_maybe(&mut http.content_type, self.target_content_type.as_ref());
        set_maybe(&mut http.ca_file, self.target_ca_file.as_ref());
        if let Some(headers) = &self.target_header {
            http.headers = headers.iter().cloned().collect();
        }
        if let Some(statuses) = &self.target_dead_letter_on {
            http.dead_letter_on = listed(statuses);
        }
        if let Some(networks) = &self.target_allow {
            http.allow = listed(networks);
        }
        Ok(http)
    }

    fn command(&self, mut command: CommandTarget) -> Result<CommandTarget, String> {
        self.refuse(false)?;
        command.timeout = self.target_timeout.or(command.timeout);
        set(&mut command.payload, self.target_payload.as_ref());
        set_maybe(&mut command.directory, self.target_directory.as_ref());
        if let Some(variables) = &self.target_env {
            command.env = variables.iter().cloned().collect();
        }
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        change: TargetChange,
    }

    fn applied(flags: &[&str], to: Option<Target>) -> Result<Option<Target>, String> {
        let words = std::iter::once("set").chain(flags.iter().copied());
        Flags::try_parse_from(words).map_err(|e| e.to_string())?.change.apply(to)
    }

    #[test]
    fn a_url_makes_an_http_target_which_is_changed_in_part() {
        let made = applied(&["--target", "https://a.example/", "--target-header", "X-A: b:c"], None).unwrap();
        let made = applied(&["--target-timeout", "5s", "--target-dead-letter-on", "400,422"], made).unwrap();
        let moved = applied(&["--target", "https://b.example/"], made).unwrap();
        let Some(Target::Http(http)) = &moved else { panic!("{moved:?}") };
        assert_eq!((http.url.as_str(), http.timeout), ("https://b.example/", Span::from_secs(5)));
        assert_eq!((&http.headers["X-A"], &http.dead_letter_on), (&"b:c".to_owned(), &vec![400, 422]));
        assert_eq!(applied(&[], moved.clone()).unwrap(), moved);
        assert_eq!(applied(&["--target", "none"], moved.clone()).unwrap(), None);
        assert!(applied(&["--target-env", "A=b"], moved).unwrap_err().contains("belongs to a command"));
    }

    #[test]
    fn words_make_a_command() {
        let flags = ["--target-command", "./h", "--target-command", "-v", "--target-env", "A=b=c"];
        let made = applied(&flags, Some(Target::Http(HttpTarget::new("http://a")))).unwrap();
        let Some(Target::Command(command)) = &made else { panic!("{made:?}") };
        assert_eq!((command.argv.join(" ").as_str(), command.env["A"].as_str()), ("./h -v", "b=c"));
        let shell = applied(&["--target-shell", "grep ok"], made.clone()).unwrap();
        assert!(matches!(&shell, Some(Target::Command(c)) if c.argv.is_empty() && c.env.len() == 1));
        assert!(applied(&["--target-method", "GET"], made).unwrap_err().contains("belongs to a URL"));
        assert!(applied(&["--target-timeout", "5s"], None).unwrap_err().contains("no target"));
        for wrong in [&["--target-header", "x"][..], &["--target-method", "BREW"], &["--target-env", "x"]] {
            assert!(applied(wrong, None).is_err(), "{wrong:?}");
        }
    }
}
