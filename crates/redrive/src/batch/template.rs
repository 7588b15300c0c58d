//! Commands with places for values: `convert ${item.file} out/${item.id}.png`.
//!
//! Nothing an item contains can become shell syntax. A value that stands by itself or inside the author's double
//! quotes is put in single quotes, so the shell sees exactly its characters. Where that cannot be done for sure,
//! the job is refused before it runs: inside single quotes, comments, backticks, arithmetic, here-documents,
//! shell variables and text that is read as a script once more (`sh -c …`, `eval …`). What stands in `argv` meets
//! no shell and is not quoted. Which words hold a script is found out in `script`.

use super::path::{ItemPath, text_of};
use super::script::Words;
use super::yaml::nearest;
use std::collections::BTreeMap;

/// The values that are not the item's.
const NAMES: [&str; 11] = [
    "item",
    "index",
    "job",
    "attempt",
    "var",
    "results_file",
    "total",
    "done",
    "dead",
    "skipped",
    "worktree",
];

/// What a place stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Placeholder {
    /// `${item}`.
    Item,
    /// `${item.path}`.
    Field(ItemPath),
    /// `${var.name}`.
    Var(String),
    /// Any other known name.
    Named(&'static str),
}

/// Where in the shell's text a place stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quoting {
    /// By itself.
    Bare,
    /// Between the author's double quotes.
    Double,
    /// Not read by a shell at all.
    None,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Placeholder(Placeholder, Quoting),
}

/// A text with places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template {
    pieces: Vec<Piece>,
}

/// What the places stand for in one execution.
#[derive(Clone, Debug, Default)]
pub(super) struct Values<'a> {
    /// The item as JSON; nothing in setup and reduce.
    pub(super) item: Option<&'a str>,
    /// `--var` and `vars`.
    pub(super) vars: Option<&'a BTreeMap<String, String>>,
    /// The rest by name.
    pub(super) named: BTreeMap<&'static str, String>,
}

impl Template {
    /// A text for the shell.
    ///
    /// # Errors
    /// What is wrong, with the line of the text, counted from 0.
    pub(super) fn shell(text: &str) -> Result<Self, (usize, String)> {
        Shell::new(text).read()
    }

    /// A text that no shell reads.
    ///
    /// # Errors
    /// As for the shell.
    pub(super) fn plain(text: &str) -> Result<Self, (usize, String)> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let line = text.len() - after.len();
            let line = text.get(..line).unwrap_or_default().matches('\n').count();
            let Some((name, after)) = after.split_once('}') else {
                return Err((line, "\"${\" is not closed".into()));
            };
            push_text(&mut pieces, before);
            let placeholder = placeholder(name).map_err(|what| (line, what))?;
            let placeholder = placeholder.ok_or_else(|| (line, unknown(name)))?;
            pieces.push(Piece::Placeholder(placeholder, Quoting::None));
            rest = after;
        }
        push_text(&mut pieces, rest);
        Ok(Self { pieces })
    }

    /// The places it has.
    pub(super) fn placeholders(&self) -> impl Iterator<Item = &Placeholder> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Placeholder(placeholder, _) => Some(placeholder),
            Piece::Text(_) => None,
        })
    }

    /// The text with values.
    ///
    /// # Errors
    /// Which value is missing or cannot be handed to a command.
    pub(super) fn fill(&self, values: &Values<'_>) -> Result<String, String> {
        let mut out = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Placeholder(placeholder, quoting) => {
                    let value = value_of(placeholder, values)?;
                    if value.contains('\0') {
                        return Err(format!(
                            "{} holds a NUL, which no command can be given",
                            shown(placeholder)
                        ));
                    }
                    let quoted = || format!("'{}'", value.replace('\'', r"'\''"));
                    match quoting {
                        Quoting::None => out.push_str(&value),
                        Quoting::Bare => out.push_str(&quoted()),
                        // The author's quotes are closed before the value and opened again after it.
                        Quoting::Double => out.push_str(&format!("\"{}\"", quoted())),
                    }
                }
            }
        }
        Ok(out)
    }
}

