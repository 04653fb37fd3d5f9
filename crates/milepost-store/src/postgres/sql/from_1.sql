-- From version 1: texts are indexed after the append that brings them, and a session's row knows its head. Programs of
-- version 1 would not find texts that wait.
CREATE TABLE {s}.unindexed (
  timeline bigint NOT NULL,
  first bigint NOT NULL,
  past bigint NOT NULL
);
ALTER TABLE {s}.sessions ADD COLUMN line bigint;
UPDATE {s}.sessions s SET line = t.no FROM {s}.timelines t
WHERE t.workspace = s.workspace AND t.session = s.id AND t.head = 'main';
ALTER TABLE {s}.versions ADD COLUMN text_index boolean;
UPDATE {s}.versions SET text_index = (SELECT x.value = 'on' FROM {s}.settings x WHERE x.name = 'text_index');
DROP TABLE {s}.settings;
DROP FUNCTION {s}.durable, {s}.now_ms, {s}.append_1, {s}.put_marks_1, {s}.put_row_1, {s}.cut_1, {s}.lease_1, {s}.remove_1,
  {s}.rebuild_1, {s}.put_blobs_1, {s}.put_record_1, {s}.delete_record_1;
