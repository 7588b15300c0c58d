//! Shows what a run would do without doing it: its items, and the commands of the first of them. It reads the input but
//! not the store.

use super::error::BatchError;
use super::input;
use super::run::Batch;
use super::select::select;
use super::spec::Job;
use super::steps::show;
use super::template::Values;
use serde::Serialize;
use std::path::Path;

/// Items whose commands are shown.
const SHOWN: usize = 3;

/// One item and its commands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DryRunItem {
    /// The index of the item in the run.
    pub index: u64,
    /// The item, as JSON.
    pub item: String,
    /// The commands that would be run, one per step.
    pub commands: Vec<String>,
}

/// What a run would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DryRun {
    /// The name of the job.
    pub job: String,
    /// Items of the run.
    pub total: u64,
    /// Rows of the input, before filter, distinct, offset and limit.
    pub rows: u64,
    /// Rows that could not be read and would be left out.
    pub bad_rows: u64,
    /// The first items.
    pub items: Vec<DryRunItem>,
}

impl Job {
    /// Reads the input and returns what would be run. Paths are relative to `directory`. Needs no store.
    ///
    /// # Errors
    /// Returns a [`BatchError`] if the input cannot be read or does not fit the job.
    pub async fn dry_run(&self, directory: &Path) -> Result<DryRun, BatchError> {
        self.check_vars()?;
        let read = input::read(&self.input, directory, &self.values()).await?;
        let rows = read.items.len() as u64;
        let selected = select(self, read.items)?;
        let mut items = Vec::new();
        for (index, item) in selected.items.iter().take(SHOWN).enumerate() {
            let mut values = Values { item: Some(&item.json), ..self.values() };
            values.named.insert("index", index.to_string());
            values.named.insert("attempt", "1".into());
            values.named.insert("worktree", "WORKTREE".into());
            let commands = self
                .map
                .iter()
                .map(|step| show(&step.command, &values).unwrap_or_else(|why| format!("(fails: {why})")));
            items.push(DryRunItem {
                index: index as u64,
                item: item.json.clone(),
                commands: commands.collect(),
            });
        }
        Ok(DryRun {
            job: self.name().to_owned(),
            total: selected.items.len() as u64,
            rows,
            bad_rows: read.bad_rows,
            items,
        })
    }
    /// The values that every template of the job may use.
    pub(super) fn values(&self) -> Values<'_> {
        let mut values = Values { vars: Some(&self.vars), ..Values::default() };
        values.named.insert("job", self.name().to_owned());
        values
    }
}

impl Batch {
    /// Returns what this run would do; see [`Job::dry_run`].
    ///
    /// # Errors
    /// Returns a [`BatchError`] if the input cannot be read or does not fit the job.
    pub async fn dry_run(&self) -> Result<DryRun, BatchError> {
        self.job.dry_run(&self.directory).await
    }
}
