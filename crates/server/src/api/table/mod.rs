//! The table of routes. The router, the document and the page about the API are made from it. The rows about messages and
//! dead letters are here, those about the service as a whole in `service`.

mod service;

use super::endpoint::Content::{Json, Lines, Results};
use super::endpoint::{Endpoint, Needs};
use super::{letter_acts, letter_work, letters, messages, queues, system, transfer, triage};
use axum::routing::{delete, get, patch, post, put};
use redrive_core::store::Role::{Admin, Operator, Producer, Viewer, Worker};

/// Every route.
pub(crate) fn endpoints() -> Vec<Endpoint> {
    let groups = [
        ("Messages", sending()),
        ("Deliveries", working()),
        ("Queues", queueing()),
        ("Dead letters", looking()),
        ("Acts on dead letters", acting()),
        ("Dead letter consumers", consuming()),
        ("Groups", grouping()),
        ("Operations", operating()),
        ("Orchestration", service::orchestrating()),
        ("System", service::maintaining()),
        ("Alerts", service::alerting()),
        ("Access", service::admitting()),
        ("About", service::explaining()),
    ];
    let tagged = |(tag, endpoints): (&'static str, Vec<Endpoint>)| {
        endpoints.into_iter().map(move |endpoint| Endpoint { tag, ..endpoint }.with_request_key())
    };
    groups.into_iter().flat_map(tagged).collect()
}

fn sending() -> Vec<Endpoint> {
    let send = "Sends a message, a batch of messages, or a stream of them with one on each line. A batch has a result \
                for each message, and a stream answers line by line, in order, while it is read; read the answers \
                while you send.";
    vec![
        Endpoint::new(("POST", "/api/v1/queues/{queue}/messages"), Producer, send, post(messages::send))
            .header(
                "Idempotency-Key",
                "The idempotency key of the message; in a batch or stream, of all of them.",
            )
            .header("traceparent", "The W3C trace context of the messages.")
            .takes(Json("SendBatch"))
            .takes(Lines("SendMessage"))
            .gives(201, Json("Enqueued"))
            .gives(200, Results("SendResult"))
            .gives(200, Json("Enqueued"))
            .gives(200, Lines("LineResult")),
        Endpoint::new(
            ("GET", "/api/v1/messages"),
            Viewer,
            "Lists live messages, in the order they were sent.",
            get(messages::list),
        )
        .query("FilterParams")
        .lists("Message"),
        Endpoint::new(
            ("GET", "/api/v1/messages/{id}"),
            Viewer,
            "Shows a live message with its failures.",
            get(messages::show),
        )
        .shows("Message"),
        Endpoint::new(
            ("DELETE", "/api/v1/messages/{id}"),
            Operator,
            "Cancels a message that waits.",
            delete(messages::cancel),
        )
        .shows("Cancelled"),
        Endpoint::new(
            ("POST", "/api/v1/messages/{id}/reveal"),
            Needs::Reveal,
            "Shows a live message without masking, which the audit trail records first.",
            post(messages::reveal),
        )
        .may_take("ReasonBody")
        .shows("Message"),
        Endpoint::new(
            ("GET", "/api/v1/queues/{queue}/keys/{key}"),
            Viewer,
            "Shows which message has an idempotency key, also if it has ended.",
            get(queues::key),
        )
        .shows("KeyStateReply"),
    ]
}

fn working() -> Vec<Endpoint> {
    let lease = "Leases messages to a worker, and waits for some if asked to. Each has a token that settles it, and \
                 goes to somebody else if the lease ends before that.";
    vec![
        Endpoint::new(("POST", "/api/v1/queues/{queue}/lease"), Worker, lease, post(messages::lease))
            .may_take("LeaseBody")
            .gives(200, Results("Delivery")),
        Endpoint::new(("POST", "/api/v1/deliveries/{token}/ack"), Worker, "The work is done.", post(messages::ack))
            .may_take("AckBody")
            .shows("Settled"),
        Endpoint::new(
            ("POST", "/api/v1/deliveries/{token}/fail"),
            Worker,
            "The work failed. The queue's policy decides when it is tried again, or that it is a dead letter.",
            post(messages::fail),
        )
        .takes(Json("FailBody"))
        .shows("Settled"),
        Endpoint::new(
            ("POST", "/api/v1/deliveries/{token}/extend"),
            Worker,
            "The work takes longer: extends the lease, and records progress.",
            post(messages::extend),
        )
        .may_take("ExtendBody")
        .shows("Settled"),
        Endpoint::new(
            ("POST", "/api/v1/deliveries/{token}/release"),
            Worker,
            "Gives the message back without counting an attempt.",
            post(messages::release),
        )
        .may_take("ReleaseBody")
        .shows("Settled"),
        Endpoint::new(
            ("POST", "/api/v1/deliveries/settle"),
            Worker,
            "Settles many deliveries in one commit, with a result for each.",
            post(messages::settle_many),
        )
        .takes(Json("SettleBody"))
        .gives(200, Results("SettleResult")),
    ]
}

