//! The check after a kill: compares the replies in the log with what the store shows. It uses nothing of the
//! store but its read calls. A call without a reply may have happened or not; once the store has shown which,
//! that is final too.

use super::ToolResult;
use super::inspect::Findings;
use super::oracle::Violation;
use super::rng::payload;
use super::work::{COUNTER, QUEUE, number};
use redrive::core::dead_letter::DeadLetter;
use redrive::core::ids::MessageId;
use redrive::core::message::Message;
use redrive::core::query::{PageRequest, Query};
use redrive::core::store::{Letters as _, Store as _, VerifyRequest, Work as _};
use redrive_store::sqlite::{Options, SqliteStore};
use redrive_testkit::observe::read_all;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// What is known about one message.
#[derive(Clone, Debug, Default)]
struct MessageRecord {
    /// The message was accepted, or the store showed it.
    accepted: bool,
    /// The message was acknowledged or cancelled, or was gone after such a call without a reply.
    finished: bool,
    /// Its letter was purged.
    purged: bool,
    /// Acks and cancels that have no reply yet.
    ending: u32,
    /// Purges of its letter that have no reply yet.
    purging: u32,
    dead: bool,
    deliveries: u32,
    retries: u32,
    key: Option<String>,
}

/// Everything that was acknowledged so far.
#[derive(Debug, Default)]
pub struct Ledger {
    known: HashMap<MessageId, MessageRecord>,
    /// Messages with a key that were accepted since the last check.
    fresh_keys: Vec<MessageId>,
    counter: u64,
    /// Acknowledged acts, which must be in the audit trail.
    audited: u64,
    /// Errors that the workers reported themselves.
    complaints: Vec<String>,
    /// Acknowledged enqueues.
    pub enqueues: u64,
    /// Acknowledged acks.
    pub acks: u64,
    /// Other acknowledged changes.
    pub others: u64,
}

impl Ledger {
    /// Reads one line of the log.
    ///
    /// # Errors
    /// If the line is not part of the log format.
    pub fn read_line(&mut self, line: &str) -> ToolResult<()> {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |word: &str| word.parse::<u64>();
        let id = |word: &str| word.parse::<MessageId>();
        match words.as_slice() {
            ["!", ..] => self.complaints.push(line.to_owned()),
            ["S"] => {
                self.audited += 1;
                self.others += 1;
            }
            ["Q", n] => {
                self.counter = self.counter.max(number(n)?);
                self.others += 1;
            }
            ["r", verb, word] => {
                let known = self.known.entry(id(word)?).or_default();
                match *verb {
                    "a" | "c" => known.ending = known.ending.saturating_sub(1),
                    "x" => known.purging = known.purging.saturating_sub(1),
                    _ => {}
                }
            }
            [verb, word, rest @ ..] => self.record(verb, id(word)?, rest.first().copied())?,
            _ => return Err(format!("the log has the line {line:?}").into()),
        }
        Ok(())
    }

    fn record(&mut self, verb: &str, id: MessageId, rest: Option<&str>) -> ToolResult<()> {
        let known = self.known.entry(id).or_default();
        let amount = || rest.unwrap_or("0").parse::<u32>();
        match verb {
            "e" => {}
            "E" => {
                self.enqueues += u64::from(!known.accepted);
                known.accepted = true;
                known.key = rest.filter(|key| *key != "-").map(str::to_owned);
                if known.key.is_some() {
                    self.fresh_keys.push(id);
                }
                return Ok(());
            }
            "a" | "c" => known.ending += 1,
            "x" => known.purging += 1,
            "A" | "C" => {
                known.ending = known.ending.saturating_sub(1);
                known.finished = true;
                self.acks += u64::from(verb == "A");
                self.audited += u64::from(verb == "C");
            }
            "X" => {
                known.purging = known.purging.saturating_sub(1);
                known.purged = true;
                self.audited += 1;
            }
            "L" => known.deliveries = known.deliveries.max(amount()?),
            "D" => known.dead = true,
            "T" => {
                known.retries = known.retries.max(amount()?);
                self.audited += 1;
            }
            "V" => self.audited += 1,
            "F" | "B" => {}
            _ => return Err(format!("the log has the verb {verb:?}").into()),
        }
        self.others += u64::from(!matches!(verb, "A" | "a" | "c" | "x" | "e"));
        Ok(())
    }

