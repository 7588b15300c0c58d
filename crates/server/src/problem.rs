//! Errors as the API reports them: `application/problem+json` (RFC 9457) with a stable `code`. Every refusal and every
//! store error is mapped here without a catch-all, so that new ones must be considered. The codes are an interface: a
//! code never changes its meaning.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use redrive_core::error::{CallError, Refusal, StoreError, StoreErrorKind};
use redrive_core::filter::FilterError;
use serde_json::{Map, Value, json};

/// Why a request has no result.
#[derive(Clone, Debug)]
pub struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    more: Map<String, Value>,
    retry_after: Option<u64>,
}

impl Problem {
    /// A problem with this status, code and text.
    #[must_use]
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        debug_assert!(crate::problem_codes::is_known(code), "{code} is not in the table of codes");
        Self { status, code, detail: detail.into(), more: Map::new(), retry_after: None }
    }

    /// A request that cannot be understood.
    pub(crate) fn bad_request(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, detail)
    }

    /// Adds a member to the document.
    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    /// Says when it makes sense to try again.
    #[must_use]
    pub(crate) fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// The status of the reply.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.code
    }

    /// What is wrong, in words.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// The document.
    #[must_use]
    pub fn document(&self) -> Value {
        let mut document = json!({
            "type": format!("/docs#problem-{}", self.code),
            "title": self.status.canonical_reason().unwrap_or("Error"),
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
        });
        if let Some(members) = document.as_object_mut() {
            members.extend(self.more.clone());
        }
        document
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = self.document().to_string();
        let mut response = (self.status, body).into_response();
        // The problem travels beside its text, so that the id of the request can be added to it.
        response.extensions_mut().insert(self.clone());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"redrive\""));
        }
        response
    }
}

/// The status and the code of every refusal.
fn of_refusal(refusal: &Refusal) -> (StatusCode, &'static str) {
    use StatusCode as S;
    match refusal {
        Refusal::NoSuchMessage { .. } => (S::NOT_FOUND, "no_such_message"),
        Refusal::NoSuchLetter { .. } => (S::NOT_FOUND, "no_such_letter"),
        Refusal::NoSuchQueue { .. } => (S::NOT_FOUND, "no_such_queue"),
        Refusal::NoSuchGroup { .. } => (S::NOT_FOUND, "no_such_group"),
        Refusal::NoSuchOperation { .. } => (S::NOT_FOUND, "no_such_operation"),
        Refusal::StaleToken { .. } => (S::CONFLICT, "stale_token"),
        Refusal::LeaseExpired { .. } => (S::CONFLICT, "lease_expired"),
        Refusal::WrongState { .. } => (S::CONFLICT, "wrong_state"),
        Refusal::WrongStatus { .. } => (S::CONFLICT, "wrong_status"),
        Refusal::WrongGroupStatus { .. } => (S::CONFLICT, "wrong_group_status"),
        Refusal::LetterLeased { .. } => (S::CONFLICT, "letter_leased"),
        Refusal::VersionConflict { .. } => (S::PRECONDITION_FAILED, "version_conflict"),
        Refusal::PatchFailed { .. } => (S::UNPROCESSABLE_ENTITY, "patch_failed"),
        Refusal::NoChange { .. } => (S::CONFLICT, "no_change"),
        Refusal::Erased { .. } => (S::CONFLICT, "erased"),
        Refusal::KeyConflict { .. } | Refusal::RequestConflict { .. } => (S::CONFLICT, "key_conflict"),
        Refusal::KeyInUse { .. } => (S::CONFLICT, "key_in_use"),
        Refusal::RedrivenTooOften { .. } => (S::CONFLICT, "redriven_too_often"),
        Refusal::IdConflict { .. } => (S::CONFLICT, "id_conflict"),
        Refusal::QueueFull { .. } => (S::TOO_MANY_REQUESTS, "queue_full"),
        Refusal::IsDlq { .. } => (S::CONFLICT, "is_dlq"),
        Refusal::Invalid { .. } => (S::UNPROCESSABLE_ENTITY, "invalid"),
        Refusal::Damaged { .. } => (S::INTERNAL_SERVER_ERROR, "damaged"),
        Refusal::WrongStage { .. } => (S::CONFLICT, "wrong_stage"),
        Refusal::NotAllowed { .. } => (S::FORBIDDEN, "not_allowed"),
        Refusal::KvConflict { .. } => (S::CONFLICT, "kv_conflict"),
    }
}

