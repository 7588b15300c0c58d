//! Every bound of the system, with its reason. A loop, queue, page or string without a bound here is a bug
//! (invariant I49). Nothing in this file decides anything: it only says how much is too much.

use crate::time::Span;
use std::time::Duration;

/// Ids that are disclosed one by one in one call; more are named by a filter.
pub const DISCLOSE_MAX: usize = 1_000;
/// The highest number of a death that an import may bring: exact in every reader of JSON, and as many deaths again
/// have room after it.
pub const DEATH_IMPORT_MAX: u64 = 1 << 53;
/// Names of fields an operator may add to the masking rules: each is tried on every name of every payload shown.
pub const MASKING_KEYS_MAX: usize = 500;
/// Payload bytes of one message. Larger work belongs in object storage with a reference here; SQLite rows
/// stay cheap to copy and a full batch stays below the frame limit of the socket.
pub const PAYLOAD_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Entries in one batch verb: one commit stays short enough for those who wait behind it.
pub const BATCH_ENTRIES_MAX: usize = 10_000;
/// Bytes of payload in one batch verb: bounds the memory of one commit.
pub const BATCH_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Names of queues, drawers and kinds. Long enough for a dotted path, short enough for a table column.
pub const NAME_BYTES_MAX: usize = 128;
/// Idempotency and ordering keys: a composite of two ids fits.
pub const KEY_BYTES_MAX: usize = 512;
/// Headers of one message.
pub const HEADERS_MAX: usize = 64;
/// Bytes of all header names and values of one message.
pub const HEADER_BYTES_MAX: usize = 16 * 1024;
/// Tags of one message.
pub const TAGS_MAX: usize = 32;
/// Bytes of one tag.
pub const TAG_BYTES_MAX: usize = 128;
/// Bytes of the free JSON context.
pub const CONTEXT_BYTES_MAX: usize = 16 * 1024;
/// Bytes of a W3C trace context, worker, host, version, actor or step name.
pub const LABEL_BYTES_MAX: usize = 256;
/// Bytes of one error message kept with a failure (D12).
pub const ERROR_MESSAGE_BYTES_MAX: usize = 8 * 1024;
/// Bytes of one stack kept with a failure: about 600 frames.
pub const STACK_BYTES_MAX: usize = 64 * 1024;
/// Bytes of what a program printed that are looked through for a traceback, from the end.
pub const TRACEBACK_BYTES_MAX: usize = 64 * 1024;
/// Counters of one leaf by queue and kind: what comes beyond is summed up per queue. A kind per message is a mistake
/// that must not make every look at a group as long as the list of its messages.
pub const LEAF_COUNTERS_MAX: usize = 256;
/// Errors beneath an error that are kept: deeper ones say nothing new.
pub const CAUSES_MAX: usize = 16;
/// Bytes of an error message that its signature looks at. What tells two causes apart stands near the beginning.
pub const SCAN_BYTES_MAX: usize = 2 * 1024;
/// Bytes of a signature's template. Less than is looked at, so that where the scan ends rarely shows in it.
pub const TEMPLATE_BYTES_MAX: usize = 1024;
/// Leaves of one store whose wording is compared. Each costs a few kilobytes of memory; beyond it failures of
/// a new wording are filed under a leaf for the rest of their error type.
pub const LEAVES_MAX: usize = 10_000;
/// Leaves for the rest of an error type; beyond it there is one for all types.
pub const REST_LEAVES_MAX: usize = 100;
/// Leaves of one group. A line that belongs to a group with that many is filed under the group's oldest leaf:
/// another thousand names of users teach nothing.
pub const GROUP_LEAVES_MAX: usize = 200;
/// Signatures without a leaf of their own of which the tree remembers where they were filed.
pub const FILED_MAX: usize = 100_000;
/// Words a place that may vary collects: with that many it is known to vary or never will be.
pub const SLOT_WORDS_MAX: usize = 64;
/// Pairs of words of one line that are tried as varying together; long lines try neighbours only.
pub const LINE_PAIRS_MAX: usize = 80;
/// Places that may vary, of all lines: bounds the memory of the tree together with [`LEAVES_MAX`].
pub const SLOTS_MAX: usize = 2_000_000;
/// Patterns that follow from one new leaf: bounds the time to learn it.
pub const TREE_STEPS_MAX: usize = 10_000;
/// Signature rules of one store.
pub const SIGNATURE_RULES_MAX: usize = 100;
/// Bytes of a signature rule's pattern and of its fingerprint.
pub const SIGNATURE_RULE_BYTES_MAX: usize = 1024;
/// Bytes of a signature rule's compiled pattern: `\w{1000}{1000}` is refused, not compiled.
pub const SIGNATURE_RULE_COMPILED_MAX: usize = 1024 * 1024;
/// Nesting of a signature rule's pattern.
pub const SIGNATURE_RULE_DEPTH_MAX: u32 = 50;
/// Different values counted per varying place when a group is shown.
pub const VARIABLE_VALUES_MAX: usize = 10_000;
/// Entries of an error's context trail and of its artifacts.
pub const TRAIL_ENTRIES_MAX: usize = 32;
/// Whole failures kept from the start of a message's history, and as many from its end.
pub const HISTORY_EDGE: u32 = 10;
/// Deaths and acts kept from the start of a letter's life: how it came to be here.
pub const LETTER_EVENTS_FIRST: usize = 10;
/// Deaths and acts kept from the end of a letter's life; those in between are counted. A letter that is worked on
/// for months stays a few kilobytes.
pub const LETTER_EVENTS_LAST: usize = 40;
/// Bytes of an operator's note or reason.
pub const NOTE_BYTES_MAX: usize = 4 * 1024;
/// Notes kept on one letter; the oldest beyond it are dropped and counted.
pub const NOTES_MAX: usize = 100;

