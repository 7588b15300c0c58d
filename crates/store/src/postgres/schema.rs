//! The schema and its migrations. A migration runs in one transaction, under an advisory lock, and raises the term first,
//! so that no older program writes to the new tables.

/// One migration.
pub(super) struct Migration {
    pub(super) version: i32,
    pub(super) sql: &'static str,
}

/// All migrations, in order.
pub(super) const MIGRATIONS: &[Migration] = &[Migration { version: 1, sql: VERSION_1 }];

/// The version that this program reads and writes.
pub(super) const VERSION: i32 = 1;

/// The first version. Every row has its bytes in `data`; columns beside it are there to be found by. `messages` has no
/// index that an ordinary lease or ack changes, so that updates stay on their page.
const VERSION_1: &str = "
CREATE TABLE holder(
  one smallint PRIMARY KEY CHECK (one = 1), term bigint NOT NULL, nonce uuid, commit bigint NOT NULL,
  clock bigint NOT NULL, seen_at timestamptz NOT NULL, pid integer, since timestamptz NOT NULL, node text,
  address text, published text, schema_version integer NOT NULL, audit_key bytea, audit_key_fingerprint bytea NOT NULL
) WITH (fillfactor = 10);
CREATE TABLE terms(
  term bigint PRIMARY KEY, last_commit bigint NOT NULL, node text, began_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE messages(
  id uuid PRIMARY KEY, seq bigint NOT NULL, queue text COLLATE \"C\" NOT NULL, ready_at bigint NOT NULL,
  delayed boolean NOT NULL, data bytea NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX messages_delayed ON messages(queue, ready_at) WHERE delayed;
CREATE TABLE bodies(seq bigint PRIMARY KEY, data bytea NOT NULL)
  WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE TABLE letters(
  id uuid PRIMARY KEY, death bigint NOT NULL, seq bigint NOT NULL, queue text COLLATE \"C\" NOT NULL,
  kind text COLLATE \"C\" NOT NULL, priority bigint NOT NULL, size bigint NOT NULL, key text COLLATE \"C\",
  ordering_key text COLLATE \"C\", dlq text COLLATE \"C\" NOT NULL, status text COLLATE \"C\" NOT NULL,
  reason text COLLATE \"C\" NOT NULL, route text COLLATE \"C\" NOT NULL, category text COLLATE \"C\" NOT NULL,
  severity text COLLATE \"C\" NOT NULL, leaf bigint NOT NULL, redrives bigint NOT NULL, dead_at bigint NOT NULL,
  last_failed_at bigint, expires_at bigint, quarantined_until bigint, holds_key boolean NOT NULL,
  available_at bigint NOT NULL, consumer_until bigint, version bigint NOT NULL, snoozed_until bigint,
  owner text COLLATE \"C\", held boolean NOT NULL, owes_reply boolean NOT NULL, data bytea NOT NULL);
CREATE INDEX letters_death ON letters(death);
CREATE INDEX letters_leaf ON letters(leaf, death);
CREATE INDEX letters_pending ON letters(dlq, death) WHERE status = 'pending';
CREATE INDEX letters_rare ON letters(status, death) WHERE status IN ('review', 'quarantined');
CREATE INDEX letters_quarantined ON letters(quarantined_until, id) WHERE status = 'quarantined';
CREATE INDEX letters_expiring ON letters(expires_at, id) WHERE expires_at IS NOT NULL;
CREATE INDEX letters_holding ON letters(death) WHERE holds_key;
CREATE INDEX letters_key ON letters(key, death) WHERE key IS NOT NULL;
CREATE INDEX letters_open ON letters(dead_at) WHERE status IN ('pending', 'retrying', 'review', 'quarantined');
CREATE INDEX letters_owing ON letters(queue, redrives, death) WHERE owes_reply;
CREATE TABLE keys(key bytea PRIMARY KEY, created_at bigint NOT NULL, data bytea NOT NULL);
CREATE INDEX keys_created ON keys(created_at);
CREATE TABLE entries(area smallint NOT NULL, key bytea NOT NULL, data bytea NOT NULL, PRIMARY KEY(area, key));
CREATE TABLE counters(area smallint NOT NULL, key bytea NOT NULL, data bytea NOT NULL, PRIMARY KEY(area, key))
  WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);
CREATE FUNCTION refuse_commit(what text) RETURNS integer LANGUAGE plpgsql AS
  $$ BEGIN RAISE EXCEPTION 'redrive: %', what USING ERRCODE = 'RD001'; END $$;
";
