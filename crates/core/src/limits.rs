//! Every bound of the system, with its reason. A loop, queue, page or string without a bound here is a bug
//! (I49). This file holds only constants.

use crate::time::Span;
use std::time::Duration;

/// Ids that one call discloses one by one. A filter names more.
pub const DISCLOSE_MAX: usize = 1_000;
/// Small durable values that change with one recorded act: a record and the list that it is in, with room for more.
pub const RECORD_WRITES_MAX: usize = 8;
/// The highest death number that an import may bring: exact in every JSON reader, and with as many numbers left
/// after it.
pub const DEATH_IMPORT_MAX: u64 = 1 << 53;
/// Field names that an operator may add to the masking rules. Each is compared with every field name of every
/// payload shown.
pub const MASKING_KEYS_MAX: usize = 500;
/// Payload bytes of one message. Larger payloads belong in object storage, with a reference in the message.
/// SQLite rows stay cheap to copy, and a full batch stays below the frame limit of the socket.
pub const PAYLOAD_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Entries in one batch call. One commit stays short enough for the callers that wait behind it.
pub const BATCH_ENTRIES_MAX: usize = 10_000;
/// Payload bytes in one batch call. Bounds the memory of one commit.
pub const BATCH_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes of the name of a queue, dead letter queue or kind: long enough for a dotted path, short enough for a
/// table column.
pub const NAME_BYTES_MAX: usize = 128;
/// Bytes of an idempotency or ordering key: a composite of two ids fits.
pub const KEY_BYTES_MAX: usize = 512;
/// Headers of one message.
pub const HEADERS_MAX: usize = 64;
/// Bytes of all header names and values of one message.
pub const HEADER_BYTES_MAX: usize = 16 * 1024;
/// Tags of one message.
pub const TAGS_MAX: usize = 32;
/// Bytes of one tag.
pub const TAG_BYTES_MAX: usize = 128;
/// Bytes of the free JSON context of a message.
pub const CONTEXT_BYTES_MAX: usize = 16 * 1024;
/// Bytes of a W3C trace context, or of the name of a worker, host, version, actor or step.
pub const LABEL_BYTES_MAX: usize = 256;
/// Bytes of one error message kept with a failure.
pub const ERROR_MESSAGE_BYTES_MAX: usize = 8 * 1024;
/// Bytes of one stack kept with a failure: about 600 frames.
pub const STACK_BYTES_MAX: usize = 64 * 1024;
/// Bytes at the end of a program's output that are searched for a traceback.
pub const TRACEBACK_BYTES_MAX: usize = 64 * 1024;
/// Counters of one leaf by queue and kind. Further ones are summed up per queue. A kind per message is a mistake, and it
/// must not make showing a group as slow as listing its messages.
pub const LEAF_COUNTERS_MAX: usize = 256;
/// Causes kept below an error. Deeper ones say nothing new.
pub const CAUSES_MAX: usize = 16;
/// Bytes of an error message that its signature looks at. The difference between two causes is near the
/// beginning.
pub const SCAN_BYTES_MAX: usize = 2 * 1024;
/// Bytes of a signature's template. Less than [`SCAN_BYTES_MAX`], so that the end of the scan rarely shows in
/// it.
pub const TEMPLATE_BYTES_MAX: usize = 1024;
/// Leaves of one store whose wording is compared. Each costs a few kilobytes of memory. Beyond it, failures
/// with new wording are filed under one leaf for the rest of their error type.
pub const LEAVES_MAX: usize = 10_000;
/// Leaves for the rest of an error type. Beyond it, one leaf serves all types.
pub const REST_LEAVES_MAX: usize = 100;
/// Leaves of one group. A line that belongs to a group with this many is filed under the group's oldest leaf:
/// another thousand user names teach nothing.
pub const GROUP_LEAVES_MAX: usize = 200;
/// Signatures without a leaf of their own whose place the tree remembers.
pub const FILED_MAX: usize = 100_000;
/// Words that a slot collects. With this many, the slot is known to vary or never will be.
pub const SLOT_WORDS_MAX: usize = 64;
/// Pairs of words of one line that are tried as varying together. Long lines only try neighbours.
pub const LINE_PAIRS_MAX: usize = 80;
/// Slots of all lines. Bounds the memory of the tree together with [`LEAVES_MAX`].
pub const SLOTS_MAX: usize = 2_000_000;
/// Patterns that may follow from one new leaf. Bounds the time to learn it.
pub const TREE_STEPS_MAX: usize = 10_000;
/// Signature rules of one store.
pub const SIGNATURE_RULES_MAX: usize = 100;
/// Bytes of a signature rule's pattern and of its fingerprint.
pub const SIGNATURE_RULE_BYTES_MAX: usize = 1024;
/// Bytes of a signature rule's compiled pattern: `\w{1000}{1000}` is refused, not compiled.
pub const SIGNATURE_RULE_COMPILED_MAX: usize = 1024 * 1024;
/// Nesting of a signature rule's pattern.
pub const SIGNATURE_RULE_DEPTH_MAX: u32 = 50;
/// Distinct values counted per slot when a group is shown.
pub const VARIABLE_VALUES_MAX: usize = 10_000;
/// Entries of an error's context trail and of its artifacts.
pub const TRAIL_ENTRIES_MAX: usize = 32;
/// Failures kept in full from the start of a message's history, and as many from its end.
pub const HISTORY_EDGE: u32 = 10;
/// Deaths and acts kept from the start of a letter's history: how the letter came to be.
pub const LETTER_EVENTS_FIRST: usize = 10;
/// Deaths and acts kept from the end of a letter's history; those in between are only counted. A letter that is
/// worked on for months stays a few kilobytes.
pub const LETTER_EVENTS_LAST: usize = 40;
/// Bytes of an operator's note or reason.
pub const NOTE_BYTES_MAX: usize = 4 * 1024;
/// Notes kept on one letter. Older ones are dropped and counted.
pub const NOTES_MAX: usize = 100;

