//! Which words of a shell text are read as a script once more: the one after `-c`, all of `eval`. A value in such a
//! word is quoted for the first reader only; the second would run it. Words are known by what they mean, not by
//! how they are quoted; where that cannot be told, a word is taken for a script rather than not. What a variable
//! holds is not known here.

/// Commands that read all of their words as a script, now or later.
const EVALUATING: [&str; 3] = ["eval", "trap", "alias"];

const AFTER_C: &str = "in a text that is read as a script once more, for it follows -c; hand it over as an argument, \
                       as in sh -c 'echo \"$1\"' x ${item.x}; if this -c takes no script, set a variable before: \
                       v=${item.x}; head -c \"$v\"";
const EVALUATED: &str = "in what eval, trap or alias reads as a script; set a variable before, v=${item.x}, and write \
                         '\"$v\"' in single quotes there";

/// The words of a command, as far as they were read.
#[derive(Clone, Debug, Default)]
pub(super) struct Words {
    /// The word that is being read, without its quotes and without what its variables stand for.
    text: String,
    /// It may come to no word at all, as `$x` does when there is no x.
    may_vanish: bool,
    /// The script of a `-c` follows after this many words, which belong to options.
    awaited: Option<usize>,
    /// A sign of redirection was read, and not yet what it points to.
    redirecting: bool,
    /// The command evaluates its words.
    evaluated: bool,
    /// All of this stands in a script.
    within: Option<&'static str>,
}

impl Words {
    /// The words of `$(…)` that begin here.
    pub(super) fn within(&self) -> Self {
        Self { within: self.refuses(), ..Self::default() }
    }

    /// Why no value may stand here, if none may.
    pub(super) fn refuses(&self) -> Option<&'static str> {
        self.within.or(self.evaluated.then_some(EVALUATED)).or(self.is_script().then_some(AFTER_C))
    }

    /// Whether the word that is being read is the script of a `-c`, or may be; also one that is written right
    /// after the letter.
    fn is_script(&self) -> bool {
        let attached = self.text.starts_with("-c")
            || self.text.starts_with("--command=")
            || is_option(&self.text) && self.text.ends_with('c');
        attached || self.awaited.is_some() && !self.redirecting
    }

    pub(super) const fn is_evaluated(&self) -> bool {
        self.evaluated
    }

    pub(super) const fn is_redirecting(&self) -> bool {
        self.redirecting
    }

    /// A character of the word.
    pub(super) fn push(&mut self, c: char) {
        self.text.push(c);
    }

    /// A variable, a value or `$(…)` in the word; without quotes it may come to nothing.
    pub(super) fn expand(&mut self, quoted: bool) {
        self.may_vanish |= !quoted;
    }

    /// `<` or `>`. A word right before it is the number of a file, or may be.
    pub(super) fn redirect(&mut self) {
        self.may_vanish = true;
        self.end_word();
        self.redirecting = true;
    }

    /// The word ends here.
    pub(super) fn end_word(&mut self) {
        let word = std::mem::take(&mut self.text);
        let may_vanish = std::mem::take(&mut self.may_vanish);
        let target = std::mem::take(&mut self.redirecting);
        self.evaluated |= EVALUATING.contains(&word.as_str());
        if is_option(&word) && word.contains('c') || word == "--command" {
            self.awaited = Some(0);
        }
        let Some(skipped) = self.awaited else { return };
        if word.starts_with(['-', '+']) {
            // `-o` of a shell takes a word for itself, wherever the script of `-c` is.
            let takes_word =
                word.ends_with(['o', 'O']) || word.chars().nth(1).is_some_and(|c| matches!(c, 'o' | 'O'));
            self.awaited = Some(skipped + usize::from(takes_word));
        } else if !may_vanish && !target {
            self.awaited = skipped.checked_sub(1);
        }
    }

    /// The command ends here.
    pub(super) fn end_command(&mut self) {
        *self = Self { within: self.within, ..Self::default() };
    }
}

/// Whether a word is short options, one or more, as shells take them: `-c`, `-lc`, `+e`.
fn is_option(word: &str) -> bool {
    let letters = word.strip_prefix(['-', '+']).unwrap_or_default();
    !letters.is_empty() && letters.chars().all(|c| c.is_ascii_alphabetic())
}

/// Programs that run the text after `-c`. In `argv` there is no variable to set before, so that only these are meant.
const RUNNING: [&str; 11] =
    ["sh", "ash", "bash", "dash", "fish", "ksh", "mksh", "zsh", "su", "python", "python3"];

/// The first word of a command without a shell that has a place in the script of a `-c`, and why it is refused.
pub(super) fn refused_argument(argv: &[String]) -> Option<(usize, &'static str)> {
    let mut words = Words::default();
    let mut runs = false;
    for (at, word) in argv.iter().enumerate() {
        let before = word.split_once("${").map(|(before, _)| before);
        before.unwrap_or(word).chars().for_each(|c| words.push(c));
        if runs && before.is_some() && words.is_script() {
            return Some((at, AFTER_C));
        }
        runs |= RUNNING.contains(&word.rsplit('/').next().unwrap_or(word));
        words.end_word();
    }
    None
}
