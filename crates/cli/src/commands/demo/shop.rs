//! The shop: a small business whose background work fails. Its queues, its handlers, and the orders that keep coming in.

use super::client::post;
use redrive::core::backoff::{Backoff, Growth, Jitter};
use redrive::core::breaker::{BreakerKey, BreakerPolicy};
use redrive::core::dead_letter::Actor;
use redrive::core::error::CallError;
use redrive::core::message::{NewMessage, Payload};
use redrive::core::policy::QueuePolicy;
use redrive::core::priority::Priority;
use redrive::core::store::Store;
use redrive::core::time::Span;
use redrive::{CancellationToken, HandlerError, Heartbeat, Runnable, Worker};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How often the shop gets something to do.
const ORDER_EVERY: Duration = Duration::from_millis(150);
/// The version of the code before the bad deploy.
const GOOD: &str = "v2.4.0";
/// The version that cannot print invoices in some currencies.
const BAD: &str = "v2.4.1";
/// The version that mends it.
const MENDED: &str = "v2.4.2";
/// When the bad version is deployed and when it is mended, counted from the start.
const DEPLOYED_AFTER: Duration = Duration::from_secs(12);
const MENDED_AFTER: Duration = Duration::from_secs(55);

/// The failures in a row after which the breaker of the payments opens.
pub(super) const BREAKER_FAILURES: u32 = 150;

/// Who configures the shop.
fn actor(reason: &str) -> Actor {
    Actor { reason: Some(reason.into()), ..Actor::new("demo", "cli") }
}

/// Attempts that follow each other quickly, so that a demo need not wait for them.
fn impatient(max_attempts: u32) -> QueuePolicy {
    let backoff = Backoff {
        initial: Span::from_millis(400),
        cap: Span::from_secs(2),
        growth: Growth::Exponential { multiplier: 2.0 },
        jitter: Jitter::Equal,
        ..Backoff::default()
    };
    QueuePolicy { max_attempts, backoff, ..QueuePolicy::default() }
}

/// Creates the queues.
pub(super) async fn configure(store: &dyn Store) -> Result<(), CallError> {
    let breaker = BreakerPolicy {
        failures: BREAKER_FAILURES,
        // Only failures in a row count, so that some payments die before the breaker opens.
        ratio: 1.0,
        open_for: Span::from_secs(15),
        open_max: Span::from_secs(15),
        ..BreakerPolicy::new(BreakerKey::Queue)
    };
    let queues = [
        ("payments", QueuePolicy { breaker: Some(breaker), priority: Priority::High, ..impatient(3) }),
        ("mail", impatient(3)),
        ("support", impatient(2)),
        ("invoices", impatient(2)),
        ("thumbnails", QueuePolicy { priority: Priority::Low, ..impatient(5) }),
    ];
    for (name, policy) in queues {
        let name = name.parse().map_err(|why| invalid("queue", why))?;
        store.configure(name, policy, actor("the queues of the demo")).await?;
    }
    Ok(())
}

fn invalid(what: &str, why: impl std::fmt::Display) -> CallError {
    redrive::core::error::Refusal::invalid(what, why.to_string()).into()
}

#[derive(Serialize, Deserialize)]
struct Charge {
    customer: u64,
    order: u64,
    cents: u64,
    card_token: String,
}

#[derive(Serialize, Deserialize)]
struct Mail {
    to: String,
    template: String,
}

#[derive(Serialize, Deserialize)]
struct Ticket {
    ticket: u64,
    language: String,
}

#[derive(Serialize, Deserialize)]
struct Invoice {
    order: u64,
    currency: String,
}

#[derive(Serialize, Deserialize)]
struct Image {
    name: String,
    width: u32,
    height: u32,
}

async fn charge(service: SocketAddr, charge: Charge) -> redrive::Result {
    let doing = format!("charging customer {} for order {}", charge.customer, charge.order);
    post(service, "/v1/charges", &charge).await.map(drop).map_err(|error| error.context(doing))
}

async fn send_mail(service: SocketAddr, mail: Mail) -> redrive::Result {
    post(service, "/v1/mails", &mail).await.map(drop).map_err(|error| error.context("sending a mail"))
}

async fn summarise(service: SocketAddr, ticket: Ticket) -> redrive::Result {
    let reply = post(service, "/v1/completions", &ticket).await?;
    serde_json::from_slice::<Value>(&reply).map(drop).map_err(|error| {
        let what = format!("the summary of ticket {} is not JSON: {error}", ticket.ticket);
        HandlerError::new("MalformedReply", what).step("parse the reply")
    })
}

/// Prints an invoice. The bad version knows no currency without a minor unit.
fn print_invoice(version: &str, invoice: &Invoice) -> redrive::Result {
    if version == BAD && invoice.currency == "JPY" {
        let what = format!("no minor unit for currency {} of order {}", invoice.currency, invoice.order);
        let mut error = HandlerError::new("KeyError", what).step("format the total");
        error.report_mut().error.stack = Some(
            "at shop::invoice::total (src/invoice.rs:88)\nat shop::invoice::print (src/invoice.rs:41)\n\
             at redrive::worker::executor::run (worker/executor.rs:60)"
                .into(),
        );
        return Err(error);
    }
    Ok(())
}

/// Makes a small picture. One that is too large crashes the handler, as a bug would, but without a report on the
/// terminal of whoever watches the demo.
fn shrink(image: &Image) {
    if image.width.checked_mul(image.height).is_none() {
        let what =
            format!("attempt to allocate {} x {} pixels for {}", image.width, image.height, image.name);
        std::panic::resume_unwind(Box::new(what));
    }
}

