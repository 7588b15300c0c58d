//! Before and after the items: the setup steps, and reduce over the results in the order of the items.

use super::error::BatchError;
use super::ledger::{ItemResult, written};
use super::mapping::Run;
use super::path::compact;
use super::run::{Batch, BatchSummary};
use super::spec::Step;
use super::steps::{Output, Stage, StepError, write_log};
use super::template::Values;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

impl Batch {
    /// Runs the setup steps, all of them again when one failed the last time.
    pub(super) async fn setup(&self) -> Result<(), BatchError> {
        self.stage("setup", &self.job.setup, self.values()).await.map(drop)
    }

    async fn stage(
        &self,
        name: &'static str,
        steps: &[Step],
        values: Values<'_>,
    ) -> Result<Output, BatchError> {
        let mut output = Output::default();
        let stage = Stage {
            job: &self.job,
            directory: &self.directory,
            values,
            begun: Instant::now(),
            limit: None,
            cancel: &self.handle.stop,
        };
        for step in steps {
            let why = match stage.run(step, &mut output).await {
                Ok(()) => continue,
                Err(StepError::Stopped) => "it was stopped".to_owned(),
                Err(StepError::Failed(report)) => {
                    let error = report.error;
                    let log = write_log(&self.work, format!("{name}.log"), output.log).await;
                    let log = log.map(|path| format!("; its output is in {}", path.display()));
                    format!("{}: {}{}", error.error_type, error.message, log.unwrap_or_default())
                }
            };
            return Err(BatchError::Stage { stage: name, step: step.name.clone(), why });
        }
        Ok(output)
    }
}

impl Run<'_> {
    /// Runs reduce, unless it has seen exactly these results already.
    pub(super) async fn reduce(&self, summary: &mut BatchSummary) -> Result<(), BatchError> {
        let job = &self.batch.job;
        if job.reduce.is_empty() || summary.done == 0 || self.state.reduced == Some(summary.done) {
            return Ok(());
        }
        let file = self.results_file().await?;
        let mut values = self.batch.values();
        for (name, value) in [
            ("results_file", file.display().to_string()),
            ("total", summary.total.to_string()),
            ("done", summary.done.to_string()),
            ("dead", summary.dead.to_string()),
            ("skipped", summary.skipped.to_string()),
        ] {
            values.named.insert(name, value);
        }
        let output = self.batch.stage("reduce", &job.reduce, values).await?;
        summary.output = Some(String::from_utf8_lossy(&output.stdout).into_owned());
        summary.results_file = Some(file);
        Ok(())
    }

    /// Writes the results in the order of the items, one JSON document a line.
    async fn results_file(&self) -> Result<PathBuf, BatchError> {
        let mut results: HashMap<String, ItemResult> = HashMap::new();
        self.ledger()
            .results(|result| {
                results.insert(result.item.clone(), result);
            })
            .await?;
        let ordered: Vec<(usize, &str, &ItemResult)> = self
            .items
            .iter()
            .enumerate()
            .filter_map(|(index, item)| Some((index, item.json.as_str(), results.get(&written(&item.key))?)))
            .collect();
        let path = self.batch.work.join("results.ndjson");
        write(&path, &ordered).map_err(|error| BatchError::io("write the results to", &path, &error))?;
        Ok(path)
    }
}

fn write(path: &Path, ordered: &[(usize, &str, &ItemResult)]) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let mut file = BufWriter::new(File::create(path)?);
    for (index, item, result) in ordered {
        let output = serde_json::Value::from(result.output.as_str());
        let (attempt, took) = (result.attempt, result.duration_ms);
        // The item as it was read: its numbers keep their digits.
        let item = compact(item);
        writeln!(
            file,
            "{{\"index\":{index},\"item\":{item},\"attempt\":{attempt},\"duration_ms\":{took},\"output\":{output}}}"
        )?;
    }
    file.flush()
}
