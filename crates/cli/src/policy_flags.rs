//! The flags of `queue set`: what they are called, what they look like in help, and the document of changes that they
//! make. What the changes mean is decided by [`PolicyChange`] in the core, as for `redrive.toml` and the API.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use redrive::core::address::Network;
use redrive::core::backoff::Jitter;
use redrive::core::breaker::BreakerKey;
use redrive::core::failure::Route;
use redrive::core::handling::{Handling, Strategy as RetryBy};
use redrive::core::ids::QueueName;
use redrive::core::message::Priority;
use redrive::core::poison::Release;
use redrive::core::policy::{ErrorMatch, OnDead, OnExpire};
use redrive::core::policy_change::PolicyChange;
use redrive::core::target::{Method, PayloadBy};
use redrive::core::time::Span;
use serde::de::DeserializeOwned;
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::Value;
use std::str::FromStr;

/// A setting that can also be taken away with the word `none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Maybe<T>(Option<T>);

impl<T> Maybe<T> {
    /// The value, or `None` for the word `none`.
    pub(crate) fn into_option(self) -> Option<T> {
        self.0
    }
}

impl<T: FromStr> FromStr for Maybe<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" { Ok(Self(None)) } else { text.parse().map(|value| Self(Some(value))) }
    }
}

impl<T: Serialize> Serialize for Maybe<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Some(value) => value.serialize(to),
            None => to.serialize_str("none"),
        }
    }
}

/// Parses one of a list of words that serde knows. The list is shown in help and completed by shells.
pub(crate) fn word<T>(words: &'static [&'static str]) -> impl clap::builder::TypedValueParser<Value = T>
where
    T: DeserializeOwned + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words).try_map(|word| serde_json::from_value::<T>(Value::String(word)))
}

/// Parses `ROUTE=DLQ`; `ROUTE=none` sends the route back to the queue's own dead letter queue.
fn route(text: &str) -> Result<(Route, Maybe<QueueName>), String> {
    let (route, dlq) = text.split_once('=').ok_or("write ROUTE=DLQ, such as network=payments-net")?;
    Ok((route.parse()?, dlq.parse().map_err(|e: redrive::core::ids::IdError| e.to_string())?))
}

/// Parses `ROUTE=HANDLING`; `ROUTE=none` restores the default.
fn handling(text: &str) -> Result<(Route, Maybe<Handling>), String> {
    let (route, handling) = text.split_once('=').ok_or("write ROUTE=HANDLING, such as timeout=fast_retry")?;
    Ok((route.parse()?, handling.parse()?))
}

/// Parses `NAME: VALUE`.
fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("write NAME: VALUE, such as 'X-Team: billing'")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// Parses `NAME=VALUE`.
pub(crate) fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Writes repeated `NAME=VALUE` flags as a table.
fn as_table<K: Serialize, V: Serialize, S: Serializer>(
    pairs: &Option<Vec<(K, V)>>,
    to: S,
) -> Result<S::Ok, S::Error> {
    let Some(pairs) = pairs else { return to.serialize_none() };
    let mut table = to.serialize_map(Some(pairs.len()))?;
    for (name, value) in pairs {
        table.serialize_entry(name, value)?;
    }
    table.end()
}

