//! Which queues a call touches, for somebody who is limited to some. Every verb is considered here by name: a new one
//! does not compile until somebody has decided.

use super::Access;
use crate::dead_letter::{Act, ActRequest};
use crate::disclosure::Disclosed;
use crate::error::Refusal;
use crate::filter::Filter;
use crate::ids::{IdError, MessageId, QueueName, serde_as_text};
use crate::limits;
use crate::operation::OperationSpec;
use crate::store::Call;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// The name of a queue, or a pattern in which `*` stands for anything.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueuePattern(String);

impl QueuePattern {
    /// Whether the pattern matches the whole name.
    #[must_use]
    pub fn matches(&self, queue: &QueueName) -> bool {
        let name = queue.as_str();
        let mut pieces = self.0.split('*');
        let Some(mut rest) = name.strip_prefix(pieces.next().unwrap_or_default()) else { return false };
        let mut last = None;
        for piece in pieces {
            if let Some(previous) = last.replace(piece) {
                let Some((_, after)) = rest.split_once::<&str>(previous) else { return false };
                rest = after;
            }
        }
        last.map_or(rest.is_empty(), |piece| rest.ends_with(piece))
    }
}

impl fmt::Display for QueuePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for QueuePattern {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || IdError::new(text, "a queue name or a pattern such as payments-*");
        // A pattern is a name in which letters are left out.
        let sample = text.replace('*', "x");
        match sample.parse::<QueueName>() {
            Ok(_) if text.len() <= limits::NAME_BYTES_MAX => Ok(Self(text.to_owned())),
            Ok(_) | Err(_) => Err(wrong()),
        }
    }
}
serde_as_text!(QueuePattern);

/// What must be looked up before a call may be carried out for somebody who is limited to some queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Nothing: the call may be carried out.
    Nothing,
    /// The queues of these messages: each must be one of theirs.
    QueuesOfMessages(Vec<MessageId>),
    /// The queues of these letters: each must be one of theirs.
    QueuesOfLetters(Vec<MessageId>),
}

/// Decides about a call of somebody who is limited to some queues, and narrows its filter.
pub(super) fn within(access: &Access, call: &mut Call) -> Result<Lookup, Refusal> {
    let verb = call.verb();
    let ids = match call {
        // The token of a lease proves that its bearer was allowed to lease.
        Call::Settle { .. } | Call::SettleLetters { .. } => return Ok(Lookup::Nothing),
        // Maintenance concerns all queues, shows none of them, and helps everybody.
        Call::Reap { .. } | Call::Tidy { .. } | Call::IndexText { .. } | Call::Info {} => {
            return Ok(Lookup::Nothing);
        }
        Call::Enqueue { batch } => return all(access, verb, batch.iter().map(|message| &message.queue)),
        Call::Lease { request } => return all(access, verb, request.queues.iter()),
        Call::Wait { queues, .. } => return all(access, verb, queues.iter()),
        Call::LeaseLetters { request } => return all(access, verb, [&request.dlq]),
        Call::KeyState { queue: name, .. }
        | Call::Queue { name }
        | Call::Configure { name, .. }
        | Call::Pause { name, .. }
        | Call::Purge { name, .. }
        | Call::ForceBreaker { queue: name, .. } => return all(access, verb, [&*name]),
        Call::Messages { query } | Call::Letters { query } | Call::Export { query } => {
            query.filter = narrowed(access, &query.filter)?;
            return Ok(Lookup::Nothing);
        }
        Call::Message { id } => return Ok(Lookup::QueuesOfMessages(vec![*id])),
        Call::Cancel { ids, .. } => return Ok(Lookup::QueuesOfMessages(ids.clone())),
        Call::Letter { id } | Call::Revisions { id } => vec![*id],
        Call::Act { batch } => {
            let destinations: Vec<&QueueName> = batch.iter().filter_map(destination).collect();
            let ids = batch.iter().map(|request| request.id).collect();
            all(access, verb, destinations)?;
            ids
        }
        Call::Disclose { disclosure, .. } => match &disclosure.filter {
            Some(filter) => {
                disclosure.filter = Some(narrowed(access, filter)?);
                return Ok(Lookup::Nothing);
            }
            None if disclosure.what == Disclosed::Message => {
                return Ok(Lookup::QueuesOfMessages(disclosure.ids.clone()));
            }
            None => disclosure.ids.clone(),
        },
        Call::Queues {}
        | Call::WaitingFor {}
        | Call::Breakers {}
        | Call::Workers {}
        | Call::Changes { .. }
        | Call::Dlqs {}
        | Call::Groups { .. }
        | Call::Group { .. }
        | Call::GroupDetail { .. }
        | Call::ActOnGroup { .. }
        | Call::Mark { .. }
        | Call::Markers { .. }
        | Call::MergeGroups { .. }
        | Call::LabelGroup { .. }
        | Call::Import { .. }
        | Call::HandOver { .. }
        | Call::Preview { .. }
        | Call::Start { spec: OperationSpec { .. } }
        | Call::Step { .. }
        | Call::Control { .. }
        | Call::Operation { .. }
        | Call::Operations { .. }
        | Call::Members { .. }
        | Call::Audit { .. }
        | Call::AuditVerify { .. }
        | Call::AuditTrim { .. }
        | Call::Stats {}
        | Call::Verify { .. }
        | Call::Backup { .. }
        | Call::IdsEnding { .. }
        | Call::KvGet { .. }
        | Call::KvList { .. }
        | Call::KvPut { .. }
        | Call::Record { .. } => {
            return Err(access.refuse(verb, "it concerns all queues, and the token is limited to some"));
        }
    };
    Ok(Lookup::QueuesOfLetters(ids))
}

/// Where an act sends a letter, if it names a place.
fn destination(request: &ActRequest) -> Option<&QueueName> {
    match &request.act {
        Act::Retry(retry) => retry.queue.as_ref(),
        Act::Move { dlq } => Some(dlq),
        Act::Review
        | Act::Quarantine { .. }
        | Act::Release
        | Act::Resolve
        | Act::Abandon
        | Act::Reopen
        | Act::Note
        | Act::Purge
        | Act::Unpurge
        | Act::PullBack
        | Act::Hold { .. }
        | Act::Snooze { .. }
        | Act::Assign { .. }
        | Act::Label { .. }
        | Act::Edit(_)
        | Act::Patch(_)
        | Act::Restore { .. }
        | Act::Erase => None,
    }
}

/// Lets a call pass if all these queues are covered.
fn all<'a>(
    access: &Access,
    verb: &'static str,
    queues: impl IntoIterator<Item = &'a QueueName>,
) -> Result<Lookup, Refusal> {
    match queues.into_iter().find(|queue| !access.covers(queue)) {
        None => Ok(Lookup::Nothing),
        Some(queue) => Err(access.refuse(verb, format!("the token is not for queue {queue}"))),
    }
}

/// The part of a filter that lies within the bearer's queues.
fn narrowed(access: &Access, filter: &Filter) -> Result<Filter, Refusal> {
    let queues: Vec<String> = access.queues.iter().map(|pattern| format!("queue:{pattern}")).collect();
    let queues = queues.join(" or ");
    let text = if filter.is_all() { queues } else { format!("({queues}) and ({})", filter.text()) };
    Filter::parse(&text).map_err(|error| Refusal::invalid("filter", error.to_string()))
}
