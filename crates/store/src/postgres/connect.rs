//! Connections to PostgreSQL: where the store is, and sessions that a thread without a runtime can use.

use super::errors::from_postgres;
use crate::engine::tables::TableResult;
use redrive_core::error::{StoreError, StoreErrorKind};
use std::cell::RefCell;
use std::collections::HashMap;
use std::str::FromStr;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, Config, Error, NoTls, Statement};

/// The schema that is used unless the address names another.
pub(super) const SCHEMA: &str = "redrive";

/// Where a store is: a server, a database and a schema.
#[derive(Clone, Debug)]
pub(super) struct Address {
    config: Config,
    pub(super) schema: String,
}

fn invalid(why: impl std::fmt::Display) -> StoreError {
    let text = format!(
        "this is no address of a PostgreSQL store: {why}; write postgres://USER@HOST/DATABASE, with ?schema=NAME for a \
         schema other than {SCHEMA}"
    );
    StoreError::new(StoreErrorKind::NotAStore, text)
}

impl FromStr for Address {
    type Err = StoreError;

    fn from_str(url: &str) -> Result<Self, StoreError> {
        let (server, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut schema, mut rest) = (SCHEMA.to_owned(), Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("schema", name)) => name.clone_into(&mut schema),
                Some(_) | None => rest.push(pair),
            }
        }
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if schema.is_empty() || schema.len() > 63 || !schema.chars().all(plain) {
            return Err(invalid(format!(
                "{schema:?} cannot be a schema, which has at most 63 lowercase letters, digits and underscores"
            )));
        }
        let rest = rest.join("&");
        let url = if rest.is_empty() { server.to_owned() } else { format!("{server}?{rest}") };
        let mut config: Config = url.parse().map_err(invalid)?;
        if config.get_application_name().is_none() {
            config.application_name("redrive");
        }
        Ok(Self { config, schema })
    }
}

impl Address {
    /// The address without a password, for people to read.
    pub(super) fn shown(&self) -> String {
        let hosts: Vec<String> = self
            .config
            .get_hosts()
            .iter()
            .map(|host| match host {
                tokio_postgres::config::Host::Tcp(name) => name.clone(),
                #[cfg(unix)]
                tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
            })
            .collect();
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or_default();
        format!("PostgreSQL {database} on {}, schema {}", hosts.join(","), self.schema)
    }

    /// Opens a session.
    pub(super) fn connect(&self) -> TableResult<Session> {
        let failed = |error: std::io::Error| {
            StoreError::new(
                StoreErrorKind::Stopped,
                format!("cannot start a runtime for PostgreSQL: {error}"),
            )
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let connected = runtime.block_on(async {
            let (client, connection) = self.config.connect(NoTls).await?;
            tokio::spawn(connection);
            // What is written must be durable when the server says so, whatever its default is.
            let settings = format!(
                "SET search_path TO {schema}, pg_catalog; SET synchronous_commit TO on; SET jit TO off; \
                 SET idle_in_transaction_session_timeout TO 0; SET statement_timeout TO 0",
                schema = self.schema
            );
            client.batch_execute(&settings).await?;
            Ok::<_, Error>(client)
        });
        let client = connected.map_err(|error| self.unreachable(&error))?;
        Ok(Session { runtime: Some(runtime), client, statements: RefCell::default() })
    }

    fn unreachable(&self, error: &Error) -> StoreError {
        let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
        let text = format!(
            "cannot use {} ({error}{cause}); check that it runs and that this user may connect",
            self.shown()
        );
        StoreError::new(StoreErrorKind::Unreachable, text)
    }
}

/// A connection with the runtime that drives it. It makes progress only while a thread waits for an answer.
pub(super) struct Session {
    runtime: Option<Runtime>,
    client: Client,
    statements: RefCell<HashMap<String, Statement>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session")
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Waiting for a runtime to end is not allowed on every thread that may drop a session.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Session {
    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    /// Waits for something on this thread.
    pub(super) fn wait<T>(&self, work: impl Future<Output = T>) -> TableResult<T> {
        let ended = || StoreError::new(StoreErrorKind::Stopped, "this connection to PostgreSQL is closed");
        Ok(self.runtime.as_ref().ok_or_else(ended)?.block_on(work))
    }

    /// Waits for the answer to a statement.
    pub(super) fn run<T>(&self, work: impl Future<Output = Result<T, Error>>) -> TableResult<T> {
        self.wait(work)?.map_err(|error| from_postgres(&error))
    }

    /// A prepared statement, prepared once.
    pub(super) async fn prepare(&self, sql: &str) -> Result<Statement, Error> {
        let known = self.statements.borrow().get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.client.prepare(sql).await?;
        self.statements.borrow_mut().insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Runs statements that have no parameters and no result.
    pub(super) fn execute_batch(&self, sql: &str) -> TableResult<()> {
        self.run(self.client.batch_execute(sql))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_taken_out_of_the_address_and_the_rest_is_the_servers() {
        let address: Address =
            "postgres://ada:secret@db.example:5433/jobs?schema=work&connect_timeout=5".parse().unwrap();
        assert_eq!(address.schema, "work");
        assert_eq!(address.shown(), "PostgreSQL jobs on db.example, schema work");
        assert!(!format!("{address:?}").contains("secret"));
        for wrong in
            ["postgres://h/d?schema=a-b", "postgres://h/d?schema=", "mysql://h", "postgres://h/d?nonsense=1"]
        {
            let error = wrong.parse::<Address>().unwrap_err();
            assert!(error.text.contains("postgres://USER@HOST/DATABASE"), "{error}");
        }
    }
}
