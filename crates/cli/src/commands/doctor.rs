//! `doctor`: recounts everything and compares it with the stored counters. With `--repair` it rebuilds what can be
//! derived from other data and sets damaged records aside; it repairs nothing else. Every finding names the command
//! that fixes it.

use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::output::{Column, Sheet, Show, ValueFormat};
use clap::Args;
use redrive::core::invariants::{Finding, Verification};
use redrive::core::store::{StoreInfo, VerifyRequest};
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  redrive doctor                   recount messages, dead letters, groups and the audit trail
  redrive doctor --deep            also read every payload and check the database file
  redrive doctor --repair          fix counters and set damaged records aside
  redrive doctor -o json | jq '.findings[].what'

Exits with 10 if there are findings.";

/// The flags of `doctor`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// Also read every payload and check the database file
    #[arg(long)]
    deep: bool,
    /// Rebuild what can be derived from other data (counters, breakers, the text index), and set damaged records aside
    #[arg(long)]
    repair: bool,
}

/// The result of the check.
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

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        let v = &self.verification;
        [v.messages, v.letters, v.failures, v.payloads, v.audit_rows, v.findings_total, v.repaired]
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    fn sheet(&self, fmt: &ValueFormat) -> Sheet {
        let v = &self.verification;
        let mut lines: Vec<String> = v.findings.iter().map(finding).collect();
        let listed = u64::try_from(lines.len()).unwrap_or(u64::MAX);
        if v.findings_total > listed {
            lines.push(format!("and {} more", v.findings_total - listed));
        }
        let sheet = Sheet::default()
            .field("store", format!("{} at {}", self.store.backend, self.store.place))
            .field("durable", self.store.durable)
            .field("clock", format!("{}, {} ms ahead of the wall clock", self.store.now, self.store.skew_ms))
            .field(
                "depth",
                if self.deep { "deep" } else { "quick; use --deep to check the database file too" },
            );
        let cells = self.cells(fmt);
        let sheet = Self::COLUMNS.iter().zip(cells).fold(sheet, |sheet, (c, cell)| sheet.field(c.name, cell));
        sheet.block("degraded", self.store.degraded.join("\n")).block("findings", lines.join("\n"))
    }
}

fn finding(finding: &Finding) -> String {
    format!("{}: {}\n     run: {}", finding.invariant, finding.what, finding.mend)
}

/// Runs `doctor`.
pub(crate) async fn run(app: &App, args: DoctorArgs) -> CommandResult {
    let store = app.open_without_maintenance(Access::Existing, Hold::Long).await.map_err(found)?;
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

/// A store that cannot be read has failed the check. An unreachable holder is a different error and keeps its code.
fn found(error: CliError) -> CliError {
    let code = if error.code == ExitCode::Error { ExitCode::CheckFailed } else { error.code };
    CliError { code, ..error }
}
