//! Streams of JSON lines: read as they arrive, in small batches, and answered line by line in the same order. A stream
//! may be longer than any body; what is bounded is a line, a batch, and the time without a byte. The next batch is read
//! only when the answers to the one before were taken, so a slow reader slows its own sender down and nobody else.

use crate::problem::Problem;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http_body_util::BodyExt as _;
use redrive_core::limits;
use serde_json::Value;
use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

/// The type of such a stream.
pub(crate) const MEDIA_TYPE: &str = "application/x-ndjson";

/// The number of lines that go to the store together.
const BATCH_LINES: usize = 500;
/// The number of bytes that go to the store together. A longer line goes alone.
const BATCH_BYTES: usize = 1024 * 1024;
/// The longest line: the largest payload in base64, and room for the rest.
const LINE_BYTES_MAX: usize = limits::PAYLOAD_BYTES_MAX / 3 * 4 + 256 * 1024;
/// How long a client may send nothing.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// A reply that is not compressed, because its reader waits for each line.
#[derive(Clone, Copy)]
pub(crate) struct Live;

/// Whether a body says that it is such a stream.
pub(crate) fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case(MEDIA_TYPE) || essence.eq_ignore_ascii_case("application/jsonl")
}

/// A line that came in: its number, from 1, and its text.
pub(crate) struct Line {
    pub(crate) number: usize,
    pub(crate) text: Result<Vec<u8>, Problem>,
}

/// The lines of a body.
pub(crate) struct Lines {
    body: Body,
    buffer: Vec<u8>,
    /// How much of the buffer was searched for the end of a line.
    searched: usize,
    /// Whether the rest of a line that is too long is being left out.
    skipping: bool,
    number: usize,
    ended: bool,
    failure: Option<Problem>,
}

impl Lines {
    pub(crate) fn new(body: Body) -> Self {
        Self {
            body,
            buffer: Vec::new(),
            searched: 0,
            skipping: false,
            number: 0,
            ended: false,
            failure: None,
        }
    }

    /// The lines that have arrived, at least one and at most a batch; empty at the end. What is wrong with the stream
    /// as a whole comes after the lines before it.
    pub(crate) async fn batch(&mut self) -> Result<Vec<Line>, Problem> {
        let (mut lines, mut bytes) = (Vec::new(), 0);
        loop {
            while lines.len() < BATCH_LINES && bytes < BATCH_BYTES {
                let Some(line) = self.split() else { break };
                bytes += line.text.as_ref().map_or(0, Vec::len);
                lines.push(line);
            }
            let full = lines.len() >= BATCH_LINES || bytes >= BATCH_BYTES;
            if full || (!lines.is_empty() && (self.ended || self.failure.is_some())) {
                return Ok(lines);
            }
            if let Some(failure) = self.failure.take() {
                self.ended = true;
                self.buffer.clear();
                return Err(failure);
            }
            if self.ended {
                return Ok(lines);
            }
            if lines.is_empty() {
                self.read().await;
            } else if self.read().now_or_never().is_none() {
                return Ok(lines);
            }
        }
    }

    /// Reads what arrives next.
    async fn read(&mut self) {
        match tokio::time::timeout(SILENCE_MAX, self.body.frame()).await {
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    self.buffer.extend_from_slice(&data);
                }
            }
            Ok(Some(Err(_))) => {
                let what = "the stream ended in the middle of a line";
                self.failure = Some(Problem::bad_request("body_cut_short", what));
            }
            Ok(None) => self.ended = true,
            Err(_) => {
                let what = format!("nothing came for {} s", SILENCE_MAX.as_secs());
                self.failure = Some(Problem::new(StatusCode::REQUEST_TIMEOUT, "slow_body", what));
            }
        }
    }

    /// Takes the next line off the buffer, if it is complete. Empty lines are left out.
    fn split(&mut self) -> Option<Line> {
        loop {
            let rest = self.buffer.get(self.searched..).unwrap_or_default();
            let end = rest.iter().position(|byte| *byte == b'\n').map(|at| self.searched + at);
            let (mut text, complete) = match end {
                Some(end) => {
                    let after = self.buffer.split_off(end + 1);
                    (std::mem::replace(&mut self.buffer, after), true)
                }
                None if self.ended && !self.buffer.is_empty() => (std::mem::take(&mut self.buffer), true),
                None if self.buffer.len() > LINE_BYTES_MAX => (std::mem::take(&mut self.buffer), false),
                None => {
                    self.searched = self.buffer.len();
                    return None;
                }
            };
            self.searched = 0;
            let too_long = self.skipping || text.len() > LINE_BYTES_MAX;
            self.skipping = !complete;
            if !complete {
                continue;
            }
            self.number += 1;
            let number = self.number;
            if too_long {
                let what = format!("the line has more than {LINE_BYTES_MAX} bytes");
                let problem = Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "line_too_long", what);
                return Some(Line { number, text: Err(problem.with("limit", LINE_BYTES_MAX)) });
            }
            text.truncate(text.trim_ascii_end().len());
            if !text.is_empty() {
                return Some(Line { number, text: Ok(text) });
            }
        }
    }
}