fn value_of(placeholder: &Placeholder, values: &Values<'_>) -> Result<String, String> {
    let missing = || format!("there is no {} here", shown(placeholder));
    match placeholder {
        Placeholder::Item => values.item.map(text_of).ok_or_else(missing),
        Placeholder::Field(path) => {
            let item = values.item.ok_or_else(missing)?;
            path.text(item).ok_or_else(|| format!("the item has no field {path}"))
        }
        Placeholder::Var(name) => values
            .vars
            .and_then(|vars| vars.get(name))
            .cloned()
            .ok_or_else(|| format!("there is no variable {name}; give --var {name}=VALUE")),
        Placeholder::Named(name) => values.named.get(name).cloned().ok_or_else(missing),
    }
}

/// A place as it is written.
pub(super) fn shown(placeholder: &Placeholder) -> String {
    match placeholder {
        Placeholder::Item => "${item}".into(),
        Placeholder::Field(path) => format!("${{item.{path}}}"),
        Placeholder::Var(name) => format!("${{var.{name}}}"),
        Placeholder::Named(name) => format!("${{{name}}}"),
    }
}

impl Placeholder {
    /// Whether it stands for something in this stage: setup, map or reduce.
    pub(super) fn is_known_in(&self, stage: &str) -> bool {
        match self {
            Self::Var(_) | Self::Named("job") => true,
            Self::Item | Self::Field(_) | Self::Named("index" | "attempt" | "worktree") => stage == "map",
            Self::Named(_) => stage == "reduce",
        }
    }
}

/// The placeholder of this name, or `None` if the name may be a shell variable of the author's.
fn placeholder(name: &str) -> Result<Option<Placeholder>, String> {
    if name == "item" {
        return Ok(Some(Placeholder::Item));
    }
    let odd = |c: char| !c.is_alphanumeric() && !matches!(c, '.' | '_' | '-');
    if name.starts_with("item")
        && name
            .strip_prefix("item")
            .is_some_and(|rest| rest.starts_with(odd) || rest.starts_with('.') && rest.contains(odd))
    {
        return Err(format!(
            "${{{name}}}: only plain paths are read; put the value in a variable before, as in f=${{item.file}}; \
             echo \"${{f%.png}}\""
        ));
    }
    if let Some(path) = name.strip_prefix("item.") {
        return ItemPath::parse(path).map(|path| Some(Placeholder::Field(path)));
    }
    if let Some(var) = name.strip_prefix("var.").filter(|var| !var.is_empty()) {
        return Ok(Some(Placeholder::Var(var.to_owned())));
    }
    let known = NAMES.iter().find(|known| **known == name && !matches!(**known, "item" | "var"));
    match known {
        Some(known) => Ok(Some(Placeholder::Named(known))),
        // No shell variable has a dot, so this was meant for us.
        None if is_dotted(name) => Err(unknown(name)),
        None => Ok(None),
    }
}

fn is_dotted(name: &str) -> bool {
    name.contains('.') && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

fn unknown(name: &str) -> String {
    let root = name.split('.').next().unwrap_or(name);
    match nearest(root, &NAMES) {
        Some(word) => format!("unknown value ${{{name}}}; did you mean ${{{word}{}}}?", &rest_of(name, root)),
        None => format!("unknown value ${{{name}}}; known are {}", NAMES.join(", ")),
    }
}

fn rest_of(name: &str, root: &str) -> String {
    name.strip_prefix(root).unwrap_or_default().to_owned()
}

fn push_text(pieces: &mut Vec<Piece>, text: &str) {
    if !text.is_empty() {
        pieces.push(Piece::Text(text.to_owned()));
    }
}

/// What the shell is inside of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inside {
    /// `"…"`.
    Double,
    /// `$(…)`, with the parentheses that are open in it.
    Command(u32),
}

/// Walks a shell text as far as is needed to know what each place stands in. Where this walk could be wrong it
/// does not guess: it notes what it met, and refuses every place after it.
struct Shell<'a> {
    text: &'a str,
    at: usize,
    inside: Vec<Inside>,
    pieces: Vec<Piece>,
    plain: String,
    /// Why places from here on are refused.
    unsure: Option<&'static str>,
    /// The word that is being read, with marks for what is quoted in it.
    word: String,
    /// What the words so far mean, and outside of each `$(…)` that is open.
    words: Words,
    outer: Vec<Words>,
}