/// Bytes of a JSON patch: it is kept with its operation and read with every step.
pub const PATCH_BYTES_MAX: usize = 64 * 1024;
/// Steps of a JSON patch: each reads the document once, inside the commit.
pub const PATCH_STEPS_MAX: usize = 100;
/// Nesting of a JSON document that a patch may leave: as deep as our readers look.
pub const JSON_DEPTH_MAX: usize = 127;
/// Times the content of one letter may be changed: every one is kept whole beside it.
pub const EDITS_MAX: usize = 50;
/// Payload bytes of one letter's earlier content, together: a letter with all of it still fits a frame of the socket.
pub const REVISION_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Leases granted by one call.
pub const LEASE_BATCH_MAX: usize = 1_000;
/// Payload bytes after which one call leases nothing more; the first message is granted whatever its size. With
/// the last one and as text this is an eighth of a frame of the socket: a grant that could not be sent would cost
/// its messages an attempt and nobody would have them.
pub const LEASE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Queues named in one lease call.
pub const LEASE_QUEUES_MAX: usize = 64;
/// The longest lease: a forgotten worker holds its message at most this long.
pub const LEASE_MAX: Span = Span::from_hours(12);
/// The shortest lease: below this a scheduler hiccup loses it.
pub const LEASE_MIN: Span = Span::from_millis(100);
/// Releases and snoozes of one generation that give the attempt back.
pub const GIVE_BACKS_MAX: u32 = 100;
/// Executions a policy or message may ask for.
pub const ATTEMPTS_MAX: u32 = 10_000;
/// The longest delay, ttl, backoff cap or retention: 10 years. Beyond it is a typing mistake.
pub const SPAN_MAX: Span = Span::from_days(3_650);
/// How long an idempotency key is remembered.
pub const KEY_WINDOW: Span = Span::from_hours(24);
/// Bytes of a target's address or directory: what servers and file systems take.
pub const TARGET_URL_BYTES_MAX: usize = 8 * 1024;
/// Bytes of a target's body template: the text around the values, not the values.
pub const TARGET_BODY_BYTES_MAX: usize = 64 * 1024;
/// Redirects a target may follow: more than that is a loop.
pub const REDIRECTS_MAX: u8 = 10;
/// Arguments of a target's command.
pub const ARGUMENTS_MAX: usize = 1_000;
/// Bytes of a command's arguments, and of its variables: far below what every system takes.
pub const ARGUMENT_BYTES_MAX: usize = 64 * 1024;
/// The longest wait an HTTP answer may ask for; more is a mistake, and a queue's own cap is mostly shorter.
pub const RETRY_AFTER_MAX: Span = Span::from_hours(24);
/// Steps of a listed backoff.
pub const BACKOFF_STEPS_MAX: usize = 100;
/// Include and exclude rules of one policy.
pub const RULES_MAX: usize = 100;
/// Results one breaker's window holds: its row is written with every failure.
pub const BREAKER_WINDOW_MAX: u32 = 1_000;
/// Probes a half-open breaker lets through.
pub const BREAKER_PROBES_MAX: u32 = 1_000;
/// Changes of state a breaker remembers for people.
pub const BREAKER_EVENTS_MAX: usize = 20;
/// Breakers of one store. Beyond it those without a recent result make room; where none can, a new key is not
/// watched, and its work flows.
pub const BREAKERS_MAX: usize = 10_000;
/// Distinct workers and error kinds remembered with a failing message: beyond it both count as "many".
pub const INDICATORS_MAX: usize = 8;
/// Failing messages remembered per group to tell one bad message from a cause that hits many.
pub const WITNESSES_MAX: usize = 16;
/// Times a letter goes from quarantine back to work by itself.
pub const AUTO_RELEASES_MAX: u32 = 3;
/// Hours a group remembers: two days, for a small chart.
pub const GROUP_HOURS: u64 = 48;
/// Workers, versions and hosts a group counts by name: its row is written with every failure.
pub const GROUP_NAMES_MAX: usize = 16;
/// Queues and kinds named in a group's row; the counts are of all.
pub const GROUP_KEYS_MAX: usize = 100;
/// Changes a group remembers for people.
pub const GROUP_HISTORY_MAX: usize = 20;
/// Operations a group remembers.
pub const GROUP_OPERATIONS_MAX: usize = 10;
/// Letters of a group whose errors are read for the values of its variables, when one group is shown.
pub const GROUP_LETTERS_READ: usize = 200;
/// Letters of a group that are shown with it.
pub const GROUP_SAMPLES: usize = 5;
/// Values shown of each place of a group's template that varies.
pub const GROUP_VALUES_SHOWN: usize = 10;
/// Queues and kinds shown with one group.
pub const GROUP_SHARES_SHOWN: usize = 100;
/// Similar groups shown with one group.
pub const GROUP_SIMILAR_SHOWN: usize = 5;
/// Bytes of a group's link.
pub const LINK_BYTES_MAX: usize = 2 * 1024;
/// Markers kept; the oldest make room.
pub const MARKERS_MAX: usize = 1_000;
/// Groups merged by one act.
pub const MERGE_MAX: usize = 100;
/// Patterns of the user's own for classifying errors: each is tried on every failure.
pub const PATTERNS_MAX: usize = 200;
/// Bytes of one such pattern.
pub const PATTERN_BYTES_MAX: usize = 4 * 1024;
/// Bytes a pattern's regular expression may take when compiled.
pub const PATTERN_SIZE_MAX: usize = 512 * 1024;
/// Reasons kept for one verdict on an error: a person reads no more.
pub const REASONS_MAX: usize = 8;
/// Bytes of one such reason.
pub const REASON_BYTES_MAX: usize = 200;
/// Counters of one event and queue that are told apart by their labels; beyond it new values of the first label
/// are counted as `other`. Each is a row and a line in a dashboard nobody reads when there are more.
pub const TALLIES_MAX: usize = 200;
/// Characters of one label's value.
pub const TALLY_VALUE_CHARS_MAX: usize = 64;
/// Queues of one store: each costs a few kilobytes of memory when it is served.
pub const QUEUES_MAX: usize = 10_000;