/// The answers to a batch of lines, and whether the stream goes on.
pub(crate) struct Answers {
    pub(crate) lines: Vec<Value>,
    pub(crate) go_on: bool,
}

/// Answers a stream batch by batch.
pub(crate) fn answer<S, F, R>(lines: Lines, shared: S, each: F) -> Response
where
    S: Clone + Send + 'static,
    F: Fn(S, Vec<Line>) -> R + Send + Clone + 'static,
    R: Future<Output = Answers> + Send,
{
    let replies = stream::unfold(Some((lines, shared, each)), |state| async move {
        let (mut lines, shared, each) = state?;
        let answers = match lines.batch().await {
            Ok(batch) if batch.is_empty() => return None,
            Ok(batch) => each(shared.clone(), batch).await,
            Err(problem) => {
                Answers { lines: vec![serde_json::json!({"error": problem.document()})], go_on: false }
            }
        };
        let text: String = answers.lines.iter().map(|line| format!("{line}\n")).collect();
        Some((Ok::<_, Infallible>(Bytes::from(text)), answers.go_on.then_some((lines, shared, each))))
    });
    let mut response = reply(Body::from_stream(replies.fuse()));
    response.extensions_mut().insert(Live);
    response
}

/// A reply of JSON lines.
pub(crate) fn reply(body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines_of(parts: Vec<Vec<u8>>) -> Vec<(usize, Result<String, &'static str>)> {
        let parts = parts.into_iter().map(|part| Ok::<_, Infallible>(Bytes::from(part)));
        let mut lines = Lines::new(Body::from_stream(stream::iter(parts)));
        let mut all = Vec::new();
        loop {
            let batch = lines.batch().await.unwrap();
            if batch.is_empty() {
                return all;
            }
            assert!(batch.len() <= BATCH_LINES);
            for Line { number, text } in batch {
                let text =
                    text.map(|text| String::from_utf8(text).unwrap()).map_err(|problem| problem.code());
                all.push((number, text));
            }
        }
    }

    #[tokio::test]
    async fn lines_are_found_wherever_the_network_cuts() {
        let text = b"one\r\n\ntwo\nthree";
        for cut in 0..=text.len() {
            let (a, b) = text.split_at(cut);
            let lines = lines_of(vec![a.to_vec(), b.to_vec()]).await;
            let wanted = vec![(1, Ok("one".into())), (3, Ok("two".into())), (4, Ok("three".into()))];
            assert_eq!(lines, wanted, "{cut}");
        }
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_costs_only_itself() {
        let mut parts = vec![b"a\n".to_vec()];
        parts.extend((0..12).map(|_| vec![b'x'; 1024 * 1024]));
        parts.push(b"\nb\n".to_vec());
        let lines = lines_of(parts).await;
        assert_eq!(lines, [(1, Ok("a".into())), (2, Err("line_too_long")), (3, Ok("b".into()))]);
    }

    #[tokio::test]
    async fn many_lines_come_in_batches() {
        let text: String = (0..1_234).map(|n| format!("{n}\n")).collect();
        assert_eq!(lines_of(vec![text.into_bytes()]).await.len(), 1_234);
    }
}
