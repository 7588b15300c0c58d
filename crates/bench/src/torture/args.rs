//! The little of a command line that the drivers need: `--name value` pairs, each used once.

use super::Outcome;
use std::collections::BTreeMap;
use std::str::FromStr;

/// Named values that have not been asked for yet.
#[derive(Debug, Default)]
pub struct Args(BTreeMap<String, String>);

impl Args {
    /// Reads what follows the subcommand.
    ///
    /// # Errors
    /// For a word that is not `--name`, and for a name without a value.
    pub fn parse(words: impl IntoIterator<Item = String>) -> Outcome<Self> {
        let mut words = words.into_iter();
        let mut named = BTreeMap::new();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").ok_or_else(|| format!("{word:?} is not an option"))?;
            let value = words.next().ok_or_else(|| format!("--{name} needs a value"))?;
            named.insert(name.to_owned(), value);
        }
        Ok(Self(named))
    }

    /// The value of an option that may be left out.
    ///
    /// # Errors
    /// When it is not what is expected.
    pub fn maybe<T: FromStr>(&mut self, name: &str) -> Outcome<Option<T>> {
        let Some(text) = self.0.remove(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| format!("--{name} {text:?} is not understood").into())
    }

    /// The value of an option, or this one.
    ///
    /// # Errors
    /// When it is not what is expected.
    pub fn or<T: FromStr>(&mut self, name: &str, default: T) -> Outcome<T> {
        Ok(self.maybe(name)?.unwrap_or(default))
    }

    /// The value of an option that must be given.
    ///
    /// # Errors
    /// When it is missing or not what is expected.
    pub fn need<T: FromStr>(&mut self, name: &str) -> Outcome<T> {
        self.maybe(name)?.ok_or_else(|| format!("--{name} is missing").into())
    }

    /// Complains about options that nobody asked for.
    ///
    /// # Errors
    /// Naming the first.
    pub fn done(self) -> Outcome<()> {
        match self.0.keys().next() {
            Some(name) => Err(format!("--{name} is not known here").into()),
            None => Ok(()),
        }
    }
}
