//! What partial changes mean, setting by setting.

use super::*;
use crate::backoff::Growth;
use crate::target::Target;
use crate::time::Span;
use serde_json::json;

fn applied(change: Value, policy: &QueuePolicy) -> Result<QueuePolicy, Refusal> {
    let change: PolicyChange = serde_json::from_value(change).expect("an object");
    change.apply(policy)
}

fn fresh(change: Value) -> QueuePolicy {
    applied(change, &QueuePolicy::default()).expect("it fits")
}

fn refused(change: Value, policy: &QueuePolicy) -> String {
    applied(change, policy).expect_err("it does not fit").to_string()
}

#[test]
fn settings_that_are_not_named_stay() {
    let old = QueuePolicy { max_attempts: 9, ttl: Some(Span::from_secs(5)), ..QueuePolicy::default() };
    assert_eq!(applied(json!({}), &old).unwrap(), old);
    let new = applied(json!({"lease": "45s", "ttl": "none", "max_messages": 10}), &old).unwrap();
    let expected =
        QueuePolicy { lease: Span::from_secs(45), ttl: None, max_messages: Some(10), ..old.clone() };
    assert_eq!(new, expected);
    let reset = applied(json!({"max_attempts": null, "ttl_ms": null}), &old).unwrap();
    assert_eq!((reset.max_attempts, reset.ttl), (5, None), "null is the default");
}

#[test]
fn every_setting_of_a_policy_has_a_row() {
    let mut everything = fresh(json!({
        "dlq": "d", "ttl": "1h", "open_ttl": "2h", "max_messages": 1, "max_bytes": 2, "search_payload": true,
        "routes": {"network": "n"}, "handling": {"timeout": "fast_retry"}, "breaker": {"key": "kind"},
        "auto_redrive": {"limit": 1}, "target": {"url": "https://a.example/"},
    }));
    everything.include.push("Bad*".parse().unwrap());
    let all = document(&everything).unwrap();
    let whole = PolicyChange(all.clone());
    assert_eq!(whole.apply(&QueuePolicy::default()).unwrap(), everything, "a policy is a change to itself");
    for name in all.keys() {
        let short = name.strip_suffix("_ms").unwrap_or(name);
        assert!(POLICY.iter().any(|(known, _)| *known == short), "{name}");
    }
}

#[test]
fn retries_are_attempts_less_one() {
    assert_eq!(fresh(json!({"max_retries": 2})).max_attempts, 3);
    let both = json!({"max_retries": 2, "max_attempts": 3});
    assert!(refused(both, &QueuePolicy::default()).contains("give one of them"));
    assert!(refused(json!({"max_retries": "x"}), &QueuePolicy::default()).contains("not a number"));
}

#[test]
fn by_category_has_no_ceiling_unless_one_is_given() {
    let policy = fresh(json!({"strategy": "by_category"}));
    assert_eq!(policy, QueuePolicy::by_category());
    assert_eq!(fresh(json!({"strategy": "by_category", "max_attempts": 4})).max_attempts, 4);
    assert_eq!(applied(json!({"strategy": "queue"}), &policy).unwrap(), QueuePolicy::default());
    let three = QueuePolicy { max_attempts: 3, ..QueuePolicy::default() };
    assert_eq!(applied(json!({"strategy": "by_category"}), &three).unwrap().max_attempts, 3);
}

#[test]
fn an_automatic_redrive_is_set_changed_and_taken_away() {
    let rule = |limit, backoff| Some(AutoRedrive { limit, backoff });
    let set = fresh(json!({"auto_redrive": {"limit": 3}}));
    assert_eq!(set.auto_redrive, rule(3, Span::from_hours(1)));
    let slower = applied(json!({"auto_redrive": {"backoff": "2h"}}), &set).unwrap();
    assert_eq!(slower.auto_redrive, rule(3, Span::from_hours(2)));
    for gone in [json!({"auto_redrive": "none"}), json!({"auto_redrive": {"limit": "none"}})] {
        assert_eq!(applied(gone, &slower).unwrap().auto_redrive, None);
    }
    assert!(refused(json!({"auto_redrive": {"backoff": "2h"}}), &QueuePolicy::default()).contains("limit"));
}

#[test]
fn a_breaker_is_named_by_its_key_and_changed_in_part() {
    let policy = fresh(json!({"breaker": {"key": "header:region", "failures": 3}}));
    let rules = policy.breaker.clone().unwrap();
    assert_eq!((rules.key.to_string().as_str(), rules.failures, rules.probes), ("header:region", 3, 3));
    let longer = applied(json!({"breaker": {"open_for": "20m"}}), &policy).unwrap().breaker.unwrap();
    assert_eq!(
        (longer.failures, longer.open_for, longer.open_max),
        (3, Span::from_secs(1_200), longer.open_for)
    );
    assert_eq!(applied(json!({"breaker": {"key": "none"}}), &policy).unwrap().breaker, None);
    assert!(refused(json!({"breaker": {"failures": 3}}), &QueuePolicy::default()).contains("needs a key"));
    assert!(applied(json!({"breaker": {"key": "host"}}), &policy).is_err());
}

