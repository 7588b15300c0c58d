//! `dlq timeline`: the life of one letter, moment by moment. What it consists of is the core's to say.

use crate::connect::{Access, App, Hold};
use crate::exit_code::{Done, ExitCode};
use crate::output::{Column, Look, Show};
use redrive::core::dead_letter::Moment;
use redrive::core::ids::MessageId;
use redrive::core::masking::Rules;

impl Show for Moment {
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
        Some(rules.moment(self))
    }

    fn cells(&self, look: &Look) -> Vec<String> {
        let attempt = self.generation.zip(self.attempt).map(|(g, n)| format!("{g}.{n}"));
        vec![
            look.time(self.at),
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
pub(crate) async fn run(app: &App, id: MessageId) -> Done {
    let store = app.open(Access::Existing, Hold::Moment).await?;
    app.out.all(&store.letter(id).await?.timeline())?;
    Ok(ExitCode::Ok)
}