fn queueing() -> Vec<Endpoint> {
    vec![
        Endpoint::new(("GET", "/api/v1/queues"), Viewer, "Lists the queues by name.", get(queues::list)).lists("Queue"),
        Endpoint::new(("GET", "/api/v1/queues/{queue}"), Viewer, "Shows a queue.", get(queues::show)).shows("Queue"),
        Endpoint::new(
            ("PUT", "/api/v1/queues/{queue}"),
            Admin,
            "Sets the policy of a queue: these settings, and the defaults for the rest. Creates the queue.",
            put(queues::put),
        )
        .takes(Json("PolicyChange"))
        .shows("Queue"),
        Endpoint::new(
            ("PATCH", "/api/v1/queues/{queue}"),
            Admin,
            "Changes only the settings that are named, as `redrive queue set` does. Creates the queue.",
            patch(queues::patch),
        )
        .takes(Json("PolicyChange"))
        .shows("Queue"),
        Endpoint::new(
            ("POST", "/api/v1/queues/{queue}/pause"),
            Operator,
            "Stops leasing from a queue. Messages can still be sent and settled.",
            post(queues::pause),
        )
        .may_take("ReasonBody")
        .shows("Queue"),
        Endpoint::new(("POST", "/api/v1/queues/{queue}/resume"), Operator, "Ends a pause.", post(queues::resume))
            .may_take("ReasonBody")
            .shows("Queue"),
        Endpoint::new(
            ("POST", "/api/v1/queues/{queue}/purge"),
            Admin,
            "Removes waiting messages for good, a bounded number at a time; call it again while `more`. Name the queue \
             in `confirm`; without it, the problem says how many messages would be removed.",
            post(queues::purge),
        )
        .takes(Json("PurgeBody"))
        .shows("Purged"),
        Endpoint::new(
            ("GET", "/api/v1/waiting"),
            Viewer,
            "Shows what due messages wait for, by queue: a pause, a breaker, an ordering key.",
            get(queues::waiting),
        )
        .shows("Waiting"),
        Endpoint::new(("GET", "/api/v1/breakers"), Viewer, "Lists the circuit breakers.", get(triage::breakers))
            .lists("BreakerView"),
        Endpoint::new(("GET", "/api/v1/workers"), Viewer, "Lists the workers lately seen.", get(triage::workers))
            .lists("WorkerView"),
        Endpoint::new(
            ("POST", "/api/v1/breakers/{queue}/{key}/{state}"),
            Operator,
            "Opens a breaker until somebody closes it, or closes it.",
            post(triage::force_breaker),
        )
        .may_take("ReasonBody")
        .shows("BreakerView"),
    ]
}

fn looking() -> Vec<Endpoint> {
    vec![
        Endpoint::new(("GET", "/api/v1/dlq"), Viewer, "Lists dead letters, latest death first, masked.", get(letters::list))
            .query("FilterParams")
            .lists("DeadLetter"),
        Endpoint::new(
            ("GET", "/api/v1/dlq/{id}"),
            Viewer,
            "Shows a dead letter with its failures, masked. The `ETag` is its version.",
            get(letters::show),
        )
        .shows("DeadLetter"),
        Endpoint::new(
            ("GET", "/api/v1/dlq/{id}/timeline"),
            Viewer,
            "Lists everything that happened to a letter, oldest first.",
            get(letters::timeline),
        )
        .lists("TimelineEntry"),
        Endpoint::new(
            ("GET", "/api/v1/dlq/{id}/revisions"),
            Viewer,
            "Lists every content that a letter had, oldest first, masked.",
            get(letters::revisions),
        )
        .lists("Revision"),
        Endpoint::new(
            ("GET", "/api/v1/dlq/{id}/diff"),
            Viewer,
            "Shows what changed between two revisions of a letter, masked.",
            get(letters::diff),
        )
        .query("DiffParams")
        .shows("Difference"),
        Endpoint::new(
            ("POST", "/api/v1/dlq/{id}/reveal"),
            Needs::Reveal,
            "Shows a letter without masking, which the audit trail records first.",
            post(letters::reveal),
        )
        .may_take("ReasonBody")
        .shows("DeadLetter"),
        Endpoint::new(
            ("GET", "/api/v1/dlq/export"),
            Operator,
            "Exports the letters that match, one on each line, oldest death first. Masked, unless `full` is true, which \
             the audit trail records first.",
            get(transfer::export),
        )
        .query("ExportParams")
        .gives(200, Lines("DeadLetter"))
        .gives(200, Lines("UnreadableLetter")),
        Endpoint::new(
            ("POST", "/api/v1/dlq/import"),
            Admin,
            "Files the letters of a full export, one on each line, with a result for each line.",
            post(transfer::import),
        )
        .query("ImportParams")
        .takes(Lines("DeadLetter"))
        .gives(200, Lines("LineResult")),
    ]
}