/// Items on one page (D9).
pub const PAGE_ITEMS_MAX: usize = 1_000;
/// Payload bytes after which a page of messages or letters ends early, with a cursor: with the last item and as
/// text it stays below half a frame of the socket.
pub const PAGE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Items on a page when the caller does not say.
pub const PAGE_ITEMS_DEFAULT: usize = 50;
/// Digits that a short id has at least: of fewer, several ids end in them in any store worth looking at.
pub const ID_TAIL_DIGITS_MIN: usize = 4;
/// Candidates one filtered page looks at before it stops and says so.
pub const PAGE_SCAN_MAX: usize = 100_000;
/// Time one filtered page takes before it stops and says so, once it has looked at [`PAGE_MISSES_MIN`] in vain.
pub const PAGE_TIME_MAX: Duration = Duration::from_millis(200);
/// Candidates that did not match before time counts: a page of what was asked for is not cut short because the machine
/// is slow, and a list of a few letters is always whole.
pub const PAGE_MISSES_MIN: usize = 500;
/// Pages in a row that a command looks at without finding anything before it stops and says where: about two seconds.
pub const PAGES_IN_VAIN_MAX: usize = 10;
/// Bytes of a payload that a search for text looks at.
pub const SEARCH_PAYLOAD_BYTES_MAX: usize = 64 * 1024;
/// Bytes of the largest payload that is put into a text index; letters with a larger one are looked at themselves.
pub const INDEX_PAYLOAD_BYTES_MAX: usize = 8 * 1024;
/// Threes of letters that an index is asked for on behalf of one piece of text.
pub const WORDING_THREES: usize = 10;
/// Threes of letters that an index is asked for on behalf of one filter; one that needs more goes without.
pub const WORDING_MAX: usize = 400;
/// Letters put into the text index by one call.
pub const INDEX_TEXT_MAX: usize = 1_000;
/// Bytes of a filter text.
pub const FILTER_BYTES_MAX: usize = 4 * 1024;
/// Nesting of parentheses and `not` in a filter.
pub const FILTER_DEPTH_MAX: usize = 32;
/// Terms of a filter.
pub const FILTER_TERMS_MAX: usize = 128;

