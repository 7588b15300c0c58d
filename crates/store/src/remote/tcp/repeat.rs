//! Which calls may be sent again when it is not known whether they were carried out. This decides and does nothing.

use redrive_core::dead_letter::Actor;
use redrive_core::store::Call;

/// Whether repeating a call has the same effect and the same answer as one that arrived once: it changes nothing, or it
/// carries something by which the store recognises it (I36, I41, I42).
pub(super) fn is_harmless(call: &Call) -> bool {
    match call {
        Call::Wait { .. }
        | Call::Messages { .. }
        | Call::Message { .. }
        | Call::KeyState { .. }
        | Call::Queues {}
        | Call::Queue { .. }
        | Call::WaitingFor {}
        | Call::Breakers {}
        | Call::Workers {}
        | Call::Letters { .. }
        | Call::Letter { .. }
        | Call::Revisions { .. }
        | Call::Dlqs {}
        | Call::Groups { .. }
        | Call::Group { .. }
        | Call::GroupDetail { .. }
        | Call::Markers { .. }
        | Call::Export { .. }
        | Call::Preview { .. }
        | Call::Operation { .. }
        | Call::Operations { .. }
        | Call::Members { .. }
        | Call::Audit { .. }
        | Call::AuditVerify { .. }
        | Call::Info {}
        | Call::Stats {}
        | Call::Changes { .. }
        | Call::IdsEnding { .. }
        | Call::KvGet { .. }
        | Call::KvList { .. } => true,
        Call::Verify { request } => !request.repair,
        // The id alone is forgotten when the message is done, which may be before the call arrives again. A key is
        // remembered for longer.
        Call::Enqueue { batch } => batch.iter().all(|message| message.key.is_some()),
        // Started once for each id.
        Call::Start { .. } => true,
        Call::Cancel { actor, .. }
        | Call::Configure { actor, .. }
        | Call::Pause { actor, .. }
        | Call::Purge { actor, .. }
        | Call::ForceBreaker { actor, .. }
        | Call::ActOnGroup { actor, .. }
        | Call::Mark { actor, .. }
        | Call::MergeGroups { actor, .. }
        | Call::LabelGroup { actor, .. }
        | Call::Import { actor, .. }
        | Call::HandOver { actor, .. }
        | Call::Control { actor, .. }
        | Call::AuditTrim { actor, .. } => has_request_key(actor),
        // The key of a batch is that of its first entry.
        Call::Act { batch } => batch.first().is_some_and(|first| has_request_key(&first.actor)),
        // A second lease takes other messages, a second settlement is refused although the first one counted, and the
        // rest does its work again.
        Call::Lease { .. }
        | Call::Settle { .. }
        | Call::Reap { .. }
        | Call::Tidy { .. }
        | Call::LeaseLetters { .. }
        | Call::SettleLetters { .. }
        | Call::Disclose { .. }
        | Call::IndexText { .. }
        | Call::Step { .. }
        | Call::Backup { .. }
        | Call::KvPut { .. }
        | Call::Record { .. } => false,
    }
}

const fn has_request_key(actor: &Actor) -> bool {
    actor.request.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_core::dead_letter::RequestKey;
    use redrive_core::ids::MessageId;
    use redrive_core::message::{NewMessage, Payload};
    use redrive_core::store::VerifyRequest;

    #[test]
    fn a_call_is_repeated_only_if_the_store_recognises_it() {
        let queue = || "q".parse().unwrap();
        let plain = NewMessage::new(MessageId::new(1, [1; 10]), queue(), Payload::default());
        let keyed = NewMessage { key: Some("k".into()), ..plain.clone() };
        let ada = Actor::new("ada", "test");
        let request = Some(RequestKey { key: "k".into(), fingerprint: "f".into() });
        let once = Actor { request, ..ada.clone() };
        let pause = |actor: &Actor| Call::Pause { name: queue(), paused: true, actor: actor.clone() };
        let verify = |repair| Call::Verify { request: VerifyRequest { deep: false, repair } };
        for (call, harmless) in [
            (Call::Queues {}, true),
            (Call::Enqueue { batch: vec![keyed.clone(), keyed.clone()] }, true),
            (Call::Enqueue { batch: vec![keyed, plain] }, false),
            (pause(&once), true),
            (pause(&ada), false),
            (verify(false), true),
            (verify(true), false),
            (Call::Settle { batch: Vec::new() }, false),
        ] {
            assert_eq!(is_harmless(&call), harmless, "{call:?}");
        }
    }
}
