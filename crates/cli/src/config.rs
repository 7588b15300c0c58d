//! `redrive.toml`: read and checked completely before a command runs. An unknown key is an error that suggests the
//! nearest known one. The file proposes policies for queues; the policies in the store are authoritative.

use crate::exit_code::CliError;
use crate::output::{Format, TimeStyle};
use redrive::core::alert::AlertSettings;
use redrive::core::classify::{PatternSpec, Patterns};
use redrive::core::error::Refusal;
use redrive::core::failure::ClassifierRules;
use redrive::core::ids::QueueName;
use redrive::core::json_input;
use redrive::core::masking::{MaskingSpec, Rules};
use redrive::core::policy::QueuePolicy;
use redrive::core::policy_change::PolicyChange;
use redrive::core::signature::{SignatureRule, SignatureRules};
use redrive::push::PushSettings;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// The file that is read if it exists and no other was named.
pub(crate) const DEFAULT_PATH: &str = "redrive.toml";
/// The maximum size of a configuration file.
const BYTES_MAX: u64 = 1024 * 1024;

/// A checked configuration.
#[derive(Debug, Default)]
pub(crate) struct Config {
    /// The data directory.
    pub data: Option<PathBuf>,
    /// The name for the audit trail.
    pub actor: Option<String>,
    /// The output format.
    pub output: Option<Format>,
    /// The style of times in tables.
    pub time: Option<TimeStyle>,
    /// The proposed policies of queues.
    pub queues: BTreeMap<QueueName, Proposal>,
    /// How `serve` is set up.
    pub server: ServerSettings,
    /// The user's rules for grouping, patterns for classifying errors, and masking rules.
    pub known: ClassifierRules,
    /// The rules and channels of alerts.
    pub alerts: AlertSettings,
    /// The settings of push queues.
    pub push: PushSettings,
}

/// The settings of one queue in a configuration file.
#[derive(Debug)]
pub(crate) struct Proposal {
    /// The settings that the file names.
    change: PolicyChange,
    /// The policy of a new queue: the default policy with these settings.
    pub fresh: QueuePolicy,
}

impl Proposal {
    /// Applies the settings to a stored policy; other settings keep their stored values.
    ///
    /// # Errors
    /// Returns a description of settings that contradict others.
    pub(crate) fn on(&self, stored: Option<&QueuePolicy>) -> Result<QueuePolicy, String> {
        let changed = |policy| self.change.apply(policy).map_err(|refusal| refusal.to_string());
        stored.map_or_else(|| Ok(self.fresh.clone()), changed)
    }
}

/// The TOML of the file.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ConfigToml {
    data: Option<PathBuf>,
    actor: Option<String>,
    output: Option<Format>,
    time: Option<TimeStyle>,
    queues: BTreeMap<String, PolicyChange>,
    classify: ClassifyToml,
    signature: SignatureToml,
    masking: MaskingSpec,
    server: ServerSettings,
    alerts: AlertSettings,
    push: PushSettings,
}

/// The `[classify]` section.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ClassifyToml {
    pattern: Vec<PatternSpec>,
}

/// The `[signature]` section.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SignatureToml {
    rule: Vec<SignatureRule>,
}

/// The smallest and the largest limit for the body of a request. A smaller one would refuse what every client sends, and
/// a whole batch of the store fits into the largest one, with its payloads as base64.
const BODY_LIMIT_MIN: usize = 1024;
const BODY_LIMIT_MAX: usize = 128 * 1024 * 1024;

