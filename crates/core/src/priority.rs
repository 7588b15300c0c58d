//! The priority of a message: five levels, most urgent first. It orders messages that are ready and never
//! shortens a delay.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The priority of a message. It orders messages that are ready and never shortens a delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Served first: weight 16.
    Critical,
    /// Weight 8.
    High,
    /// Weight 4. The default.
    #[default]
    #[serde(alias = "medium")]
    Normal,
    /// Weight 2.
    Low,
    /// Served when there is capacity to spare: weight 1.
    Background,
}

impl Priority {
    /// All five priorities, most urgent first. The position is the level.
    pub const ALL: [Self; 5] = [Self::Critical, Self::High, Self::Normal, Self::Low, Self::Background];

    /// The level: 0 is the most urgent.
    #[must_use]
    pub const fn level(self) -> usize {
        match self {
            Self::Critical => 0,
            Self::High => 1,
            Self::Normal => 2,
            Self::Low => 3,
            Self::Background => 4,
        }
    }

    /// The priority of a level. Levels beyond the last map to the last.
    #[must_use]
    pub const fn from_level(level: usize) -> Self {
        match level {
            0 => Self::Critical,
            1 => Self::High,
            2 => Self::Normal,
            3 => Self::Low,
            _ => Self::Background,
        }
    }

    /// The name in every interface.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
            Self::Background => "background",
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Priority {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "medium" {
            return Ok(Self::Normal);
        }
        Self::ALL
            .into_iter()
            .find(|p| p.name() == text)
            .ok_or_else(|| format!("{text:?} is not a priority: critical, high, normal, low or background"))
    }
}
