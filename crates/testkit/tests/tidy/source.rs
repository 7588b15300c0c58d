//! Reads Rust files without a parser: blanks comments and literals, and finds attributes, test code, paths
//! and words. Offsets count bytes and are the same in a text and in its blanked form. Contains no rules.

use std::path::Path;

/// One Rust file: its text, the text with comments and literals blanked, and which lines are test code.
pub(crate) struct Source<'a> {
    pub(crate) path: &'a str,
    pub(crate) text: &'a str,
    pub(crate) code: String,
    pub(crate) test_lines: Vec<bool>,
}

impl<'a> Source<'a> {
    pub(crate) fn new(path: &'a str, text: &'a str) -> Source<'a> {
        let code = code_only(text);
        let mut test_lines = vec![in_crate_folder(path, &["tests"]); code.lines().count()];
        for attribute in attributes(&code).iter().filter(|attribute| attribute.is_cfg_test()) {
            let end = if attribute.inner { code.len() } else { item_end(&code, attribute.end) };
            let first = line_at(&code, attribute.start);
            let last = line_at(&code, end.saturating_sub(1)).min(test_lines.len());
            test_lines[first - 1..last].fill(true);
        }
        Source { path, text, code, test_lines }
    }

    pub(crate) fn is_test_at(&self, offset: usize) -> bool {
        self.test_lines.get(line_at(&self.code, offset) - 1).copied().unwrap_or(false)
    }

    pub(crate) fn at(&self, offset: usize) -> String {
        format!("{}:{}", self.path, line_at(&self.code, offset))
    }

    /// Paths without extension of the modules this file declares as `#[cfg(test)] mod name;`.
    pub(crate) fn test_modules_elsewhere(&self) -> Vec<String> {
        let path = Path::new(self.path);
        let folder = match path.file_name().and_then(|name| name.to_str()) {
            Some("mod.rs" | "lib.rs" | "main.rs") => path.parent().unwrap_or(path).to_owned(),
            _ => path.with_extension(""),
        };
        let declared =
            attributes(&self.code).into_iter().filter(Attribute::is_cfg_test).filter_map(|attribute| {
                let item = &self.code[attribute.end..item_end(&self.code, attribute.end)];
                let (before, name) = item.trim().strip_suffix(';')?.rsplit_once(' ')?;
                before.ends_with("mod").then(|| folder.join(name).to_string_lossy().into_owned())
            });
        declared.collect()
    }
}

/// The text with comments, strings and character literals replaced by spaces, byte for byte, with lines kept.
pub(crate) fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = opaque_end(bytes, at).min(bytes.len());
        if end > at {
            code.extend(bytes[at..end].iter().map(|byte| if *byte == b'\n' { b'\n' } else { b' ' }));
            at = end;
        } else {
            code.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8(code).expect("whole characters are blanked")
}

/// The end of the comment or literal that starts at `at`, or `at` itself if none starts there.
fn opaque_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    match rest {
        [b'/', b'/', ..] => at + rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_comment_end(bytes, at),
        [b'"', ..] => string_end(bytes, at),
        [b'r', ..] if starts_literal_prefix(bytes, at) => raw_string_end(bytes, at),
        [b'\'', b'\\', ..] => {
            let close = rest.iter().skip(3).position(|byte| *byte == b'\'');
            close.map_or(bytes.len(), |close| at + 3 + close + 1)
        }
        [b'\'', first, ..] => {
            // A character is at most four bytes; without a closing quote right behind it, this is a lifetime.
            let width = match first {
                0..0x80 => 1,
                0x80..0xE0 => 2,
                0xE0..0xF0 => 3,
                0xF0.. => 4,
            };
            if rest.get(1 + width) == Some(&b'\'') { at + width + 2 } else { at }
        }
        _ => at,
    }
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start + 2, 1);
    while at < bytes.len() && depth > 0 {
        match &bytes[at..] {
            [b'/', b'*', ..] => (at, depth) = (at + 2, depth + 1),
            [b'*', b'/', ..] => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
    }
    at
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    at
}

/// Whether the `r` at `at` can begin a raw string: alone, or after the `b` or `c` of `br"…"`.
fn starts_literal_prefix(bytes: &[u8], at: usize) -> bool {
    let before = |n: usize| at.checked_sub(n).map(|i| bytes[i]);
    let free = |byte: Option<u8>| byte.is_none_or(|byte| !is_name_byte(byte));
    free(before(1)) || (matches!(before(1), Some(b'b' | b'c')) && free(before(2)))
}

