//! The table, part five: cloud services, language models, payments, messaging and other paid APIs.

use super::Strength::{Hint, Likely, Sure};
use super::{Rule, partial, rule};
use crate::failure::Category::{Persistent as P, Resource as R, Transient as T};
use crate::failure::Route::{Corruption, Network, System, Timeout};

#[rustfmt::skip]
pub(super) const RULES: &[Rule] = &[
    // Quotas and credit.
    rule(Sure, R, System, "a quota or a credit is used up", &[
        "quota exceeded", "quotaexceeded", "insufficient quota", "exceeded your current quota",
        "quota limit", "quota has been exceeded", "over your quota", "quota exhausted", "daily limit exceeded",
        "daily limit", "monthly limit", "usage limit", "usage limit reached", "usage cap", "spending limit",
        "spend limit", "budget exceeded", "billing hard limit", "billing not active", 
        "credit balance", "credit balance is too low", "insufficient credit", "insufficient credits",
        "out of credits", "no credits", "not enough credits", "credits exhausted", "insufficient balance",
        "insufficient account balance", "payment required", "insufficient funds in your account", "plan limit",
        "plan and billing", "upgrade your plan", "limit exceeded exception", "service quota exceeded",
        "service limit exceeded", "resource limit exceeded", "storage quota", "space quota", "storage limit",
        "storage limit exceeded", "too many buckets", "instance limit exceeded", "vcpu limit",
        "address limit exceeded", "insufficient instance capacity", "insufficient host capacity",
        "insufficientinstancecapacity", "stockout", "zone resource pool exhausted", "zonal allocation failed",
        "allocation failed sku", "sku not available", "skunotavailable", "operation not allowed quota",
        "core quota", "limit for this resource", "maximum number of", "maximum limit reached",
        "has reached its limit", "reached the limit", "account limit", "too many resources",
        "minutes exhausted", "free tier", "allowance", "rate quota exceeded per day", "requests per day",
        "tokens per day", "overdrawn", "account balance", "top up", "reserved concurrency",
        "code:insufficient quota", "code:quota exceeded", "limit exceeded", "max storage", "mailbox quota",
        "exceeded the maximum number of", "exceeded your", "you have exceeded"]),
    // Rate limits under other names.
    rule(Sure, T, Network, "it asks to come more slowly", &[
        "request throttled", "request throttled exception", "too many requests exception",
        "provisioned throughput exceeded exception", "bandwidth limit exceeded",
        "priority request not complete", "request limit exceeded exception",
        "transaction in progress exception", "throttled exception", "server is throttling",
        "enhance your calm", "requests per minute per", "read requests per minute",
        "write requests per minute", "quota metric", "user rate", "overloaded error", "api rate",
        "concurrent invocation", "concurrent invocations", "concurrency exceeded", "lambda throttled",
        "too many simultaneous", "too many requests in queue", "queue for this model",
        "model is currently loading", "currently loading", "is loading", "model is loading", "acceptable rate",
        "rate increased too quickly"]),
    // Cloud services.
    rule(Sure, P, System, "the cloud service does not permit it", &[
        "access denied exception", "unrecognized client exception", "invalid client token id",
        "signature does not match exception", "auth failure", "authfailure", "expired token exception",
        "the security token included in the request", "is not authorized to perform", "explicit deny",
        "invalid access key id", "account problem", "not signed up", "opt in required",
        "authorization failure", "authorization failed exception", "kms access denied",
        "does not have permission", "does not have storage", "caller does not have permission",
        "lacks permission", "missing permission", "missing permissions", "missing scope", "not in channel",
        "channel not found", "is archived", "account inactive", "token revoked slack",
        "resource not accessible by integration", "must have admin rights", "repository access blocked",
        "saml enforcement", "invalid sas token", "authorization permission mismatch",
        "invalid authentication token", "aadsts", "tenant not found", "lease id missing", 
        "service account", "consumer invalid", "project not found", "project has been deleted",
        "api has not been used", "service disabled", "access not configured", "region disabled",
        "auth credential"]),
    rule(Sure, P, System, "the cloud service does not have it, or not in that state", &[
        "no such bucket", "no such upload", "nosuchkey", "bucket already exists",
        "bucket already owned by you", "bucket not empty", "resource not found exception", "table not found",
        "queue does not exist", "non existent queue", "function not found", "stack does not exist",
        "no updates are to be performed", "invalid object state", "resource in use exception",
        "resource in use", "blob not found", "container not found", "entity not found",
        "subscription not found", "dependency violation", "invalid instance id", "model not found",
        "model does not exist", "deployment not found", "no such model", "does not have access to model",
        "deployment does not exist", "model has been deprecated", "unknown model",
        "no longer supported", "no longer available", "permanent redirect", "moved permanently",
        "authorization header malformed", "wrong region", "topic does not exist", "endpoint disabled",
        "endpoint is disabled", "platform application disabled", "receipt handle", "receipt handle is invalid",
        "etag mismatch", "condition not met", "not supported in region", "stage not found"]),
    rule(Likely, T, System, "the cloud service was not ready", &[
        "resource not ready", "resource not ready exception", "operation in progress",
        "another operation is in progress", "another update in progress", "pending verification",
        "conflicting conditional operation", "operation aborted conflicting", "resource conflict exception",
        "is currently in the following state", "request token in progress", "idempotency key in use",
        "is currently being", "ec2 instance state", "volume in use", "snapshot creation per",
        "temporarily restricted", "being created", "being updated"]),
    rule(Sure, P, System, "it was declined or is not registered", &[
        "card declined", "card was declined", "do not honor", "expired card", "incorrect cvc",
        "incorrect number", "insufficient funds", "authentication required 3ds", "stolen card", "lost card",
        "fraudulent", "pickup card", "no such customer", "no such charge", "no such payment intent",
        "has already been captured", "already been refunded", "charge already refunded",
        "payment intent unexpected state", "unregistered", "bad device token", "device token not for topic",
        "baddevicetoken", "notregistered", "mismatch sender id", "invalid registration", "registration token",
        "unsubscribed recipient", "unverified number", "landline",
        "permission to send an sms", "blocked by the user", "bot was blocked", "chat not found",
        "user is deactivated", "invalid provider token", "topic disallowed",
        "payment declined", "transaction declined", "account closed", "unknown customer"]),
    rule(Sure, T, Network, "the payment or messaging service failed in passing", &[
        "issuer unavailable", "processing error occurred", "issuer not available", "acquirer unavailable",
        "gateway unavailable", "try again processor", "network error processor", "processor unavailable",
        "carrier unreachable", "issuer or switch inoperative"]),
    // Language models.
    rule(Sure, P, Corruption, "the request to the model is too long or not acceptable", &[
        "context length", "maximum context length", "context length exceeded", "context window",
        "prompt is too long", "too many tokens", "max tokens", "input is too long", "token limit",
        "input length", "string too long", "exceeds the model", "content policy", "content filter",
        "content management policy", "content filtered", "safety system", "responsible ai policy",
        "blocked by safety", "invalid image url", "unsupported image", "invalid prompt",
        "messages roles must alternate", "tool use ids", "tool result", "invalid schema for function",
        "invalid tool", "tool call id", "text content blocks must be non empty",
        "credit card number invalid format", "output parsing",
        "failed to parse tool", "recitation", "refusal",
        "response was blocked", "unsupported value", "unsupported parameter",
        "invalid value for"]),
    rule(Likely, T, Timeout, "a time limit passed", &[
        "inference timeout", "generation timed out", "model timed out", "activity timed out",
        "workflow execution timed out", "function execution timeout", "visibility timeout",
        "lambda function timed out", "sandbox timed out"]),
    partial(Hint, None, Some(System), "a cloud service says so", &[
        "aws", "s3", "dynamodb", "azure", "gcp", "subscription", "tenant", "stripe", "ldap directory",
        "certificate store", "license"]),
    partial(Hint, None, Some(Network), "it is about a connection", &[
        "http", "https", "socket", "connection", "network", "tcp", "dns", "tls", "ssl", "proxy", "host",
        "remote", "upstream", "gateway", "websocket", "smtp", "ftp"]),
    rule(Likely, P, System, "it was declined or is not in that state", &["your card", "declined", "deprecated", "kms", "iam", "precondition", "phone number"]),
    rule(Likely, R, System, "it is about a quota or money", &["quota", "billing"]),
    rule(Sure, T, Network, "the payment service failed in passing", &["code:processing error", "error occurred while processing your card"]),
    rule(Sure, P, Corruption, "the number is not one", &["is not a valid phone number", "invalid phone number"]),
    rule(Hint, T, System, "something is under way", &["idempotency", "provisioning"]),
];
