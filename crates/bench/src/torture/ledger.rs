//! The check after a kill: what the log says was promised, against what the store shows. It shares nothing with
//! the store but the verbs it reads with. What was under way at the kill may have happened or not; once it has
//! been seen to have, or not, that is final too.

use super::Outcome;
use super::inspect::Tally;
use super::oracle::Wrong;
use super::rng::payload;
use super::work::{COUNTER, QUEUE, number};
use redrive::core::dead_letter::DeadLetter;
use redrive::core::ids::MessageId;
use redrive::core::message::Message;
use redrive::core::query::{PageRequest, Query};
use redrive::core::store::{Letters as _, Store as _, VerifyRequest, Work as _};
use redrive_store::sqlite::{Options, SqliteStore};
use redrive_testkit::observe::walk;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// What is known of one message.
#[derive(Clone, Debug, Default)]
struct Known {
    /// It was accepted, or was seen.
    accepted: bool,
    /// It was acked or cancelled, or was seen to be gone after somebody had asked for that.
    over: bool,
    /// Its letter was purged.
    purged: bool,
    /// Somebody asked for its end and has no answer.
    ending: u32,
    /// Somebody asked for its letter to be purged and has no answer.
    purging: u32,
    dead: bool,
    deliveries: u32,
    retries: u32,
    key: Option<String>,
}

/// What was promised so far.
#[derive(Debug, Default)]
pub struct Ledger {
    known: HashMap<MessageId, Known>,
    /// Keys accepted since the last check.
    fresh_keys: Vec<MessageId>,
    counter: u64,
    /// Acts that are in the audit trail.
    audited: u64,
    /// What workers found wrong themselves.
    complaints: Vec<String>,
    /// Accepted enqueues.
    pub enqueues: u64,
    /// Accepted acks.
    pub acks: u64,
    /// Other acknowledged changes.
    pub others: u64,
}

impl Ledger {
    /// Takes note of a line of the log.
    ///
    /// # Errors
    /// For a line that nobody writes.
    pub fn hear(&mut self, line: &str) -> Outcome<()> {
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
            [verb, word, rest @ ..] => self.promised(verb, id(word)?, rest.first().copied())?,
            _ => return Err(format!("the log has the line {line:?}").into()),
        }
        Ok(())
    }

    fn promised(&mut self, verb: &str, id: MessageId, rest: Option<&str>) -> Outcome<()> {
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
                known.over = true;
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

    /// Opens the store in a directory and compares.
    ///
    /// # Errors
    /// When the store cannot be read at all; that it does not open is a finding.
    pub async fn check(&mut self, data: &Path, again: &str, found: &mut Tally) -> Outcome<()> {
        let store = match SqliteStore::open(data, Options::default()) {
            Ok(store) => store,
            Err(error) => {
                found.note(&Wrong::Unopenable(error.to_string()), again);
                return Ok(());
            }
        };
        for complaint in self.complaints.drain(..) {
            found.note(&Wrong::Broken(complaint), again);
        }
        let verified = store.verify(VerifyRequest { deep: true, repair: false }).await?;
        if !verified.is_clean() {
            found.note(&Wrong::Broken(format!("verify: {:?}", verified.findings)), again);
        }
        let everything = |page| Query { page, ..Query::default() };
        let live: BTreeMap<MessageId, Message> = walk(|page| store.messages(everything(page)))
            .await?
            .into_iter()
            .map(|m| (m.envelope.id, m))
            .collect();
        let letters: BTreeMap<MessageId, DeadLetter> =
            walk(|page| store.letters(everything(page))).await?.into_iter().map(|l| (l.id(), l)).collect();
        self.compare(&live, &letters, &mut |wrong| found.note(&wrong, again));
        self.small_things(&store, &mut |wrong| found.note(&wrong, again)).await
    }

    fn compare(
        &mut self,
        live: &BTreeMap<MessageId, Message>,
        letters: &BTreeMap<MessageId, DeadLetter>,
        note: &mut impl FnMut(Wrong),
    ) {
        for id in live.keys().chain(letters.keys()) {
            if !self.known.contains_key(id) {
                note(Wrong::Broken(format!("message {id} was never sent")));
            }
        }
        for (id, known) in &mut self.known {
            let (message, letter) = (live.get(id), letters.get(id));
            let here = message.is_some() || letter.is_some();
            known.learn(here, message.is_some(), letter.is_some());
            if known.accepted && !known.over && !known.purged && !here {
                note(Wrong::Lost(format!("message {id} was accepted and is gone")));
            }
            if known.over && message.is_some() {
                note(Wrong::Resurrected(format!("message {id} was finished and is live")));
            }
            if known.dead && !known.purged && letter.is_none() {
                note(Wrong::Lost(format!("message {id} was dead and has no letter")));
            }
            if known.purged && here {
                note(Wrong::Resurrected(format!("letter {id} was purged and is here")));
            }
            let shown = message.or_else(|| letter.map(|letter| &letter.message));
            if let Some(shown) = shown {
                if shown.deliveries < known.deliveries {
                    let what = format!("{id}: {} deliveries after {}", shown.deliveries, known.deliveries);
                    note(Wrong::Lost(what));
                }
                known.deliveries = shown.deliveries;
                if shown.envelope.payload.bytes != payload(number(*id)) {
                    note(Wrong::Lost(format!("message {id} has other bytes")));
                }
            }
            if let Some(letter) = letter
                && letter.file.redrives < known.retries
            {
                note(Wrong::Lost(format!(
                    "letter {id}: {} retries after {}",
                    letter.file.redrives, known.retries
                )));
            }
        }
    }

    async fn small_things(&mut self, store: &SqliteStore, note: &mut impl FnMut(Wrong)) -> Outcome<()> {
        let entry = store.kv_get(COUNTER.0.into(), COUNTER.1.into()).await?;
        let counter = entry.map_or(0, |entry| entry.version);
        if counter < self.counter {
            note(Wrong::Lost(format!("the small value is {counter} after {}", self.counter)));
        }
        let last = store.audit(PageRequest::first(1)).await?.items.first().map_or(0, |row| row.n);
        if last < self.audited {
            note(Wrong::Lost(format!("{last} acts in the audit trail, {} were acknowledged", self.audited)));
        }
        for id in self.fresh_keys.drain(..) {
            let Some(key) = self.known.get(&id).and_then(|known| known.key.clone()) else { continue };
            let state = store.key_state(QUEUE.parse()?, key).await?;
            if state.is_none_or(|state| state.id != id) {
                note(Wrong::Lost(format!("the key of message {id} is {state:?}")));
            }
        }
        Ok(())
    }
}

impl Known {
    /// Settles what was under way when the process was killed: nobody will answer any more.
    fn learn(&mut self, here: bool, live: bool, letter: bool) {
        if self.ending > 0 {
            // With a letter there it is not known whether the message was done or died once more.
            self.over |= !live && !letter;
            self.ending = 0;
        }
        if self.purging > 0 {
            self.purged |= !letter;
            self.purging = 0;
        }
        self.accepted |= here;
    }
}
