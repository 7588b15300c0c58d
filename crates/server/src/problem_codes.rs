//! The codes of all problems, with what each means. The codes are an interface: programs decide by them. The page about
//! the API lists this table, and a problem whose code is not in it fails the tests.

/// A code, its status, and what it means.
pub(crate) type Row = (&'static str, u16, &'static str);

/// Every code, in alphabetical order.
pub(crate) const CODES: &[Row] = &[
    ("ambiguous_id", 409, "Several ids end in these digits. Give more digits, or the whole id."),
    ("bad_batch", 400, "The batch is empty, too large, or an entry is not one thing."),
    ("bad_body", 400, "The body is not the JSON that this route takes. The text says where and why."),
    ("bad_field", 400, "A field of a form is missing or has a value that is not allowed."),
    (
        "bad_filter",
        400,
        "The filter cannot be parsed. `position` is where, `nearest` what was probably meant.",
    ),
    ("bad_header", 400, "A header that may occur once occurs twice, or has a value that is not allowed."),
    ("bad_path", 400, "A part of the path is not an id, a token or a name."),
    ("bad_query", 400, "The query string has an unknown parameter or a value that is not allowed."),
    ("body_cut_short", 400, "The body ended before it was complete."),
    ("body_too_large", 413, "The body is larger than `limit` bytes. Send less at a time."),
    ("busy", 503, "The store has too much to do. Try again after `Retry-After`."),
    ("compressed_body", 415, "Compressed bodies are not accepted."),
    ("cross_site", 403, "A browser sent the request on behalf of another site."),
    ("damaged", 500, "A record in the store is damaged. `redrive doctor` says more."),
    ("erased", 409, "The content of the letter was erased for good."),
    ("headers_too_large", 431, "The request has too many headers, or they are too long."),
    ("id_conflict", 409, "A message or letter with this id exists, with another content."),
    ("invalid", 422, "A value is out of its limits. `field` names it and `reason` says why."),
    ("is_dlq", 409, "The name belongs to a dead letter queue, or the other way round."),
    ("key_conflict", 409, "The idempotency key is known with another body."),
    ("key_in_use", 409, "A live message has this idempotency key."),
    ("kv_conflict", 409, "Somebody else changed the same small value at the same time. Try again."),
    (
        "lease_expired",
        409,
        "The lease ended before the delivery was settled. The message goes to somebody else.",
    ),
    ("letter_leased", 409, "A dead letter consumer holds the letter."),
    ("line_too_long", 413, "A line of the stream is longer than a message may be."),
    ("needs_confirmation", 400, "The call removes data for good. Name the queue in `confirm`."),
    ("needs_version", 428, "An edit must name the version that it is based on, in `If-Match`."),
    ("no_change", 409, "The act would change nothing."),
    ("no_preview", 400, "An operation starts with the token of its preview."),
    ("no_randomness", 503, "The system has no randomness for an id. Try again."),
    ("no_such_channel", 404, "There is no such channel for alerts."),
    ("no_such_group", 404, "There is no such group."),
    ("no_such_letter", 404, "There is no such dead letter."),
    ("no_such_message", 404, "There is no such live message."),
    ("no_such_operation", 404, "There is no such operation."),
    ("no_such_queue", 404, "There is no such queue."),
    ("no_such_revision", 404, "The letter has no such revision."),
    ("no_such_route", 404, "There is nothing under this path."),
    ("no_such_token", 404, "There is no such token."),
    ("not_a_store", 503, "The place of the data holds something else."),
    ("not_allowed", 403, "The token does not allow this. `why` says what is missing."),
    (
        "not_holder",
        503,
        "The node that was asked does not hold the store any more. Nothing was done; try again.",
    ),
    ("not_ready", 503, "The store does not answer."),
    ("not_text", 422, "The payload is not text, so it cannot be changed in a form."),
    ("page_failed", 500, "A page of the dashboard could not be made."),
    ("patch_failed", 422, "The patch does not fit the payload."),
    ("queue_full", 429, "The queue has no room. Try again after `Retry-After`."),
    (
        "rate_limited",
        429,
        "The token sends more requests a second than `limit`. Try again after `Retry-After`.",
    ),
    ("redriven_too_often", 409, "The letter was sent back too often; force it if you are sure."),
    ("slow_body", 408, "The body took too long to arrive."),
    ("stale_token", 409, "The lease was settled already, or another worker has it."),
    ("store_damaged", 500, "The store is damaged. `redrive doctor` says more."),
    ("store_full", 507, "The disk or the quota of the store is full."),
    ("store_io", 503, "The disk of the store gave an error."),
    ("store_locked", 503, "Another process holds the store."),
    ("store_newer", 503, "A newer version of Redrive wrote the store."),
    ("store_protocol", 502, "The process that holds the store speaks another language."),
    ("store_stopped", 503, "The store has stopped after an error. Restart the server."),
    ("store_unreachable", 503, "The process that holds the store does not answer."),
    ("store_untrusted", 503, "The store belongs to somebody else."),
    ("too_deep", 400, "The JSON nests deeper than `limit` levels."),
    ("too_many_clients", 503, "Too many clients listen to events. Try again after `Retry-After`."),
    ("too_many_logins", 429, "Too many wrong tokens. Try again after `Retry-After`."),
    ("too_many_waits", 503, "Too many callers wait for work. Ask again without waiting, or later."),
    ("two_queues", 400, "The message names another queue than the path."),
    ("unauthenticated", 401, "There is no token, or it is wrong, expired or revoked."),
    ("undone", 500, "The store could not carry the call out, and undid it."),
    ("unsupported", 501, "This store, or a server, cannot do this."),
    ("uri_too_long", 414, "The path and the query string are too long."),
    ("version_conflict", 412, "The letter has changed. `actual` is its version now."),
    ("wrong_content_type", 415, "The body must be JSON, or lines of JSON where the route takes a stream."),
    ("wrong_group_status", 409, "The status of the group does not allow the act."),
    ("wrong_host", 421, "The request names a host that this server does not know."),
    ("wrong_method", 405, "The route does not take this method. `Allow` names those it takes."),
    ("wrong_stage", 409, "The stage of the operation does not allow this."),
    ("wrong_state", 409, "The state of the message does not allow this."),
    ("wrong_status", 409, "The status of the letter does not allow the act."),
    (
        "wrong_version",
        409,
        "Caller and server speak different versions of the calls between Redrive processes.",
    ),
];

/// Whether a code is in the table.
pub(crate) fn is_known(code: &str) -> bool {
    CODES.iter().any(|(known, ..)| *known == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_sorted_and_explained() {
        assert!(CODES.is_sorted_by(|a, b| a.0 < b.0));
        for (code, status, meaning) in CODES {
            assert!((400..600).contains(status) && meaning.ends_with('.'), "{code}");
        }
        assert!(is_known("bad_filter") && !is_known("bad_filters"));
    }
}
