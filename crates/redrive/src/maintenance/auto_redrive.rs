//! Redrives dead letters automatically where the policy of their queue says so. Each letter is changed only if it still
//! has the version that was seen, so several processes that do this at once redrive it once.

use super::{Chore, PassReport};
use crate::waiting::with_timeout;
use async_trait::async_trait;
use redrive_core::auto_redrive::AutoRedrive;
use redrive_core::dead_letter::{Act, ActRequest, Actor, DeadLetter};
use redrive_core::error::{CallError, Refusal};
use redrive_core::filter::Filter;
use redrive_core::ids::QueueName;
use redrive_core::query::{PageRequest, Query};
use redrive_core::store::Store;
use redrive_core::time::{Span, Time};

/// Redrives letters that are due by the automatic redrive rules of their queues.
#[derive(Clone, Copy, Debug)]
pub struct AutoRedriveLetters {
    /// How often it runs.
    pub every: Span,
}

impl Default for AutoRedriveLetters {
    /// Runs every half minute; typical waits are hours.
    fn default() -> Self {
        Self { every: Span::from_secs(30) }
    }
}

/// Letters read and redriven per call.
const PAGE: usize = 100;

#[async_trait]
impl Chore for AutoRedriveLetters {
    fn name(&self) -> &'static str {
        "auto redrive"
    }

    fn every(&self) -> Span {
        self.every
    }

    async fn pass(&self, store: &dyn Store) -> Result<PassReport, CallError> {
        let mut changed = 0;
        for queue in with_timeout(store.queues()).await? {
            if let Some(rule) = queue.policy.auto_redrive {
                changed += send_back(store, &queue.name, rule).await?;
            }
        }
        Ok(PassReport { changed, more: false })
    }
}

async fn send_back(store: &dyn Store, queue: &QueueName, rule: AutoRedrive) -> Result<u64, CallError> {
    let text = format!("queue:{queue} status:pending redrives<{} age>={}", rule.limit, rule.backoff);
    let filter = Filter::parse(&text).map_err(|e| Refusal::invalid("filter", e.to_string()))?;
    let mut query = Query { filter, page: PageRequest::first(PAGE) };
    let mut sent = 0;
    loop {
        let now = with_timeout(store.info()).await?.now;
        let page = with_timeout(store.letters(query.clone())).await?;
        let due: Vec<ActRequest> =
            page.items.iter().filter_map(|letter| request(letter, rule, now)).collect();
        if !due.is_empty() {
            let results = with_timeout(store.act(due)).await?;
            // A letter that changed since it was read is refused; somebody else acted on it.
            sent += results.iter().filter(|result| result.is_ok()).count() as u64;
        }
        let Some(next) = page.next else { break };
        query.page.cursor = Some(next);
    }
    if sent > 0 {
        tracing::info!(%queue, sent, "dead letters were redriven automatically");
    }
    Ok(sent)
}

fn request(letter: &DeadLetter, rule: AutoRedrive, now: Time) -> Option<ActRequest> {
    rule.due(&letter.record).filter(|due| *due <= now)?;
    let record = &letter.record;
    let reason = format!("automatic redrive {} of {}", record.redrives + 1, rule.limit);
    let actor = Actor { reason: Some(reason), ..Actor::new("maintenance", "library") };
    let (id, act) = (letter.id(), Act::retry());
    Some(ActRequest { id, act, actor, expected_version: Some(record.version) })
}
