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
  clock bigint NOT NULL, seen_at timestamptz NOT NULL, locked boolean NOT NULL DEFAULT false, pid integer, since timestamptz NOT NULL, node text,
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
CREATE TABLE inbox(
  n bigserial PRIMARY KEY, id uuid NOT NULL, message jsonb NOT NULL, payload bytea NOT NULL, sent_by text NOT NULL,
  sent_at timestamptz NOT NULL DEFAULT clock_timestamp(), refused text);
CREATE INDEX inbox_waiting ON inbox(n) WHERE refused IS NULL;
CREATE FUNCTION new_id() RETURNS uuid LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
  SELECT encode(set_byte(b, 6, (get_byte(b, 6) & 15) | 112), 'hex')::uuid FROM (SELECT overlay(
    uuid_send(gen_random_uuid()) PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
    FROM 1 FOR 6) AS b) AS random $$;
CREATE FUNCTION enqueue_bytes(
  queue text, payload bytea, key text DEFAULT NULL, kind text DEFAULT '', priority text DEFAULT NULL,
  delay interval DEFAULT NULL, headers jsonb DEFAULT '{}', ordering_key text DEFAULT NULL,
  content_type text DEFAULT 'application/octet-stream'
) RETURNS uuid LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$
  DECLARE made uuid := new_id();
  BEGIN
    IF queue IS NULL OR queue !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$' THEN
      RAISE EXCEPTION 'redrive: % is not a name for a queue', quote_nullable(queue) USING ERRCODE = '22023',
        HINT = 'A name has 1 to 128 of A-Z a-z 0-9 . _ - and begins with a letter or digit.';
    END IF;
    IF payload IS NULL OR octet_length(payload) > 8388608 THEN
      RAISE EXCEPTION 'redrive: a payload has at most 8 MiB, this one has % bytes', octet_length(payload)
        USING ERRCODE = '22023', HINT = 'Store it elsewhere and send where it is.';
    END IF;
    IF octet_length(key) > 512 OR octet_length(ordering_key) > 512 THEN
      RAISE EXCEPTION 'redrive: a key has at most 512 bytes' USING ERRCODE = '22023';
    END IF;
    IF priority NOT IN ('critical', 'high', 'normal', 'low', 'background') THEN
      RAISE EXCEPTION 'redrive: % is not a priority', quote_nullable(priority) USING ERRCODE = '22023',
        HINT = 'The priorities are critical, high, normal, low and background.';
    END IF;
    INSERT INTO inbox(id, payload, sent_by, message) VALUES(made, payload, session_user, jsonb_strip_nulls(
      jsonb_build_object('queue', queue, 'kind', kind, 'key', key, 'ordering_key', ordering_key, 'priority', priority,
        'delay_ms', (extract(epoch FROM delay) * 1000)::bigint, 'headers', headers, 'content_type', content_type)));
    RETURN made;
  END $$;
CREATE FUNCTION enqueue(
  queue text, payload jsonb, key text DEFAULT NULL, kind text DEFAULT '', priority text DEFAULT NULL,
  delay interval DEFAULT NULL, headers jsonb DEFAULT '{}', ordering_key text DEFAULT NULL
) RETURNS uuid LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$
  SELECT enqueue_bytes(queue, convert_to(payload::text, 'UTF8'), key, kind, priority, delay, headers, ordering_key,
    'application/json') $$;
REVOKE ALL ON FUNCTION enqueue_bytes, enqueue, new_id FROM PUBLIC;
CREATE FUNCTION refuse_commit(what text) RETURNS integer LANGUAGE plpgsql AS
  $$ BEGIN RAISE EXCEPTION 'redrive: %', what USING ERRCODE = 'RD001'; END $$;
";
