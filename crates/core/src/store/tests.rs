//! The table of verbs: calls survive the journey, and nobody can act in somebody else's name.

use super::*;
use crate::dead_letter::Act;
use crate::filter::Filter;
use crate::ids::{LeaseToken, Secret};
use crate::recording::OutsideAct;

fn actor() -> Actor {
    Actor { reason: Some("an outage".into()), ..Actor::new("mallory", "api") }
}

fn id(n: u8) -> MessageId {
    MessageId::new(1, [n; 10])
}

/// One call of every verb that names an actor.
fn calls_with_actors() -> Vec<Call> {
    let queue = || "payments".parse::<QueueName>().unwrap();
    let group = || "5a00000000000001".parse::<GroupId>().unwrap();
    let operation = OperationId::new(id(7));
    let request = ActRequest { id: id(1), act: Act::Resolve, actor: actor(), expected_version: None };
    let settlement = LetterSettlement {
        token: LeaseToken { id: id(1), secret: Secret::new([9; 16]) },
        what: LetterSettle::Do { act: Act::Abandon, actor: actor() },
    };
    let spec = OperationSpec::new(operation, Act::retry(), Filter::default(), actor());
    vec![
        Call::Cancel { ids: vec![id(1)], actor: actor() },
        Call::Configure { name: queue(), policy: QueuePolicy::default(), actor: actor() },
        Call::Pause { name: queue(), paused: true, actor: actor() },
        Call::Purge { name: queue(), actor: actor() },
        Call::ForceBreaker { queue: queue(), key: "eu".into(), open: true, actor: actor() },
        Call::SettleLetters { batch: vec![settlement] },
        Call::Act { batch: vec![request.clone(), request] },
        Call::ActOnGroup { id: group(), act: GroupAct::Resolve, actor: actor() },
        Call::Mark { text: "deploy".into(), actor: actor() },
        Call::MergeGroups { groups: vec![group()], actor: actor() },
        Call::LabelGroup { id: group(), category: None, actor: actor() },
        Call::Disclose {
            disclosure: Disclosure::of(crate::disclosure::Disclosed::Payload, id(1)),
            actor: actor(),
        },
        Call::Import { batch: Vec::new(), actor: actor() },
        Call::HandOver { batch: Vec::new(), actor: actor() },
        Call::Start { spec },
        Call::Control { id: operation, control: Control::Pause, actor: actor() },
        Call::AuditTrim { before: Time::from_millis(5), actor: actor() },
        Call::Record { batch: vec![RecordRequest::new(OutsideAct::RevokeToken, actor(), "t")] },
    ]
}

#[test]
fn a_server_replaces_every_actor_of_a_call() {
    let mut seen = Vec::new();
    for mut call in calls_with_actors() {
        seen.push(call.verb());
        let mut named = 0;
        for actor in call.actors_mut() {
            actor.name = "ada".into();
            named += 1;
        }
        assert!(named > 0, "{} names nobody", call.verb());
        let json = serde_json::to_string(&call).unwrap();
        assert!(!json.contains("mallory"), "{json}");
        assert!(json.contains("an outage"), "the reason stays: {json}");
    }
    let expected: Vec<_> = VERBS.iter().filter(|verb| verb.names_actor).map(|verb| verb.name).collect();
    assert_eq!(seen, expected, "every verb with an actor is tried, in the order of the table");
}

#[test]
fn calls_survive_the_journey() {
    let plain = [
        Call::Queues {},
        Call::Wait { queues: vec!["q".parse().unwrap()], at_most: Span::from_secs(5) },
        Call::KvPut { namespace: "n".into(), key: "k".into(), value: Some(vec![0, 255]), expected: 3 },
        Call::Letters { query: Query::default() },
    ];
    for call in plain.into_iter().chain(calls_with_actors()) {
        let json = serde_json::to_value(&call).unwrap();
        assert_eq!(json["verb"], call.verb(), "{json}");
        let back: Call = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(serde_json::to_value(&back).unwrap(), json);
    }
}

#[test]
fn what_an_act_does_decides_the_role() {
    let request = |act| ActRequest { id: id(1), act, actor: actor(), expected_version: None };
    let act = |acts: Vec<Act>| Call::Act { batch: acts.into_iter().map(request).collect() }.role();
    assert_eq!(act(vec![Act::Resolve, Act::Note]), Role::Operator);
    assert_eq!(act(vec![Act::Resolve, Act::Restore { n: 1 }]), Role::Editor);
    assert_eq!(act(vec![Act::Erase, Act::Restore { n: 1 }]), Role::Admin, "the most demanding act decides");
    let start = |act| {
        let operation = OperationId::new(id(7));
        Call::Start { spec: OperationSpec::new(operation, act, Filter::default(), actor()) }.role()
    };
    assert_eq!((start(Act::retry()), start(Act::Purge)), (Role::Operator, Role::Admin));
    assert_eq!(Call::SettleLetters { batch: Vec::new() }.role(), Role::Worker);
    assert_eq!(Call::Enqueue { batch: Vec::new() }.role(), Role::Producer);
}

