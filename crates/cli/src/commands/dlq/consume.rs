//! `dlq lease` and `dlq settle`: what a dead-letter consumer in any language needs. A leased letter is in one consumer's
//! hands; what the consumer says about it is done as if a person had. `redrive work --dlq` is the loop over both.

use super::super::{error_text, only};
use crate::args::RevealArgs;
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::output::{Column, Look, Revealed, Sheet, Show};
use clap::{Args, ValueEnum};
use redrive::core::dead_letter::{Act, LetterDelivery};
use redrive::core::disclosure::{Disclosed, Disclosure};
use redrive::core::error::Outcome;
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
  redrive dlq settle \"$token\" replay --for 10m          back to work, not before ten minutes from now
  redrive dlq settle \"$token\" later --for 1h            no consumer is given it for an hour
  redrive dlq settle \"$token\" fail --reason 'the ledger does not answer'

A token that is not of the live lease changes nothing and exits with 6.";

/// The flags of `dlq lease`.
#[derive(Args, Debug)]
#[command(after_help = LEASE_EXAMPLES)]
pub(crate) struct LeaseArgs {
    /// The dead letter queue to take from, oldest death first
    #[arg(value_name = "DLQ")]
    dlq: QueueName,
    /// Letters at most
    #[arg(long, value_name = "N", default_value_t = 1)]
    max: usize,
    /// How long the lease lasts [default: 5m]
    #[arg(long, value_name = "DURATION")]
    lease: Option<Span>,
    /// Who consumes [default: the actor]
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    /// Exit with 3 when there is no letter
    #[arg(long)]
    fail_empty: bool,
    #[command(flatten)]
    reveal: RevealArgs,
}

/// What a consumer says about a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Verdict {
    /// Close it as dealt with
    Resolve,
    /// Send it back to work; with --for not before then
    Replay,
    /// A person must look; no consumer is given it any more
    Review,
    /// Close it as given up
    Abandon,
    /// Set it aside for the time of --for
    Quarantine,
    /// Give it back as it is, for any consumer
    Release,
    /// Give it back; no consumer is given it for the time of --for
    Later,
    /// The consumer failed: --reason is noted on the letter, which rests for an hour
    Fail,
    /// Keep it longer: from now for five minutes, or the time of --for
    Extend,
}

/// The flags of `dlq settle`.
#[derive(Args, Debug)]
#[command(after_help = SETTLE_EXAMPLES)]
pub(crate) struct SettleArgs {
    /// The token, as `dlq lease` printed it
    #[arg(value_name = "TOKEN")]
    token: LeaseToken,
    /// What is to become of the letter
    #[arg(value_enum, value_name = "OUTCOME")]
    verdict: Verdict,
    /// Why, for the letter and the audit trail
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    reason: Option<String>,
    /// How long, for replay, quarantine, later and extend
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

    fn cells(&self, _: &Look) -> Vec<String> {
        vec![
            self.token.to_string(),
            self.letter.id().to_string(),
            self.letter.message.envelope.queue.to_string(),
            self.letter.file.reason.to_string(),
            self.letter.message.attempts.to_string(),
            error_text(&self.letter.error),
        ]
    }

    fn sheet(&self, look: &Look) -> Sheet {
        self.letter.sheet(look).field("token", self.token)
    }
}

/// Refuses a name that no queue has as its dead letter queue and no letter lies in: who waits there waits for ever.
pub(crate) async fn require_dlq(store: &dyn Store, dlq: &QueueName) -> Result<(), CliError> {
    let filed = store.drawers().await?.iter().any(|drawer| drawer.dlq == *dlq);
    if filed || store.queues().await?.iter().any(|queue| queue.policy.drawers(&queue.name).contains(dlq)) {
        return Ok(());
    }
    let what = format!("there is no drawer {dlq}: no queue has it and no letter lies in it");
    Err(CliError::new(ExitCode::NotFound, what).hint("redrive dlq stats"))
}

/// Runs `dlq lease`.
pub(super) async fn lease(app: &App, args: LeaseArgs) -> Done {
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
            // First it is on record, then it is shown.
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
pub(super) async fn settle(app: &App, args: SettleArgs) -> Done {
    args.check()?;
    let token = args.token;
    let store = app.open(Access::Existing, Hold::Moment).await?;
    let what = args.settlement(app, &*store).await?;
    app.out.one(&only(store.settle_letters(vec![LetterSettlement { token, what }]).await?)?)?;
    Ok(ExitCode::Ok)
}

impl SettleArgs {
    /// Refuses what does not go together before anything is opened.
    fn check(&self) -> Result<(), CliError> {
        let name =
            self.verdict.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        match (self.verdict, self.span) {
            (Verdict::Quarantine | Verdict::Later, None) => {
                let what = format!("{name} needs --for: how long nobody is given the letter");
                return Err(CliError::usage(what).hint(format!("redrive dlq settle TOKEN {name} --for 1h")));
            }
            (
                Verdict::Resolve | Verdict::Review | Verdict::Abandon | Verdict::Release | Verdict::Fail,
                Some(_),
            ) => {
                let what = "--for is for replay, quarantine, later and extend";
                return Err(CliError::usage(format!("{what}; {name} takes effect at once")));
            }
            (Verdict::Extend, span) => check_lease(span)?,
            (Verdict::Replay | Verdict::Quarantine | Verdict::Later, Some(span)) => check_snooze(span)?,
            (_, None) => {}
        }
        if self.verdict == Verdict::Fail && self.reason.is_none() {
            let what = "fail needs --reason: it is noted on the letter for whoever looks next";
            return Err(CliError::usage(what));
        }
        Ok(())
    }

    async fn settlement(self, app: &App, store: &dyn Store) -> Outcome<LetterSettle> {
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
