//! Keeps the audit trail from growing for ever, where somebody asks for it.

use super::{Chore, Done};
use crate::pace::ask;
use async_trait::async_trait;
use redrive_core::dead_letter::Actor;
use redrive_core::error::Error;
use redrive_core::store::Store;
use redrive_core::time::Span;

/// Removes rows of the audit trail that are older than this. What stays is still proved by `audit verify`, and
/// the removal is a row itself.
#[derive(Clone, Copy, Debug)]
pub struct TrimAudit {
    /// How long rows are kept.
    pub keep: Span,
    /// How often it looks.
    pub every: Span,
}

impl TrimAudit {
    /// Keeps rows for this long; looks every hour.
    #[must_use]
    pub fn keeping(keep: Span) -> Self {
        Self { keep, every: Span::from_hours(1) }
    }
}

#[async_trait]
impl Chore for TrimAudit {
    fn name(&self) -> &'static str {
        "trim audit"
    }

    fn every(&self) -> Span {
        self.every
    }

    async fn pass(&self, store: &dyn Store) -> Result<Done, Error> {
        let now = ask(store.info()).await?.now;
        let actor = Actor::new("maintenance", "library");
        let trimmed = ask(store.audit_trim(now.minus(self.keep), actor)).await?;
        if trimmed.rows > 0 {
            tracing::info!(rows = trimmed.rows, "the audit trail was trimmed");
        }
        Ok(Done { did: trimmed.rows, more: trimmed.more })
    }
}