fn raw_string_end(bytes: &[u8], start: usize) -> usize {
    let hashes = bytes[start + 1..].iter().take_while(|byte| **byte == b'#').count();
    let open = start + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return start;
    }
    let closing: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let body = &bytes[open + 1..];
    let close = body.windows(closing.len()).position(|window| window == closing);
    close.map_or(bytes.len(), |close| open + 1 + close + closing.len())
}

/// An attribute in blanked code.
pub(crate) struct Attribute {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// `#![…]`
    pub(crate) inner: bool,
    /// The text between the brackets, without white space.
    pub(crate) body: String,
}

impl Attribute {
    pub(crate) fn is_cfg_test(&self) -> bool {
        self.body == "cfg(test)" || self.body.starts_with("cfg(all(test,")
    }
}

pub(crate) fn attributes(code: &str) -> Vec<Attribute> {
    let mut found = Vec::new();
    for (start, _) in code.match_indices('#') {
        let after = &code[start + 1..];
        let inner = after.starts_with('!');
        let open = start + 1 + usize::from(inner);
        if code[open..].starts_with('[') {
            let end = bracket_end(code, open);
            let body = code[open + 1..end.saturating_sub(1).max(open + 1)].split_whitespace().collect();
            found.push(Attribute { start, end, inner, body });
        }
    }
    found
}

/// The offset just after the bracket that closes the one at `open`.
fn bracket_end(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// The end of the item that starts at `from`: its `;`, its closing brace, or the brace of the enclosing item.
pub(crate) fn item_end(code: &str, from: usize) -> usize {
    let mut at = from;
    while at < code.len() {
        match code.as_bytes()[at] {
            b'{' => return bracket_end(code, at),
            b'(' | b'[' => at = bracket_end(code, at),
            b';' => return at + 1,
            b'}' => return at,
            _ => at += 1,
        }
    }
    code.len()
}

fn line_at(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

pub(crate) fn is_name_byte(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric()
}

/// The offsets where `word` is a whole name, not part of a longer one.
pub(crate) fn word_offsets<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    code.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let before = at.checked_sub(1).is_none_or(|i| !is_name_byte(bytes[i]));
        before && bytes.get(at + word.len()).is_none_or(|byte| !is_name_byte(*byte))
    })
}

/// Every path in the code with its offset, including those that a `use` with braces expands to.
pub(crate) fn paths(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    // `use<'a>` is a bound, not an import.
    for at in word_offsets(code, "use").filter(|at| !code[at + 3..].starts_with('<')) {
        let import = code[at + 3..].split(';').next().unwrap_or_default();
        let import =
            import.split_whitespace().collect::<Vec<_>>().join(" ").replace(" as ", "=").replace(' ', "");
        let spelled = braces_expanded(import.trim_start_matches(':'));
        found.extend(spelled.into_iter().map(|path| (at, path)));
    }
    let is_path_char = |c: char| c == ':' || c == '_' || c.is_ascii_alphanumeric();
    let words = code.split(|c: char| !is_path_char(c)).filter(|word| word.contains("::"));
    found.extend(words.map(|word| (offset_in(code, word), word.trim_matches(':').to_owned())));
    found
}

/// The offset of `part`, a slice of `whole`, within it.
fn offset_in(whole: &str, part: &str) -> usize {
    part.as_ptr() as usize - whole.as_ptr() as usize
}

/// Expands `a/{b,c}` to `a/b` and `a/c`, also with nested braces.
pub(crate) fn braces_expanded(pattern: &str) -> Vec<String> {
    let Some(open) = pattern.find('{') else { return vec![pattern.to_owned()] };
    let close = bracket_end(pattern, open);
    let inside = pattern[open + 1..close].strip_suffix('}').unwrap_or(&pattern[open + 1..close]);
    let mut choices = vec![String::new()];
    let mut depth = 0_usize;
    for c in inside.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if c == ',' && depth == 0 {
            choices.push(String::new());
        } else if let Some(choice) = choices.last_mut() {
            choice.push(c);
        }
    }
    let spelled = choices.iter().filter(|choice| !choice.is_empty());
    spelled
        .flat_map(|choice| braces_expanded(&format!("{}{choice}{}", &pattern[..open], &pattern[close..])))
        .collect()
}

/// Whether a path is `crates/NAME/FOLDER/…` for one of these folders.
pub(crate) fn in_crate_folder(path: &str, folders: &[&str]) -> bool {
    let mut parts = path.split('/');
    parts.next() == Some("crates") && parts.nth(1).is_some_and(|folder| folders.contains(&folder))
}
