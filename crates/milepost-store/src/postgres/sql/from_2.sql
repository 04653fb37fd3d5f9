-- From version 2, beside programs of version 2 that work: what an index lacks is noted, and texts that were cut into words by
-- older rules are cut anew, by whichever newer program has time, or searches. Programs of version 2 do not look here.
CREATE TABLE {s}.recut (
  timeline bigint NOT NULL,
  first bigint NOT NULL,
  past bigint NOT NULL
);
CREATE TABLE {s}.text_gaps (
  timeline bigint NOT NULL,
  why text COLLATE "C" NOT NULL,
  PRIMARY KEY (timeline, why)
);

-- Everything that is indexed, in pieces that are cut at once. The last piece of a timeline has no end: what a program of
-- version 2 adds to it before the trigger is there is in it.
INSERT INTO {s}.recut (timeline, first, past)
SELECT l.no, x, CASE WHEN x + 1000 >= l.past THEN 9223372036854775807 ELSE x + 1000 END
FROM (SELECT t.no, coalesce(t.parent_seq + 1, 0) AS first,
             (SELECT e.seq FROM {s}.entries e WHERE e.timeline = t.no ORDER BY e.seq DESC LIMIT 1) + 1 AS past
      FROM {s}.timelines t
      WHERE (SELECT v.text_index FROM {s}.versions v WHERE v.text_index IS NOT NULL ORDER BY v.version DESC LIMIT 1)) l,
     generate_series(l.first, l.past - 1, 1000) x;
