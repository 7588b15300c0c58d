//! The W3C trace context: what a `traceparent` header or the `trace` of a message says. It joins the work on a message to
//! the request that it came from. Only version 00 is written; what later versions add is ignored when it is read.

use std::fmt;
use std::str::FromStr;

/// A trace context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace.
    pub trace_id: u128,
    /// The span that caused what comes next.
    pub span_id: u64,
    /// Whether the trace is recorded.
    pub sampled: bool,
}

impl TraceParent {
    /// The id of the trace as 32 hexadecimal digits.
    #[must_use]
    pub fn trace_id_text(&self) -> String {
        format!("{:032x}", self.trace_id)
    }

    /// The id of the trace in the text of a trace context, if it is one. For logs, where a wrong one is left out.
    #[must_use]
    pub fn id_in(text: &str) -> Option<String> {
        text.parse::<Self>().ok().map(|parent| parent.trace_id_text())
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, u8::from(self.sampled))
    }
}

/// A text that is no trace context.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a trace context such as 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
pub struct NotATraceParent;

impl FromStr for TraceParent {
    type Err = NotATraceParent;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('-');
        let mut part = |digits: usize| {
            let part = parts.next().filter(|part| part.len() == digits).ok_or(NotATraceParent)?;
            let lower_hex = part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
            let number = if lower_hex { u128::from_str_radix(part, 16).ok() } else { None };
            number.ok_or(NotATraceParent)
        };
        let (version, trace_id, span_id, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        let ends = parts.next().is_none();
        let known = if version == 0 { ends } else { version != 0xff };
        let span_id = u64::try_from(span_id).map_err(|_| NotATraceParent)?;
        if !known || trace_id == 0 || span_id == 0 {
            return Err(NotATraceParent);
        }
        Ok(Self { trace_id, span_id, sampled: flags & 1 == 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_context_reads_as_it_was_written() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent: TraceParent = text.parse().unwrap();
        assert_eq!((parent.span_id, parent.sampled), (0xb7ad_6b71_6920_3331, true));
        assert_eq!((parent.to_string().as_str(), parent.trace_id_text().as_str()), (text, &text[3..35]));
        let later = "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-02-more";
        assert!(!later.parse::<TraceParent>().unwrap().sampled);
        assert_eq!(TraceParent::id_in(later).as_deref(), Some(&text[3..35]));
    }

    #[test]
    fn anything_else_is_refused() {
        for wrong in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0é",
        ] {
            assert_eq!(wrong.parse::<TraceParent>(), Err(NotATraceParent), "{wrong}");
            assert_eq!(TraceParent::id_in(wrong), None);
        }
    }
}