/// Bytes of a JSON patch. It is stored with its operation and read in every step.
pub const PATCH_BYTES_MAX: usize = 64 * 1024;
/// Steps of a JSON patch. Each reads the document once, inside the commit.
pub const PATCH_STEPS_MAX: usize = 100;
/// Nesting of a JSON document that a patch may produce: the depth that the readers in this project accept.
pub const JSON_DEPTH_MAX: usize = 127;
/// How often the content of one letter may be changed. Every version is kept in full.
pub const EDITS_MAX: usize = 50;
/// Payload bytes of all earlier versions of one letter together. A letter with all its versions still fits into
/// a frame of the socket.
pub const REVISION_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Leases granted by one call.
pub const LEASE_BATCH_MAX: usize = 1_000;
/// Payload bytes after which one call grants no further lease. The first message is granted whatever its size.
/// Encoded as text and with the last message, this is an eighth of a frame of the socket: a grant that could
/// not be sent would cost its messages an attempt without reaching a worker.
pub const LEASE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Queues named in one lease call.
pub const LEASE_QUEUES_MAX: usize = 64;
/// The longest lease. A worker that hangs holds its message at most this long.
pub const LEASE_MAX: Span = Span::from_hours(12);
/// The shortest lease. A shorter one could expire because of a hiccup of the operating system's scheduler.
pub const LEASE_MIN: Span = Span::from_millis(100);
/// Releases and snoozes in one generation that give the attempt back.
pub const GIVE_BACKS_MAX: u32 = 100;
/// Executions that a policy or message may allow.
pub const ATTEMPTS_MAX: u32 = 10_000;
/// The longest delay, ttl, backoff cap or retention: 10 years. Anything longer is a typing mistake.
pub const SPAN_MAX: Span = Span::from_days(3_650);
/// How long an idempotency key is remembered.
pub const KEY_WINDOW: Span = Span::from_hours(24);
/// Bytes of a target's URL or directory: what servers and file systems accept.
pub const TARGET_URL_BYTES_MAX: usize = 8 * 1024;
/// Bytes of a target's body template: the text around the values, without the values.
pub const TARGET_BODY_BYTES_MAX: usize = 64 * 1024;
/// Redirects that a target may follow. More than that is a loop.
pub const REDIRECTS_MAX: u8 = 10;
/// Arguments of a target's command.
pub const ARGUMENTS_MAX: usize = 1_000;
/// Bytes of a command's arguments, and of its environment variables: far below the limit of every operating
/// system.
pub const ARGUMENT_BYTES_MAX: usize = 64 * 1024;
/// Queues with a target that one process pushes. Each has a worker that waits for messages.
pub const PUSH_QUEUES_MAX: usize = 1_000;
/// The longest wait that an HTTP response may ask for. Anything longer is a mistake, and the cap of a queue is
/// mostly shorter.
pub const RETRY_AFTER_MAX: Span = Span::from_hours(24);
/// Steps of a backoff that is given as a list.
pub const BACKOFF_STEPS_MAX: usize = 100;
/// Include and exclude rules of one policy.
pub const RULES_MAX: usize = 100;
/// Results in the window of one breaker. Every failure writes its row.
pub const BREAKER_WINDOW_MAX: u32 = 1_000;
/// Probes a half-open breaker lets through.
pub const BREAKER_PROBES_MAX: u32 = 1_000;
/// Changes of state that a breaker remembers for operators.
pub const BREAKER_EVENTS_MAX: usize = 20;
/// Breakers of one store. Beyond it, breakers without a recent result are dropped. If there is none to drop, a
/// new key gets no breaker and its messages flow.
pub const BREAKERS_MAX: usize = 10_000;
/// Distinct workers and error types remembered with a failing message. Beyond it, both count as "many".
pub const INDICATORS_MAX: usize = 8;
/// Failing messages remembered per group, to tell one bad message from a cause that affects many.
pub const WITNESSES_MAX: usize = 16;
/// How often a letter returns from quarantine to its queue automatically.
pub const AUTO_RELEASES_MAX: u32 = 3;
/// Hours that a group remembers: two days, for a small chart.
pub const GROUP_HOURS: u64 = 48;
/// Workers, versions and hosts that a group counts by name. Every failure writes its row.
pub const GROUP_NAMES_MAX: usize = 16;
/// Queues and kinds named in a group's row. The counts cover all of them.
pub const GROUP_KEYS_MAX: usize = 100;
/// Changes that a group remembers for operators.
pub const GROUP_HISTORY_MAX: usize = 20;
/// Operations a group remembers.
pub const GROUP_OPERATIONS_MAX: usize = 10;
/// Letters of a group whose errors are read for the values of its variables, when one group is shown.
pub const GROUP_LETTERS_READ: usize = 200;
/// Letters of a group that are shown with it.
pub const GROUP_SAMPLES: usize = 5;
/// Values shown for each slot of a group's template.
pub const GROUP_VALUES_SHOWN: usize = 10;
/// Queues and kinds shown with one group.
pub const GROUP_SHARES_SHOWN: usize = 100;
/// Similar groups shown with one group.
pub const GROUP_SIMILAR_SHOWN: usize = 5;
/// Bytes of a group's link.
pub const LINK_BYTES_MAX: usize = 2 * 1024;
/// Markers kept. The oldest make room.
pub const MARKERS_MAX: usize = 1_000;
/// Groups merged by one act.
pub const MERGE_MAX: usize = 100;
/// User-defined patterns for classifying errors. Each is tried on every failure.
pub const PATTERNS_MAX: usize = 200;
/// Bytes of one such pattern.
pub const PATTERN_BYTES_MAX: usize = 4 * 1024;
/// Bytes of one such pattern when compiled.
pub const PATTERN_SIZE_MAX: usize = 512 * 1024;
/// Reasons kept for one classification. A person reads no more.
pub const REASONS_MAX: usize = 8;
/// Bytes of one such reason.
pub const REASON_BYTES_MAX: usize = 200;
/// Counters of one event and queue that differ in their labels. Beyond it, new values of the first label are
/// counted as `other`. Each is a row, and a line in a dashboard that nobody reads when there are more.
pub const TALLIES_MAX: usize = 200;
/// Characters of one label value.
pub const TALLY_VALUE_CHARS_MAX: usize = 64;
/// Queues of one store. Each costs a few kilobytes of memory while it is served.
pub const QUEUES_MAX: usize = 10_000;

