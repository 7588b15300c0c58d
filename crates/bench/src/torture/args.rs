//! A minimal command line parser for the drivers: `--name value` pairs, each used once.

use super::ToolResult;
use std::collections::BTreeMap;
use std::str::FromStr;

/// Named values that have not been read yet.
#[derive(Debug, Default)]
pub struct Args(BTreeMap<String, String>);

impl Args {
    /// Parses the words after the subcommand.
    ///
    /// # Errors
    /// If a word is not `--name`, or a name has no value.
    pub fn parse(words: impl IntoIterator<Item = String>) -> ToolResult<Self> {
        let mut words = words.into_iter();
        let mut named = BTreeMap::new();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").ok_or_else(|| format!("{word:?} is not an option"))?;
            let value = words.next().ok_or_else(|| format!("--{name} needs a value"))?;
            named.insert(name.to_owned(), value);
        }
        Ok(Self(named))
    }

    /// The value of an optional option.
    ///
    /// # Errors
    /// If the value cannot be parsed.
    pub fn optional<T: FromStr>(&mut self, name: &str) -> ToolResult<Option<T>> {
        let Some(text) = self.0.remove(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| format!("--{name} {text:?} is not a valid value").into())
    }

    /// The value of an option, or a default.
    ///
    /// # Errors
    /// If the value cannot be parsed.
    pub fn value_or<T: FromStr>(&mut self, name: &str, default: T) -> ToolResult<T> {
        Ok(self.optional(name)?.unwrap_or(default))
    }

    /// The value of a required option.
    ///
    /// # Errors
    /// If the option is missing or cannot be parsed.
    pub fn required<T: FromStr>(&mut self, name: &str) -> ToolResult<T> {
        self.optional(name)?.ok_or_else(|| format!("--{name} is missing").into())
    }

    /// Refuses options that no code read.
    ///
    /// # Errors
    /// Names the first unknown option.
    pub fn finish(self) -> ToolResult<()> {
        match self.0.keys().next() {
            Some(name) => Err(format!("--{name} is not an option of this command").into()),
            None => Ok(()),
        }
    }
}