#[test]
fn a_reply_comes_back_as_it_was_also_when_it_is_a_refusal() {
    use crate::error::{CallError, Refusal};
    for encoding in [Encoding::Json, Encoding::Compact] {
        let mut buffer = b"head".to_vec();
        encoding.encode(&mut buffer, &StoreResult::Ok(17_u64)).unwrap();
        assert_eq!(decode_reply::<u64>(encoding, &buffer[4..]).unwrap(), 17);
        buffer.push(b'0');
        let error = decode_reply::<u64>(encoding, &buffer[4..]).unwrap_err();
        assert!(matches!(error, CallError::Store(_)), "a byte too many: {error}");
        let refusal = CallError::Refused(Refusal::NoSuchQueue { queue: "q".parse().unwrap() });
        buffer.clear();
        encoding.encode(&mut buffer, &StoreResult::<u64>::Err(refusal)).unwrap();
        let error = decode_reply::<u64>(encoding, &buffer).unwrap_err();
        assert!(matches!(error, CallError::Refused(Refusal::NoSuchQueue { .. })), "{error}");
        assert!(matches!(decode_reply::<u64>(encoding, b"{").unwrap_err(), CallError::Store(_)));
    }
}

/// A message with everything in it that an encoding could lose: bytes that are no text, numbers at the edge of what a
/// float can hold, empty and missing values.
fn demanding_message(payload: &[u8]) -> NewMessage {
    use crate::message::Payload;
    let payload = Payload { bytes: payload.to_vec(), content_type: "x/y".into() };
    let mut new = NewMessage::new(MessageId::new(1, [0xff; 10]), "q".parse().unwrap(), payload);
    new.context = Some(serde_json::json!({
        "largest": u64::MAX, "smallest": i64::MIN, "float": 0.1, "whole float": 1.0, "tiny": 5e-324, "zero": -0.0,
        "nested": [[[{}]], null, true, "", "\u{0}\u{10ffff}"],
    }));
    new.headers.insert(String::new(), "ž\u{0}".into());
    new.tags.insert("t".into());
    new.key = Some(String::new());
    new.delay = Some(Span::from_days(3_650));
    new.deadline = Some(Time::NEVER);
    new.max_attempts = Some(u32::MAX);
    new
}

#[test]
fn a_message_is_the_same_in_every_encoding_bit_for_bit() {
    let payloads: [&[u8]; 6] =
        [b"", b"{\"n\": 1.0}", &[0xff, 0, 1], "žluť\u{0}".as_bytes(), &[0xc3, 0x28], b"wyg="];
    for payload in payloads {
        let new = demanding_message(payload);
        let record = new.clone().accept(&QueuePolicy::default(), 7, Time::from_millis(5));
        let message = record.view(&QueuePolicy::default(), Time::from_millis(5));
        let secret = Secret::new([7; 16]);
        let token = LeaseToken { id: new.id, secret };
        let delivery = Delivery { message, token, attempt: 3 };
        for encoding in [Encoding::Json, Encoding::Compact] {
            let mut buffer = Vec::new();
            encoding.encode(&mut buffer, &Call::Enqueue { batch: vec![new.clone()] }).unwrap();
            let Call::Enqueue { batch } = encoding.decode(&buffer).unwrap() else {
                panic!("another call came back")
            };
            assert_eq!(batch, vec![new.clone()], "{encoding:?}");
            buffer.clear();
            encoding.encode(&mut buffer, &StoreResult::Ok(vec![delivery.clone()])).unwrap();
            assert_eq!(
                decode_reply::<Vec<Delivery>>(encoding, &buffer),
                Ok(vec![delivery.clone()]),
                "{encoding:?}"
            );
            assert_eq!(
                buffer.windows(payload.len().max(1)).any(|bytes| bytes == payload) || payload.is_empty(),
                encoding == Encoding::Compact
                    || std::str::from_utf8(payload).is_ok_and(|text| !text.contains(['"', '\0'])),
                "{encoding:?} carries {payload:?} as it is"
            );
        }
    }
}
