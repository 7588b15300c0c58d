//! What every role may do, and what a token that is limited to some queues may not.

use super::*;
use crate::dead_letter::{Act, ActRequest, Actor};
use crate::ids::{MessageId, QueueName};
use crate::message::{NewMessage, Payload};
use crate::query::Query;
use crate::time::{Span, Time};

fn access(roles: &[Grant], queues: &[&str]) -> Access {
    Access {
        name: "ada".into(),
        roles: roles.iter().copied().collect(),
        queues: queues.iter().map(|pattern| pattern.parse().unwrap()).collect(),
    }
}

fn queue(name: &str) -> QueueName {
    name.parse().unwrap()
}

fn id() -> MessageId {
    MessageId::new(1, [1; 10])
}

fn act(act: Act) -> Call {
    let actor = Actor::new("mallory", "api");
    Call::Act { batch: vec![ActRequest { id: id(), act, expected_version: None, actor }] }
}

#[test]
fn a_role_allows_what_its_description_says_and_nothing_else() {
    use Role::{Admin, Editor, Operator, Producer, Viewer, Worker};
    let all = [Viewer, Producer, Worker, Operator, Editor, Admin];
    for (grant, included) in [
        (Grant::MaskedViewer, &[Viewer][..]),
        (Grant::Viewer, &[Viewer]),
        (Grant::Producer, &[Producer]),
        (Grant::Worker, &[Worker]),
        (Grant::Operator, &[Viewer, Operator]),
        (Grant::Editor, &[Viewer, Operator, Editor]),
        (Grant::Admin, &all),
    ] {
        for role in all {
            assert_eq!(grant.includes(role), included.contains(&role), "{grant} {role}");
        }
    }
}

#[test]
fn nobody_acts_in_another_name() {
    let mut call = act(Act::Resolve);
    access(&[Grant::Operator], &[]).admit(&mut call).unwrap();
    assert!(call.actors_mut().iter().all(|actor| actor.name == "ada"));
}

#[test]
fn a_missing_role_is_named() {
    let refused = access(&[Grant::Viewer], &[]).admit(&mut act(Act::Resolve)).unwrap_err();
    assert!(matches!(&refused, Refusal::NotAllowed { .. }));
    assert!(refused.to_string().contains("operator"), "{refused}");
    let editing = Act::Restore { n: 0 };
    assert!(
        access(&[Grant::Operator], &[]).admit(&mut act(editing)).unwrap_err().to_string().contains("editor")
    );
    assert!(
        access(&[Grant::Editor], &[]).admit(&mut act(Act::Purge)).unwrap_err().to_string().contains("admin")
    );
}

#[test]
fn only_some_viewers_reveal() {
    let reveal = || Call::Disclose {
        disclosure: crate::disclosure::Disclosure::of(crate::disclosure::Disclosed::Letter, id()),
        actor: Actor::new("x", "api"),
    };
    assert!(access(&[Grant::MaskedViewer], &[]).admit(&mut reveal()).is_err());
    assert!(access(&[Grant::Viewer], &[]).admit(&mut reveal()).is_ok());
}

#[test]
fn a_token_for_some_queues_reaches_no_others() {
    let limited = access(&[Grant::Admin], &["payments", "mail-*"]);
    let send =
        |name: &str| Call::Enqueue { batch: vec![NewMessage::new(id(), queue(name), Payload::default())] };
    for name in ["payments", "mail-eu", "mail-"] {
        assert_eq!(limited.admit(&mut send(name)), Ok(Lookup::Nothing), "{name}");
    }
    for name in ["payments2", "mail", "orders"] {
        assert!(limited.admit(&mut send(name)).is_err(), "{name}");
    }
    assert!(limited.admit(&mut Call::Wait { queues: vec![queue("orders")], at_most: Span::ZERO }).is_err());
    assert!(limited.admit(&mut Call::Groups { query: Default::default() }).is_err());
    assert!(limited.admit(&mut Call::Queues {}).is_err());
    assert_eq!(limited.admit(&mut act(Act::Resolve)), Ok(Lookup::QueuesOfLetters(vec![id()])));
    let away = Act::Move { dlq: queue("orders-dlq") };
    assert!(limited.admit(&mut act(away)).is_err());
}

#[test]
fn a_list_is_narrowed_to_the_queues_of_the_token() {
    let limited = access(&[Grant::Viewer], &["payments", "mail-*"]);
    let mut call = Call::Letters { query: Query::default() };
    limited.admit(&mut call).unwrap();
    let Call::Letters { query } = &call else { panic!("the verb changed") };
    assert_eq!(query.filter.text(), "queue:payments or queue:mail-*");
    let filter = crate::filter::Filter::parse("status:pending or queue:orders").unwrap();
    let mut call = Call::Letters { query: Query { filter, ..Query::default() } };
    limited.admit(&mut call).unwrap();
    let Call::Letters { query } = &call else { panic!("the verb changed") };
    assert_eq!(query.filter.text(), "(queue:payments or queue:mail-*) and (status:pending or queue:orders)");
}

#[test]
fn patterns_match_whole_names() {
    for (pattern, name, matches) in [
        ("a", "a", true),
        ("a", "ab", false),
        ("a*", "ab", true),
        ("*a", "ba", true),
        ("*a", "ab", false),
        ("a*b", "ab", true),
        ("a*b", "a", false),
        ("a*b*c", "axbxc", true),
        ("a*b*c", "axcxb", false),
        ("*", "anything", true),
        ("a*a", "a", false),
    ] {
        let pattern: QueuePattern = pattern.parse().unwrap();
        assert_eq!(pattern.matches(&queue(name)), matches, "{pattern} {name}");
    }
    for wrong in ["", "a b", "queue:x) or (status:pending", "../x", "\"x\""] {
        assert!(wrong.parse::<QueuePattern>().is_err(), "{wrong}");
    }
}

#[test]
fn tokens_read_back_and_only_their_hash_is_kept() {
    let token = Token::new([1; 6], [2; 32]);
    let text = token.reveal();
    assert!(text.starts_with("rdt_010101010101_0202"));
    let again: Token = text.parse().unwrap();
    let record = TokenRecord::new(&token, Access::everything("ada"), "bob".into(), Time::ZERO, None);
    assert!(record.is_of(&again));
    assert!(!record.is_of(&Token::new([1; 6], [3; 32])));
    assert!(!record.is_of(&Token::new([9; 6], [2; 32])));
    let kept = serde_json::to_string(&record).unwrap();
    assert!(!kept.contains("0202020202"), "{kept}");
    assert!(!format!("{token:?}").contains("0202"));
    for wrong in ["", "rdt_", "rdt_010101010101", &text.replace('_', "-"), &text[..text.len() - 1]] {
        let error = wrong.parse::<Token>().unwrap_err().to_string();
        assert!(!error.contains("0202"), "{error}");
    }
}