impl<'a> Shell<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            inside: Vec::new(),
            pieces: Vec::new(),
            plain: String::new(),
            unsure: None,
            word: String::new(),
            words: Words::default(),
            outer: Vec::new(),
        }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn take(&mut self, bytes: usize) {
        self.plain.push_str(self.rest().get(..bytes).unwrap_or_default());
        self.at += bytes;
    }

    fn line(&self) -> usize {
        self.text.get(..self.at).unwrap_or_default().matches('\n').count()
    }

    fn refuse(&self, what: &str) -> (usize, String) {
        let name: String = self.rest().chars().take_while(|c| *c != '}').take(60).collect();
        (self.line(), format!("{name}}} stands {what}"))
    }

    fn read(mut self) -> Result<Template, (usize, String)> {
        while let Some(c) = self.rest().chars().next() {
            if c == '$' && self.rest().starts_with("${") {
                self.brace()?;
                continue;
            }
            match (c, self.inside.last().copied()) {
                // What follows a backslash is itself, so `\${item}` stays as it is.
                ('\\', _) => {
                    let next = self.rest().chars().nth(1);
                    self.take(1 + next.map_or(0, char::len_utf8));
                    // A backslash before the end of a line is no part of any word.
                    if let Some(next) = next.filter(|next| *next != '\n') {
                        self.word.push('\\');
                        self.words.push(next);
                    }
                }
                ('$', inside) => self.dollar(inside),
                ('`', _) => {
                    self.unsure = Some("after a backtick; write $(…) instead");
                    self.take(1);
                }
                ('"', Some(Inside::Double)) => {
                    self.inside.pop();
                    self.take(1);
                }
                (_, Some(Inside::Double)) => {
                    self.words.push(c);
                    self.take(c.len_utf8());
                }
                ('"', _) => {
                    self.inside.push(Inside::Double);
                    self.word.push('"');
                    self.take(1);
                }
                _ => self.bare(c)?,
            }
        }
        self.flush();
        Ok(Template { pieces: self.pieces })
    }

    /// A character outside of double quotes.
    fn bare(&mut self, c: char) -> Result<(), (usize, String)> {
        match c {
            '\'' => self.single()?,
            '#' if self.word.is_empty() => {
                let end = self.rest().find('\n').unwrap_or(self.rest().len());
                let comment = self.rest().get(..end).unwrap_or_default();
                if let Some(at) = find_place(comment) {
                    self.at += at;
                    return Err(self.refuse("in a comment; take it out"));
                }
                self.take(end);
            }
            '<' if self.rest().starts_with("<<") => {
                self.unsure = Some("after a here-document; write printf '%s' … | command, or use stdin:");
                self.take(2);
            }
            '(' => {
                if self.words.is_evaluated() {
                    self.unsure = Some("after a list in parentheses that is evaluated");
                }
                if let Some(Inside::Command(depth)) = self.inside.last_mut() {
                    *depth += 1;
                }
                self.end_word(1);
            }
            ')' => match self.inside.last_mut() {
                // `$(…)` is part of a word, so `#` after it begins no comment; after `(…)` it does.
                Some(Inside::Command(0)) => {
                    self.inside.pop();
                    self.take(1);
                    self.word = ")".into();
                    self.words = self.outer.pop().unwrap_or_default();
                }
                Some(Inside::Command(depth)) => {
                    *depth -= 1;
                    self.end_word(1);
                }
                Some(Inside::Double) | None => self.end_word(1),
            },
            '<' | '>' => {
                self.words.redirect();
                self.word.clear();
                self.take(1);
            }
            ';' | '&' | '|' | '\n' => {
                // `>&`, `>|` and `&>` are signs of redirection.
                let redirects =
                    self.word.is_empty() && self.words.is_redirecting() || self.rest().starts_with("&>");
                self.end_word(1);
                if !redirects || matches!(c, ';' | '\n') {
                    self.words.end_command();
                }
            }
            // Other white space is part of words, for a shell.
            ' ' | '\t' => self.end_word(1),
            c => {
                self.word.push(c);
                self.words.push(c);
                // A pattern of `case` closes parentheses that were never opened.
                if self.word == "case" && !self.inside.is_empty() {
                    self.unsure = Some("after `case` inside $(…); move the case out of it");
                }
                self.take(c.len_utf8());
            }
        }
        Ok(())
    }

    fn end_word(&mut self, bytes: usize) {
        if !self.word.is_empty() {
            self.word.clear();
            self.words.end_word();
        }
        self.take(bytes);
    }

    /// `'…'`: nothing in it means anything to the shell, and a place in it would be text for another program.
    fn single(&mut self) -> Result<(), (usize, String)> {
        let body = self.rest().get(1..).unwrap_or_default();
        let Some(end) = body.find('\'') else {
            return Err((self.line(), "a single quote is not closed".into()));
        };
        if let Some(at) = find_place(body.get(..end).unwrap_or_default()) {
            self.at += 1 + at;
            return Err(self.refuse(
                "inside single quotes, where its value would become part of another program's text; hand it over \
                 as an argument, as in sh -c 'echo \"$1\"' x ${item.x}",
            ));
        }
        self.word.push('\'');
        body.get(..end).unwrap_or_default().chars().for_each(|c| self.words.push(c));
        self.take(end + 2);
        Ok(())
    }

    /// `$` that does not begin `${`.
    fn dollar(&mut self, inside: Option<Inside>) {
        let rest = self.rest();
        let quoted = inside == Some(Inside::Double);
        self.words.expand(quoted && !rest.starts_with("$@"));
        if let Some(length) = arithmetic(rest) {
            self.word.push('$');
            self.take(length);
        } else if rest.starts_with("$((") {
            self.unsure = Some("after $((…)); put the value in a variable before it: n=${item.n}");
            self.take(3);
            self.enter(Inside::Command(1));
        } else if rest.starts_with("$(") {
            self.take(2);
            self.word.clear();
            self.enter(Inside::Command(0));
        } else if rest.starts_with("$'") && !quoted {
            self.unsure = Some("after $'…', which shells read differently");
            self.take(1);
        } else {
            self.word.push('$');
            self.take(1 + name_length(rest.get(1..).unwrap_or_default()));
        }
    }

    fn enter(&mut self, inside: Inside) {
        self.inside.push(inside);
        let within = self.words.within();
        self.outer.push(std::mem::replace(&mut self.words, within));
    }

    /// `${…}`: ours, or a variable of the shell.
    fn brace(&mut self) -> Result<(), (usize, String)> {
        let body = self.rest().get(2..).unwrap_or_default();
        let Some(end) = body.find('}') else { return Err((self.line(), "\"${\" is not closed".into())) };
        let name = body.get(..end).unwrap_or_default();
        let found = placeholder(name).map_err(|what| (self.line(), what))?;
        let Some(placeholder) = found else {
            if find_place(body.get(..=end).unwrap_or_default()).is_some() {
                return Err(self.refuse("inside a shell variable; put it in a variable before"));
            }
            if name.contains(['\'', '"', '`', '$', '\\']) {
                self.unsure = Some("after a shell variable with quotes in it; set the variable before");
            }
            let quoted = self.inside.last() == Some(&Inside::Double);
            self.words.expand(quoted && !name.contains('@'));
            self.word.push('$');
            self.take(end + 3);
            return Ok(());
        };
        if let Some(why) = self.unsure {
            return Err(self.refuse(why));
        }
        if let Some(why) = self.words.refuses() {
            return Err(self.refuse(why));
        }
        let quoting = match self.inside.last() {
            Some(Inside::Double) => Quoting::Double,
            Some(Inside::Command(_)) | None => Quoting::Bare,
        };
        self.flush();
        self.pieces.push(Piece::Placeholder(placeholder, quoting));
        self.word.push('$');
        self.words.expand(true);
        self.at += end + 3;
        Ok(())
    }

    fn flush(&mut self) {
        let plain = std::mem::take(&mut self.plain);
        push_text(&mut self.pieces, &plain);
    }
}