/// Items on one page.
pub const PAGE_ITEMS_MAX: usize = 1_000;
/// Payload bytes after which a page of messages or letters ends early, with a cursor. Encoded as text and with
/// the last item, it stays below half a frame of the socket.
pub const PAGE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Items on a page unless the caller asks for another number.
pub const PAGE_ITEMS_DEFAULT: usize = 50;
/// The minimum number of digits of a short id. With fewer, several ids share them in any store of interest.
pub const ID_TAIL_DIGITS_MIN: usize = 4;
/// Candidates that one filtered page examines before it stops and reports so.
pub const PAGE_SCAN_MAX: usize = 100_000;
/// The time that one filtered page takes before it stops and reports so, once [`PAGE_MISSES_MIN`] candidates
/// did not match.
pub const PAGE_TIME_MAX: Duration = Duration::from_millis(200);
/// Candidates that must fail to match before the time counts. A page full of matches is not cut short because
/// the machine is slow, and a list of a few letters is always complete.
pub const PAGE_MISSES_MIN: usize = 500;
/// Pages in a row without a match that a command reads before it stops and reports where: about two seconds.
pub const EMPTY_PAGES_MAX: usize = 10;
/// Bytes of a payload that a text search reads.
pub const SEARCH_PAYLOAD_BYTES_MAX: usize = 64 * 1024;
/// Bytes of the largest payload that goes into the text index. Letters with larger ones are searched directly.
pub const INDEX_PAYLOAD_BYTES_MAX: usize = 8 * 1024;
/// Trigrams that the index is asked for per piece of text.
pub const TEXT_TRIGRAMS_MAX: usize = 10;
/// Trigrams that the index is asked for per filter. A filter that needs more does not use the index.
pub const FILTER_TRIGRAMS_MAX: usize = 400;
/// Letters that one call adds to the text index.
pub const INDEX_TEXT_MAX: usize = 1_000;
/// Bytes of a filter text.
pub const FILTER_BYTES_MAX: usize = 4 * 1024;
/// Nesting of parentheses and `not` in a filter.
pub const FILTER_DEPTH_MAX: usize = 32;
/// Terms of a filter.
pub const FILTER_TERMS_MAX: usize = 128;

