//! `token`: creates, lists and revokes the tokens with which callers prove to a server who they are. A store keeps only
//! hashes of them, so a token is printed once, when it is created.

use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::output::{Column, Sheet, Show, ValueFormat};
use crate::policy_flags::word;
use clap::Subcommand;
use redrive::core::access::{Access as TokenAccess, Grant, QueuePattern, TokenId, TokenRecord};
use redrive::core::time::{Span, Time};
use redrive_server::{create_token, list_tokens, revoke_token};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Where a server has its tokens.
const PATH: &str = "/api/v1/tokens";

/// The roles of a token.
const ROLES: &[&str] = &["masked_viewer", "viewer", "producer", "worker", "operator", "editor", "admin"];

/// The commands about tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Create a token and print it, once
    Create {
        /// A name for the bearer, recorded in the audit trail with everything they do
        name: String,
        /// What the bearer may do; repeatable
        #[arg(long = "role", value_name = "ROLE", required = true, value_parser = word::<Grant>(ROLES))]
        roles: Vec<Grant>,
        /// Limit the token to these queues, such as payments or payments-*; repeatable [default: all queues]
        #[arg(long = "queue", value_name = "PATTERN")]
        queues: Vec<QueuePattern>,
        /// How long the token is valid [default: until it is revoked]
        #[arg(long, value_name = "DURATION")]
        expires: Option<Span>,
    },
    /// List the tokens, without their secrets
    List,
    /// Revoke a token; a server notices within a second
    Revoke {
        /// The id of the token: the twelve digits after rdt_
        #[arg(value_name = "ID")]
        id: TokenId,
    },
}

impl TokenCommand {
    /// Whether the command only reads.
    pub(crate) const fn is_read_only(&self) -> bool {
        match self {
            Self::List => true,
            Self::Create { .. } | Self::Revoke { .. } => false,
        }
    }
}

/// A token as it is shown, here and by a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct TokenView {
    id: TokenId,
    name: String,
    roles: Vec<Grant>,
    queues: Vec<QueuePattern>,
    created_at: Time,
    created_by: String,
    expires_at: Option<Time>,
    last_used_at: Option<Time>,
}

impl From<TokenRecord> for TokenView {
    fn from(record: TokenRecord) -> Self {
        let TokenAccess { name, roles, queues } = record.access;
        Self {
            id: record.id,
            name,
            roles: roles.into_iter().collect(),
            queues,
            created_at: record.created_at,
            created_by: record.created_by,
            expires_at: record.expires_at,
            last_used_at: record.last_used_at,
        }
    }
}

impl Show for TokenView {
    const COLUMNS: &'static [Column] = &[
        Column::whole("id"),
        Column::text("name"),
        Column::text("roles"),
        Column::text("queues"),
        Column::text("created_by"),
        Column::whole("created_at"),
        Column::whole("expires_at"),
        Column::whole("last_used_at"),
    ];

    fn cells(&self, fmt: &ValueFormat) -> Vec<String> {
        vec![
            self.id.to_string(),
            self.name.clone(),
            words(&self.roles),
            words(&self.queues),
            self.created_by.clone(),
            fmt.time(self.created_at),
            fmt.maybe(self.expires_at),
            fmt.maybe(self.last_used_at),
        ]
    }
}

/// A list of tokens, as a server replies.
#[derive(Deserialize)]
struct TokenList {
    items: Vec<TokenView>,
}

/// A token that was created, with its secret.
#[derive(Serialize, Deserialize)]
struct NewToken {
    token: String,
    #[serde(flatten)]
    view: TokenView,
}

impl Show for NewToken {
    const COLUMNS: &'static [Column] = &[Column::whole("token"), Column::whole("id"), Column::text("name")];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        vec![self.token.clone(), self.view.id.to_string(), self.view.name.clone()]
    }

    fn sheet(&self, fmt: &ValueFormat) -> Sheet {
        let sheet = Sheet::default().field("token", &self.token);
        let cells = self.view.cells(fmt);
        TokenView::COLUMNS
            .iter()
            .zip(cells)
            .fold(sheet, |sheet, (column, cell)| sheet.field(column.name, cell))
    }
}

fn words(items: &[impl ToString]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Runs a command about tokens: on the store, or by the routes of a server.
pub(crate) async fn run(app: &App, command: TokenCommand) -> CommandResult {
    match command {
        TokenCommand::Create { name, roles, queues, expires } => {
            let made = create(app, name, roles, queues, expires).await?;
            app.out.one(&made)?;
            app.out.note("this token is shown only now; hand it to its bearer");
        }
        TokenCommand::List => app.out.all(&list(app).await?)?,
        TokenCommand::Revoke { id } => {
            let missing = || {
                CliError::new(ExitCode::NotFound, format!("there is no token {id}"))
                    .hint("run `redrive token list` to list the tokens")
            };
            app.out.one(&revoke(app, id).await?.ok_or_else(missing)?)?;
        }
    }
    Ok(ExitCode::Ok)
}

async fn create(
    app: &App,
    name: String,
    roles: Vec<Grant>,
    queues: Vec<QueuePattern>,
    expires: Option<Span>,
) -> Result<NewToken, CliError> {
    if name.trim().is_empty() {
        return Err(CliError::usage("NAME: a token needs a name, which the audit trail records"));
    }
    if let Some(server) = app.server() {
        let body = json!({"name": name, "roles": roles, "queues": queues, "expires_in": expires});
        let reply = server.store.request("POST", PATH, Some(&body)).await?;
        return understood(reply.unwrap_or_default());
    }
    let store = app.open(Access::Create, Hold::Moment).await?;
    let access = TokenAccess { name, roles: roles.into_iter().collect(), queues };
    let (token, record) = create_token(&*store, access, &app.actor(None), expires).await?;
    Ok(NewToken { token: token.reveal(), view: record.into() })
}

async fn list(app: &App) -> Result<Vec<TokenView>, CliError> {
    if let Some(server) = app.server() {
        let reply = server.store.request("GET", PATH, None).await?.unwrap_or_default();
        return Ok(understood::<TokenList>(reply)?.items);
    }
    let store = app.open(Access::Existing, Hold::Moment).await?;
    Ok(list_tokens(&*store).await?.into_iter().map(TokenView::from).collect())
}

async fn revoke(app: &App, id: TokenId) -> Result<Option<TokenView>, CliError> {
    if let Some(server) = app.server() {
        let reply = server.store.request("DELETE", &format!("{PATH}/{id}"), None).await?;
        return reply.map(understood).transpose();
    }
    let store = app.open(Access::Existing, Hold::Moment).await?;
    Ok(revoke_token(&*store, id, &app.actor(None)).await?.map(TokenView::from))
}

/// Reads the reply of a server.
pub(super) fn understood<T: DeserializeOwned>(reply: Value) -> Result<T, CliError> {
    serde_json::from_value(reply).map_err(|error| {
        CliError::new(ExitCode::Error, format!("the reply of the server cannot be understood: {error}"))
            .hint("use the same release of Redrive on both sides")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_knows_every_role() {
        let known: Vec<String> = Grant::ALL.iter().map(ToString::to_string).collect();
        assert_eq!(known, ROLES);
    }
}