/// A worker of the shop, running one version of its code.
fn worker(
    store: &Arc<dyn Store>,
    services: SocketAddr,
    version: &'static str,
    name: &str,
) -> Result<Worker, CallError> {
    Worker::builder(Arc::clone(store))
        .name(name)
        .version(version)
        .queue("payments")
        .queue("mail")
        .queue("support")
        .queue("invoices")
        .queue("thumbnails")
        .concurrency(8)
        .grace(Span::from_secs(2))
        .handler("charge", move |payload: Charge| charge(services, payload))
        .handler("mail", move |payload: Mail| send_mail(services, payload))
        .handler("summarise", move |payload: Ticket| summarise(services, payload))
        .handler("invoice", async move |payload: Invoice| print_invoice(version, &payload))
        .handler("thumbnail", async |payload: Image| shrink(&payload))
        .build()
}

/// The workers of the shop, which are replaced at every deploy.
pub(super) struct Shop {
    pub(super) store: Arc<dyn Store>,
    pub(super) services: SocketAddr,
}

impl Shop {
    /// Runs two workers of a version until it is time for the next one.
    async fn run_version(
        &self,
        version: &'static str,
        until: impl Future<Output = ()>,
    ) -> Result<(), CallError> {
        let stop = CancellationToken::new();
        let mut workers = tokio::task::JoinSet::new();
        for name in ["shop-1", "shop-2"] {
            let (worker, stop) = (worker(&self.store, self.services, version, name)?, stop.clone());
            workers.spawn(async move { Runnable::run(&worker, stop, Heartbeat::default()).await });
        }
        until.await;
        stop.cancel();
        while let Some(ended) = workers.join_next().await {
            match ended {
                Ok(result) => result?,
                Err(error) => tracing::warn!(%error, "a worker of the demo panicked"),
            }
        }
        Ok(())
    }
}

#[redrive::async_trait]
impl Runnable for Shop {
    fn name(&self) -> String {
        "shop".into()
    }

    async fn run(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<(), CallError> {
        let began = tokio::time::Instant::now();
        let deploys = [(GOOD, Some(DEPLOYED_AFTER)), (BAD, Some(MENDED_AFTER)), (MENDED, None)];
        for (version, next_after) in deploys {
            if version != GOOD {
                self.store.mark(format!("deploy {version}"), actor("a deploy of the demo")).await?;
            }
            let until = async {
                loop {
                    heartbeat.beat();
                    let next = next_after.map(|after| began + after);
                    let beat = tokio::time::Instant::now() + Duration::from_secs(10);
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = tokio::time::sleep_until(next.unwrap_or(beat).min(beat)) => {}
                    }
                    if next.is_some_and(|next| next <= tokio::time::Instant::now()) {
                        return;
                    }
                }
            };
            self.run_version(version, until).await?;
            if stop.is_cancelled() {
                break;
            }
        }
        Ok(())
    }
}

/// The n-th of the words, and after the last the first again.
fn choose(words: &[&'static str], n: u64) -> &'static str {
    let n = usize::try_from(n).unwrap_or(0);
    words.get(n % words.len().max(1)).copied().unwrap_or_default()
}

/// The customers of the shop, who cause the work.
pub(super) struct Customers {
    pub(super) store: Arc<dyn Store>,
}

impl Customers {
    async fn send(&self, queue: &str, kind: &str, payload: Value, tag: &str) -> Result<(), CallError> {
        let queue = queue.parse().map_err(|why| invalid("queue", why))?;
        let payload = Payload::json(&payload).map_err(|why| invalid("payload", why))?;
        let mut message = NewMessage::new(redrive::new_id(), queue, payload);
        message.kind = kind.into();
        message.tags.insert(tag.into());
        for result in self.store.enqueue(vec![message]).await? {
            result.map_err(CallError::Refused)?;
        }
        Ok(())
    }

    /// What the n-th order causes.
    async fn order(&self, n: u64) -> Result<(), CallError> {
        let customer = 4000 + n * 37 % 411;
        let charge = json!({"customer": customer, "order": n, "cents": 900 + n * 113 % 9000,
                            "card_token": format!("tok_{:08x}", n * 2_654_435_761 % 0xffff_ffff)});
        self.send("payments", "charge", charge, "checkout").await?;
        let to = format!("customer{customer}@shop.example");
        self.send("mail", "mail", json!({"to": to, "template": "receipt"}), "checkout").await?;
        if n.is_multiple_of(3) {
            let currency = choose(&["EUR", "JPY", "USD"], n / 3);
            self.send("invoices", "invoice", json!({"order": n, "currency": currency}), "billing").await?;
        }
        if n.is_multiple_of(4) {
            let language = choose(&["en", "de", "fi", "fr", "en"], n / 4);
            self.send("support", "summarise", json!({"ticket": 70_000 + n, "language": language}), "support")
                .await?;
        }
        if n.is_multiple_of(5) {
            // One image of them all is impossible.
            let side = if n == 30 { 4_000_000_000_u32 } else { 640 };
            let image = json!({"name": format!("product-{n}.png"), "width": side, "height": side});
            self.send("thumbnails", "thumbnail", image, "catalogue").await?;
        }
        Ok(())
    }
}

#[redrive::async_trait]
impl Runnable for Customers {
    fn name(&self) -> String {
        "customers".into()
    }

    async fn run(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<(), CallError> {
        for n in 1.. {
            heartbeat.beat();
            self.order(n).await?;
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(ORDER_EVERY) => {}
            }
        }
        Ok(())
    }
}
