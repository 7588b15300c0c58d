//! Sends dead letters back by themselves, where their queue says so. Each letter is acted on only as it was
//! seen, so several nodes that do this at once send it back once.

use super::{Chore, Done};
use crate::pace::ask;
use async_trait::async_trait;
use redrive_core::auto_redrive::AutoRedrive;
use redrive_core::dead_letter::{Act, ActRequest, Actor, DeadLetter};
use redrive_core::error::{Error, Refusal};
use redrive_core::filter::Filter;
use redrive_core::ids::QueueName;
use redrive_core::query::{PageRequest, Query};
use redrive_core::store::Store;
use redrive_core::time::{Span, Time};

/// Looks for letters that are due by the automatic redrive rules of their queues.
#[derive(Clone, Copy, Debug)]
pub struct AutoRedriveLetters {
    /// How often.
    pub every: Span,
}

impl Default for AutoRedriveLetters {
    /// Every half minute: the waits are hours.
    fn default() -> Self {
        Self { every: Span::from_secs(30) }
    }
}

/// Letters looked at, and sent back, in one go.
const PAGE: usize = 100;

#[async_trait]
impl Chore for AutoRedriveLetters {
    fn name(&self) -> &'static str {
        "auto redrive"
    }

    fn every(&self) -> Span {
        self.every
    }

    async fn pass(&self, store: &dyn Store) -> Result<Done, Error> {
        let mut did = 0;
        for queue in ask(store.queues()).await? {
            if let Some(rule) = queue.policy.auto_redrive {
                did += send_back(store, &queue.name, rule).await?;
            }
        }
        Ok(Done { did, more: false })
    }
}

async fn send_back(store: &dyn Store, queue: &QueueName, rule: AutoRedrive) -> Result<u64, Error> {
    let text = format!("queue:{queue} status:pending redrives<{} age>={}", rule.limit, rule.backoff);
    let filter = Filter::parse(&text).map_err(|e| Refusal::invalid("filter", e.to_string()))?;
    let mut query = Query { filter, page: PageRequest::first(PAGE) };
    let mut sent = 0;
    loop {
        let now = ask(store.info()).await?.now;
        let page = ask(store.letters(query.clone())).await?;
        let due: Vec<ActRequest> =
            page.items.iter().filter_map(|letter| request(letter, rule, now)).collect();
        if !due.is_empty() {
            let results = ask(store.act(due)).await?;
            // One that changed since it was seen is somebody else's.
            sent += results.iter().filter(|result| result.is_ok()).count() as u64;
        }
        let Some(next) = page.next else { break };
        query.page.cursor = Some(next);
    }
    if sent > 0 {
        tracing::info!(%queue, sent, "dead letters were sent back by themselves");
    }
    Ok(sent)
}

fn request(letter: &DeadLetter, rule: AutoRedrive, now: Time) -> Option<ActRequest> {
    rule.due(&letter.file).filter(|due| *due <= now)?;
    let file = &letter.file;
    let reason = format!("automatic redrive {} of {}", file.redrives + 1, rule.limit);
    let actor = Actor { reason: Some(reason), ..Actor::new("maintenance", "library") };
    let (id, act) = (letter.id(), Act::retry());
    Some(ActRequest { id, act, actor, expected_version: Some(file.version) })
}
