-- From version 1, beside programs of version 1 that work: texts are indexed after the append that brings them, and a
-- session's row knows its head's timeline.
--
-- Nothing goes that version 1 uses: not its settings, and not its functions. Those of them that must heed what is new are
-- written anew below, under their old names. The next version may take them away, for nodes of version 1 are gone by then.
CREATE TABLE {s}.unindexed (
  timeline bigint NOT NULL,
  first bigint NOT NULL,
  past bigint NOT NULL
);

-- Version 1 knows no lines. One that is missing is filled in by the next append of version 2; a wrong one would let an
-- append pass that is not for the head.
CREATE OR REPLACE FUNCTION {s}.put_row_1(p_no bigint, r jsonb, p_detail bytea, p_length bigint, p_until bigint)
RETURNS void LANGUAGE plpgsql AS $body$
BEGIN
  PERFORM {s}.put_row_2(p_no, r, p_detail, (
    SELECT t.no FROM {s}.sessions s JOIN {s}.timelines t ON t.workspace = s.workspace AND t.session = s.id
    WHERE s.no = p_no AND t.head = 'main'), p_length, p_until);
END $body$;

-- As version 2 appends, for it locks what others may be indexing. But the words come with the batch, and are there at
-- once: version 1 does not look whether texts wait.
CREATE OR REPLACE FUNCTION {s}.append_1(p_batches jsonb, p_bytes bytea[], p_now bigint)
RETURNS TABLE (o_n int, o_code text, o_number bigint, o_word text)
LANGUAGE plpgsql SET lock_timeout TO '20s' SET plan_cache_mode TO force_generic_plan SET enable_seqscan TO off AS $body$
#variable_conflict use_column
DECLARE
  v_answer record;
  b jsonb;
BEGIN
  FOR v_answer IN SELECT a.o_n, a.o_code, a.o_number, a.o_word FROM {s}.append_2(p_batches, p_bytes, false, p_now) a LOOP
    b := p_batches -> v_answer.o_n -> 'batch';
    IF v_answer.o_code = 'ok' AND b ? 'forget' THEN
      DELETE FROM {s}.texts f
      USING jsonb_to_recordset(b -> 'forget') AS x (timeline text, seq bigint), {s}.timelines t
      WHERE t.workspace = b ->> 'workspace' AND t.id = x.timeline AND f.timeline = t.no AND f.seq = x.seq;
    END IF;
    IF v_answer.o_code = 'ok' AND b ? 'texts' THEN
      INSERT INTO {s}.texts (timeline, seq, part, words)
      SELECT t.no, x.seq, x.part, x.words::tsvector
      FROM jsonb_to_recordset(b -> 'texts') AS x (timeline text, seq bigint, part int, words text)
      JOIN {s}.timelines t ON t.workspace = b ->> 'workspace' AND t.id = x.timeline
      -- The batch may have cut it off.
      WHERE EXISTS (SELECT 1 FROM {s}.entries e WHERE e.timeline = t.no AND e.seq = x.seq)
      ON CONFLICT (timeline, seq, part) DO UPDATE SET words = excluded.words;
      -- Its words are those of older rules.
      INSERT INTO {s}.recut (timeline, first, past)
      SELECT t.no, min(x.seq), max(x.seq) + 1 FROM jsonb_to_recordset(b -> 'texts') AS x (timeline text, seq bigint)
      JOIN {s}.timelines t ON t.workspace = b ->> 'workspace' AND t.id = x.timeline GROUP BY 1;
    END IF;
    RETURN QUERY SELECT v_answer.o_n, v_answer.o_code, v_answer.o_number, v_answer.o_word;
  END LOOP;
END $body$;

-- Version 1 indexes the session's texts itself, in the same transaction: whoever indexes some of them waits for its end.
CREATE OR REPLACE FUNCTION {s}.rebuild_1(p_workspace text, r jsonb, p_detail bytea, p_marks jsonb, p_now bigint)
RETURNS void LANGUAGE plpgsql SET lock_timeout TO '20s' SET plan_cache_mode TO force_generic_plan SET enable_seqscan TO off AS $body$
BEGIN
  PERFORM 1 FROM {s}.timelines t WHERE t.workspace = p_workspace AND t.session = r ->> 'id' ORDER BY t.no FOR UPDATE;
  PERFORM {s}.rebuild_2(p_workspace, r, p_detail, p_marks, false, p_now);
  INSERT INTO {s}.recut (timeline, first, past)
  SELECT t.no, 0, 9223372036854775807 FROM {s}.timelines t WHERE t.workspace = p_workspace AND t.session = r ->> 'id';
END $body$;

-- Last, for they keep everybody waiting until the end of the transaction: a moment, since no row changes.
ALTER TABLE {s}.versions ADD COLUMN text_index boolean;
UPDATE {s}.versions SET text_index = (SELECT x.value = 'on' FROM {s}.settings x WHERE x.name = 'text_index');
ALTER TABLE {s}.sessions ADD COLUMN line bigint;
