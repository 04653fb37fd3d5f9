-- Version 3: the tables. `{s}` is the schema's name. Texts are compared byte by byte, whatever the database's locale.
-- Numbers come before texts and bytes in each row, so that nothing is spent on filling up.

CREATE TABLE {s}.sessions (
  no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  workspace text COLLATE "C" NOT NULL,
  id text COLLATE "C" NOT NULL,
  status text COLLATE "C" NOT NULL,
  title text COLLATE "C",
  project text COLLATE "C", agent text COLLATE "C", feature text COLLATE "C", task text COLLATE "C", stage text COLLATE "C",
  tags text[] COLLATE "C" NOT NULL DEFAULT '{}',
  messages bigint NOT NULL,
  checkpoints bigint NOT NULL,
  created bigint NOT NULL,
  active bigint NOT NULL,
  preview text COLLATE "C",
  trashed bigint,
  hidden boolean NOT NULL,
  -- The number of the main head's timeline, and its length.
  line bigint,
  length bigint NOT NULL,
  epoch bigint NOT NULL,
  owner text COLLATE "C",
  holder text COLLATE "C" NOT NULL,
  lease_until bigint NOT NULL,
  detail bytea NOT NULL,
  UNIQUE (workspace, id)
-- Every append writes its session's row: room for the new version on the same page keeps the indexes out of it.
) WITH (fillfactor = 70);

CREATE TABLE {s}.timelines (
  no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  workspace text COLLATE "C" NOT NULL,
  id text COLLATE "C" NOT NULL,
  session text COLLATE "C" NOT NULL,
  parent bigint,
  parent_seq bigint,
  head text COLLATE "C",
  UNIQUE (workspace, id)
);
CREATE INDEX timelines_session ON {s}.timelines (workspace, session);
CREATE INDEX timelines_parent ON {s}.timelines (parent) WHERE parent IS NOT NULL;

CREATE TABLE {s}.entries (
  timeline bigint NOT NULL,
  seq bigint NOT NULL,
  time bigint NOT NULL,
  sum bigint NOT NULL,
  version smallint NOT NULL,
  kind smallint NOT NULL,
  label text COLLATE "C",
  channel text COLLATE "C",
  text text COLLATE "C",
  body bytea NOT NULL,
  refs bytea[],
  batch bytea,
  chain bytea,
  mac bytea,
  PRIMARY KEY (timeline, seq)
);
CREATE INDEX entries_refs ON {s}.entries (timeline) WHERE refs IS NOT NULL;

CREATE TABLE {s}.marks (
  timeline bigint NOT NULL,
  seq bigint NOT NULL,
  time bigint NOT NULL,
  messages bigint NOT NULL,
  trashed bigint,
  clean boolean NOT NULL,
  resumable boolean NOT NULL,
  kept boolean NOT NULL,
  checkpoint text COLLATE "C" NOT NULL,
  trigger text COLLATE "C" NOT NULL,
  label text COLLATE "C",
  PRIMARY KEY (timeline, seq)
);
CREATE INDEX marks_checkpoint ON {s}.marks (checkpoint);

CREATE TABLE {s}.keyframes (
  timeline bigint NOT NULL,
  seq bigint NOT NULL,
  pinned boolean NOT NULL,
  body bytea NOT NULL,
  PRIMARY KEY (timeline, seq)
);

CREATE TABLE {s}.blobs (
  workspace text COLLATE "C" NOT NULL,
  id bytea NOT NULL,
  touched bigint NOT NULL,
  body bytea NOT NULL,
  PRIMARY KEY (workspace, id)
);

-- Payloads are compressed already, where that pays.
ALTER TABLE {s}.entries ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE {s}.keyframes ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE {s}.blobs ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE {s}.records (
  workspace text COLLATE "C" NOT NULL,
  kind text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  version bigint NOT NULL,
  due bigint,
  value bytea NOT NULL,
  PRIMARY KEY (workspace, kind, key)
);
CREATE INDEX records_due ON {s}.records (workspace, kind, due, key) WHERE due IS NOT NULL;

-- The text index: one row per message and stretch of words. Empty where the store has none.
CREATE TABLE {s}.texts (
  timeline bigint NOT NULL,
  seq bigint NOT NULL,
  part int NOT NULL,
  words tsvector NOT NULL,
  PRIMARY KEY (timeline, seq, part)
);
CREATE INDEX texts_words ON {s}.texts USING gin (words);

-- Stretches of timelines whose texts are still to be indexed.
CREATE TABLE {s}.unindexed (
  timeline bigint NOT NULL,
  first bigint NOT NULL,
  past bigint NOT NULL
);

-- Stretches of timelines whose texts a program of older rules cut into words.
CREATE TABLE {s}.recut (
  timeline bigint NOT NULL,
  first bigint NOT NULL,
  past bigint NOT NULL
);

-- What the text index lacks of a timeline.
CREATE TABLE {s}.text_gaps (
  timeline bigint NOT NULL,
  why text COLLATE "C" NOT NULL,
  PRIMARY KEY (timeline, why)
);

-- For people with a psql prompt.
CREATE VIEW {s}.messages AS
  SELECT t.workspace, t.session, t.id AS timeline, e.seq, to_timestamp(e.time / 1000.0) AS time, e.label AS role,
         coalesce(e.channel, 'main') AS channel, e.text, octet_length(e.body) AS body_bytes
  FROM {s}.entries e JOIN {s}.timelines t ON t.no = e.timeline
  WHERE e.kind = 1;
CREATE VIEW {s}.checkpoints AS
  SELECT t.workspace, t.session, t.id AS timeline, m.seq, m.checkpoint AS id, to_timestamp(m.time / 1000.0) AS time,
         m.trigger, m.label, m.clean, m.resumable, m.messages, m.trashed IS NOT NULL AS trashed
  FROM {s}.marks m JOIN {s}.timelines t ON t.no = m.timeline;
