//! A stack as people read it: the frames of their own code stand out, those of runtimes and libraries step back.

use redrive_core::signature::is_foreign_frame;

/// Lines shown of a stack.
const LINES_MAX: usize = 60;

/// One line of a stack.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) is_own: bool,
}

/// The lines of a stack, at most so many; the last says how many more there are.
pub(super) fn lines(stack: &str) -> Vec<Line> {
    let all: Vec<&str> = stack.lines().collect();
    let line = |text: &&str| Line { text: (*text).to_owned(), is_own: !is_foreign_frame(text) };
    let mut lines: Vec<Line> = all.iter().take(LINES_MAX).map(line).collect();
    if all.len() > LINES_MAX {
        lines.push(Line { text: format!("    {} more lines", all.len() - LINES_MAX), is_own: false });
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_frames_stand_out() {
        let stack = "Error: x\n    at capture (src/capture.ts:88)\n    at run (/app/node_modules/q/index.js:1)\n    at tick (node:internal/x:9)";
        let own: Vec<bool> = lines(stack).iter().map(|line| line.is_own).collect();
        assert_eq!(own, [true, true, false, false]);
    }
}
