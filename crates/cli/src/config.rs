//! `redrive.toml`: read whole, checked whole, before anything is done. A key it does not know is an error that
//! names the nearest one. It proposes policies for queues; the store has the authority.

use crate::exit_code::CliError;
use crate::output::{Format, TimeStyle};
use crate::policy_change::PolicyChange;
use redrive::core::classify::{PatternSpec, Patterns};
use redrive::core::failure::Knowledge;
use redrive::core::ids::QueueName;
use redrive::core::masking::{MaskingSpec, Rules};
use redrive::core::policy::QueuePolicy;
use redrive::core::signature::{SignatureRule, SignatureRules};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file that is read when it is there and no other was named.
pub(crate) const DEFAULT_PATH: &str = "redrive.toml";
/// The largest file that is still a configuration.
const BYTES_MAX: u64 = 1024 * 1024;

/// What a configuration file says, checked.
#[derive(Debug, Default)]
pub(crate) struct Config {
    /// The data directory.
    pub data: Option<PathBuf>,
    /// Who acts.
    pub actor: Option<String>,
    /// The output format.
    pub output: Option<Format>,
    /// How times are shown.
    pub time: Option<TimeStyle>,
    /// What it says about queues.
    pub queues: BTreeMap<QueueName, Proposal>,
    /// The user's own rules for grouping, patterns for classifying errors, and what is masked.
    pub known: Knowledge,
}

/// What a configuration file says about one queue.
#[derive(Debug)]
pub(crate) struct Proposal {
    /// The settings it names.
    change: PolicyChange,
    /// The policy of a queue that has no other: the default with these settings.
    pub fresh: QueuePolicy,
}

impl Proposal {
    /// The policy with the settings that the file names; all others stay as the store has them.
    ///
    /// # Errors
    /// Text for settings that contradict the others.
    pub(crate) fn on(&self, stored: Option<&QueuePolicy>) -> Result<QueuePolicy, String> {
        stored.map_or_else(|| Ok(self.fresh.clone()), |policy| self.change.apply(policy.clone()))
    }
}

/// The file as it is written.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Written {
    data: Option<PathBuf>,
    actor: Option<String>,
    output: Option<Format>,
    time: Option<TimeStyle>,
    queues: BTreeMap<String, PolicyChange>,
    classify: WrittenClassify,
    signature: WrittenSignature,
    masking: MaskingSpec,
}

/// Its section about classifying.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WrittenClassify {
    pattern: Vec<PatternSpec>,
}

/// Its section about grouping.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WrittenSignature {
    rule: Vec<SignatureRule>,
}

/// Reads the file that was named, or the usual one if it is there.
pub(crate) fn load(named: Option<&Path>) -> Result<Config, CliError> {
    let path = named.unwrap_or_else(|| Path::new(DEFAULT_PATH));
    let wrong = |what: String| CliError::usage(format!("configuration {}: {what}", path.display()));
    match std::fs::metadata(path) {
        Ok(about) if about.len() > BYTES_MAX => return Err(wrong(format!("larger than {BYTES_MAX} bytes"))),
        Ok(_) => {}
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Config::default());
        }
        Err(error) => {
            return Err(wrong(error.to_string()).hint("`redrive init` writes a commented one"));
        }
    }
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let mut config = parse(&text).map_err(wrong)?;
    // A path in a file is meant from where the file is.
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    config.data = config.data.map(|data| folder.join(data));
    Ok(config)
}

/// Reads and checks the text of a configuration.
pub(crate) fn parse(text: &str) -> Result<Config, String> {
    let written: Written = toml::from_str(text).map_err(|error| {
        let at = error.span().map(|span| line_of(text, span.start)).unwrap_or_default();
        format!("{at}{}", explained(error.message()))
    })?;
    let mut queues = BTreeMap::new();
    for (name, change) in written.queues {
        let of_queue = |what: String| format!("queue {name:?}: {what}");
        let queue: QueueName =
            name.parse().map_err(|e: redrive::core::ids::IdError| of_queue(e.to_string()))?;
        let fresh = change.apply(QueuePolicy::default()).map_err(of_queue)?;
        fresh.check(&queue).map_err(|refusal| of_queue(refusal.to_string()))?;
        queues.insert(queue, Proposal { change, fresh });
    }
    let known = Knowledge {
        rules: SignatureRules::compile(&written.signature.rule).map_err(|error| error.to_string())?,
        patterns: Patterns::compile(&written.classify.pattern).map_err(|refusal| refusal.to_string())?,
        masking: Rules::compile(&written.masking).map_err(|refusal| refusal.to_string())?,
    };
    let Written { data, actor, output, time, .. } = written;
    Ok(Config { data, actor, output, time, queues, known })
}

fn line_of(text: &str, at: usize) -> String {
    let before = text.get(..at).unwrap_or(text);
    format!("line {}: ", before.matches('\n').count() + 1)
}

/// What a reader of serde's kind complains about, in words that help: the nearest known name for an unknown
/// one, an example for a duration that is none.
pub(crate) fn explained(message: &str) -> String {
    if message.contains("untagged enum Written") {
        return "not a duration such as 500ms, 30s, 15m, 2h or 7d".to_owned();
    }
    let first = message.lines().next().unwrap_or(message);
    let unknown = first.starts_with("unknown field") || first.starts_with("unknown variant");
    let mut names = first.split('`').skip(1).step_by(2);
    let (true, Some(wrong)) = (unknown, names.next()) else { return first.to_owned() };
    let kind = if first.starts_with("unknown field") { "key" } else { "word" };
    let known: Vec<&str> = names.collect();
    match nearest(wrong, &known) {
        Some(near) => format!("unknown {kind} `{wrong}`; did you mean `{near}`?"),
        None => format!("unknown {kind} `{wrong}`; known are {}", known.join(", ")),
    }
}