fn acting() -> Vec<Endpoint> {
    let mut all = letter_acts::endpoints();
    all.push(
        Endpoint::new(
            ("DELETE", "/api/v1/dlq/{id}"),
            Admin,
            "Purges a letter. This can be undone for a day.",
            delete(letter_acts::purge),
        )
        .header("If-Match", "The `ETag` of the letter. The act is refused if the letter has changed since.")
        .shows("LetterState"),
    );
    all.push(
        Endpoint::new(
            ("POST", "/api/v1/dlq/acts"),
            Operator,
            "Acts on up to 100 letters in one commit, with a result for each. More are an operation.",
            post(letter_acts::acts),
        )
        .takes(Json("LetterActsBody"))
        .gives(200, Results("LetterResult")),
    );
    all
}

fn consuming() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            ("GET", "/api/v1/dlqs"),
            Viewer,
            "Lists the dead letter queues, with their letters by status.",
            get(queues::dlqs),
        )
        .lists("Dlq"),
        Endpoint::new(
            ("POST", "/api/v1/dlqs/{dlq}/lease"),
            Worker,
            "Leases pending letters to a consumer, oldest death first.",
            post(letter_work::lease),
        )
        .may_take("LeaseLettersBody")
        .lists("LetterDelivery"),
        Endpoint::new(
            ("POST", "/api/v1/letter-deliveries/settle"),
            Needs::ByBody,
            "Says what a consumer did with its letters, with a result for each. An act needs the role that it needs \
             from a person; everything else needs a worker.",
            post(letter_work::settle),
        )
        .takes(Json("SettleLettersBody"))
        .gives(200, Results("LetterResult")),
    ]
}

fn grouping() -> Vec<Endpoint> {
    vec![
        Endpoint::new(("GET", "/api/v1/groups"), Viewer, "Lists groups: all failures of one cause.", get(triage::groups))
            .query("GroupParams")
            .lists("Group"),
        Endpoint::new(("GET", "/api/v1/groups/{id}"), Viewer, "Shows everything about a group.", get(triage::group))
            .shows("GroupDetail"),
        Endpoint::new(
            ("POST", "/api/v1/groups/{id}"),
            Operator,
            "Acknowledges, resolves, ignores, reopens, assigns, notes or links a group. Its letters stay as they are.",
            post(triage::act_on_group),
        )
        .takes(Json("GroupActBody"))
        .shows("Group"),
        Endpoint::new(
            ("POST", "/api/v1/groups/{id}/label"),
            Operator,
            "Sets the category of a group's failures, or leaves it to the classifier again.",
            post(triage::label),
        )
        .takes(Json("LabelBody"))
        .shows("Group"),
        Endpoint::new(
            ("POST", "/api/v1/groups/merge"),
            Operator,
            "Merges groups that have one cause. The oldest id stays, the others become aliases of it.",
            post(triage::merge),
        )
        .takes(Json("MergeBody"))
        .shows("Group"),
        Endpoint::new(("GET", "/api/v1/markers"), Viewer, "Lists markers, such as deploys, latest first.", get(system::markers))
            .query("PageParams")
            .lists("Marker"),
        Endpoint::new(("POST", "/api/v1/markers"), Operator, "Sets a marker.", post(system::mark))
            .takes(Json("MarkerBody"))
            .gives(201, Json("Marker")),
    ]
}

