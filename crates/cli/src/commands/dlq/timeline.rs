//! `dlq timeline`: prints the history of one letter, as assembled by the core.

use crate::connect::{Access, App, Hold};
use crate::exit_code::{CommandResult, ExitCode};
use crate::output::{Column, Show, ValueFormat};
use redrive::core::dead_letter::TimelineEntry;
use redrive::core::ids::MessageId;
use redrive::core::masking::Rules;

impl Show for TimelineEntry {
    const COLUMNS: &'static [Column] = &[
        Column::whole("at"),
        Column::whole("what"),
        Column::whole("attempt"),
        Column::whole("took").optional(1),
        Column::text("by"),
        Column::main("detail"),
        Column::text("why"),
        Column::whole("operation").optional(2),
    ];

    fn masked(&self, rules: &Rules) -> Option<Self> {
        Some(rules.timeline_entry(self))
    }

    fn cells(&self, fmt: &ValueFormat) -> Vec<String> {
        let attempt = self.generation.zip(self.attempt).map(|(g, n)| format!("{g}.{n}"));
        vec![
            fmt.time(self.at),
            self.what.to_string(),
            attempt.unwrap_or_default(),
            self.took.map(|took| took.to_string()).unwrap_or_default(),
            self.by.clone().unwrap_or_default(),
            self.detail.clone(),
            self.why.clone().unwrap_or_default(),
            self.operation.map(|id| id.to_string()).unwrap_or_default(),
        ]
    }
}

/// Runs `dlq timeline`.
pub(crate) async fn run(app: &App, id: MessageId) -> CommandResult {
    let store = app.open(Access::Existing, Hold::Moment).await?;
    app.out.all(&store.letter(id).await?.timeline())?;
    Ok(ExitCode::Ok)
}
