//! Removes old rows of the audit trail, where that is asked for.

use super::{Chore, PassReport};
use crate::waiting::with_timeout;
use async_trait::async_trait;
use redrive_core::dead_letter::Actor;
use redrive_core::error::CallError;
use redrive_core::store::Store;
use redrive_core::time::Span;

/// Removes rows of the audit trail that are older than `keep`. `audit verify` still proves the rows that stay, and the
/// removal is recorded as a row itself.
#[derive(Clone, Copy, Debug)]
pub struct TrimAudit {
    /// How long rows are kept.
    pub keep: Span,
    /// How often it runs.
    pub every: Span,
}

impl TrimAudit {
    /// Keeps rows for this long and runs every hour.
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

    async fn pass(&self, store: &dyn Store) -> Result<PassReport, CallError> {
        let now = with_timeout(store.info()).await?.now;
        let actor = Actor::new("maintenance", "library");
        let trimmed = with_timeout(store.audit_trim(now.minus(self.keep), actor)).await?;
        if trimmed.rows > 0 {
            tracing::info!(rows = trimmed.rows, "the audit trail was trimmed");
        }
        Ok(PassReport { changed: trimmed.rows, more: trimmed.more })
    }
}
