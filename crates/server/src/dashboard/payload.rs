//! A payload as people read it: JSON as a tree of lines, whatever it is as raw text or as bytes. Nothing is parsed into
//! numbers and written again, so big integers, key order and spelling stay as they are.

use serde::de::IgnoredAny;

/// What is shown of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Tree,
    Raw,
    Hex,
}

impl Form {
    /// Every form with its name.
    pub(super) const ALL: [(Self, &'static str); 3] =
        [(Self::Tree, "tree"), (Self::Raw, "raw"), (Self::Hex, "hex")];

    /// The form with this name; the tree if there is none.
    pub(super) fn named(text: Option<&str>) -> Self {
        Self::ALL.into_iter().find(|(_, name)| Some(*name) == text).map_or(Self::Tree, |(form, _)| form)
    }
}

/// The bytes that a page shows; the whole payload is a command away.
const SHOWN_MAX: usize = 24 * 1024;
const HEX_MAX: usize = 4 * 1024;
const LINES_MAX: usize = 1_500;

/// A piece of a line: a class of the stylesheet and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) class: &'static str,
    pub(super) text: String,
}

/// A line of a payload. An object or a list that has something in it can be folded: one line opens it, another closes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) pieces: Vec<Piece>,
    pub(super) opens: bool,
    pub(super) closes: bool,
}

/// A payload, ready to be shown.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) lines: Vec<Line>,
    /// How many bytes are not shown.
    pub(super) left_out: usize,
}

impl Shown {
    /// The lines as text.
    pub(super) fn text(&self) -> String {
        let line = |line: &Line| line.pieces.iter().map(|piece| piece.text.as_str()).collect::<String>();
        self.lines.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// Shows bytes in a form. What is not JSON is shown raw instead of as a tree.
pub(super) fn show(bytes: &[u8], form: Form) -> Shown {
    if form == Form::Hex {
        let (shown, rest) = bytes.split_at(bytes.len().min(HEX_MAX));
        return Shown { lines: vec![flat(vec![plain("", hex(shown))])], left_out: rest.len() };
    }
    let text = String::from_utf8_lossy(bytes);
    let mut end = text.len().min(SHOWN_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let (head, rest) = text.split_at(end);
    if form == Form::Tree && rest.is_empty() && serde_json::from_slice::<IgnoredAny>(bytes).is_ok() {
        return Shown { lines: tree(head), left_out: 0 };
    }
    Shown { lines: vec![flat(masked_parts("", head))], left_out: rest.len() }
}

/// A line that neither opens nor closes anything, or a text of several lines.
fn flat(pieces: Vec<Piece>) -> Line {
    Line { pieces, ..Line::default() }
}

fn plain(class: &'static str, text: impl Into<String>) -> Piece {
    Piece { class, text: text.into() }
}

/// Splits out the marks of what is masked.
fn masked_parts(class: &'static str, text: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find("[masked") {
        let Some(end) = rest.get(start..).and_then(|from| from.find(']')).map(|at| start + at + 1) else {
            break;
        };
        let (before, mark, after) = (
            rest.get(..start).unwrap_or_default(),
            rest.get(start..end).unwrap_or_default(),
            rest.get(end..).unwrap_or_default(),
        );
        if !before.is_empty() {
            pieces.push(plain(class, before));
        }
        pieces.push(plain("masked", mark));
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(plain(class, rest));
    }
    pieces
}

/// Lays out a valid JSON document: every token as it is written, on lines that follow from the structure.
fn tree(json: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut line = Line::default();
    let mut depth: usize = 0;
    let mut tokens = Tokens(json).peekable();
    // Ends the line and begins the next one, indented by its depth.
    let mut end = |line: &mut Line, depth: usize| {
        let indent = plain("", "  ".repeat(depth.min(60)));
        lines.push(std::mem::replace(line, flat(if depth == 0 { Vec::new() } else { vec![indent] })));
        lines.len()
    };
    while let Some(token) = tokens.next() {
        match token {
            "{" | "[" => {
                line.pieces.push(plain("p", token));
                if let Some(close) = tokens.next_if(|next| matches!(*next, "}" | "]")) {
                    line.pieces.push(plain("p", close));
                } else {
                    depth += 1;
                    line.opens = true;
                    end(&mut line, depth);
                }
            }
            "}" | "]" => {
                depth = depth.saturating_sub(1);
                end(&mut line, depth);
                line.closes = true;
                line.pieces.push(plain("p", token));
            }
            "," => {
                line.pieces.push(plain("p", token));
                if end(&mut line, depth) > LINES_MAX {
                    line.pieces.push(plain("p", "… (see it raw)"));
                    break;
                }
            }
            ":" => line.pieces.push(plain("p", ": ")),
            text => {
                let class = match text.as_bytes().first() {
                    Some(b'"') if tokens.peek() == Some(&":") => "k",
                    Some(b'"') => "s",
                    Some(b't' | b'f' | b'n') => "w",
                    _ => "d",
                };
                line.pieces.extend(masked_parts(class, text));
            }
        }
    }
    lines.push(line);
    // What was opened and not reached its end is closed, so that the page stays well-formed.
    let closed = lines.iter().filter(|line| line.closes).count();
    let open = lines.iter().filter(|line| line.opens).count().saturating_sub(closed);
    lines.extend(std::iter::repeat_n(Line { closes: true, ..Line::default() }, open));
    lines
}

/// The tokens of a valid JSON document.
struct Tokens<'a>(&'a str);

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let text = self.0.trim_start();
        let first = *text.as_bytes().first()?;
        let length = match first {
            b'{' | b'}' | b'[' | b']' | b',' | b':' => 1,
            b'"' => {
                let mut escaped = false;
                let closes = |(_, byte): &(usize, u8)| {
                    let ends = *byte == b'"' && !escaped;
                    escaped = *byte == b'\\' && !escaped;
                    ends
                };
                text.bytes().enumerate().skip(1).find(closes).map_or(text.len(), |(at, _)| at + 1)
            }
            _ => text.find(|c: char| c.is_whitespace() || ",]}:".contains(c)).unwrap_or(text.len()),
        };
        let (token, rest) = text.split_at_checked(length)?;
        self.0 = rest;
        Some(token)
    }
}