/// Members written per freezing step of an operation, and letters changed per running step.
pub const OPERATION_CHUNK: usize = 2_000;
/// Members an operation sends per second at most: far beyond what a store does; more is a typing mistake.
pub const OPERATION_RATE_MAX: u32 = 1_000_000;
/// Groups and queues that a preview names: a person reads no more.
pub const PREVIEW_PARTS_MAX: usize = 100;
/// Letters looked at between two looks at whether others wait, when members are frozen.
pub const FREEZE_LOOK_MAX: usize = 50;
/// Rows of the audit trail removed by one call: one commit stays short.
pub const AUDIT_TRIM_CHUNK: usize = 10_000;
/// Times a queue may send a dead letter back by itself: more is a retry loop with extra steps.
pub const AUTO_REDRIVES_MAX: u32 = 10;
/// Times a letter may be sent back before its queue asks for a person, when the queue does not say: whoever comes
/// back that often will come back again.
pub const REDRIVES_DEFAULT: u32 = 10;
/// The highest such number a queue may ask for.
pub const REDRIVES_MAX: u32 = 1_000;
/// How long a purged letter can be taken back, and how long a letter is kept at least that somebody has just taken
/// back or let go of: a working day and the night after it.
pub const PURGE_UNDO: Span = Span::from_hours(24);
/// Messages looked at by one maintenance pass (I23).
pub const REAP_MAX: usize = 10_000;
/// How long after one call to purge a queue the next still goes on where that one ended: callers ask again at once.
pub const PURGE_PAUSE_MAX: Span = Span::from_secs(10);
/// Connections that read beside the writer. Each may have a cache of 16 MiB.
pub const READERS_MAX: usize = 8;
/// Live messages up to which a command that opens a directory also looks for run-out leases and overdue messages: the
/// index that finds them is built first, about 10 ms for this many.
pub const TIDY_MESSAGES_MAX: i64 = 10_000;
/// Dead letter queues listed in the audit row of a retention pass: the row stays readable.
pub const RETENTION_DLQS_LISTED_MAX: usize = 50;
/// Commands one group commit takes before it answers.
pub const GROUP_COMMANDS_MAX: usize = 1_024;
/// Commands waiting for the writer before callers wait themselves.
pub const WRITER_QUEUE_MAX: usize = 4_096;
/// Entries of the in-memory index of ready messages; beyond it each level's tail stays on disk.
pub const HOT_ENTRIES_MAX: usize = 4_000_000;
/// Messages per level of a priority queue in memory when the caller does not say: half a millisecond of the
/// busiest producers, and a few hundred kilobytes.
pub const RING_DEFAULT: usize = 4_096;
/// Messages per level of a priority queue at most: its rings are allocated whole.
pub const RING_MAX: usize = 1 << 24;
/// Distinct sets of queues whose scheduler state is remembered.
pub const SCHEDULERS_MAX: usize = 1_024;
/// What the store's clock may add by itself when a process opens it after a reboot, when only the wall can tell how
/// much time passed. More may be right, for a machine that was off for weeks, or a wall that is wrong: the clock then
/// catches up at double speed, and `doctor` says so. Behind is late; ahead ends delays, leases and retention early.
pub const CLOCK_LEAP_MAX: Span = Span::from_days(7);
/// How far the store's clock may be from the wall before `doctor` calls it a finding.
pub const CLOCK_SKEW_MAX: Span = Span::from_secs(60);
/// Findings `doctor` lists before it only counts.
pub const FINDINGS_MAX: usize = 1_000;
/// Bytes of one frame on the store's socket.
pub const FRAME_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Connections the store's socket serves at once: with the other files of a process they fit into the 1,024
/// descriptors that most systems allow by default.
pub const CONNECTIONS_MAX: usize = 512;
/// Callers that wait for work through the store's socket at once. The other connections are left for calls, so that
/// whoever brings the work can always get through.
pub const WAITS_MAX: usize = 384;
/// How long a caller of the store's socket may take to greet.
pub const GREETING_MAX: Duration = Duration::from_secs(10);
/// Captured operations a process keeps in memory while its store cannot be written: an outage of minutes at the
/// rate of a busy service. Beyond it new ones are refused, counted and logged.
pub const CAPTURED_MAX: usize = 10_000;
/// Bytes they take together at most.
pub const CAPTURED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Captured operations written in one commit.
pub const CAPTURED_BATCH_MAX: usize = 256;
/// Bytes written in one such commit, unless one alone is larger.
pub const CAPTURED_BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Letters a processor looks at in one go: what it does with them is one commit.
pub const PROCESSOR_LOOK_MAX: usize = 100;
/// Such goes in one interval.
pub const PROCESSOR_LOOKS_MAX: usize = 10;
/// Captured operations a processor executes per interval, and at once.
pub const PROCESSOR_BATCH_MAX: usize = 1_000;
/// Bytes of one value in the small key-value space.
pub const KV_BYTES_MAX: usize = 256 * 1024;
/// Bytes of a job file: written by a person.
pub const JOB_FILE_BYTES_MAX: usize = 1024 * 1024;
/// Nesting of a job file.
pub const JOB_FILE_DEPTH_MAX: usize = 32;
/// Steps of one stage of a job: each is a process per item.
pub const JOB_STEPS_MAX: usize = 100;
/// Mistakes in a job file that are listed; after that many it is not a job file.
pub const JOB_PROBLEMS_MAX: usize = 20;
/// Items of one run. Their keys are held in memory, about a hundred bytes each.
pub const RUN_ITEMS_MAX: usize = 1_000_000;
/// Bytes of a run's input: it is held in memory while it is sorted and compared.
pub const RUN_INPUT_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// Items enqueued in one commit when a run begins.
pub const RUN_CHUNK: usize = 1_000;
/// Processes a run has at once.
pub const RUN_PARALLEL_MAX: usize = 1_024;
/// Bytes of a step's output that are kept as the item's result: more belongs in a file.
pub const RUN_OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// Items a failure threshold waits for: the share of fewer says little.
pub const RUN_THRESHOLD_AFTER: u64 = 10;
