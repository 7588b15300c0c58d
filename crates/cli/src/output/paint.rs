//! The colours of states in tables. All lists share these words, so that a state always has the same colour.

/// The meaning of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tone {
    Good,
    Warn,
    Bad,
    Over,
}

/// The meaning of a state's name; `None` for other words, which have no colour.
fn tone(word: &str) -> Option<Tone> {
    Some(match word {
        "resolved" | "done" | "closed" | "succeeded" | "finished" | "retrying" | "running" => Tone::Good,
        "new" | "review" | "quarantined" | "half_open" | "paused" | "canary" | "observing" | "warning"
        | "yes" => Tone::Warn,
        "regressed" | "open" | "dead" | "failed_same" | "failed_other" | "conflict" | "critical" => Tone::Bad,
        "abandoned" | "ignored" | "purged" | "cancelled" | "expired" | "skipped" | "undone" => Tone::Over,
        _ => return None,
    })
}

/// The text in the colour of the word.
pub(super) fn painted(word: &str, text: &str) -> String {
    let code = match tone(word) {
        Some(Tone::Good) => "32",
        Some(Tone::Warn) => "33",
        Some(Tone::Bad) => "1;31",
        Some(Tone::Over) => "2",
        None => return text.to_owned(),
    };
    format!("\u{1b}[{code}m{text}\u{1b}[0m")
}

/// The text in red, for warnings.
pub(super) fn alarm(text: &str) -> String {
    format!("\u{1b}[1;31m{text}\u{1b}[0m")
}

/// The text in bold, for headings.
pub(super) fn bold(text: &str) -> String {
    format!("\u{1b}[1m{text}\u{1b}[0m")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_colours_and_other_words_have_none() {
        assert_eq!(painted("resolved", "resolved"), "\u{1b}[32mresolved\u{1b}[0m");
        assert_eq!(painted("regressed", "regres…"), "\u{1b}[1;31mregres…\u{1b}[0m");
        assert_eq!(painted("pending", "pending"), "pending");
    }
}