/// The `[server]` section: the settings of `serve` for which it has no flag given. `--no-auth` is not among them, so that
/// nobody forgets it in a file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ServerSettings {
    /// The addresses to listen on; none means loopback.
    pub listen: Vec<SocketAddr>,
    /// The host names under which clients reach the server.
    pub hosts: Vec<String>,
    /// The file with the certificate chain.
    pub tls_cert: Option<PathBuf>,
    /// The file with the key of the certificate.
    pub tls_key: Option<PathBuf>,
    /// Whether a proxy in front of the server speaks TLS.
    pub behind_proxy: bool,
    /// The name of the installation.
    pub instance: Option<String>,
    /// The colour of the installation.
    pub colour: Option<redrive_server::Colour>,
    /// The number of requests per second for each token.
    pub rate: Option<u32>,
    /// The largest body of a request, in bytes.
    pub body_bytes_max: Option<usize>,
    /// The largest body of a request with a batch, in bytes.
    pub batch_bytes_max: Option<usize>,
    /// The address under which people reach the server, for links in alerts.
    pub url: Option<String>,
}

impl ServerSettings {
    fn check(&self) -> Result<(), String> {
        if self.tls_cert.is_some() != self.tls_key.is_some() {
            return Err("server: tls_cert and tls_key belong together; give both".into());
        }
        if self.rate == Some(0) {
            return Err("server: rate: 0 would refuse every request; leave it out for no limit".into());
        }
        for (name, max) in
            [("body_bytes_max", self.body_bytes_max), ("batch_bytes_max", self.batch_bytes_max)]
        {
            if max.is_some_and(|max| !(BODY_LIMIT_MIN..=BODY_LIMIT_MAX).contains(&max)) {
                return Err(format!("server: {name}: from {BODY_LIMIT_MIN} to {BODY_LIMIT_MAX} bytes"));
            }
        }
        let is_http = |url: &String| url.starts_with("http://") || url.starts_with("https://");
        if self.url.as_ref().is_some_and(|url| !is_http(url)) {
            return Err("server: url: write it out, such as https://redrive.example.com".into());
        }
        self.hosts
            .iter()
            .try_for_each(|name| host_name(name).map(drop))
            .map_err(|why| format!("server: hosts: {why}"))
    }
}

/// Parses the name of a host, without scheme and port.
pub(crate) fn host_name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let address = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let valid = match address {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => !text.is_empty() && text.chars().all(plain),
    };
    if valid {
        Ok(text.to_owned())
    } else {
        Err(format!("{text:?} is not a host name such as redrive.example"))
    }
}

/// Reads the named file, or the default one if it exists.
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
            return Err(wrong(error.to_string()).hint("run `redrive init` to write one with comments"));
        }
    }
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let mut config = parse(&text).map_err(wrong)?;
    // A relative path in the file is relative to the file.
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    config.data = config.data.map(|data| folder.join(data));
    for file in [&mut config.server.tls_cert, &mut config.server.tls_key].into_iter().flatten() {
        *file = folder.join(&*file);
    }
    Ok(config)
}

/// Parses and checks the text of a configuration.
pub(crate) fn parse(text: &str) -> Result<Config, String> {
    let toml: ConfigToml = ::toml::from_str(text).map_err(|error| {
        let at = error.span().map(|span| line_of(text, span.start)).unwrap_or_default();
        format!("{at}{}", json_input::explain(error.message()))
    })?;
    let mut queues = BTreeMap::new();
    for (name, change) in toml.queues {
        let of_queue = |what: String| format!("queue {name:?}: {what}");
        let queue: QueueName =
            name.parse().map_err(|e: redrive::core::ids::IdError| of_queue(e.to_string()))?;
        let fresh =
            change.apply(&QueuePolicy::default()).map_err(|refusal| of_setting(text, &name, refusal))?;
        fresh.check(&queue).map_err(|refusal| of_queue(refusal.to_string()))?;
        queues.insert(queue, Proposal { change, fresh });
    }
    let known = ClassifierRules {
        rules: SignatureRules::compile(&toml.signature.rule).map_err(|error| error.to_string())?,
        patterns: Patterns::compile(&toml.classify.pattern).map_err(|refusal| refusal.to_string())?,
        masking: Rules::compile(&toml.masking).map_err(|refusal| refusal.to_string())?,
    };
    toml.alerts.check().map_err(|refusal| of_section(text, refusal))?;
    toml.push.check().map_err(|refusal| of_section(text, refusal))?;
    let ConfigToml { data, actor, output, time, server, alerts, push, .. } = toml;
    server.check()?;
    Ok(Config { data, actor, output, time, queues, known, server, alerts, push })
}