/// The settings to change. A setting whose flag is not given stays as it is.
#[derive(Args, Clone, Debug, Default, serde::Serialize)]
pub(crate) struct PolicyFlags {
    /// Executions allowed, the first included
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// Retries allowed after the first execution; the same as --max-attempts N+1
    #[arg(long, value_name = "N", conflicts_with = "max_attempts")]
    max_retries: Option<u32>,
    /// How long a lease lasts unless the worker asks for another time
    #[arg(long, value_name = "DURATION")]
    lease: Option<Span>,
    /// How long a message is useful unless it has its own ttl; `none` for ever
    #[arg(long, value_name = "DURATION")]
    ttl: Option<Maybe<Span>>,
    /// What happens to a message whose ttl or deadline has passed
    #[arg(long, value_name = "WHAT", value_parser = word::<OnExpire>(&["dead_letter", "drop"]))]
    on_expire: Option<OnExpire>,
    /// What happens to an ordering key when one of its messages dies
    #[arg(long, value_name = "WHAT", value_parser = word::<OnDead>(&["continue", "hold"]))]
    on_dead: Option<OnDead>,
    /// The priority of messages without their own: critical, high, normal, low, background
    #[arg(long, value_name = "PRIORITY")]
    priority: Option<Priority>,
    /// The dead letter queue for its dead letters; `none` for QUEUE-dlq
    #[arg(long, value_name = "DLQ")]
    dlq: Option<Maybe<QueueName>>,
    /// How often a dead letter may be sent back before it waits for review and needs --force
    #[arg(long, value_name = "N")]
    max_redrives: Option<u32>,
    /// How long closed dead letters are kept
    #[arg(long, value_name = "DURATION")]
    retention: Option<Span>,
    /// How long open dead letters are kept; `none` for ever
    #[arg(long, value_name = "DURATION")]
    open_ttl: Option<Maybe<Span>>,
    /// The maximum number of live messages; `none` for no limit
    #[arg(long, value_name = "N")]
    max_messages: Option<Maybe<u64>>,
    /// The maximum number of payload bytes of live messages; `none` for no limit
    #[arg(long, value_name = "BYTES")]
    max_bytes: Option<Maybe<u64>>,
    /// Whether the text index includes the payloads of dead letters: true or false
    #[arg(long, value_name = "BOOL")]
    search_payload: Option<bool>,
    /// Time budget for excluded errors, from the first failure
    #[arg(long, value_name = "DURATION")]
    retry_for: Option<Span>,
    /// Dead-letter these errors at once: a type, a glob or category:NAME; repeatable, `none` for no rule
    #[arg(long, value_name = "ERROR")]
    include: Option<Vec<Maybe<ErrorMatch>>>,
    /// Never dead-letter these by count; repeatable, `none` for no rule
    #[arg(long, value_name = "ERROR")]
    exclude: Option<Vec<Maybe<ErrorMatch>>>,
    /// Give a route its own dead letter queue; repeatable, ROUTE=none takes it back
    #[arg(long = "route", value_name = "ROUTE=DLQ", value_parser = route)]
    #[serde(rename = "routes", serialize_with = "as_table")]
    route: Option<Vec<(Route, Maybe<QueueName>)>>,
    #[command(flatten)]
    backoff: BackoffFlags,
    /// Whether failures are retried by the queue's backoff or by their category
    #[arg(long, value_name = "WHOSE", value_parser = word::<RetryBy>(&["queue", "by_category"]))]
    strategy: Option<RetryBy>,
    /// How failures of a route are handled; repeatable, ROUTE=none for the default
    #[arg(long = "handling", value_name = "ROUTE=HANDLING", value_parser = handling)]
    #[serde(rename = "handling", serialize_with = "as_table")]
    handle: Option<Vec<(Route, Maybe<Handling>)>>,
    #[command(flatten)]
    breaker: BreakerFlags,
    #[command(flatten)]
    poison: PoisonFlags,
    #[command(flatten)]
    auto_redrive: AutoRedriveFlags,
    #[command(flatten)]
    target: TargetFlags,
}

/// The settings for automatic redrives.
#[derive(Args, Clone, Debug, Default, serde::Serialize)]
pub(crate) struct AutoRedriveFlags {
    /// How often a dead letter is sent back automatically, 1 to 10; `none` for never
    #[arg(id = "auto_redrive_limit", long = "auto-redrive", value_name = "LIMIT")]
    limit: Option<Maybe<u32>>,
    /// How long after its death; every redrive doubles it [default: 1h]
    #[arg(id = "auto_redrive_backoff", long = "auto-redrive-backoff", value_name = "DURATION")]
    backoff: Option<Span>,
}

