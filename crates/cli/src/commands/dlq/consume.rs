//! `dlq lease` and `dlq settle`, for dead letter consumers in any language. One consumer at a time has a leased letter;
//! its decision has the same effect as that of a person. `redrive work --dlq` is a loop over both.

use super::super::{error_text, only};
use crate::args::RevealArgs;
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::output::{Column, Revealed, Sheet, Show, ValueFormat};
use clap::{Args, ValueEnum};
use redrive::core::dead_letter::{Act, LetterDelivery};
use redrive::core::disclosure::{Disclosed, Disclosure};
use redrive::core::error::StoreResult;
use redrive::core::ids::{LeaseToken, QueueName};
use redrive::core::limits;
use redrive::core::masking::Rules;
use redrive::core::store::{
    LetterLeaseRequest, LetterSettle, LetterSettlement, Store, check_lease, check_snooze,
};
use redrive::core::time::Span;

const LEASE_EXAMPLES: &str = "\
Examples:
  redrive dlq lease payments-dlq                      one letter, for five minutes
  redrive dlq lease payments-dlq --max 10 --lease 10m --worker triage-1 -o json
  token=$(redrive dlq lease payments-dlq -o ndjson | jq -r .token)
  redrive dlq settle \"$token\" resolve --reason 'paid by hand'";

const SETTLE_EXAMPLES: &str = "\
Examples:
  redrive dlq settle \"$token\" resolve --reason 'paid by hand'
  redrive dlq settle \"$token\" replay --for 10m          redrive it, no earlier than in ten minutes
  redrive dlq settle \"$token\" later --for 1h            no consumer gets it for an hour
  redrive dlq settle \"$token\" fail --reason 'the ledger does not answer'

A token whose lease has ended changes nothing and exits with 6.";

/// The flags of `dlq lease`.
#[derive(Args, Debug)]
#[command(after_help = LEASE_EXAMPLES)]
pub(crate) struct LeaseArgs {
    /// The dead letter queue to lease from, oldest death first
    #[arg(value_name = "DLQ")]
    dlq: QueueName,
    /// The maximum number of letters to lease
    #[arg(long, value_name = "N", default_value_t = 1)]
    max: usize,
    /// How long the lease lasts [default: 5m]
    #[arg(long, value_name = "DURATION")]
    lease: Option<Span>,
    /// The name of the consumer [default: the actor]
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    /// Exit with 3 if there is no letter
    #[arg(long)]
    fail_empty: bool,
    #[command(flatten)]
    reveal: RevealArgs,
}

/// What to do with a leased letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Verdict {
    /// Close it as resolved
    Resolve,
    /// Send it back to its queue, with --for not before that time
    Replay,
    /// Put it up for review by a person; consumers no longer get it
    Review,
    /// Close it as abandoned
    Abandon,
    /// Quarantine it for the duration given with --for
    Quarantine,
    /// Return it unchanged, for any consumer
    Release,
    /// Return it; no consumer gets it for the duration given with --for
    Later,
    /// The consumer failed: add --reason as a note and hide the letter from consumers for an hour
    Fail,
    /// Extend the lease to five minutes from now, or to the duration given with --for
    Extend,
}

/// The flags of `dlq settle`.
#[derive(Args, Debug)]
#[command(after_help = SETTLE_EXAMPLES)]
pub(crate) struct SettleArgs {
    /// The token printed by `dlq lease`
    #[arg(value_name = "TOKEN")]
    token: LeaseToken,
    /// What to do with the letter
    #[arg(value_enum, value_name = "OUTCOME")]
    verdict: Verdict,
    /// The reason, recorded on the letter and in the audit trail
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    reason: Option<String>,
    /// The duration for replay, quarantine, later and extend
    #[arg(long = "for", value_name = "DURATION")]
    span: Option<Span>,
}

impl Show for LetterDelivery {
    const COLUMNS: &'static [Column] = &[
        Column::whole("token"),
        Column::whole("id"),
        Column::whole("queue"),
        Column::whole("reason"),
        Column::number("attempts"),
        Column::text("error"),
    ];

    fn masked(&self, rules: &Rules) -> Option<Self> {
        Some(Self { letter: rules.letter(&self.letter), token: self.token })
    }

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        vec![
            self.token.to_string(),
            self.letter.id().to_string(),
            self.letter.message.envelope.queue.to_string(),
            self.letter.record.reason.to_string(),
            self.letter.message.attempts.to_string(),
            error_text(&self.letter.error),
        ]
    }

    fn sheet(&self, fmt: &ValueFormat) -> Sheet {
        self.letter.sheet(fmt).field("token", self.token)
    }
}

