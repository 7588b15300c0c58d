//! `doctor`: recounts everything and compares. When asked to it sets right what can be made again from the rest and sets
//! damaged records aside; it repairs nothing else. Every finding comes with the command that mends it.

use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::output::{Column, Look, Sheet, Show};
use clap::Args;
use redrive::core::invariants::{Finding, Verification};
use redrive::core::store::{StoreInfo, VerifyRequest};
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  redrive doctor                   recount messages, dead letters, groups and the audit trail
  redrive doctor --deep            also read every payload and check the file itself
  redrive doctor --repair          set wrong counters right and damaged records aside
  redrive doctor -o json | jq '.findings[].what'

Exits with 10 when anything is found.";

/// The flags of `doctor`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// Also read every payload and check the file itself
    #[arg(long)]
    deep: bool,
    /// Set right what can be made again from the rest (counters, breakers, the text index), and damaged records aside
    #[arg(long)]
    repair: bool,
}

/// What the doctor saw.
#[derive(Serialize)]
struct Diagnosis {
    store: StoreInfo,
    deep: bool,
    #[serde(flatten)]
    verification: Verification,
}

impl Show for Diagnosis {
    const COLUMNS: &'static [Column] = &[
        Column::number("messages"),
        Column::number("letters"),
        Column::number("failures"),
        Column::number("payloads"),
        Column::number("audit_rows"),
        Column::number("findings_total"),
        Column::number("repaired"),
    ];

    fn cells(&self, _: &Look) -> Vec<String> {
        let v = &self.verification;
        [v.messages, v.letters, v.failures, v.payloads, v.audit_rows, v.findings_total, v.repaired]
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    fn sheet(&self, look: &Look) -> Sheet {
        let v = &self.verification;
        let mut lines: Vec<String> = v.findings.iter().map(finding).collect();
        let listed = u64::try_from(lines.len()).unwrap_or(u64::MAX);
        if v.findings_total > listed {
            lines.push(format!("and {} more", v.findings_total - listed));
        }
        let sheet = Sheet::default()
            .field("store", format!("{} at {}", self.store.backend, self.store.place))
            .field("durable", self.store.durable)
            .field("clock", format!("{}, {} ms ahead of the wall", self.store.now, self.store.skew_ms))
            .field("depth", if self.deep { "deep" } else { "quick; --deep also checks the file itself" });
        let cells = self.cells(look);
        let sheet = Self::COLUMNS.iter().zip(cells).fold(sheet, |sheet, (c, cell)| sheet.field(c.name, cell));
        sheet.block("degraded", self.store.degraded.join("\n")).block("findings", lines.join("\n"))
    }
}

fn finding(finding: &Finding) -> String {
    format!("{}: {}\n     run: {}", finding.invariant, finding.what, finding.mend)
}

/// Runs it.
pub(crate) async fn run(app: &App, args: DoctorArgs) -> Done {
    let store = app.open_as_it_is(Access::Existing, Hold::Long).await.map_err(found)?;
    let verification = store
        .verify(VerifyRequest { deep: args.deep, repair: args.repair })
        .await
        .map_err(|e| found(e.into()))?;
    let diagnosis = Diagnosis { store: store.info().await?, deep: args.deep, verification };
    app.out.one(&diagnosis)?;
    if diagnosis.verification.is_clean() && diagnosis.store.degraded.is_empty() {
        app.out.note("everything holds");
        return Ok(ExitCode::Ok);
    }
    Ok(ExitCode::CheckFailed)
}

/// A store that cannot even be read has failed the check; that nobody answers is another matter.
fn found(error: CliError) -> CliError {
    let code = if error.code == ExitCode::Error { ExitCode::CheckFailed } else { error.code };
    CliError { code, ..error }
}