/// Describes a setting of a queue that cannot be merged, with the line it is on.
fn of_setting(text: &str, queue: &str, refusal: Refusal) -> String {
    let Refusal::Invalid { field, why } = refusal else { return format!("queue {queue:?}: {refusal}") };
    let path = ["queues", queue].into_iter().chain(field.split('.'));
    let line = position(text, path).map(|at| line_of(text, at)).unwrap_or_default();
    format!("{line}{}", json_input::explain(&why))
}

/// Describes a setting that does not belong to a queue, with the line it is on.
fn of_section(text: &str, refusal: Refusal) -> String {
    let Refusal::Invalid { field, why } = refusal else { return refusal.to_string() };
    let line = position(text, field.split('.')).map(|at| line_of(text, at)).unwrap_or_default();
    format!("{line}{field}: {why}")
}

/// Where the last key of a path that the text contains begins.
fn position<'a>(text: &str, path: impl Iterator<Item = &'a str>) -> Option<usize> {
    let document = toml::de::DeTable::parse(text).ok()?;
    let (mut table, mut found) = (document.get_ref(), None);
    for name in path {
        let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref() == name) else { break };
        found = Some(key.span().start);
        let Some(inside) = value.get_ref().as_table() else { break };
        table = inside;
    }
    found
}

fn line_of(text: &str, at: usize) -> String {
    let before = text.get(..at).unwrap_or(text);
    format!("line {}: ", before.matches('\n').count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive::core::time::Span;

    #[test]
    fn a_valid_file_is_read() {
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
    fn errors_name_the_line_and_suggest_the_nearest_word() {
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
            ("[queues.q]\ndlq = \"q\"", "its own dead letter queue"),
            ("[queues.q]\nmax_attempts = 1\nmax_retries = 1", "give one of them"),
            ("output = \"jsn\"", "did you mean `json`?"),
            ("[masking]\nkey = []", "line 2: unknown key `key`; did you mean `keys`?"),
            ("[masking]\nwithout = [\"emil\"]", "did you mean `email`?"),
            ("[masking]\nkeys = [\"*\"]", "masking.keys: \"*\" names no field"),
            ("[server]\nlissten = []", "line 2: unknown key `lissten`; did you mean `listen`?"),
            ("[server]\nlisten = [\"localhost\"]", "line 2: invalid socket address"),
            ("[server]\nhosts = [\"https://a.example\"]", "is not a host name"),
            ("[server]\ntls_cert = \"c.pem\"", "belong together"),
            ("[server]\nrate = 0", "would refuse every request"),
            ("[alerts]\nevry = \"1m\"", "unknown key `evry`; did you mean `every`?"),
            ("[alerts.rules.dpth]\nlimit = 5", "did you mean `depth`?"),
            ("[alerts.rules.depth]\nlimt = 5", "did you mean `limit`?"),
            ("[alerts.rules.depth]\nlimit = 5\nclear = 6", "line 3: alerts.rules.depth.clear"),
            (
                "[alerts.rules.depth]\nchannels = [\"op\"]\n[alerts.channels.ops]\ntype = \"log\"",
                "did you mean `ops`?",
            ),
            ("[alerts.channels.ops]\ntype = \"slak\"\nurl = \"x\"", "did you mean `slack`?"),
            ("[alerts.channels.ops]\ntype = \"slack\"\nurl = \"ftp://x\"", "line 3: alerts.channels.ops.url"),
            ("[push]\nconcurrency = 0", "line 2: push.concurrency"),
            ("[server]\nurl = \"redrive\"", "write it out"),
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