/// The status and the code of every store error.
const fn of_store(kind: StoreErrorKind) -> (StatusCode, &'static str) {
    use StatusCode as S;
    match kind {
        StoreErrorKind::Full => (S::INSUFFICIENT_STORAGE, "store_full"),
        StoreErrorKind::Stopped => (S::SERVICE_UNAVAILABLE, "store_stopped"),
        StoreErrorKind::Undone => (S::INTERNAL_SERVER_ERROR, "undone"),
        StoreErrorKind::Damaged => (S::INTERNAL_SERVER_ERROR, "store_damaged"),
        StoreErrorKind::Newer => (S::SERVICE_UNAVAILABLE, "store_newer"),
        StoreErrorKind::NotAStore => (S::SERVICE_UNAVAILABLE, "not_a_store"),
        StoreErrorKind::Locked => (S::SERVICE_UNAVAILABLE, "store_locked"),
        StoreErrorKind::Io => (S::SERVICE_UNAVAILABLE, "store_io"),
        StoreErrorKind::Unsupported => (S::NOT_IMPLEMENTED, "unsupported"),
        StoreErrorKind::Unreachable => (S::SERVICE_UNAVAILABLE, "store_unreachable"),
        StoreErrorKind::Protocol => (S::BAD_GATEWAY, "store_protocol"),
        StoreErrorKind::Untrusted => (S::SERVICE_UNAVAILABLE, "store_untrusted"),
        StoreErrorKind::Unauthenticated => (S::UNAUTHORIZED, "unauthenticated"),
        StoreErrorKind::Busy => (S::SERVICE_UNAVAILABLE, "busy"),
        StoreErrorKind::NotHolder => (S::SERVICE_UNAVAILABLE, "not_holder"),
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let (status, code) = of_refusal(&refusal);
        let mut problem = Self::new(status, code, refusal.to_string());
        // The parts of a refusal, such as the current version, are members of the document.
        if let Ok(Value::Object(parts)) = serde_json::to_value(&refusal) {
            let parts = parts.into_iter().filter(|(name, _)| name != "refusal" && name != "status");
            problem.more.extend(parts);
        }
        if code == "queue_full" { problem.retry_after(1) } else { problem }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let (status, code) = of_store(error.kind);
        let problem = Self::new(status, code, error.text);
        if status == StatusCode::SERVICE_UNAVAILABLE { problem.retry_after(1) } else { problem }
    }
}

impl From<CallError> for Problem {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(refusal) => refusal.into(),
            CallError::Store(error) => error.into(),
        }
    }
}

impl From<FilterError> for Problem {
    fn from(error: FilterError) -> Self {
        let problem = Self::bad_request("bad_filter", error.to_string())
            .with("filter", error.text.clone())
            .with("position", error.at);
        match error.nearest {
            Some(nearest) => problem.with("nearest", nearest),
            None => problem,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_core::ids::MessageId;

    #[test]
    fn a_stale_version_names_the_current_one() {
        let id = MessageId::new(1, [0; 10]);
        let problem = Problem::from(Refusal::VersionConflict { id, expected: 1, actual: 7 });
        let document = problem.document();
        assert_eq!(document["status"], 412);
        assert_eq!(document["code"], "version_conflict");
        assert_eq!(document["actual"], 7);
    }

    #[test]
    fn a_bad_filter_names_the_position() {
        let error = redrive_core::filter::Filter::parse("statsu:pending").unwrap_err();
        let document = Problem::from(error).document();
        assert_eq!(document["code"], "bad_filter");
        assert_eq!(document["position"], 0);
        assert_eq!(document["nearest"], "status");
    }
}