#[test]
fn lists_are_replaced_and_names_are_merged() {
    let policy =
        fresh(json!({"include": ["Bad*", "category:poison"], "routes": {"network": "n", "timeout": "t"}}));
    assert_eq!((policy.include.len(), policy.routes.len()), (2, 2));
    let less = applied(json!({"include": "none", "routes": {"network": "none"}}), &policy).unwrap();
    assert_eq!((less.include.len(), less.routes.len()), (0, 1));
    assert!(applied(json!({"include": ["none"]}), &policy).unwrap().include.is_empty());
}

#[test]
fn backoffs_change_in_part_and_contradictions_are_refused() {
    let policy = fresh(json!({"backoff": {"strategy": "exponential", "multiplier": 3}}));
    let policy = applied(json!({"backoff": {"initial": "2s", "jitter": "none"}}), &policy).unwrap();
    assert_eq!(policy.backoff.growth, Growth::Exponential { multiplier: 3.0 });
    assert_eq!(policy.backoff.initial, Span::from_secs(2));
    let listed = applied(json!({"backoff": {"delays": ["1s", "10s"]}}), &policy).unwrap();
    assert_eq!(listed.backoff.base(5), Span::from_secs(10));
    let fixed = applied(json!({"backoff": {"strategy": "fixed", "initial": 0}}), &listed).unwrap();
    assert_eq!(fixed.backoff.base(7), Span::ZERO);
    let again = applied(json!({"backoff": {"strategy": "exponential"}}), &fixed).unwrap();
    assert_eq!(again.backoff.growth, Growth::Exponential { multiplier: 2.0 });
    for wrong in [
        json!({"strategy": "list"}),
        json!({"strategy": "fixed", "multiplier": 2}),
        json!({"strategy": "linear", "delays": ["1s"]}),
        json!({"jitter": "some"}),
        json!({"strategy": "fxed"}),
    ] {
        assert!(applied(json!({ "backoff": wrong }), &QueuePolicy::default()).is_err());
    }
}

#[test]
fn a_target_is_changed_in_part_and_replaced_by_one_of_the_other_kind() {
    let made = fresh(json!({"target": {"url": "https://a.example/", "headers": {"X-A": "b"}}}));
    let made = applied(json!({"target": {"timeout": "5s", "dead_letter_on": [400, 422]}}), &made).unwrap();
    let moved = applied(json!({"target": {"url": "https://b.example/"}}), &made).unwrap();
    let Some(Target::Http(http)) = &moved.target else { panic!("{moved:?}") };
    assert_eq!((http.url.as_str(), http.timeout), ("https://b.example/", Span::from_secs(5)));
    assert_eq!((http.headers.len(), http.dead_letter_on.len()), (1, 2));
    assert_eq!(applied(json!({"target": "none"}), &moved).unwrap().target, None);
    assert!(refused(json!({"target": {"env": {"A": "b"}}}), &moved).contains("belongs to a command"));

    let command = applied(json!({"target": {"argv": ["./h"], "env": {"A": "b"}}}), &moved).unwrap();
    let shell = applied(json!({"target": {"shell": "grep ok"}}), &command).unwrap();
    let Some(Target::Command(target)) = &shell.target else { panic!("{shell:?}") };
    assert!(target.argv.is_empty() && target.env.len() == 1, "{target:?}");
    assert!(refused(json!({"target": {"method": "GET"}}), &shell).contains("belongs to a URL"));
    assert!(refused(json!({"target": {"timeout": "5s"}}), &QueuePolicy::default()).contains("no target"));
}

#[test]
fn what_is_wrong_is_named_by_its_path() {
    let field = |change| {
        let refusal = applied(change, &QueuePolicy::default()).unwrap_err();
        let Refusal::Invalid { field, .. } = refusal else { panic!("{refusal}") };
        field
    };
    assert_eq!(field(json!({"leese": "5s"})), "leese");
    assert_eq!(field(json!({"lease": "5 parsecs"})), "lease");
    assert_eq!(field(json!({"lease": "5s", "lease_ms": 5})), "lease_ms");
    assert_eq!(field(json!({"lease": "5s", "backoff": {"strtegy": "fixed"}})), "backoff.strtegy");
    assert_eq!(field(json!({"breaker": {"key": "kind", "probes": "x"}})), "breaker");
    let known = refused(json!({"zzz": 1}), &QueuePolicy::default());
    assert!(known.contains("expected one of `max_attempts`"), "{known}");
}