/// Bytes as offset, hexadecimal digits and text.
fn hex(bytes: &[u8]) -> String {
    let line = |(n, chunk): (usize, &[u8])| {
        let digits: Vec<String> = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
        let text: String =
            chunk.iter().map(|byte| if (32..127).contains(byte) { char::from(*byte) } else { '.' }).collect();
        format!("{:08x}  {:<47}  {text}\n", n * 16, digits.join(" "))
    };
    bytes.chunks(16).enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(shown: &Shown) -> impl Iterator<Item = &Piece> {
        shown.lines.iter().flat_map(|line| &line.pieces)
    }

    #[test]
    fn a_tree_keeps_every_token_as_it_is_written() {
        let json = r#"{"b": 123456789012345678901234567890, "a":[1.50,{}, [] ,null],"s":"a \"b\", {c}: d"}"#;
        let shown = show(json.as_bytes(), Form::Tree);
        assert_eq!(
            shown.text(),
            "{\n  \"b\": 123456789012345678901234567890,\n  \"a\": [\n    1.50,\n    {},\n    [],\n    null\n  ],\n  \
             \"s\": \"a \\\"b\\\", {c}: d\"\n}"
        );
        let classes: Vec<&str> =
            pieces(&shown).map(|p| p.class).filter(|c| !c.is_empty() && *c != "p").collect();
        assert_eq!(classes, ["k", "d", "k", "d", "w", "k", "s"]);
        let folds: Vec<(bool, bool)> = shown.lines.iter().map(|line| (line.opens, line.closes)).collect();
        let (open, close, none) = ((true, false), (false, true), (false, false));
        assert_eq!(folds, [open, none, open, none, none, none, none, close, none, close]);
    }

    #[test]
    fn a_tree_that_is_cut_off_is_closed() {
        let json = format!("[[{}1]]", "1,".repeat(LINES_MAX + 9));
        let shown = show(json.as_bytes(), Form::Tree);
        let count = |is: fn(&Line) -> bool| shown.lines.iter().filter(|line| is(line)).count();
        assert_eq!((count(|line| line.opens), count(|line| line.closes)), (2, 2));
        assert!(shown.text().contains("see it raw"));
    }

    #[test]
    fn what_is_masked_stands_out() {
        let shown = show(br#"{"password":"[masked]","to":"[masked:email]"}"#, Form::Tree);
        let masked: Vec<&str> =
            pieces(&shown).filter(|p| p.class == "masked").map(|p| p.text.as_str()).collect();
        assert_eq!(masked, ["[masked]", "[masked:email]"]);
    }

    #[test]
    fn anything_else_is_raw_and_bytes_are_bytes() {
        assert_eq!(show(b"not {json", Form::Tree).text(), "not {json");
        assert_eq!(show(b"{\"a\":1}", Form::Raw).text(), "{\"a\":1}");
        assert_eq!(
            show(b"ABC\0\xff", Form::Hex).text(),
            format!("00000000  {:<47}  ABC..\n", "41 42 43 00 ff")
        );
        let long = show(&vec![b'x'; SHOWN_MAX + 7], Form::Tree);
        assert_eq!((long.left_out, long.text().len()), (7, SHOWN_MAX));
    }
}