/// The length of plain arithmetic, `$((n + 1))`: nothing in it is quoted, and nothing of ours stands in it.
fn arithmetic(rest: &str) -> Option<usize> {
    let inner = rest.strip_prefix("$((")?;
    let inner = inner.get(..inner.find("))")?)?;
    let plain = !inner.contains(['\'', '"', '`', '\\', '#', '(', ')', '{', '\n']);
    plain.then_some(inner.len() + 5)
}

/// The length of the name of a variable that is written without braces.
fn name_length(rest: &str) -> usize {
    let named = |c: char| c.is_ascii_alphanumeric() || c == '_';
    match rest.chars().next() {
        Some(c) if c.is_ascii_digit() || matches!(c, '@' | '*' | '#' | '?' | '-' | '$' | '!') => 1,
        Some(_) => rest.find(|c| !named(c)).unwrap_or(rest.len()),
        None => 0,
    }
}

/// Where the first of our places begins.
fn find_place(text: &str) -> Option<usize> {
    let ours = |at: &usize| {
        let name = text.get(at + 2..).and_then(|rest| rest.split_once('}')).map(|(name, _)| name);
        name.is_some_and(|name| !matches!(placeholder(name), Ok(None)))
    };
    text.match_indices("${").map(|(at, _)| at).find(ours)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    fn fill(text: &str, item: &str) -> Result<String, String> {
        let template = Template::shell(text).map_err(|(line, what)| format!("{line}: {what}"))?;
        let mut values = Values { item: Some(item), ..Values::default() };
        values.named.insert("index", "7".into());
        template.fill(&values)
    }

    fn sh(text: &str, item: &str) -> Vec<u8> {
        let script = fill(text, item).unwrap();
        let output = Command::new("sh").arg("-c").arg(&script).output().unwrap();
        assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    #[test]
    fn values_are_quoted_for_where_they_stand() {
        let item = r#"{"x":"a'b","n":12}"#;
        assert_eq!(fill("cp ${item.x} out/${item.n}.png", item).unwrap(), r"cp 'a'\''b' out/'12'.png");
        assert_eq!(fill(r#"echo "<${item.n}>""#, item).unwrap(), r#"echo "<"'12'">""#);
        assert_eq!(fill(r#"echo "$(cat ${item.n})""#, item).unwrap(), r#"echo "$(cat '12')""#);
        assert_eq!(
            fill("echo ${HOME} ${x:-y} $1 $$ ${index}", item).unwrap(),
            "echo ${HOME} ${x:-y} $1 $$ '7'"
        );
        assert_eq!(fill(r"echo \${item.x} $${item.x}", item).unwrap(), r"echo \${item.x} $${item.x}");
        assert_eq!(fill("echo $((1 + n)) ${index}", item).unwrap(), "echo $((1 + n)) '7'");
        assert_eq!(fill("echo ${item}", item).unwrap(), r#"echo '{"x":"a'\''b","n":12}'"#);
    }

    #[test]
    fn what_cannot_be_quoted_for_sure_is_refused_with_its_line() {
        for (text, says) in [
            ("sh -c 'echo ${item.x}'", "0: ${item.x} stands inside single quotes"),
            ("sh -c \"echo ${item.x}\"", "follows -c"),
            ("bash -lc \"echo ${item.x}\"", "follows -c"),
            ("eval \"echo ${item.x}\"", "what eval"),
            ("true\n# for ${item.x}\ntrue", "1: ${item.x} stands in a comment"),
            ("echo `cat ${item.x}`", "backtick"),
            ("cat <<EOF\n${item.x}\nEOF", "1: ${item.x} stands after a here-document"),
            ("echo $((${item.n} + 1))", "$((…))"),
            ("echo ${x:-${item.x}}", "inside a shell variable"),
            ("echo $'a' ${item.x}", "$'…'"),
            ("echo \"$(case a in a) echo;; esac; cat ${item.x})\"", "case"),
            ("echo ${x:-\"} ${item.x}", "shell variable with quotes"),
            ("echo ${itme.x}", "did you mean ${item.x}?"),
            ("echo ${item.}", "not a path"),
            ("echo ${item.file%.png}", "only plain paths"),
            ("echo ${item:-x}", "only plain paths"),
            ("sh -c \"echo $(printf %s ${item.x})\"", "follows -c"),
            ("echo $(true)#'a\nb' \\\n# \" ${item.x}", "in a comment"),
            ("echo 'open ${item.x}", "not closed"),
            ("echo ${item.x", "not closed"),
        ] {
            let refused = Template::shell(text).map_err(|(line, what)| format!("{line}: {what}"));
            let error = refused.expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    /// Ways to have a text read as a script.
    const SCRIPTS: [&str; 31] = [
        "eval ${item.x}",
        "eval echo ${item.x}",
        "eval 'echo '${item.x}",
        "true; eval echo ${item.x}",
        "true && eval echo ${item.x}",
        "true | eval echo ${item.x}",
        "true\neval echo ${item.x}",
        "echo $(eval echo ${item.x})",
        "(eval echo ${item.x})",
        "command eval echo ${item.x}",
        "\"ev\"al echo ${item.x}",
        "eval echo 2>&1 ${item.x}",
        "eval echo \"$(printf %s ${item.x})\"",
        "trap ${item.x} EXIT",
        "alias a=${item.x}\na",
        "sh -c ${item.x}",
        "sh -c \"echo \"${item.x}",
        "sh -c 'echo '${item.x}",
        "sh -c \"${item.x}\"",
        "sh -ec ${item.x}",
        "sh -ce ${item.x}",
        "sh '-c' ${item.x}",
        "sh \\-c ${item.x}",
        "sh ${y}-c ${item.x}",
        "sh -c -e ${item.x}",
        "sh -c -o errexit ${item.x}",
        "sh -c ${y} ${item.x}",
        "sh -c \"$@\" ${item.x}",
        "sh -c 2>/dev/null ${item.x}",
        "sh -c \\\n${item.x}",
        "echo | xargs sh -c ${item.x}",
    ];

    #[test]
    fn no_value_stands_in_what_is_read_as_a_script() {
        for text in SCRIPTS {
            // Quoted as elsewhere, the value runs: this is no idle caution.
            let here = tempfile::tempdir().unwrap();
            let quoted = text.replace("\"${item.x}\"", "'$(:>mark)'").replace("${item.x}", "'$(:>mark)'");
            let mut command = Command::new("sh");
            command.arg("-c").arg(&quoted).current_dir(here.path()).stdin(std::process::Stdio::null());
            command.output().unwrap();
            assert!(here.path().join("mark").exists(), "{quoted}");
        }
        for text in SCRIPTS.into_iter().chain(["python3 -c${item.x}", "su --command=\"${item.x}\""]) {
            let (_, error) = Template::shell(text).expect_err(text);
            assert!(
                error.contains("read as a script") || error.contains("reads as a script"),
                "{text}: {error}"
            );
            assert!(!error.contains("close the quotes"), "{error}");
        }
        let nasty = r#"{"x":"$(echo pwned)"}"#;
        for text in [
            "sh -c 'printf %s \"$1\"' x ${item.x}",
            "sh -c 'printf %s \"$0\"' ${item.x}",
            "eval true; printf %s ${item.x}",
            "eval true && printf %s ${item.x}",
            "(eval true)\nprintf %s ${item.x}",
            "$(eval true) printf %s ${item.x}",
            "sh -c true; printf %s ${item.x}",
            "printf %s ${item.x} | head -c 100",
            "v=${item.x}; eval 'printf %s \"$v\"'",
        ] {
            assert_eq!(String::from_utf8(sh(text, nasty)).unwrap(), "$(echo pwned)", "{text}");
        }
        assert_eq!(fill("wc -c < ${index}", nasty).unwrap(), "wc -c < '7'");
        // To a shell this is no white space, so that no comment begins after it.
        assert_eq!(
            fill("echo \u{a0}# \"\n${item.x}\"", r#"{"x":"a"}"#).unwrap(),
            "echo \u{a0}# \"\n\"'a'\"\""
        );
    }

    #[test]
    fn missing_fields_and_nuls_fail_the_item() {
        assert_eq!(fill("echo ${item.y}", "{}").unwrap_err(), "the item has no field y");
        assert!(fill("echo ${item.x}", r#"{"x":"a\u0000b"}"#).unwrap_err().contains("NUL"));
        assert!(Template::plain("${item.x} and ${nope}").is_err());
    }

    /// Values that break naive quoting.
    fn nasty() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            any::<String>().prop_map(|s| s.replace('\0', "")),
            proptest::sample::select(vec![
                "'",
                "\"",
                "\\",
                "$",
                "`",
                "\n",
                "$(touch x)",
                "${item.x}",
                "';exit 9;'",
                "\\'",
                "'\\''",
                "*",
                "~",
                "#",
                "!",
                "&",
                "|",
                ";",
                "\r",
                "\t",
                " ",
                "%s",
                "-n",
                "é",
                "\u{1F600}",
                "$'",
                "EOF",
            ])
            .prop_map(str::to_owned),
        ];
        proptest::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        /// Whatever an item holds, a real shell hands the command exactly that, in every place that is allowed.
        #[test]
        fn the_shell_sees_exactly_the_value(value in nasty()) {
            let item = serde_json::json!({ "x": value }).to_string();
            let expected = [value.as_bytes(), b"|<", value.as_bytes(), b">|", value.as_bytes()].concat();
            let text = "printf '%s|' ${item.x}; printf %s \"<${item.x}>\"; X=${item.x}; printf '|%s' \"$X\"";
            prop_assert_eq!(sh(text, &item), expected);
            // A command substitution drops newlines at its end; the mark keeps them.
            let nested = sh("printf %s \"$(printf '%s.' \"${item.x}\"; true)\"", &item);
            prop_assert_eq!(nested, [value.as_bytes(), b"."].concat());
        }
    }

    /// Pieces that a shell text may be made of, among them all that change how the rest is read.
    fn shell_text() -> impl Strategy<Value = String> {
        let piece = proptest::sample::select(vec![
            "${item.x}",
            "${item.x}",
            "${item.x}",
            "echo ",
            "a",
            " ",
            "\n",
            "'",
            "\"",
            "\\",
            "\\\n",
            "#",
            " # ",
            "$(",
            ")",
            "(",
            "`",
            "$((",
            "))",
            "$'",
            "$\"",
            "${y}",
            "${y:-",
            "}",
            "${",
            "$$",
            "$",
            "<<E\n",
            "<<-E\n",
            "E\n",
            ";",
            "|",
            "&&",
            "&",
            "case a in a) ",
            ";; esac",
            "=",
            "X=",
            "!",
            "{ ",
            "; }",
            "[",
            "]",
            "*",
            "~",
            ">",
            "</dev/null ",
            "if :; then ",
            "; fi",
            "é",
            "\t",
            "$#",
            "${#y}",
            "\"$",
            "'\"",
            "\"'",
            "for i in ",
            "; do :; done",
            "\u{a0}",
        ]);
        proptest::collection::vec(piece, 1..14).prop_map(|pieces| pieces.concat())
    }

    /// Texts in which much is read as a script.
    fn script_text() -> impl Strategy<Value = String> {
        let piece = proptest::sample::select(vec![
            "${item.x}",
            "${item.x} ",
            "\"${item.x}\"",
            "sh -c ",
            "sh -ec ",
            "sh \"-c\" ",
            "eval ",
            "trap ",
            "echo ",
            " EXIT;",
            "-e ",
            "-o errexit ",
            "x ",
            "'echo '",
            "'x' ",
            "${y} ",
            "\"$@\" ",
            "$(",
            ")",
            "\"",
            ";",
            "&&",
            "| ",
            "\n",
            "\\\n",
            "2>&1 ",
            ">f ",
        ]);
        proptest::collection::vec(piece, 1..7).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

        /// Whatever text is accepted, no value runs anything: none of these leaves its mark.
        #[test]
        fn no_value_becomes_a_command(text in prop_oneof![shell_text(), script_text()]) {
            let Ok(template) = Template::shell(&text) else { return Ok(()) };
            if template.placeholders().next().is_none() {
                return Ok(());
            }
            for value in ["$(:>mark)", "`:>mark`", "';:>mark;'", "\";:>mark;\"", "\n:>mark\n", ")\n:>mark;(", "\nE\n:>mark\n", "\\\n:>mark\n#"] {
                let here = tempfile::tempdir().unwrap();
                let item = serde_json::json!({ "x": value }).to_string();
                let script = template.fill(&Values { item: Some(&item), ..Values::default() }).unwrap();
                let mut command = Command::new("sh");
                command.arg("-c").arg(&script).current_dir(here.path()).stdin(std::process::Stdio::null());
                command.output().unwrap();
                prop_assert!(!here.path().join("mark").exists(), "{text:?} with {value:?} is {script:?}");
            }
        }

        /// A text is a template or is refused; the walk never panics and never loses a character of it.
        #[test]
        fn the_walk_loses_nothing(text in prop_oneof![shell_text(), script_text(), any::<String>()]) {
            if let Ok(template) = Template::shell(&text) {
                let back: String = template.pieces.iter().map(|piece| match piece {
                    Piece::Text(text) => text.clone(),
                    Piece::Placeholder(placeholder, _) => shown(placeholder),
                }).collect();
                prop_assert_eq!(back, text);
            }
        }
    }
}
