//! The table, part one: connections, host names, certificates, time limits, rate limits, and the phrases of HTTP, gRPC
//! and mail.

use super::Strength::{Certain, Hint, Likely, Sure};
use super::{Rule, partial, rule};
use crate::failure::Category::{Persistent as P, Resource as R, Transient as T};
use crate::failure::Route::{Corruption, Network, System, Timeout};

#[rustfmt::skip]
pub(super) const RULES: &[Rule] = &[
    // Connections.
    rule(Sure, T, Network, "nobody listens there now", &[
        "connection refused", "refused to connect", "actively refused", "econnrefused", "connect refused",
        "refused the connection", "connection was refused", "type:connection refused"]),
    rule(Sure, T, Network, "the other side dropped the connection", &[
        "connection reset", "connection was reset", "econnreset", "reset by peer", "socket hang up",
        "connection aborted", "econnaborted", "connection was aborted", "software caused connection abort",
        "established connection was aborted", "forcibly closed by the remote host", "broken pipe", "epipe",
        "remote end closed", "remote disconnected", "server disconnected", "peer closed connection",
        "closed connection without", "remote end hung up", "connection was forcibly closed", "stream reset",
        "stream was reset", "rst stream", "goaway", "go away received", "connection dropped",
        "connection lost", "lost connection", "connection was killed", "connection was closed unexpectedly",
        "connection forced", "closed the connection unexpectedly", "terminated the connection",
        "connection terminated", "connection is closed", "connection has been closed",
        "connection already closed", "connection closed", "server closed the connection",
        "connection closed by", "prematurely closed", "premature close", "server has gone away",
        "client network socket disconnected", "connection was terminated", "socket closed", "socket is closed",
        "connection interrupted", "err connection reset", "err connection closed",
        "network connection was lost", "transport is closing", "esocket", "connection went away",
        "underlying connection was closed", "connection was lost", "und err socket", "other side closed",
        "disconnect reset before headers", "unexpected disconnect",
        "connection with the server was terminated", "message channel closed", "shutdown while in progress",
        "received data after close", "communications link failure", "communication link failure",
        "end of file on communication channel", "tcp provider", "upstream prematurely closed",
        "error reading from server", "transport endpoint is not connected", "enotconn",
        "esockettimedout reset"]),
    rule(Sure, T, Network, "there is no way to the host now", &[
        "no route to host", "network is unreachable", "network unreachable", "host unreachable",
        "host is down", "ehostunreach", "enetunreach", "ehostdown", "enetdown", "network is down",
        "host is unreachable", "destination host unreachable", "network dropped connection", "enetreset",
        "err network changed", "err internet disconnected", "internet connection appears to be offline",
        "node is not reachable"]),
    rule(Likely, T, Network, "a connection could not be made or kept", &[
        "failed to connect", "failed to establish", "unable to connect", "could not connect", "cannot connect",
        "cant connect", "connection failed", "connect failed", "connection failure", "connection error",
        "error connecting", "connect error", "network error", "fetch failed", "failed to fetch",
        "request error", "max retries exceeded", "err network", "couldnt connect", "connect exception",
        "socket error", "socket exception", "transport error", "transport exception", "http request exception",
        "protocol error", "error sending request", "connection exception", "upstream connect error",
        "no connection could be made", "api connection error", "network request failed", 
        "not connected", "unable to reach", "could not reach", "endpoint unreachable", 
        "no servers available", "no brokers available", "no node available", "no living connections",
        "no alive nodes", "all hosts tried for query failed", "no host available", "no hosts available",
        "broker not available", "no available brokers", "all brokers down", "all broker connections are down",
        "proxy error", "tunnel connection failed", "unable to tunnel", "client connector error",
        "chunked encoding error", "incomplete read", "unexpected eof while reading", "early eof",
        "unexpected end of stream", "type:transport error", "type:server disconnected error", "link failure",
        "network failure", "communication failure", "communications error", "io exception", "read error",
        "write error", "no response from", "empty reply from server", "service endpoint",
        "handshake interrupted", "bad handshake", "websocket connection closed", "abnormal closure",
        "going away"]),

    // Host names.
    rule(Sure, T, Network, "the name of the host was not resolved", &[
        "temporary failure in name resolution", "name resolution", "getaddrinfo", "eai again", "no such host",
        "unknown host", "unknown host exception", "could not resolve host", "name or service not known",
        "nodename nor servname provided", "enotfound", "could not resolve", "failed to resolve",
        "cannot resolve", "unable to resolve host", "gaierror", "dns lookup", "dns resolution",
        "err name not resolved", "servfail", "dns error", "failed to lookup address",
        "no address associated with hostname", "no such host is known", "resolve host", "host not found",
        "dns failure", "name does not resolve", "lookup address information", "unresolved address",
        "dns query", "resolution failed", "type:gaierror"]),
    rule(Sure, P, Network, "that name does not exist", &[
        "non existent domain", "err name invalid"]),

    // Certificates and addresses.
    rule(Sure, P, Network, "the certificate or the protocol does not fit", &[
        "certificate verify failed", "certificate has expired", "certificate expired", "cert has expired",
        "self signed certificate", "self signed", "unable to get local issuer",
        "unable to verify the first certificate", "certificate is not trusted", "certificate not valid",
        "certificate signed by unknown authority", "unknown ca", "certificate unknown", "bad certificate",
        "certificate revoked", "certificate is revoked", "certificate required", "pkix path building failed",
        "unable to find valid certification path", "ssl handshake exception pkix", "hostname mismatch",
        "doesnt match certificate", "does not match certificate", "altname invalid", "wrong version number",
        "unsupported protocol", "no protocols available", "protocol version", "no shared cipher", "no cipher",
        "handshake failure alert", "sslv3 alert handshake failure", "invalid certificate",
        "certificate validation", "certificate is valid for", "trust anchor", "unknown issuer", "cert invalid",
        "remote certificate is invalid", "certificate is not yet valid", "cert authority invalid", "x509",
        "host key verification failed", "dh key too small", "invalid peer certificate", "not valid for name",
        "err cert", "depth zero self signed", "ssl peer certificate",
        "no alternative certificate", "tlsv1 alert", "no application protocol", "key usage",
        "remote host identification has changed"]),
    rule(Likely, T, Network, "the encrypted connection could not be set up", &[
        "handshake failed", "handshake failure", "ssl error", "tls handshake", "ssl handshake",
        "ssl syscall error", "bad record mac", "decryption failed or bad record mac", "ssl connect error"]),
    rule(Likely, P, Network, "that address cannot be used", &[
        "invalid url", "unsupported url scheme", "no scheme supplied", "missing schema", "invalid schema",
        "no connection adapters", "unsupported scheme", "unsupported protocol scheme", "malformed url",
        "no host specified", "too many redirects", "redirect loop", "exceeded redirects",
        "err too many redirects", "url malformat", "only absolute urls", "err invalid url"]),

    // Time limits.
    rule(Likely, T, Timeout, "a time limit passed", &[
        "timed out", "timeout", "time out", "timeouts", "timedout", "deadline exceeded",
        "deadline has elapsed", "deadline expired", "past deadline", "time limit", "time limit exceeded",
        "time limit reached", "exceeded the time", "wall clock limit", "walltime", "took too long",
        "etimedout", "time expired", "timeout exceeded", "timeout expired", "timeout reached",
        "timeout period elapsed", "no response within", "not respond within", "did not respond",
        "not completed within", "did not complete within", "not finish within", "didnt complete in",
        "not received within", "didnt respond in", "failed to respond", "esockettimedout", "econntimedout",
        "request timeout", "gateway timeout", "gateway time out", "read timeout", "read timed out",
        "connect timeout", "connection timed out", "connect timed out", "operation timed out", "wait timeout",
        "type:deadline exceeded", "type:timeout", "soft time limit", "max execution time",
        "maximum execution time", "execution time exceeded", "statement timeout", "query timeout",
        "headers timeout", "body timeout", "idle timeout", "socket timeout", "max time ms expired",
        "exceeded time limit", "operation exceeded time limit", "active deadline", "timeout of",
        "timed out after", "killed after", "exceeded maximum duration", "context deadline exceeded",
        "was aborted due to timeout", "aborterror timeout", "start to close", "schedule to start",
        "heartbeat timeout", "not acknowledged within", "no heartbeat", "task canceled exception",
        "a task was canceled", "read operation timed out", "lambda timed out", "task timed out",
        "job timed out"]),
    rule(Sure, T, Timeout, "a time limit passed", &[
        "connect etimedout", "err connection timed out", "tls handshake timeout", "handshake timed out",
        "handshake timeout", "handshake operation timed out", "lookup timed out", "i o timeout", "dns timeout",
        "timeout awaiting response headers", "upstream request timeout", "504 gateway", "408 request",
        "timeout while waiting for headers", "timeout awaiting"]),

    // Rate limits.
    rule(Sure, T, Network, "it asks to come more slowly", &[
        "rate limit", "rate limited", "ratelimited", "rate limits", "rate exceeded", "too many requests",
        "throttling", "throttled", "throttle", "throttling exception", "request limit exceeded", "slow down",
        "slowdown", "requests per minute", "requests per second", "tokens per minute", "tokens per min",
        "per minute limit", "queries per second", "retry after", "please reduce your request rate",
        "reduce your rate", "provisioned throughput", "throughput exceeded", "too many concurrent requests",
        "user rate limit exceeded", "calls per", "flood wait", "floodwait", "too many api calls",
        "secondary rate limit", "toomanyrequests", "server busy retry", "request rate is large",
        "request rate too large", "bandwidth exceeded", "sending rate", "maximum sending rate",
        "greylisted", "greylisting", "graylisted", "greylist", "too many login attempts", "too many messages",
        "rate limiter", "concurrency limit", "per second exceeded"]),

    // Phrases of HTTP, and of proxies in front of a server.
    rule(Sure, T, Network, "the service cannot answer now", &[
        "service unavailable", "bad gateway", "service is unavailable", "service temporarily unavailable",
        "temporarily overloaded", "overloaded", "server overloaded", "is overloaded", "currently overloaded",
        "model is overloaded", "no healthy upstream", "upstream connect", "backend unavailable",
        "under maintenance", "server is busy", "server busy", "is currently unavailable", "server unavailable",
        "unavailable code", "code:unavailable", "unavailable desc", "origin is unreachable",
        "web server is down", "service not available", "temporarily unable", "try again in a few",
        "at capacity", "web server returned an unknown error", "no available server", "no server is available",
        "currently experiencing high demand", "site is overloaded", "service is currently",
        "engine is currently overloaded", "temporarily out of service", "is temporarily unavailable"]),
    rule(Likely, T, Network, "the service failed inside", &[
        "internal server error", "internal error", "server error", "server had an error",
        "unexpected server error", "api error", "internal failure", "internal service error",
        "an internal error occurred", "backend error", "remote server returned an error",
        "type:internal server error", "something went wrong on our end", "upstream error",
        "invalid response from upstream", "service failure", "unknown server error"]),
    rule(Likely, P, System, "that is not allowed or not there", &[
        "method not allowed", "not implemented on server", "unsupported method", "code:unimplemented",
        "unknown service", "unknown method", "payment method", "proxy authentication required",
        "upgrade required", "not acceptable", "unavailable for legal reasons", 
        "failed precondition", "code:precondition failed", "expectation failed", "upgrade your client"]),
    rule(Likely, P, Corruption, "the request itself is wrong", &[
        "bad request", "invalid argument value", "invalid request", "unprocessable entity",
        "unprocessable content", "invalid request error", "unsupported media type", "code:invalid argument",
        "invalid parameter", "invalid parameter value", "invalid request body", "code:bad request",
        "request entity too large", "payload too large", "entity too large", "message too long",
        "invalid input", "request too large", "content too large", "request body too large",
        "header fields too large", "uri too long", "invalid header", "body exceeded", "message too large",
        "record too large", "message size too large", "larger than max", "is missing required",
        "code:invalid request", "code:out of range", "max message size", "exceeds the maximum size"]),

    // Mail.
    rule(Sure, P, System, "the recipient or the sender is not accepted", &[
        "user unknown", "no such user", "mailbox unavailable", "mailbox not found", "recipient rejected",
        "recipient address rejected", "sender address rejected", "relay access denied", "relaying denied",
        "unable to relay", "message rejected", "blocked using", "spam message", "spf check", "dmarc", "dkim",
        "address rejected", "unknown recipient", "does not exist 5", "recipients refused", "invalid recipient",
        "account is disabled", "email address is not verified", "blacklisted", "blocklisted",
        "recipient refused", "undeliverable address", "mailbox does not exist", "smtpauthentication",
        "authentication required 530", "user not local"]),
    rule(Sure, R, System, "the mailbox is full", &[
        "mailbox full", "over quota", "mailbox is full", "insufficient system storage", "overquota"]),
    rule(Likely, T, Network, "the mail server asks to try later", &[
        "try again later 4", "temporary local problem", "temporarily rejected", "temporarily deferred",
        "service not available closing", "try later", "requested action aborted", "temporary lookup failure",
        "smtp server disconnected"]),
    partial(Hint, Some(T), None, "it sounds temporary", &[
        "temporary failure", "temporarily", "try again", "please retry", "retry later", "transient",
        "retryable", "temporary", "retry your request", "momentarily", "retry the operation",
        "retry the transaction", "retriable", "please wait", "in progress", "restarting"]),
    partial(Likely, Some(T), None, "it says itself that it passes", &[
        "please try again", "try again later", "retry in", "try again in", "temporary error",
        "transient error", "retryable error", "temporarily unavailable", "type:transient", "type:retryable",
        "retriable exception"]),
    rule(Certain, P, Network, "that name does not exist", &["nxdomain"]),
    rule(Likely, P, Network, "it is about a certificate", &["certificate"]),
    rule(Likely, T, Timeout, "somebody stopped waiting", &[
        "still running after", "gave up waiting", "gave up after", "stopped waiting", "waited too long", "waited for",
        "still pending after", "not ready after", "did not finish in", "no answer after", "aborting after", "no reply within"]),
    rule(Hint, T, Network, "a connection was not kept", &["disconnected", "unreachable", "handshake", "deferred"]),
    rule(Likely, P, System, "a condition was not met", &["precondition failed"]),
    rule(Sure, T, Network, "the answer broke off", &["payload is not completed", "response is not completed", "body ended early", "connection broken"]),
];
