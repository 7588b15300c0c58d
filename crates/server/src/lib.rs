//! The server answers: it makes what the library and the command line can do available over HTTP. It decides nothing
//! itself; it sees the store only as `dyn Store`, behind a gate that asks the core who may do what.

mod access;
mod api;
mod app;
mod bind;
mod config;
mod dashboard;
mod docs;
mod events;
mod listen;
mod metrics;
mod ndjson;
mod openapi;
mod problem;
mod problem_codes;
mod random;
mod reply;
mod request;
mod request_key;
mod request_log;
mod router;
mod tls;

pub use access::{Refusals, create_token, list_tokens, revoke_token};
pub use axum::Router;
pub use bind::{Protection, check_bind};
pub use config::{Colour, Config};
pub use dashboard::LoginCodes;
pub use listen::{ListenConfig, Listener, serve};
pub use openapi::document as openapi_document;
pub use problem::Problem;
pub use router::{Route, pages, router, routes};
pub use tls::TlsFiles;
