-- Version 2: texts are indexed after the append that brings them. Programs of version 1 would not find what waits here.
CREATE TABLE {s}.unindexed (
  timeline bigint NOT NULL,
  first bigint NOT NULL,
  past bigint NOT NULL
);
DROP FUNCTION IF EXISTS {s}.append_1, {s}.put_marks_1, {s}.put_row_1, {s}.cut_1, {s}.lease_1, {s}.remove_1, {s}.rebuild_1,
  {s}.put_blobs_1, {s}.put_record_1, {s}.delete_record_1;