/// The settings for breakers, which hold messages back while a dependency is down.
#[derive(Args, Clone, Debug, Default, serde::Serialize)]
pub(crate) struct BreakerFlags {
    /// Which messages share a breaker: queue, kind, header:NAME or payload.PATH; `none` for no breaker
    #[arg(id = "breaker_key", long = "breaker", value_name = "KEY")]
    key: Option<Maybe<BreakerKey>>,
    /// Consecutive failures that open it
    #[arg(id = "breaker_failures", long = "breaker-failures", value_name = "N")]
    failures: Option<u32>,
    /// The number of results in its window
    #[arg(id = "breaker_window", long = "breaker-window", value_name = "N")]
    window: Option<u32>,
    /// Results older than this do not count
    #[arg(id = "breaker_within", long = "breaker-within", value_name = "DURATION")]
    within: Option<Span>,
    /// The number of results the window needs before its share of failures counts
    #[arg(id = "breaker_sample", long = "breaker-sample", value_name = "N")]
    sample: Option<u32>,
    /// The share of failures in the window above which it opens
    #[arg(id = "breaker_ratio", long = "breaker-ratio", value_name = "SHARE")]
    ratio: Option<f64>,
    /// How long it is open the first time; each reopening doubles it
    #[arg(id = "breaker_open_for", long = "breaker-open-for", value_name = "DURATION")]
    open_for: Option<Span>,
    /// The longest time it stays open
    #[arg(id = "breaker_open_max", long = "breaker-open-max", value_name = "DURATION")]
    open_max: Option<Span>,
    /// The number of deliveries let through while it is half open, over all workers
    #[arg(id = "breaker_probes", long = "breaker-probes", value_name = "N")]
    probes: Option<u32>,
}

/// The settings for poison messages, which make every worker fail that touches them.
#[derive(Args, Clone, Debug, Default, serde::Serialize)]
pub(crate) struct PoisonFlags {
    /// Whether poison messages are detected
    #[arg(id = "poison_detect", long = "poison", value_name = "true|false")]
    detect: Option<bool>,
    /// How long a poison message is quarantined
    #[arg(id = "poison_quarantine", long = "quarantine", value_name = "DURATION")]
    quarantine: Option<Span>,
    /// Where it goes after the quarantine
    #[arg(id = "poison_release", long = "release", value_name = "WHERE",
        value_parser = word::<Release>(&["review", "queue"]))]
    release: Option<Release>,
}

/// How the delay grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Strategy {
    /// Always the initial delay
    Fixed,
    /// The initial delay times the number of the retry
    Linear,
    /// The initial delay times the multiplier for every retry
    Exponential,
    /// The initial delay times 1, 1, 2, 3, 5…
    Fibonacci,
    /// The delays of --delays; the last one repeats
    List,
}

/// The settings for the delay before a retry.
#[derive(Args, Clone, Debug, Default, serde::Serialize)]
pub(crate) struct BackoffFlags {
    /// How the delay before a retry grows
    #[arg(id = "backoff_strategy", long = "backoff", value_name = "STRATEGY")]
    strategy: Option<Strategy>,
    /// The delay before the first retry
    #[arg(long, value_name = "DURATION")]
    initial: Option<Span>,
    /// The longest delay
    #[arg(long, value_name = "DURATION")]
    cap: Option<Span>,
    /// The shortest delay
    #[arg(long, value_name = "DURATION")]
    floor: Option<Span>,
    /// The factor of exponential backoff
    #[arg(long, value_name = "FACTOR")]
    multiplier: Option<f64>,
    /// The delays of the backoff `list`, separated by commas
    #[arg(long, value_name = "DURATION,…", value_delimiter = ',')]
    delays: Option<Vec<Span>>,
    /// How randomness changes a delay
    #[arg(long, value_name = "JITTER", value_parser = word::<Jitter>(&["none", "full", "equal", "decorrelated"]))]
    jitter: Option<Jitter>,
}