/// Members that one freezing step of an operation writes, and letters that one running step changes.
pub const OPERATION_CHUNK: usize = 2_000;
/// Members per second that an operation may send: far beyond what a store can do. More is a typing mistake.
pub const OPERATION_RATE_MAX: u32 = 1_000_000;
/// Groups and queues that a preview names. A person reads no more.
pub const PREVIEW_PARTS_MAX: usize = 100;
/// Letters examined between two checks whether other callers wait, while members are frozen.
pub const FREEZE_LOOK_MAX: usize = 50;
/// Rows of the audit trail that one call removes. One commit stays short.
pub const AUDIT_TRIM_CHUNK: usize = 10_000;
/// How often a queue may redrive a dead letter automatically. More is a retry loop with extra steps.
pub const AUTO_REDRIVES_MAX: u32 = 10;
/// How often a letter may be redriven before it waits for review, unless its queue's policy sets another
/// number. A letter that died again that often will die again.
pub const REDRIVES_DEFAULT: u32 = 10;
/// The highest number of redrives that a policy may allow.
pub const REDRIVES_MAX: u32 = 1_000;
/// How long a purge can be undone, and the minimum time that a letter is kept after somebody reopened or
/// released it: a working day and the night after it.
pub const PURGE_UNDO: Span = Span::from_hours(24);
/// Messages examined by one maintenance pass (I23).
pub const REAP_MAX: usize = 10_000;
/// How long after a call to purge a queue the next call continues where that one stopped. Callers repeat the
/// call at once.
pub const PURGE_PAUSE_MAX: Span = Span::from_secs(10);
/// Connections that read beside the writer. Each may have a cache of 16 MiB.
pub const READERS_MAX: usize = 8;
/// The number of live messages up to which a command that opens a directory also looks for expired leases and
/// overdue messages. The index that finds them is built first, which takes about 10 ms for this many.
pub const TIDY_MESSAGES_MAX: i64 = 10_000;
/// Dead letter queues listed in the audit row of a retention pass. The row stays readable.
pub const RETENTION_DLQS_LISTED_MAX: usize = 50;
/// Commands that one group commit takes before it answers.
pub const GROUP_COMMANDS_MAX: usize = 1_024;
/// Commands that wait for the writer before callers wait themselves.
pub const WRITER_QUEUE_MAX: usize = 4_096;
/// Entries of the in-memory index of ready messages. Beyond it, the tail of each level stays on disk.
pub const READY_INDEX_ENTRIES_MAX: usize = 4_000_000;
/// Messages per level of an in-memory priority queue unless the caller asks for another number: half a
/// millisecond of the busiest producers, and a few hundred kilobytes.
pub const RING_DEFAULT: usize = 4_096;
/// The maximum number of messages per level of a priority queue. Its rings are allocated in full.
pub const RING_MAX: usize = 1 << 24;
/// Distinct sets of queues whose scheduler state is remembered.
pub const SCHEDULERS_MAX: usize = 1_024;
/// How far the store's clock may jump by itself when a process opens the store after a reboot, when only the
/// wall clock can tell how much time passed. A longer jump may be right, for a machine that was off for weeks,
/// or the wall clock may be wrong: the store's clock then catches up at double speed, and `doctor` reports it.
/// A clock that is behind is late; one that is ahead ends delays, leases and retention early.
pub const CLOCK_LEAP_MAX: Span = Span::from_days(7);
/// How far the store's clock may differ from the wall clock before `doctor` reports it.
pub const CLOCK_SKEW_MAX: Span = Span::from_secs(60);
/// Findings that `doctor` lists before it only counts them.
pub const FINDINGS_MAX: usize = 1_000;
/// Bytes of one frame on the store's socket.
pub const FRAME_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Connections that the store's socket serves at once. Together with the other files of a process they fit into
/// the 1,024 descriptors that most systems allow by default.
pub const CONNECTIONS_MAX: usize = 512;
/// Callers that wait for messages through the store's socket at once, on all connections together.
pub const WAITS_MAX: usize = 384;
/// Calls of one connection to the store's socket that are carried out at once, not counting those that wait for
/// messages. While there are as many, the holder reads nothing more from this connection.
pub const CALLS_IN_FLIGHT_MAX: usize = 1_024;
/// Bytes that wait to be sent on one connection of the store's socket before further ones wait for room. A caller and
/// the holder may exceed it by what they send at once.
pub const UNSENT_BYTES_MAX: usize = 1024 * 1024;
/// How long a client of the store's socket may take to send its greeting.
pub const GREETING_MAX: Duration = Duration::from_secs(10);
/// Connections between nodes that have not yet proved where they come from. They have a limit of their own, so that
/// strangers who connect and say nothing do not take the places of nodes.
pub const HANDSHAKES_MAX: usize = 128;
/// How long a node may take to connect to the node that holds the store, with TLS and greeting.
pub const NODE_DIAL_MAX: Duration = Duration::from_secs(5);
/// How long a node goes on looking for the node that holds the store before a call fails: as long as another node waits
/// before it takes the place of a holder that is silent.
pub const HOLDER_PATIENCE: Duration = Duration::from_secs(10);
/// How long the other end of a connection between nodes may leave everything unacknowledged, even when nothing is to be
/// said, before the connection counts as broken. A machine that lost its power never says that it is gone.
pub const NODE_SILENCE_MAX: Duration = Duration::from_secs(10);
/// How often a call that can be repeated is sent after its reply was lost. More often means that the call itself is what
/// breaks the connection.
pub const NODE_REPEATS_MAX: u32 = 3;
/// Captured operations that a process keeps in memory while its store cannot be written: an outage of minutes
/// at the rate of a busy service. Beyond it, new ones are refused, counted and logged.
pub const CAPTURED_MAX: usize = 10_000;
/// Bytes of all captured operations in memory.
pub const CAPTURED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Captured operations written in one commit.
pub const CAPTURED_BATCH_MAX: usize = 256;
/// Bytes written in one such commit, unless a single operation is larger.
pub const CAPTURED_BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Letters that a processor examines in one batch. Their results are one commit.
pub const PROCESSOR_LOOK_MAX: usize = 100;
/// Such batches per interval.
pub const PROCESSOR_LOOKS_MAX: usize = 10;
/// Captured operations that a processor executes per interval, and concurrently.
pub const PROCESSOR_BATCH_MAX: usize = 1_000;
/// Channels that alerts are sent to.
pub const ALERT_CHANNELS_MAX: usize = 50;
/// Alerts that hold at once. Their state is one small durable value; further ones wait until some have ended.
pub const ALERTS_ACTIVE_MAX: usize = 600;
/// New groups among them. Older ones were told; they are recognised by when they were first seen.
pub const ALERTS_NEW_GROUPS_MAX: usize = 300;
/// Queues of one rule whose events are counted for alerts. Further ones are counted together.
pub const ALERTS_COUNTED_MAX: usize = 250;
/// Characters of the subject of an alert.
pub const ALERT_SUBJECT_CHARS_MAX: usize = 150;
/// Alerts of one rule that are told one by one when they begin at the same time. A person reads no more.
pub const ALERTS_AT_ONCE_MAX: usize = 10;
/// Alerts that are listed as holding now.
pub const ALERTS_SHOWN_MAX: usize = 200;
/// Notices that are kept for people who want to know what was told lately. They are part of the state of the alerts.
pub const ALERTS_TOLD_MAX: usize = 20;
/// Queues with open letters whose growth is measured.
pub const ALERTS_SAMPLED_MAX: usize = 300;
/// Groups of each status that one evaluation of the alerts reads.
pub const ALERTS_GROUPS_MAX: usize = 500;
/// Things that are silenced at once.
pub const SILENCES_MAX: usize = 200;
/// Areas whose last change the holder of a store remembers. A reader that is further behind than that looks at
/// everything again.
pub const CHANGES_AREAS_MAX: usize = 4_096;
/// Workers that the holder of a store remembers. Names beyond that are not listed; their leases work all the same.
pub const WORKERS_MAX: usize = 10_000;
/// How long a worker is known after its last call.
pub const WORKER_KNOWN_FOR: Span = Span::from_secs(600);
/// Leases listed of one worker. The rest is only counted.
pub const WORKER_LEASES_LISTED_MAX: usize = 100;
/// Bytes of one value in the key-value space.
pub const KV_BYTES_MAX: usize = 256 * 1024;
/// Bytes of the values on one page of key-value entries. As text, four times as many stay well below a frame of the
/// socket.
pub const KV_PAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes of a job file, which a person writes.
pub const JOB_FILE_BYTES_MAX: usize = 1024 * 1024;
/// Nesting of a job file.
pub const JOB_FILE_DEPTH_MAX: usize = 32;
/// Steps of one stage of a job. Each is a process per item.
pub const JOB_STEPS_MAX: usize = 100;
/// Problems listed for a job file. A file with more is not a job file.
pub const JOB_PROBLEMS_MAX: usize = 20;
/// Items of one run. Their keys are held in memory, about a hundred bytes each.
pub const RUN_ITEMS_MAX: usize = 1_000_000;
/// Bytes of a run's input. It is held in memory while it is sorted and compared.
pub const RUN_INPUT_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// Items enqueued in one commit when a run starts.
pub const RUN_CHUNK: usize = 1_000;
/// Processes that a run executes at once.
pub const RUN_PARALLEL_MAX: usize = 1_024;
/// Bytes of a step's output that are kept as the item's result. Larger output belongs in a file.
pub const RUN_OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// Items that must finish before a failure threshold applies. The share among fewer says little.
pub const RUN_THRESHOLD_AFTER: u64 = 10;