fn operating() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            ("POST", "/api/v1/operations/preview"),
            Operator,
            "Shows what an operation would do, and gives the token that starts it.",
            post(triage::preview),
        )
        .takes(Json("OperationBody"))
        .shows("Preview"),
        Endpoint::new(
            ("POST", "/api/v1/operations"),
            Operator,
            "Starts the operation that was previewed. Some acts need a higher role, as for single letters.",
            post(triage::start),
        )
        .takes(Json("OperationBody"))
        .gives(202, Json("Operation")),
        Endpoint::new(
            ("GET", "/api/v1/operations"),
            Viewer,
            "Lists operations, latest first.",
            get(triage::operations),
        )
        .query("PageParams")
        .lists("Operation"),
        Endpoint::new(
            ("GET", "/api/v1/operations/{id}"),
            Viewer,
            "Shows an operation.",
            get(triage::operation),
        )
        .shows("Operation"),
        Endpoint::new(
            ("GET", "/api/v1/operations/{id}/members"),
            Viewer,
            "Lists the letters of an operation and what became of each.",
            get(triage::members),
        )
        .query("PageParams")
        .lists("Member"),
        Endpoint::new(
            ("POST", "/api/v1/operations/{id}/{control}"),
            Operator,
            "Pauses, resumes, cancels or undoes an operation, or changes its rate.",
            post(triage::control),
        )
        .may_take("ControlBody")
        .shows("Operation"),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::endpoint::Content::Page;
    use super::super::orchestration;
    use super::*;
    use crate::openapi;
    use std::collections::BTreeSet;

    #[test]
    fn routes_and_their_names_are_unique() {
        let all = endpoints();
        let routes: BTreeSet<(&str, &str)> = all.iter().map(|e| (e.method, e.path)).collect();
        let names: BTreeSet<String> = all.iter().map(Endpoint::operation_id).collect();
        assert_eq!((routes.len(), names.len()), (all.len(), all.len()));
    }

    /// Learns the names of the fields that a type reads.
    struct Fields(Vec<&'static str>);

    impl<'de> serde::Deserializer<'de> for &mut Fields {
        type Error = serde::de::value::Error;

        fn deserialize_any<V: serde::de::Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
            Err(serde::de::Error::custom("only fields are looked at"))
        }

        fn deserialize_struct<V: serde::de::Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, Self::Error> {
            self.0 = fields.to_vec();
            Err(serde::de::Error::custom("only fields are looked at"))
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    fn fields<T: serde::de::DeserializeOwned>() -> BTreeSet<String> {
        let mut fields = Fields(Vec::new());
        assert!(T::deserialize(&mut fields).is_err());
        // Durations have a second name with their unit, which the document need not repeat.
        fields.0.iter().filter(|name| !name.ends_with("_ms")).map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn what_a_body_reads_is_what_the_document_says() {
        let documented = |shape: &str| -> BTreeSet<String> {
            let schema = &openapi::document()["components"]["schemas"][shape];
            schema["properties"].as_object().unwrap().keys().cloned().collect()
        };
        for (shape, fields) in [
            ("SendMessage", fields::<redrive_core::message_spec::MessageSpec>()),
            ("LeaseBody", fields::<messages::LeaseBody>()),
            ("AckBody", fields::<messages::AckBody>()),
            ("FailBody", fields::<messages::FailBody>()),
            ("ExtendBody", fields::<messages::ExtendBody>()),
            ("ReleaseBody", fields::<messages::ReleaseBody>()),
            ("SettleBody", fields::<messages::SettleBody>()),
            ("FilterParams", fields::<messages::FilterParams>()),
            ("PageParams", fields::<crate::reply::PageParams>()),
            ("ReasonBody", fields::<queues::Reason>()),
            ("PurgeBody", fields::<queues::PurgeBody>()),
            ("LetterActsBody", fields::<letter_acts::ActsBody>()),
            ("LeaseLettersBody", fields::<letter_work::LeaseBody>()),
            ("SettleLettersBody", fields::<letter_work::SettleBody>()),
            ("DiffParams", fields::<letters::DiffParams>()),
            ("ExportParams", fields::<transfer::ExportParams>()),
            ("ImportParams", fields::<transfer::ImportParams>()),
            ("GroupParams", fields::<triage::GroupParams>()),
            ("MergeBody", fields::<triage::MergeBody>()),
            ("LabelBody", fields::<triage::LabelBody>()),
            ("OperationBody", fields::<triage::OperationBody>()),
            ("ControlBody", fields::<triage::ControlBody>()),
            ("MarkerBody", fields::<system::MarkerBody>()),
            ("AuditParams", fields::<system::AuditParams>()),
            ("HeadParams", fields::<system::HeadParams>()),
            ("TokenBody", fields::<system::TokenBody>()),
            ("LoginBody", fields::<system::LoginBody>()),
            ("TaskParams", fields::<orchestration::TaskParams>()),
            ("ResolveTask", fields::<orchestration::Notes>()),
            ("AbandonTask", fields::<orchestration::Notes>()),
        ] {
            assert_eq!(documented(shape), fields, "{shape}");
        }
    }

    #[test]
    fn every_route_says_what_it_does_and_gives() {
        for endpoint in endpoints() {
            assert!(endpoint.about.ends_with('.') && !endpoint.replies.is_empty(), "{}", endpoint.path);
            assert!(
                endpoint.method == "GET" || endpoint.query.is_none() || endpoint.path.ends_with("import")
            );
            let pages = endpoint.replies.iter().any(|(_, content)| matches!(content, Page(_)));
            assert!(
                !pages || endpoint.method == "GET" || endpoint.path.ends_with("/lease"),
                "{}",
                endpoint.path
            );
        }
    }
}