/// The settings for what delivers the messages of a queue.
#[derive(Args, Clone, Debug, Default, serde::Serialize)]
pub(crate) struct TargetFlags {
    /// Deliver by an HTTP request to this URL; `none` for no target
    #[arg(long, value_name = "URL")]
    #[serde(rename = "url")]
    target: Option<Maybe<String>>,
    /// Deliver by a command: the program, and again for each argument
    #[arg(long, value_name = "WORD", allow_hyphen_values = true, conflicts_with = "target")]
    #[serde(rename = "argv")]
    target_command: Option<Vec<String>>,
    /// Deliver by a line for the shell
    #[arg(long, value_name = "LINE", conflicts_with_all = ["target", "target_command"])]
    #[serde(rename = "shell")]
    target_shell: Option<String>,
    /// How long one delivery may take
    #[arg(long, value_name = "DURATION")]
    #[serde(rename = "timeout")]
    target_timeout: Option<Span>,
    /// The method of the request
    #[arg(long, value_name = "METHOD", value_parser = word::<Method>(&["GET", "POST", "PUT", "PATCH", "DELETE"]))]
    #[serde(rename = "method")]
    target_method: Option<Method>,
    /// A header of the request; repeatable. Replaces all; values may use ${env.NAME}, ${header.NAME}, ${id}
    #[arg(long, value_name = "NAME: VALUE", value_parser = header)]
    #[serde(rename = "headers", serialize_with = "as_table")]
    target_header: Option<Vec<(String, String)>>,
    /// The body as a template, with ${payload.PATH}; `none` for the payload as it is
    #[arg(long, value_name = "TEMPLATE")]
    #[serde(rename = "body")]
    target_body: Option<Maybe<String>>,
    /// The content type of that body
    #[arg(long, value_name = "TYPE")]
    #[serde(rename = "content_type")]
    target_content_type: Option<Maybe<String>>,
    /// Sign requests (Standard Webhooks) with this secret: whsec_…, or better ${env.NAME}; `none` for no signature
    #[arg(long, value_name = "SECRET")]
    #[serde(rename = "secret")]
    target_secret: Option<Maybe<String>>,
    /// Statuses that make a message a dead letter at once
    #[arg(long, value_name = "STATUS,…", value_delimiter = ',')]
    #[serde(rename = "dead_letter_on")]
    target_dead_letter_on: Option<Vec<Maybe<u16>>>,
    /// How many redirects are followed
    #[arg(long, value_name = "N")]
    #[serde(rename = "redirects")]
    target_redirects: Option<u8>,
    /// Whether the target may be on this machine or in a private network
    #[arg(long, value_name = "true|false")]
    #[serde(rename = "allow_private")]
    target_allow_private: Option<bool>,
    /// Addresses and networks that are always allowed; repeatable, `none` for no exception
    #[arg(long, value_name = "NETWORK")]
    #[serde(rename = "allow")]
    target_allow: Option<Vec<Maybe<Network>>>,
    /// Certificates to trust besides the system's, as a file on the worker's machine
    #[arg(long, value_name = "FILE")]
    #[serde(rename = "ca_file")]
    target_ca_file: Option<Maybe<String>>,
    /// How the command receives the payload
    #[arg(long, value_name = "HOW", value_parser = word::<PayloadBy>(&["stdin", "file"]))]
    #[serde(rename = "payload")]
    target_payload: Option<PayloadBy>,
    /// The working directory of the command; `none` for that of the worker
    #[arg(long, value_name = "DIR")]
    #[serde(rename = "directory")]
    target_directory: Option<Maybe<String>>,
    /// A variable for the command; repeatable. Replaces all
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    #[serde(rename = "env", serialize_with = "as_table")]
    target_env: Option<Vec<(String, String)>>,
}

impl PolicyFlags {
    /// The document of changes that the flags make.
    ///
    /// # Errors
    /// Text, if a flag has no document form.
    pub(crate) fn change(&self) -> Result<PolicyChange, String> {
        let mut document = serde_json::to_value(self).map_err(|error| error.to_string())?;
        keep_given(&mut document);
        if let (Some(Maybe(None)), Value::Object(table)) = (&self.target.target, &mut document) {
            table.insert("target".into(), "none".into());
        }
        serde_json::from_value(document).map_err(|error| error.to_string())
    }
}