/// The known word that was probably meant.
pub(crate) fn nearest<'a>(wrong: &str, known: &[&'a str]) -> Option<&'a str> {
    let distance = |word: &str| strsim::damerau_levenshtein(wrong, word);
    let best = known.iter().copied().min_by_key(|word| distance(word))?;
    (distance(best) <= 1 + wrong.chars().count() / 3).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive::core::time::Span;

    #[test]
    fn a_good_file_is_read_whole() {
        let text = r#"
            data = "var/redrive"
            output = "json"
            [queues.payments]
            max_retries = 2
            lease = "45s"
            exclude = ["Http*", "category:resource"]
            routes = { network = "payments-net" }
            [queues.payments.backoff]
            strategy = "list"
            delays = ["1s", "10s"]
        "#;
        let config = parse(text).unwrap();
        let policy = &config.queues[&"payments".parse().unwrap()].fresh;
        assert_eq!((policy.max_attempts, policy.lease), (3, Span::from_secs(45)));
        assert_eq!(policy.backoff.base(2), Span::from_secs(10));
        assert_eq!(policy.exclude.len(), 2);
        assert_eq!(config.output, Some(Format::Json));
    }

    #[test]
    fn only_the_settings_that_are_named_change() {
        let queue: QueueName = "q".parse().unwrap();
        let proposed = |text: &str, stored: &QueuePolicy| {
            parse(&format!("[queues.q]\n{text}")).unwrap().queues[&queue].on(Some(stored)).unwrap()
        };
        let everything = "max_attempts = 7\nttl = \"1h\"\nmax_messages = 9\ndlq = \"d\"\n\
                          routes = { network = \"net\", timeout = \"slow\" }\nhandling = { timeout = \"fast_retry\" }\n\
                          breaker = { key = \"kind\", failures = 3 }\nbackoff = { initial = \"2s\" }";
        let stored = proposed(everything, &QueuePolicy::default());
        assert_eq!((stored.max_attempts, stored.max_messages, stored.routes.len()), (7, Some(9), 2));
        let changed = proposed("lease = \"45s\"", &stored);
        assert_eq!(changed, QueuePolicy { lease: Span::from_secs(45), ..stored.clone() });
        let changed =
            proposed("backoff = { cap = \"9s\" }\nbreaker = { key = \"kind\", probes = 5 }", &stored);
        assert_eq!((changed.backoff.initial, changed.backoff.cap), (Span::from_secs(2), Span::from_secs(9)));
        assert_eq!(changed.breaker.map(|breaker| (breaker.failures, breaker.probes)), Some((3, 5)));
        let none = "ttl = \"none\"\nmax_messages = \"none\"\ndlq = \"none\"\nroutes = { network = \"none\" }\n\
                    handling = { timeout = \"none\" }\nbreaker = { key = \"none\" }";
        let taken = proposed(none, &stored);
        assert_eq!((taken.ttl, taken.max_messages, taken.dlq, taken.breaker), (None, None, None, None));
        assert_eq!((taken.routes.len(), taken.handling.len(), taken.max_attempts), (1, 0, 7));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_the_nearest_right_word() {
        for (text, says) in [
            ("dta = \"x\"", "line 1: unknown key `dta`; did you mean `data`?"),
            ("\n[queues.q]\nleese = \"5s\"", "line 3: unknown key `leese`; did you mean `lease`?"),
            (
                "[queues.q.backoff]\nstrtegy = \"fixed\"",
                "line 2: unknown key `strtegy`; did you mean `strategy`?",
            ),
            ("[queues.q.backoff]\nstrategy = \"fxed\"", "line 2: unknown word `fxed`; did you mean `fixed`?"),
            ("[queues.q]\nzzzzzz = 1", "known are max_attempts"),
            ("[queues.q]\nlease = \"5 parsecs\"", "line 2: \"5 parsecs\" is not a duration"),
            ("[queues.q]\nlease = -5", "line 2: not a duration such as"),
            ("[queues.q]\nmax_attempts = 0", "queue \"q\": max_attempts: 0 is outside 1 to 10000"),
            ("[queues.\"a b\"]\n", "is not a queue name"),
            ("[queues.q]\ndlq = \"q\"", "its own drawer"),
            ("[queues.q]\nmax_attempts = 1\nmax_retries = 1", "give one of them"),
            ("output = \"jsn\"", "did you mean `json`?"),
            ("[masking]\nkey = []", "line 2: unknown key `key`; did you mean `keys`?"),
            ("[masking]\nwithout = [\"emil\"]", "did you mean `email`?"),
            ("[masking]\nkeys = [\"*\"]", "masking.keys: \"*\" names no field"),
            ("= 5", "line 1: "),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_that_was_named_must_be_there() {
        let error = load(Some(Path::new("no/such/redrive.toml"))).unwrap_err();
        assert_eq!(error.code, crate::exit_code::ExitCode::Usage);
    }
}