    /// Opens the store in a directory and compares it with the log.
    ///
    /// # Errors
    /// If the store cannot be read. A store that does not open is a finding instead.
    pub async fn check(&mut self, data: &Path, repro: &str, found: &mut Findings) -> ToolResult<()> {
        let store = match SqliteStore::open(data, Options::default()) {
            Ok(store) => store,
            Err(error) => {
                found.record(&Violation::Unopenable(error.to_string()), repro);
                return Ok(());
            }
        };
        for complaint in self.complaints.drain(..) {
            found.record(&Violation::Broken(complaint), repro);
        }
        let verified = store.verify(VerifyRequest { deep: true, repair: false }).await?;
        if !verified.is_clean() {
            found.record(&Violation::Broken(format!("verify: {:?}", verified.findings)), repro);
        }
        let everything = |page| Query { page, ..Query::default() };
        let live: BTreeMap<MessageId, Message> = read_all(|page| store.messages(everything(page)))
            .await?
            .into_iter()
            .map(|m| (m.envelope.id, m))
            .collect();
        let letters: BTreeMap<MessageId, DeadLetter> = read_all(|page| store.letters(everything(page)))
            .await?
            .into_iter()
            .map(|l| (l.id(), l))
            .collect();
        self.compare(&live, &letters, &mut |violation| found.record(&violation, repro));
        self.check_counters_and_keys(&store, &mut |violation| found.record(&violation, repro)).await
    }

    fn compare(
        &mut self,
        live: &BTreeMap<MessageId, Message>,
        letters: &BTreeMap<MessageId, DeadLetter>,
        report: &mut impl FnMut(Violation),
    ) {
        for id in live.keys().chain(letters.keys()) {
            if !self.known.contains_key(id) {
                report(Violation::Broken(format!("message {id} was never sent")));
            }
        }
        for (id, known) in &mut self.known {
            let (message, letter) = (live.get(id), letters.get(id));
            let here = message.is_some() || letter.is_some();
            known.resolve_pending(here, message.is_some(), letter.is_some());
            if known.accepted && !known.finished && !known.purged && !here {
                report(Violation::Lost(format!("message {id} was accepted and is gone")));
            }
            if known.finished && message.is_some() {
                report(Violation::Resurrected(format!("message {id} was finished and is live")));
            }
            if known.dead && !known.purged && letter.is_none() {
                report(Violation::Lost(format!("message {id} was dead and has no letter")));
            }
            if known.purged && here {
                report(Violation::Resurrected(format!("letter {id} was purged and is still stored")));
            }
            let shown = message.or_else(|| letter.map(|letter| &letter.message));
            if let Some(shown) = shown {
                if shown.deliveries < known.deliveries {
                    let what = format!("{id}: {} deliveries after {}", shown.deliveries, known.deliveries);
                    report(Violation::Lost(what));
                }
                known.deliveries = shown.deliveries;
                if shown.envelope.payload.bytes != payload(number(*id)) {
                    report(Violation::Lost(format!("message {id} has a different payload")));
                }
            }
            if let Some(letter) = letter
                && letter.record.redrives < known.retries
            {
                report(Violation::Lost(format!(
                    "letter {id}: {} retries after {}",
                    letter.record.redrives, known.retries
                )));
            }
        }
    }

    async fn check_counters_and_keys(
        &mut self,
        store: &SqliteStore,
        report: &mut impl FnMut(Violation),
    ) -> ToolResult<()> {
        let entry = store.kv_get(COUNTER.0.into(), COUNTER.1.into()).await?;
        let counter = entry.map_or(0, |entry| entry.version);
        if counter < self.counter {
            report(Violation::Lost(format!("the counter is {counter}, {} was acknowledged", self.counter)));
        }
        let last = store.audit(PageRequest::first(1)).await?.items.first().map_or(0, |row| row.n);
        if last < self.audited {
            report(Violation::Lost(format!(
                "{last} acts in the audit trail, {} were acknowledged",
                self.audited
            )));
        }
        for id in self.fresh_keys.drain(..) {
            let Some(key) = self.known.get(&id).and_then(|known| known.key.clone()) else { continue };
            let state = store.key_state(QUEUE.parse()?, key).await?;
            if state.is_none_or(|state| state.id != id) {
                report(Violation::Lost(format!("the key of message {id} is {state:?}")));
            }
        }
        Ok(())
    }
}

impl MessageRecord {
    /// Decides the calls that had no reply when the process was killed: no reply will come any more.
    fn resolve_pending(&mut self, here: bool, live: bool, letter: bool) {
        if self.ending > 0 {
            // If there is a letter, the message may have been acknowledged or may have died again.
            self.finished |= !live && !letter;
            self.ending = 0;
        }
        if self.purging > 0 {
            self.purged |= !letter;
            self.purging = 0;
        }
        self.accepted |= here;
    }
}
