-- Version 2: what changes the tables. A change of one of these gets a new name (append_3), so that older programs go
-- on with what they know. Some are there already, as version 1 has them: hence OR REPLACE.

-- A commit must be on the disk before it is answered, whatever the server's default is. Lasts for the transaction.
CREATE OR REPLACE FUNCTION {s}.durable() RETURNS void LANGUAGE plpgsql AS $body$
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
END $body$;

-- The server's clock in milliseconds, or the clock of a test.
CREATE OR REPLACE FUNCTION {s}.now_ms(p_now bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $body$
  SELECT coalesce(p_now, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
$body$;

-- Plans are made once for a connection: a table that is small then may have grown since, so every plan goes by an index.

-- Adds batches, each for itself: what is refused changes nothing and is answered with a code. All checks of a batch
-- come before its first change, under the lock of its session's row; so nothing has to be undone.
CREATE OR REPLACE FUNCTION {s}.append_2(p_batches jsonb, p_bytes bytea[], p_text boolean, p_now bigint)
RETURNS TABLE (o_n int, o_code text, o_number bigint, o_word text)
LANGUAGE plpgsql SET lock_timeout TO '20s' SET plan_cache_mode TO force_generic_plan SET enable_seqscan TO off AS $body$
#variable_conflict use_column
DECLARE
  b jsonb;
  o jsonb;
  r jsonb;
  v_base int;
  v_workspace text;
  v_id text;
  v_now bigint := {s}.now_ms(p_now);
  v_until bigint;
  v_expected bigint;
  v_count bigint;
  v_length bigint;
  v_begins bigint;
  v_session bigint;
  v_epoch bigint;
  v_holder text;
  v_line bigint;
  v_line_session text;
  v_line_head text;
  v_line_parent bigint;
  v_parent bigint;
  v_parent_parent bigint;
  v_end bigint;
  v_head bigint;
  v_head_id text;
  v_branches bigint;
  v_missing text;
  v_accepted int[] := '{}';
BEGIN
  PERFORM {s}.durable();
  FOR v_n IN 0 .. jsonb_array_length(p_batches) - 1 LOOP
    b := p_batches -> v_n -> 'batch';
    v_base := (p_batches -> v_n ->> 'base')::int;
    o := b -> 'open';
    r := b -> 'row';
    v_workspace := b ->> 'workspace';
    v_id := b ->> 'session';
    v_expected := (b ->> 'expected')::bigint;
    v_until := v_now + (b ->> 'renew')::bigint;
    v_count := jsonb_array_length(b -> 'entries');

    SELECT s.no, s.epoch, s.holder INTO v_session, v_epoch, v_holder
    FROM {s}.sessions s WHERE s.workspace = v_workspace AND s.id = v_id FOR UPDATE;
    IF v_session IS NULL AND o IS NOT NULL THEN
      -- There is no row to lock yet: whoever begins the same session at the same time waits here.
      PERFORM pg_advisory_xact_lock(hashtextextended(v_workspace || ' ' || v_id, 7));
      SELECT s.no, s.epoch, s.holder INTO v_session, v_epoch, v_holder
      FROM {s}.sessions s WHERE s.workspace = v_workspace AND s.id = v_id FOR UPDATE;
    END IF;

    v_length := NULL;
    SELECT t.no, t.session, t.head, t.parent_seq INTO v_line, v_line_session, v_line_head, v_line_parent
    FROM {s}.timelines t WHERE t.workspace = v_workspace AND t.id = b ->> 'timeline';
    IF v_line IS NOT NULL THEN
      -- Not max(): that may be planned to look at all of them.
      v_length := coalesce((SELECT e.seq FROM {s}.entries e WHERE e.timeline = v_line ORDER BY e.seq DESC LIMIT 1) + 1,
                           v_line_parent + 1, 0);
      IF v_length > v_expected AND b ? 'batch' THEN
        PERFORM 1 FROM {s}.entries e
        WHERE e.timeline = v_line AND e.seq = v_expected AND e.batch = decode(b ->> 'batch', 'hex');
        IF FOUND THEN
          RETURN QUERY SELECT v_n, 'repeated', v_expected + v_count, NULL::text;
          CONTINUE;
        END IF;
      END IF;
    END IF;

    IF v_session IS NOT NULL AND b ? 'epoch' AND (b ->> 'epoch')::bigint <> v_epoch THEN
      RETURN QUERY SELECT v_n, 'fenced', v_epoch, v_holder;
      CONTINUE;
    END IF;

    v_parent := NULL;
    v_head := NULL;
    IF o IS NOT NULL THEN
      IF v_line IS NOT NULL THEN
        RETURN QUERY SELECT v_n, 'timeline exists', NULL::bigint, NULL::text;
        CONTINUE;
      END IF;
      v_begins := 0;
      IF o ? 'parent' THEN
        v_begins := (o ->> 'parent_seq')::bigint + 1;
        -- The lock keeps whoever would cut or remove the parent waiting until the branch is there to be seen.
        SELECT t.no, t.parent_seq INTO v_parent, v_parent_parent
        FROM {s}.timelines t WHERE t.workspace = v_workspace AND t.id = o ->> 'parent' FOR KEY SHARE;
        v_end := (SELECT e.seq + 1 FROM {s}.entries e WHERE e.timeline = v_parent ORDER BY e.seq DESC LIMIT 1);
        IF v_parent IS NULL OR v_end IS NULL OR v_begins > v_end OR v_begins <= coalesce(v_parent_parent + 1, 0) THEN
          RETURN QUERY SELECT v_n, 'no entry', NULL::bigint, NULL::text;
          CONTINUE;
        END IF;
      END IF;
      IF v_begins <> v_expected THEN
        RETURN QUERY SELECT v_n, 'length', v_begins, NULL::text;
        CONTINUE;
      END IF;
      IF v_session IS NULL AND r IS NULL THEN
        RETURN QUERY SELECT v_n, 'no session', NULL::bigint, NULL::text;
        CONTINUE;
      END IF;
      SELECT t.no, t.id INTO v_head, v_head_id FROM {s}.timelines t
      WHERE t.workspace = v_workspace AND t.session = v_id AND t.head = o ->> 'head';
      IF v_head IS NOT NULL AND NOT o ? 'replaces' THEN
        RETURN QUERY SELECT v_n, 'session exists', NULL::bigint, NULL::text;
        CONTINUE;
      END IF;
      IF o ? 'replaces' AND (v_head IS NULL OR v_head_id <> o ->> 'replaces') THEN
        RETURN QUERY SELECT v_n, 'not head', NULL::bigint, o ->> 'replaces';
        CONTINUE;
      END IF;
    ELSE
      IF v_line IS NULL OR v_session IS NULL OR v_line_session <> v_id THEN
        RETURN QUERY SELECT v_n, 'no timeline', NULL::bigint, b ->> 'timeline';
        CONTINUE;
      END IF;
      IF v_line_head IS NULL THEN
        RETURN QUERY SELECT v_n, 'not head', NULL::bigint, b ->> 'timeline';
        CONTINUE;
      END IF;
      IF v_length <> v_expected THEN
        RETURN QUERY SELECT v_n, 'length', v_length, NULL::text;
        CONTINUE;
      END IF;
    END IF;

    IF b ? 'touches' THEN
      SELECT x INTO v_missing FROM jsonb_array_elements_text(b -> 'touches') x
      WHERE NOT EXISTS (SELECT 1 FROM {s}.timelines t WHERE t.workspace = v_workspace AND t.id = x) LIMIT 1;
      IF v_missing IS NOT NULL THEN
        RETURN QUERY SELECT v_n, 'no timeline', NULL::bigint, v_missing;
        CONTINUE;
      END IF;
    END IF;
    IF b ? 'truncate' OR b ? 'forget' OR b ? 'rewrites' THEN
      -- Whoever indexes texts of these timelines, or begins a branch in one, is done before anything changes.
      PERFORM 1 FROM {s}.timelines t
      WHERE t.workspace = v_workspace AND t.id IN (
        SELECT x ->> 'timeline' FROM jsonb_array_elements(coalesce(b -> 'truncate', '[]')
          || coalesce(b -> 'forget', '[]') || coalesce(b -> 'rewrites', '[]')) x)
      ORDER BY t.no FOR UPDATE;
    END IF;
    IF b ? 'truncate' THEN
      SELECT count(DISTINCT c.no) INTO v_branches
      FROM jsonb_to_recordset(b -> 'truncate') AS x (timeline text, seq bigint)
      JOIN {s}.timelines p ON p.workspace = v_workspace AND p.id = x.timeline
      JOIN {s}.timelines c ON c.parent = p.no AND c.parent_seq >= x.seq AND c.session <> v_id;
      IF v_branches > 0 THEN
        RETURN QUERY SELECT v_n, 'branches', v_branches, NULL::text;
        CONTINUE;
      END IF;
    END IF;

    -- Everything is as the batch expects it: from here on it happens.
    IF v_session IS NULL THEN
      INSERT INTO {s}.sessions (workspace, id, status, messages, checkpoints, created, active, hidden, length,
                                epoch, owner, holder, lease_until, detail)
      VALUES (v_workspace, v_id, r ->> 'status', 0, 0, (r ->> 'created')::bigint, (r ->> 'created')::bigint, false, 0,
              CASE WHEN b ? 'owner' THEN 1 ELSE 0 END, b ->> 'owner', coalesce(b ->> 'holder', ''),
              CASE WHEN b ? 'owner' THEN v_until ELSE 0 END, '')
      RETURNING no INTO v_session;
    END IF;
    IF o IS NOT NULL THEN
      IF v_head IS NOT NULL THEN
        UPDATE {s}.timelines SET head = NULL WHERE no = v_head;
      END IF;
      INSERT INTO {s}.timelines (workspace, id, session, parent, parent_seq, head)
      VALUES (v_workspace, b ->> 'timeline', v_id, v_parent, CASE WHEN v_parent IS NOT NULL THEN v_begins - 1 END,
              o ->> 'head')
      RETURNING no INTO v_line;
    END IF;

    INSERT INTO {s}.entries (timeline, seq, version, kind, time, label, channel, text, body, refs, batch, chain, mac, sum)
    SELECT v_line, e.seq, e.version, e.kind, e.time, e.label, e.channel, e.text, p_bytes[v_base + e.body],
           CASE WHEN e.refs IS NOT NULL THEN
             ARRAY(SELECT decode(x, 'hex') FROM jsonb_array_elements_text(e.refs) WITH ORDINALITY AS y (x, i) ORDER BY i)
           END,
           decode(e.batch, 'hex'), decode(e.chain, 'hex'), decode(e.mac, 'hex'), e.sum
    FROM jsonb_to_recordset(b -> 'entries') AS e (seq bigint, version smallint, kind smallint, time bigint, label text,
      channel text, text text, body int, refs jsonb, batch text, chain text, mac text, sum bigint);
    v_length := v_expected + v_count;

    -- What belongs to other timelines than the batch's own is looked up one by one: a join might be planned to go through
    -- all timelines.
    IF b ? 'keyframes' THEN
      INSERT INTO {s}.keyframes (timeline, seq, pinned, body)
      SELECT CASE WHEN x.timeline = b ->> 'timeline' THEN v_line ELSE
               (SELECT t.no FROM {s}.timelines t WHERE t.workspace = v_workspace AND t.id = x.timeline) END,
             x.seq, x.pinned, p_bytes[v_base + x.body]
      FROM jsonb_to_recordset(b -> 'keyframes') AS x (timeline text, seq bigint, pinned boolean, body int)
      ON CONFLICT (timeline, seq) DO UPDATE SET pinned = excluded.pinned, body = excluded.body;
    END IF;
    IF b ? 'marks' THEN
      PERFORM {s}.put_marks_2(v_workspace, b -> 'marks', b ->> 'timeline', v_line);
    END IF;
    IF b ? 'rewrites' THEN
      INSERT INTO {s}.entries (timeline, seq, version, kind, time, label, channel, text, body, refs, batch, chain, mac, sum)
      SELECT t.no, e.seq, e.version, e.kind, e.time, e.label, e.channel, e.text, p_bytes[v_base + e.body],
             CASE WHEN e.refs IS NOT NULL THEN
               ARRAY(SELECT decode(x, 'hex') FROM jsonb_array_elements_text(e.refs) WITH ORDINALITY AS y (x, i) ORDER BY i)
             END,
             decode(e.batch, 'hex'), decode(e.chain, 'hex'), decode(e.mac, 'hex'), e.sum
      FROM jsonb_to_recordset(b -> 'rewrites') AS e (timeline text, seq bigint, version smallint, kind smallint,
        time bigint, label text, channel text, text text, body int, refs jsonb, batch text, chain text, mac text,
        sum bigint)
      JOIN {s}.timelines t ON t.workspace = v_workspace AND t.id = e.timeline
      ON CONFLICT (timeline, seq) DO UPDATE SET version = excluded.version, kind = excluded.kind, time = excluded.time,
        label = excluded.label, channel = excluded.channel, text = excluded.text, body = excluded.body,
        refs = excluded.refs, batch = excluded.batch, chain = excluded.chain, mac = excluded.mac, sum = excluded.sum;
    END IF;
    IF p_text THEN
      -- What a message said before is not found any more from here on.
      IF b ? 'forget' THEN
        DELETE FROM {s}.texts f
        USING jsonb_to_recordset(b -> 'forget') AS x (timeline text, seq bigint), {s}.timelines t
        WHERE t.workspace = v_workspace AND t.id = x.timeline AND f.timeline = t.no AND f.seq = x.seq;
        INSERT INTO {s}.unindexed (timeline, first, past)
        SELECT t.no, x.seq, x.seq + 1 FROM jsonb_to_recordset(b -> 'forget') AS x (timeline text, seq bigint)
        JOIN {s}.timelines t ON t.workspace = v_workspace AND t.id = x.timeline;
      END IF;
      IF v_count > 0 THEN
        PERFORM {s}.unindexed_2(v_line, v_expected, v_length);
      END IF;
    END IF;
    IF b ? 'truncate' THEN
      PERFORM {s}.cut_2(t.no, x.seq)
      FROM jsonb_to_recordset(b -> 'truncate') AS x (timeline text, seq bigint)
      JOIN {s}.timelines t ON t.workspace = v_workspace AND t.id = x.timeline;
      SELECT coalesce((SELECT e.seq FROM {s}.entries e WHERE e.timeline = t.no ORDER BY e.seq DESC LIMIT 1) + 1,
                      t.parent_seq + 1, 0) INTO v_length
      FROM {s}.timelines t WHERE t.no = v_line;
    END IF;
    IF b ? 'marks_again' THEN
      PERFORM {s}.put_marks_2(v_workspace, b -> 'marks_again', b ->> 'timeline', v_line);
    END IF;
    IF b ? 'drop_marks' THEN
      DELETE FROM {s}.marks m
      USING jsonb_to_recordset(b -> 'drop_marks') AS x (timeline text, seq bigint), {s}.timelines t
      WHERE t.workspace = v_workspace AND t.id = x.timeline AND m.timeline = t.no AND m.seq = x.seq;
    END IF;
    IF b ? 'drop_keyframes' THEN
      DELETE FROM {s}.keyframes k
      USING jsonb_to_recordset(b -> 'drop_keyframes') AS x (timeline text, seq bigint), {s}.timelines t
      WHERE t.workspace = v_workspace AND t.id = x.timeline AND k.timeline = t.no AND k.seq = x.seq;
    END IF;

    IF r IS NOT NULL THEN
      PERFORM {s}.put_row_2(v_session, r, p_bytes[v_base + (r ->> 'detail')::int], v_line, v_length,
                            CASE WHEN b ? 'epoch' THEN v_until ELSE 0 END);
    ELSIF b ? 'epoch' THEN
      UPDATE {s}.sessions SET lease_until = greatest(lease_until, v_until) WHERE no = v_session;
    END IF;
    v_accepted := v_accepted || v_n;
    RETURN QUERY SELECT v_n, 'ok', v_length, NULL::text;
  END LOOP;

  -- Last and in the order of their names, so that groups that share blobs wait for each other and never in a circle.
  INSERT INTO {s}.blobs (workspace, id, touched, body)
  SELECT DISTINCT ON (y.workspace, y.id) y.workspace, y.id, v_now, p_bytes[y.at]
  FROM (
    SELECT p_batches -> a -> 'batch' ->> 'workspace' AS workspace, decode(x.id, 'hex') AS id,
           (p_batches -> a ->> 'base')::int + x.body AS at
    FROM unnest(v_accepted) a, jsonb_to_recordset(p_batches -> a -> 'batch' -> 'blobs') AS x (id text, body int)
  ) y
  ORDER BY y.workspace, y.id
  ON CONFLICT (workspace, id) DO UPDATE SET touched = excluded.touched;
END $body$;

-- Adds batches that only add to main heads, and of which no two are of one session: all by the same few statements. Answers
-- with the numbers of those that it added; whoever wants to know what is wrong with another asks append_2.
CREATE OR REPLACE FUNCTION {s}.extend_2(
  p_workspaces text[], p_sessions text[], p_timelines text[], p_expected bigint[], p_past bigint[], p_epochs bigint[],
  p_renew bigint[], p_status text[], p_created bigint[], p_active bigint[], p_messages bigint[], p_checkpoints bigint[],
  p_trashed bigint[], p_hidden boolean[], p_titles text[], p_previews text[], p_projects text[], p_agents text[],
  p_features text[], p_tasks text[], p_stages text[], p_tags text[], p_details bytea[],
  e_n int[], e_seq bigint[], e_version smallint[], e_kind smallint[], e_time bigint[], e_label text[], e_channel text[],
  e_text text[], e_body bytea[], e_refs bytea[], e_batch bytea[], e_chain bytea[], e_mac bytea[], e_sum bigint[],
  m_n int[], m_seq bigint[], m_checkpoint text[], m_time bigint[], m_trigger text[], m_label text[], m_clean boolean[],
  m_resumable boolean[], m_kept boolean[], m_messages bigint[], m_trashed bigint[],
  k_n int[], k_seq bigint[], k_pinned boolean[], k_body bytea[],
  b_n int[], b_id bytea[], b_body bytea[],
  p_text boolean, p_now bigint)
RETURNS bigint[]
LANGUAGE plpgsql SET lock_timeout TO '20s' SET plan_cache_mode TO force_generic_plan SET enable_seqscan TO off AS $body$
#variable_conflict use_column
DECLARE
  v_now bigint := {s}.now_ms(p_now);
  v_found bigint[];
  v_own bigint[];
  v_lines bigint[];
BEGIN
  PERFORM {s}.durable();
  -- Sessions are locked in the order in which they come; what their rows say is looked at when they are locked.
  SELECT array_agg(x.n), array_agg(x.line) INTO v_found, v_own FROM (
    SELECT x.n, s.line
    FROM unnest(p_workspaces, p_sessions, p_timelines, p_expected, p_epochs) WITH ORDINALITY
      AS x (workspace, id, timeline, expected, epoch, n)
    JOIN {s}.sessions s ON s.workspace = x.workspace AND s.id = x.id
    JOIN {s}.timelines t ON t.no = s.line
    WHERE s.length = x.expected AND s.epoch = coalesce(x.epoch, s.epoch) AND t.id = x.timeline
    ORDER BY x.n FOR UPDATE OF s) x;
  IF v_found IS NULL THEN
    RETURN '{}';
  END IF;
  -- The line of each batch; no timeline has the number 0.
  v_lines := v_own;
  IF cardinality(v_own) < cardinality(p_sessions) THEN
    v_lines := array_fill(0::bigint, ARRAY[cardinality(p_sessions)]);
    FOR i IN 1 .. cardinality(v_found) LOOP
      v_lines[v_found[i]] := v_own[i];
    END LOOP;
  END IF;

  INSERT INTO {s}.entries (timeline, seq, version, kind, time, label, channel, text, body, refs, batch, chain, mac, sum)
  SELECT v_lines[e.n], e.seq, e.version, e.kind, e.time, e.label, e.channel, e.text, e.body,
         CASE WHEN e.refs IS NOT NULL THEN
           ARRAY(SELECT substring(e.refs FROM i FOR 32) FROM generate_series(1, length(e.refs), 32) i ORDER BY i)
         END,
         e.batch, e.chain, e.mac, e.sum
  FROM unnest(e_n, e_seq, e_version, e_kind, e_time, e_label, e_channel, e_text, e_body, e_refs, e_batch, e_chain, e_mac,
              e_sum)
    AS e (n, seq, version, kind, time, label, channel, text, body, refs, batch, chain, mac, sum)
  WHERE v_lines[e.n] > 0;
  IF cardinality(m_n) > 0 THEN
    INSERT INTO {s}.marks (timeline, seq, checkpoint, time, trigger, label, clean, resumable, kept, messages, trashed)
    SELECT v_lines[x.n], x.seq, x.checkpoint, x.time, x.trigger, x.label, x.clean, x.resumable, x.kept, x.messages, x.trashed
    FROM unnest(m_n, m_seq, m_checkpoint, m_time, m_trigger, m_label, m_clean, m_resumable, m_kept, m_messages, m_trashed)
      AS x (n, seq, checkpoint, time, trigger, label, clean, resumable, kept, messages, trashed)
    WHERE v_lines[x.n] > 0
    ON CONFLICT (timeline, seq) DO UPDATE SET checkpoint = excluded.checkpoint, time = excluded.time,
      trigger = excluded.trigger, label = excluded.label, clean = excluded.clean, resumable = excluded.resumable,
      kept = excluded.kept, messages = excluded.messages, trashed = excluded.trashed;
  END IF;
  IF cardinality(k_n) > 0 THEN
    INSERT INTO {s}.keyframes (timeline, seq, pinned, body)
    SELECT v_lines[x.n], x.seq, x.pinned, x.body FROM unnest(k_n, k_seq, k_pinned, k_body) AS x (n, seq, pinned, body)
    WHERE v_lines[x.n] > 0
    ON CONFLICT (timeline, seq) DO UPDATE SET pinned = excluded.pinned, body = excluded.body;
  END IF;
  UPDATE {s}.sessions s SET status = r.status, created = r.created, active = r.active, messages = r.messages,
    checkpoints = r.checkpoints, trashed = r.trashed, hidden = r.hidden, title = r.title, preview = r.preview,
    project = r.project, agent = r.agent, feature = r.feature, task = r.task, stage = r.stage,
    tags = CASE WHEN r.tags = '[]' THEN '{}' ELSE
      ARRAY(SELECT x FROM jsonb_array_elements_text(r.tags::jsonb) WITH ORDINALITY AS y (x, i) ORDER BY i) END,
    detail = r.detail, length = r.past,
    lease_until = CASE WHEN r.epoch IS NULL THEN s.lease_until ELSE greatest(s.lease_until, v_now + r.renew) END
  FROM unnest(p_workspaces, p_sessions, p_past, p_epochs, p_renew, p_status, p_created, p_active, p_messages,
              p_checkpoints, p_trashed, p_hidden, p_titles, p_previews, p_projects, p_agents, p_features, p_tasks,
              p_stages, p_tags, p_details) WITH ORDINALITY
    AS r (workspace, session, past, epoch, renew, status, created, active, messages, checkpoints, trashed, hidden, title,
          preview, project, agent, feature, task, stage, tags, detail, n)
  WHERE s.workspace = r.workspace AND s.id = r.session AND v_lines[r.n] > 0;
  IF p_text THEN
    INSERT INTO {s}.unindexed (timeline, first, past)
    SELECT v_lines[e.n], min(e.seq), max(e.seq) + 1 FROM unnest(e_n, e_seq, e_kind) AS e (n, seq, kind)
    WHERE v_lines[e.n] > 0 AND e.kind = 1 GROUP BY e.n, e.seq / 1000;
  END IF;
  IF cardinality(b_n) > 0 THEN
    -- Last and in the order of their names, as in append_2.
    INSERT INTO {s}.blobs (workspace, id, touched, body)
    SELECT DISTINCT ON (y.workspace, y.id) y.workspace, y.id, v_now, y.body
    FROM (SELECT p_workspaces[x.n] AS workspace, x.id, x.body FROM unnest(b_n, b_id, b_body) AS x (n, id, body)
          WHERE v_lines[x.n] > 0) y
    ORDER BY y.workspace, y.id
    ON CONFLICT (workspace, id) DO UPDATE SET touched = excluded.touched;
  END IF;
  RETURN v_found;
END $body$;

-- Mostly the marks are of a timeline whose number the caller knows.
CREATE OR REPLACE FUNCTION {s}.put_marks_2(p_workspace text, p_marks jsonb, p_known text, p_no bigint)
RETURNS void LANGUAGE plpgsql AS $body$
BEGIN
  INSERT INTO {s}.marks (timeline, seq, checkpoint, time, trigger, label, clean, resumable, kept, messages, trashed)
  SELECT CASE WHEN x.timeline = p_known THEN p_no ELSE
           (SELECT t.no FROM {s}.timelines t WHERE t.workspace = p_workspace AND t.id = x.timeline) END,
         x.seq, x.checkpoint, x.time, x.trigger, x.label, x.clean, x.resumable, x.kept, x.messages, x.trashed
  FROM jsonb_to_recordset(p_marks) AS x (timeline text, seq bigint, checkpoint text, time bigint, trigger text,
    label text, clean boolean, resumable boolean, kept boolean, messages bigint, trashed bigint)
  ON CONFLICT (timeline, seq) DO UPDATE SET checkpoint = excluded.checkpoint, time = excluded.time,
    trigger = excluded.trigger, label = excluded.label, clean = excluded.clean, resumable = excluded.resumable,
    kept = excluded.kept, messages = excluded.messages, trashed = excluded.trashed;
END $body$;

CREATE OR REPLACE FUNCTION {s}.put_row_2(p_no bigint, r jsonb, p_detail bytea, p_line bigint, p_length bigint, p_until bigint)
RETURNS void LANGUAGE plpgsql AS $body$
BEGIN
  UPDATE {s}.sessions SET status = r ->> 'status', created = (r ->> 'created')::bigint,
    active = (r ->> 'active')::bigint, messages = (r ->> 'messages')::bigint,
    checkpoints = (r ->> 'checkpoints')::bigint, trashed = (r ->> 'trashed')::bigint,
    hidden = (r ->> 'hidden')::boolean, title = r ->> 'title', preview = r ->> 'preview', project = r ->> 'project',
    agent = r ->> 'agent', feature = r ->> 'feature', task = r ->> 'task', stage = r ->> 'stage',
    tags = ARRAY(SELECT x FROM jsonb_array_elements_text(r -> 'tags') WITH ORDINALITY AS y (x, i) ORDER BY i),
    detail = p_detail, line = p_line, length = p_length, lease_until = greatest(lease_until, p_until)
  WHERE no = p_no;
END $body$;

-- Notes that the texts of a stretch of a timeline are to be indexed, in pieces that are indexed at once.
CREATE OR REPLACE FUNCTION {s}.unindexed_2(p_line bigint, p_first bigint, p_past bigint) RETURNS void LANGUAGE sql AS $body$
  INSERT INTO {s}.unindexed (timeline, first, past)
  SELECT p_line, x, least(x + 1000, p_past) FROM generate_series(p_first, p_past - 1, 1000) x;
$body$;

-- Whoever takes texts from those that wait, and does not say that it cuts by the rules of today, is a program of older ones:
-- what it cut is to be cut anew.
CREATE OR REPLACE FUNCTION {s}.recut_3() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
  IF current_setting('milepost.rules', true) IS DISTINCT FROM '2' THEN
    INSERT INTO {s}.recut (timeline, first, past) SELECT g.timeline, g.first, g.past FROM gone g;
  END IF;
  RETURN NULL;
END $body$;

-- Removes everything of a timeline from an entry on.
CREATE OR REPLACE FUNCTION {s}.cut_2(p_line bigint, p_seq bigint) RETURNS void LANGUAGE sql AS $body$
  DELETE FROM {s}.entries WHERE timeline = p_line AND seq >= p_seq;
  DELETE FROM {s}.marks WHERE timeline = p_line AND seq >= p_seq;
  DELETE FROM {s}.keyframes WHERE timeline = p_line AND seq >= p_seq;
  DELETE FROM {s}.texts WHERE timeline = p_line AND seq >= p_seq;
  DELETE FROM {s}.text_gaps WHERE timeline = p_line AND p_seq = 0;
$body$;

-- Takes, renews or releases a lease, by the server's clock.
CREATE OR REPLACE FUNCTION {s}.lease_2(p_workspace text, p_session text, p_action text, p_owner text, p_holder text,
                            p_ttl bigint, p_epoch bigint, p_now bigint)
RETURNS TABLE (o_code text, o_epoch bigint, o_owner text, o_holder text, o_until bigint)
LANGUAGE plpgsql SET lock_timeout TO '20s' SET plan_cache_mode TO force_generic_plan SET enable_seqscan TO off AS $body$
#variable_conflict use_column
DECLARE
  v_no bigint;
  v_epoch bigint;
  v_owner text;
  v_holder text;
  v_until bigint;
  v_now bigint;
BEGIN
  PERFORM {s}.durable();
  SELECT s.no, s.epoch, s.owner, s.holder, s.lease_until INTO v_no, v_epoch, v_owner, v_holder, v_until
  FROM {s}.sessions s WHERE s.workspace = p_workspace AND s.id = p_session FOR UPDATE;
  IF v_no IS NULL THEN
    RETURN QUERY SELECT 'no session', 0::bigint, NULL::text, '', 0::bigint;
    RETURN;
  END IF;
  -- Not before the lock: while one waits for it, time passes.
  v_now := {s}.now_ms(p_now);
  IF p_action = 'take' AND v_owner IS NOT NULL AND v_owner <> p_owner AND v_until > v_now THEN
    RETURN QUERY SELECT 'held', v_epoch, v_owner, v_holder, v_until;
    RETURN;
  END IF;
  IF (p_action IN ('renew', 'release') AND p_epoch <> v_epoch) OR (p_action = 'renew' AND v_owner IS NULL) THEN
    RETURN QUERY SELECT 'fenced', v_epoch, v_owner, v_holder, v_until;
    RETURN;
  END IF;
  IF p_action IN ('take', 'take over') THEN
    v_epoch := v_epoch + 1;
    v_owner := p_owner;
    v_holder := p_holder;
    v_until := v_now + p_ttl;
  ELSIF p_action = 'renew' THEN
    v_until := v_now + p_ttl;
  ELSE
    v_owner := NULL;
    v_until := v_now;
  END IF;
  UPDATE {s}.sessions SET epoch = v_epoch, owner = v_owner, holder = v_holder, lease_until = v_until WHERE no = v_no;
  RETURN QUERY SELECT 'ok', v_epoch, v_owner, v_holder, v_until;
END $body$;

-- Removes a session with all its rows.
CREATE OR REPLACE FUNCTION {s}.remove_2(p_workspace text, p_session text, p_epoch bigint)
RETURNS TABLE (o_code text, o_number bigint, o_word text)
LANGUAGE plpgsql SET lock_timeout TO '20s' SET plan_cache_mode TO force_generic_plan SET enable_seqscan TO off AS $body$
#variable_conflict use_column
DECLARE
  v_no bigint;
  v_epoch bigint;
  v_holder text;
  v_branches bigint;
BEGIN
  PERFORM {s}.durable();
  SELECT s.no, s.epoch, s.holder INTO v_no, v_epoch, v_holder
  FROM {s}.sessions s WHERE s.workspace = p_workspace AND s.id = p_session FOR UPDATE;
  IF v_no IS NULL THEN
    RETURN QUERY SELECT 'no session', NULL::bigint, NULL::text;
    RETURN;
  END IF;
  IF v_epoch <> p_epoch THEN
    RETURN QUERY SELECT 'fenced', v_epoch, v_holder;
    RETURN;
  END IF;
  -- Whoever begins a branch in one of them holds it until the branch can be seen.
  PERFORM 1 FROM {s}.timelines t WHERE t.workspace = p_workspace AND t.session = p_session ORDER BY t.no FOR UPDATE;
  SELECT count(*) INTO v_branches
  FROM {s}.timelines c JOIN {s}.timelines p ON p.no = c.parent
  WHERE p.workspace = p_workspace AND p.session = p_session AND c.session <> p_session;
  IF v_branches > 0 THEN
    RETURN QUERY SELECT 'branches', v_branches, NULL::text;
    RETURN;
  END IF;
  PERFORM {s}.cut_2(t.no, 0) FROM {s}.timelines t WHERE t.workspace = p_workspace AND t.session = p_session;
  DELETE FROM {s}.timelines WHERE workspace = p_workspace AND session = p_session;
  DELETE FROM {s}.sessions WHERE no = v_no;
  RETURN QUERY SELECT 'ok', NULL::bigint, NULL::text;
END $body$;

-- Puts a session's derived rows in place of those that are there. Texts are indexed anew later.
CREATE OR REPLACE FUNCTION {s}.rebuild_2(p_workspace text, r jsonb, p_detail bytea, p_marks jsonb, p_text boolean, p_now bigint)
RETURNS void LANGUAGE plpgsql SET lock_timeout TO '20s' SET plan_cache_mode TO force_generic_plan SET enable_seqscan TO off AS $body$
#variable_conflict use_column
DECLARE
  v_no bigint;
  v_id text := r ->> 'id';
  v_now bigint := {s}.now_ms(p_now);
  v_line bigint;
  v_length bigint;
BEGIN
  PERFORM {s}.durable();
  INSERT INTO {s}.sessions (workspace, id, status, messages, checkpoints, created, active, hidden, length,
                            epoch, owner, holder, lease_until, detail)
  VALUES (p_workspace, v_id, r ->> 'status', 0, 0, (r ->> 'created')::bigint, (r ->> 'created')::bigint, false, 0,
          -- The lease was lost: nobody holds it, and its epoch is above any that was given out.
          greatest(v_now, 0), NULL, '', v_now, '')
  ON CONFLICT (workspace, id) DO NOTHING;
  SELECT s.no INTO v_no FROM {s}.sessions s WHERE s.workspace = p_workspace AND s.id = v_id FOR UPDATE;
  DELETE FROM {s}.marks m USING {s}.timelines t
  WHERE t.workspace = p_workspace AND t.session = v_id AND m.timeline = t.no;
  -- Whole states that are derived come again as they are needed.
  DELETE FROM {s}.keyframes k USING {s}.timelines t
  WHERE t.workspace = p_workspace AND t.session = v_id AND k.timeline = t.no AND NOT k.pinned;
  PERFORM {s}.put_marks_2(p_workspace, p_marks, NULL, NULL);
  SELECT t.no, coalesce((SELECT e.seq FROM {s}.entries e WHERE e.timeline = t.no ORDER BY e.seq DESC LIMIT 1) + 1,
                        t.parent_seq + 1, 0) INTO v_line, v_length
  FROM {s}.timelines t WHERE t.workspace = p_workspace AND t.session = v_id AND t.head = 'main';
  PERFORM {s}.put_row_2(v_no, r, p_detail, v_line, coalesce(v_length, 0), 0);
  IF p_text THEN
    DELETE FROM {s}.texts f USING {s}.timelines t
    WHERE t.workspace = p_workspace AND t.session = v_id AND f.timeline = t.no;
    DELETE FROM {s}.text_gaps g USING {s}.timelines t
    WHERE t.workspace = p_workspace AND t.session = v_id AND g.timeline = t.no;
    PERFORM {s}.unindexed_2(t.no, coalesce(t.parent_seq + 1, 0),
      (SELECT e.seq FROM {s}.entries e WHERE e.timeline = t.no ORDER BY e.seq DESC LIMIT 1) + 1)
    FROM {s}.timelines t WHERE t.workspace = p_workspace AND t.session = v_id;
  END IF;
END $body$;

CREATE OR REPLACE FUNCTION {s}.put_blobs_2(p_workspace text, p_ids bytea[], p_bytes bytea[], p_now bigint)
RETURNS void LANGUAGE plpgsql SET lock_timeout TO '20s' SET plan_cache_mode TO force_generic_plan SET enable_seqscan TO off AS $body$
DECLARE
  v_now bigint := {s}.now_ms(p_now);
BEGIN
  PERFORM {s}.durable();
  INSERT INTO {s}.blobs (workspace, id, touched, body)
  SELECT DISTINCT ON (x.id) p_workspace, x.id, v_now, x.body FROM unnest(p_ids, p_bytes) AS x (id, body) ORDER BY x.id
  ON CONFLICT (workspace, id) DO UPDATE SET touched = excluded.touched;
END $body$;

-- Writes a record if its version is still the expected one (none: if there is none). Says whether it did.
CREATE OR REPLACE FUNCTION {s}.put_record_2(p_workspace text, p_kind text, p_key text, p_version bigint, p_due bigint,
                                 p_value bytea, p_expected bigint)
RETURNS boolean LANGUAGE plpgsql SET lock_timeout TO '20s' SET plan_cache_mode TO force_generic_plan SET enable_seqscan TO off AS $body$
BEGIN
  PERFORM {s}.durable();
  IF p_expected IS NULL THEN
    INSERT INTO {s}.records (workspace, kind, key, version, due, value)
    VALUES (p_workspace, p_kind, p_key, p_version, p_due, p_value) ON CONFLICT DO NOTHING;
  ELSE
    UPDATE {s}.records SET version = p_version, due = p_due, value = p_value
    WHERE workspace = p_workspace AND kind = p_kind AND key = p_key AND version = p_expected;
  END IF;
  RETURN FOUND;
END $body$;

CREATE OR REPLACE FUNCTION {s}.delete_record_2(p_workspace text, p_kind text, p_key text, p_expected bigint)
RETURNS boolean LANGUAGE plpgsql SET lock_timeout TO '20s' SET plan_cache_mode TO force_generic_plan SET enable_seqscan TO off AS $body$
BEGIN
  PERFORM {s}.durable();
  DELETE FROM {s}.records WHERE workspace = p_workspace AND kind = p_kind AND key = p_key AND version = p_expected;
  RETURN FOUND;
END $body$;