/// Refuses a dead letter queue that belongs to no queue and has no letters: a consumer would wait there for ever.
pub(crate) async fn require_dlq(store: &dyn Store, dlq: &QueueName) -> Result<(), CliError> {
    let filed = store.dlqs().await?.iter().any(|known| known.dlq == *dlq);
    if filed || store.queues().await?.iter().any(|queue| queue.policy.dlqs(&queue.name).contains(dlq)) {
        return Ok(());
    }
    let what = format!("no dead letter queue {dlq}: no queue uses it and it has no letters");
    Err(CliError::new(ExitCode::NotFound, what).hint("run `redrive dlq stats` to list dead letter queues"))
}

/// Runs `dlq lease`.
pub(super) async fn lease(app: &App, args: LeaseArgs) -> CommandResult {
    let request = LetterLeaseRequest {
        dlq: args.dlq,
        max: args.max,
        lease_for: args.lease,
        worker: args.worker.unwrap_or_else(|| app.user().to_owned()),
    };
    request.check()?;
    let store = app.open(Access::Existing, Hold::Moment).await?;
    require_dlq(&*store, &request.dlq).await?;
    let letters = store.lease_letters(request).await?;
    let count = letters.len();
    if args.reveal.reveal {
        let ids: Vec<_> = letters.iter().map(|delivery| delivery.letter.id()).collect();
        for ids in ids.chunks(limits::DISCLOSE_MAX) {
            // Record the disclosure before showing anything.
            let (ids, count) = (ids.to_vec(), ids.len() as u64);
            let shown = Disclosure { what: Disclosed::Letter, ids, filter: None, count };
            store.disclose(shown, app.actor(args.reveal.reason.clone())).await?;
        }
        app.out.all(&letters.into_iter().map(Revealed).collect::<Vec<_>>())?;
    } else {
        app.out.all(&letters)?;
    }
    Ok(if count == 0 && args.fail_empty { ExitCode::NothingMatched } else { ExitCode::Ok })
}

/// Runs `dlq settle`.
pub(super) async fn settle(app: &App, args: SettleArgs) -> CommandResult {
    args.check()?;
    let token = args.token;
    let store = app.open(Access::Existing, Hold::Moment).await?;
    let what = args.settlement(app, &*store).await?;
    app.out.one(&only(store.settle_letters(vec![LetterSettlement { token, what }]).await?)?)?;
    Ok(ExitCode::Ok)
}

impl SettleArgs {
    /// Refuses invalid combinations of flags before the store is opened.
    fn check(&self) -> Result<(), CliError> {
        let name =
            self.verdict.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        match (self.verdict, self.span) {
            (Verdict::Quarantine | Verdict::Later, None) => {
                let what = format!("{name} needs --for: how long no consumer gets the letter");
                return Err(CliError::usage(what).hint(format!("redrive dlq settle TOKEN {name} --for 1h")));
            }
            (
                Verdict::Resolve | Verdict::Review | Verdict::Abandon | Verdict::Release | Verdict::Fail,
                Some(_),
            ) => {
                let what = "--for applies to replay, quarantine, later and extend";
                return Err(CliError::usage(format!("{what}; {name} takes effect at once")));
            }
            (Verdict::Extend, span) => check_lease(span)?,
            (Verdict::Replay | Verdict::Quarantine | Verdict::Later, Some(span)) => check_snooze(span)?,
            (_, None) => {}
        }
        if self.verdict == Verdict::Fail && self.reason.is_none() {
            let what = "fail needs --reason, which is noted on the letter";
            return Err(CliError::usage(what));
        }
        Ok(())
    }

    async fn settlement(self, app: &App, store: &dyn Store) -> StoreResult<LetterSettle> {
        let span = self.span.unwrap_or(Span::ZERO);
        let act = match self.verdict {
            Verdict::Release => return Ok(LetterSettle::Release),
            Verdict::Later => return Ok(LetterSettle::Snooze { span }),
            Verdict::Fail => return Ok(LetterSettle::Fail { note: self.reason.unwrap_or_default() }),
            Verdict::Extend => return Ok(LetterSettle::Extend { by: self.span }),
            Verdict::Resolve => Act::Resolve,
            Verdict::Review => Act::Review,
            Verdict::Abandon => Act::Abandon,
            Verdict::Replay if self.span.is_none() => Act::retry(),
            Verdict::Replay => Act::retry_at(store.info().await?.now.plus(span)),
            Verdict::Quarantine => Act::Quarantine { until: store.info().await?.now.plus(span) },
        };
        Ok(LetterSettle::Do { act, actor: app.actor(self.reason) })
    }
}