/// Removes the flags that were not given, and the tables that are left without any.
fn keep_given(document: &mut Value) {
    if let Value::Object(table) = document {
        table.values_mut().for_each(keep_given);
        table
            .retain(|_, value| !value.is_null() && value.as_object().is_none_or(|inside| !inside.is_empty()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use redrive::core::auto_redrive::AutoRedrive;
    use redrive::core::backoff::Growth;
    use redrive::core::policy::QueuePolicy;
    use redrive::core::target::{HttpTarget, Target};

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        flags: PolicyFlags,
    }

    fn changed(flags: &[&str], to: &QueuePolicy) -> Result<QueuePolicy, String> {
        let words = std::iter::once("set").chain(flags.iter().copied());
        let change = Flags::try_parse_from(words).map_err(|e| e.to_string())?.flags.change()?;
        change.apply(to).map_err(|refusal| refusal.to_string())
    }

    fn applied(flags: &str, to: impl std::borrow::Borrow<QueuePolicy>) -> Result<QueuePolicy, String> {
        changed(&flags.split_whitespace().collect::<Vec<_>>(), to.borrow())
    }

    fn targeted(flags: &[&str], target: Option<Target>) -> Result<Option<Target>, String> {
        changed(flags, &QueuePolicy { target, ..QueuePolicy::default() }).map(|policy| policy.target)
    }

    #[test]
    fn an_automatic_redrive_is_set_changed_and_taken_away() {
        let auto = |flags, to: &QueuePolicy| applied(flags, to.clone());
        let rule = |limit, backoff| Some(AutoRedrive { limit, backoff });
        let set = auto("--auto-redrive 3", &QueuePolicy::default()).unwrap();
        assert_eq!(set.auto_redrive, rule(3, Span::from_hours(1)));
        let slower = auto("--auto-redrive-backoff 2h", &set).unwrap();
        assert_eq!(slower.auto_redrive, rule(3, Span::from_hours(2)));
        assert_eq!(auto("--auto-redrive 1", &slower).unwrap().auto_redrive, rule(1, Span::from_hours(2)));
        assert_eq!(auto("--auto-redrive none", &slower).unwrap().auto_redrive, None);
        assert!(auto("--auto-redrive-backoff 2h", &QueuePolicy::default()).unwrap_err().contains("limit"));
    }

    #[test]
    fn what_is_not_said_stays() {
        let old = QueuePolicy { max_attempts: 9, ttl: Some(Span::from_secs(5)), ..QueuePolicy::default() };
        assert_eq!(applied("", old.clone()).unwrap(), old);
        let new = applied("--lease 45s --ttl none --max-messages 10", old.clone()).unwrap();
        let expected = QueuePolicy { lease: Span::from_secs(45), ttl: None, max_messages: Some(10), ..old };
        assert_eq!(new, expected);
    }

    #[test]
    fn retries_are_attempts_less_one() {
        assert_eq!(applied("--max-retries 2", QueuePolicy::default()).unwrap().max_attempts, 3);
        assert!(applied("--max-retries 2 --max-attempts 3", QueuePolicy::default()).is_err());
    }

    #[test]
    fn by_category_has_no_ceiling_unless_one_is_said() {
        let policy = applied("--strategy by_category", QueuePolicy::default()).unwrap();
        assert_eq!(policy, QueuePolicy::by_category());
        assert_eq!(
            applied("--strategy by_category --max-attempts 4", QueuePolicy::default()).unwrap().max_attempts,
            4
        );
        assert_eq!(applied("--strategy queue", policy).unwrap(), QueuePolicy::default());
        let three = QueuePolicy { max_attempts: 3, ..QueuePolicy::default() };
        assert_eq!(applied("--strategy by_category", three).unwrap().max_attempts, 3, "what was said stays");
    }

    #[test]
    fn a_breaker_is_named_by_its_key_and_changed_in_part() {
        let policy = applied("--breaker header:region --breaker-failures 3", QueuePolicy::default()).unwrap();
        let rules = policy.breaker.clone().unwrap();
        assert_eq!((rules.key.to_string().as_str(), rules.failures, rules.probes), ("header:region", 3, 3));
        let policy = applied("--breaker-open-for 5s", policy).unwrap();
        let rules = policy.breaker.clone().unwrap();
        assert_eq!((rules.failures, rules.open_for), (3, Span::from_secs(5)));
        assert_eq!(applied("--breaker none", policy).unwrap().breaker, None);
        assert!(applied("--breaker-failures 3", QueuePolicy::default()).unwrap_err().contains("needs a key"));
        assert!(applied("--breaker host", QueuePolicy::default()).is_err());
        let policy =
            applied("--handling timeout=fast_retry --poison false --release queue", QueuePolicy::default());
        let policy = applied("--handling timeout=none", policy.unwrap()).unwrap();
        assert!(policy.handling.is_empty() && !policy.poison.detect);
    }

    #[test]
    fn lists_replace_and_none_empties() {
        let policy = applied("--include Bad* --include category:poison", QueuePolicy::default()).unwrap();
        assert_eq!(policy.include.len(), 2);
        assert!(applied("--include none", policy).unwrap().include.is_empty());
        let policy = applied("--route network=net --route timeout=slow", QueuePolicy::default()).unwrap();
        let policy = applied("--route network=none", policy).unwrap();
        assert_eq!(policy.routes.keys().collect::<Vec<_>>(), [&Route::Timeout]);
    }

    #[test]
    fn backoffs_change_in_part_and_contradictions_are_told() {
        let policy = applied("--backoff exponential --multiplier 3", QueuePolicy::default()).unwrap();
        let policy = applied("--initial 2s --jitter none", policy).unwrap();
        assert_eq!(policy.backoff.growth, Growth::Exponential { multiplier: 3.0 });
        assert_eq!(policy.backoff.initial, Span::from_secs(2));
        let listed = applied("--delays 1s,10s", policy).unwrap();
        assert_eq!(listed.backoff.base(5), Span::from_secs(10));
        let fixed = applied("--backoff fixed --initial 0", listed).unwrap();
        assert_eq!(fixed.backoff.base(7), Span::ZERO);
        for wrong in ["--backoff list", "--backoff fixed --multiplier 2", "--backoff linear --delays 1s"] {
            assert!(applied(wrong, QueuePolicy::default()).is_err(), "{wrong}");
        }
        for wrong in
            ["--jitter some", "--on-dead wait", "--route net=x", "--route network=-x", "--priority urgent"]
        {
            assert!(applied(wrong, QueuePolicy::default()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_url_makes_an_http_target_which_is_changed_in_part() {
        let made =
            targeted(&["--target", "https://a.example/", "--target-header", "X-A: b:c"], None).unwrap();
        let made = targeted(&["--target-timeout", "5s", "--target-dead-letter-on", "400,422"], made).unwrap();
        let moved = targeted(&["--target", "https://b.example/"], made).unwrap();
        let Some(Target::Http(http)) = &moved else { panic!("{moved:?}") };
        assert_eq!((http.url.as_str(), http.timeout), ("https://b.example/", Span::from_secs(5)));
        assert_eq!((&http.headers["X-A"], &http.dead_letter_on), (&"b:c".to_owned(), &vec![400, 422]));
        assert_eq!(targeted(&[], moved.clone()).unwrap(), moved);
        assert_eq!(targeted(&["--target", "none"], moved.clone()).unwrap(), None);
        assert!(targeted(&["--target-env", "A=b"], moved).unwrap_err().contains("belongs to a command"));
    }

    #[test]
    fn words_make_a_command() {
        let flags = ["--target-command", "./h", "--target-command", "-v", "--target-env", "A=b=c"];
        let made = targeted(&flags, Some(Target::Http(HttpTarget::new("http://a")))).unwrap();
        let Some(Target::Command(command)) = &made else { panic!("{made:?}") };
        assert_eq!((command.argv.join(" ").as_str(), command.env["A"].as_str()), ("./h -v", "b=c"));
        let shell = targeted(&["--target-shell", "grep ok"], made.clone()).unwrap();
        assert!(matches!(&shell, Some(Target::Command(c)) if c.argv.is_empty() && c.env.len() == 1));
        assert!(targeted(&["--target-method", "GET"], made).unwrap_err().contains("belongs to a URL"));
        assert!(targeted(&["--target-timeout", "5s"], None).unwrap_err().contains("no target"));
        for wrong in [&["--target-header", "x"][..], &["--target-method", "BREW"], &["--target-env", "x"]] {
            assert!(targeted(wrong, None).is_err(), "{wrong:?}");
        }
    }
}
