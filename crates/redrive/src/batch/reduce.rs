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
use std::io::{BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;
use tokio::time::Instant;

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
            started: Instant::now(),
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

    /// Writes the results in the order of the items, one JSON document a line. They come from the store in another
    /// order, so they pass through a second file; only where each begins is held in memory.
    async fn results_file(&self) -> Result<PathBuf, BatchError> {
        let path = self.batch.work.join("results.ndjson");
        let failed = |error: std::io::Error| BatchError::io("write the results to", &path, &error);
        std::fs::create_dir_all(&self.batch.work).map_err(failed)?;
        let mut heap =
            ResultSpool::new(self.items.len(), tempfile::tempfile_in(&self.batch.work).map_err(failed)?);
        let indexes: HashMap<String, usize> =
            self.items.iter().enumerate().map(|(index, item)| (written(&item.key), index)).collect();
        let mut wrong = None;
        self.ledger()
            .results(|result| {
                let Some(index) = indexes.get(&result.item) else { return };
                let Some(item) = self.items.get(*index) else { return };
                if let Err(error) = heap.add(*index, &line(*index, &item.json, &result)) {
                    wrong = Some(error);
                }
            })
            .await?;
        wrong.map_or(Ok(()), |error| Err(failed(error)))?;
        heap.write(File::create(&path).map_err(failed)?).map_err(failed)?;
        Ok(path)
    }
}

/// Lines in the order they came, and where each lies.
struct ResultSpool {
    file: BufWriter<File>,
    end: u64,
    offsets: Vec<Option<(u64, usize)>>,
}

impl ResultSpool {
    fn new(lines: usize, file: File) -> Self {
        Self { file: BufWriter::new(file), end: 0, offsets: vec![None; lines] }
    }

    fn add(&mut self, index: usize, line: &str) -> std::io::Result<()> {
        self.file.write_all(line.as_bytes())?;
        if let Some(offset) = self.offsets.get_mut(index) {
            *offset = Some((self.end, line.len()));
        }
        self.end += line.len() as u64;
        Ok(())
    }

    /// Copies the lines in order.
    fn write(self, to: File) -> std::io::Result<()> {
        let mut from = self.file.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        let mut to = BufWriter::new(to);
        for (begin, length) in self.offsets.into_iter().flatten() {
            from.seek(SeekFrom::Start(begin))?;
            std::io::copy(&mut (&from).take(length as u64), &mut to)?;
        }
        to.flush()
    }
}

fn line(index: usize, item: &str, result: &ItemResult) -> String {
    let output = serde_json::Value::from(result.output.as_str());
    let (attempt, took) = (result.attempt, result.duration_ms);
    // The item as it was read: its numbers keep their digits.
    let item = compact(item);
    format!(
        "{{\"index\":{index},\"item\":{item},\"attempt\":{attempt},\"duration_ms\":{took},\"output\":{output}}}\n"
    )
}
