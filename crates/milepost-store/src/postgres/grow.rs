//! Batches that only add, as the server's `extend_2` takes many of them at once: a list for each column.

use milepost_model::WorkspaceId;
use serde_json::Value;
use tokio_postgres::types::{ToSql, Type};

use super::db::{Db, Failed, Param, column, escape, seq};
use crate::backend::*;

/// Whether a batch only adds to a timeline that is there: most do.
pub(super) fn only_adds(batch: &Batch) -> bool {
    batch.open.is_none()
        && batch.row.is_some()
        && !batch.entries.is_empty()
        && batch.rewrite == Rewrite::default()
        && batch.marks.iter().all(|row| row.at.timeline == batch.timeline)
        && batch.keyframes.iter().all(|frame| frame.at.timeline == batch.timeline)
        && batch.marks.windows(2).all(|pair| pair[0].at < pair[1].at)
        && batch.keyframes.windows(2).all(|pair| pair[0].at < pair[1].at)
}

/// The values of one call, in the order in which they were added.
#[derive(Default)]
struct Values<'a>(Vec<(Box<dyn ToSql + Sync + Send + 'a>, Type)>);

impl<'a> Values<'a> {
    fn add(&mut self, of: Type, value: impl ToSql + Sync + Send + 'a) {
        self.0.push((Box::new(value), of));
    }

    /// A column: what `value` says of each item.
    fn column<I, T: ToSql + Sync + Send + 'a>(&mut self, of: Type, items: &[I], value: impl Fn(&I) -> T) {
        self.add(of, items.iter().map(value).collect::<Vec<_>>());
    }
}

fn optional(text: Option<&String>) -> Option<String> {
    text.map(|text| escape(text))
}

fn tags(row: &SessionRow) -> String {
    match row.tags.is_empty() {
        true => "[]".to_owned(),
        false => Value::from(row.tags.iter().map(|tag| escape(tag)).collect::<Vec<_>>()).to_string(),
    }
}

/// All items of a kind, each with its batch's number as the server counts.
fn numbered<'a, T>(batches: &[&'a Batch], items: impl Fn(&'a Batch) -> &'a [T]) -> Vec<(i32, &'a T)> {
    let of_one = |(number, batch): (usize, &&'a Batch)| items(batch).iter().map(move |item| (number as i32 + 1, item));
    batches.iter().enumerate().flat_map(of_one).collect()
}

fn values<'a>(
    batches: &[(&'a WorkspaceId, &'a Batch)],
    rows: &[&'a SessionRow],
    text: bool,
    now: Option<i64>,
) -> Values<'a> {
    use Type as T;
    let mut all = Values::default();
    all.column(T::TEXT_ARRAY, batches, |(workspace, _)| escape(workspace.as_str()));
    let batches: Vec<&Batch> = batches.iter().map(|(_, batch)| *batch).collect();
    all.column(T::TEXT_ARRAY, &batches, |batch| batch.session.to_string());
    all.column(T::TEXT_ARRAY, &batches, |batch| batch.timeline.to_string());
    all.column(T::INT8_ARRAY, &batches, |batch| seq(batch.expected));
    all.column(T::INT8_ARRAY, &batches, |batch| seq(batch.expected + batch.entries.len() as u64));
    all.column(T::INT8_ARRAY, &batches, |batch| batch.epoch.map(|epoch| epoch.0 as i64));
    all.column(T::INT8_ARRAY, &batches, |batch| batch.renew_ms);
    all.column(T::TEXT_ARRAY, rows, |row| row.status.as_str());
    all.column(T::INT8_ARRAY, rows, |row| row.created.0);
    all.column(T::INT8_ARRAY, rows, |row| row.active.0);
    all.column(T::INT8_ARRAY, rows, |row| row.messages as i64);
    all.column(T::INT8_ARRAY, rows, |row| row.checkpoints as i64);
    all.column(T::INT8_ARRAY, rows, |row| row.trashed.map(|time| time.0));
    all.column(T::BOOL_ARRAY, rows, |row| row.hidden);
    all.column(T::TEXT_ARRAY, rows, |row| optional(row.title.as_ref()));
    all.column(T::TEXT_ARRAY, rows, |row| optional(row.preview.as_ref()));
    for key in 0..SESSION_KEYS.len() {
        all.column(T::TEXT_ARRAY, rows, |row| optional(row.keys[key].as_ref()));
    }
    all.column(T::TEXT_ARRAY, rows, |row| tags(row));
    all.column(T::BYTEA_ARRAY, rows, |row| row.detail.as_slice());

    let entries = numbered(&batches, |batch| &batch.entries);
    all.column(T::INT4_ARRAY, &entries, |(number, _)| *number);
    let places = batches.iter().flat_map(|batch| (0..batch.entries.len() as u64).map(|n| seq(batch.expected + n)));
    all.add(T::INT8_ARRAY, places.collect::<Vec<i64>>());
    all.column(T::INT2_ARRAY, &entries, |(_, entry)| i16::from(entry.version));
    all.column(T::INT2_ARRAY, &entries, |(_, entry)| i16::from(entry.kind as u8));
    all.column(T::INT8_ARRAY, &entries, |(_, entry)| entry.time.0);
    all.column(T::TEXT_ARRAY, &entries, |(_, entry)| optional(entry.label.as_ref()));
    all.column(T::TEXT_ARRAY, &entries, |(_, entry)| optional(entry.channel.as_ref()));
    all.column(T::TEXT_ARRAY, &entries, |(_, entry)| optional(entry.text.as_ref()));
    all.column(T::BYTEA_ARRAY, &entries, |(_, entry)| entry.body.as_slice());
    all.column(T::BYTEA_ARRAY, &entries, |(_, entry)| {
        (!entry.refs.is_empty()).then(|| entry.refs.iter().flat_map(|id| id.0).collect::<Vec<u8>>())
    });
    all.column(T::BYTEA_ARRAY, &entries, |(_, entry)| entry.batch.map(|id| id.to_bytes().to_vec()));
    all.column(T::BYTEA_ARRAY, &entries, |(_, entry)| entry.chain.as_ref().map(|hash| hash.0.as_slice()));
    all.column(T::BYTEA_ARRAY, &entries, |(_, entry)| entry.mac.as_ref().map(<[u8; 32]>::as_slice));
    all.column(T::INT8_ARRAY, &entries, |(_, entry)| entry.sum as i64);

    let marks = numbered(&batches, |batch| &batch.marks);
    all.column(T::INT4_ARRAY, &marks, |(number, _)| *number);
    all.column(T::INT8_ARRAY, &marks, |(_, row)| seq(row.at.seq.0));
    all.column(T::TEXT_ARRAY, &marks, |(_, row)| row.id.to_string());
    all.column(T::INT8_ARRAY, &marks, |(_, row)| row.time.0);
    all.column(T::TEXT_ARRAY, &marks, |(_, row)| escape(&row.trigger));
    all.column(T::TEXT_ARRAY, &marks, |(_, row)| optional(row.label.as_ref()));
    all.column(T::BOOL_ARRAY, &marks, |(_, row)| row.clean);
    all.column(T::BOOL_ARRAY, &marks, |(_, row)| row.resumable);
    all.column(T::BOOL_ARRAY, &marks, |(_, row)| row.kept);
    all.column(T::INT8_ARRAY, &marks, |(_, row)| row.messages as i64);
    all.column(T::INT8_ARRAY, &marks, |(_, row)| row.trashed.map(|time| time.0));

    let frames = numbered(&batches, |batch| &batch.keyframes);
    all.column(T::INT4_ARRAY, &frames, |(number, _)| *number);
    all.column(T::INT8_ARRAY, &frames, |(_, frame)| seq(frame.at.seq.0));
    all.column(T::BOOL_ARRAY, &frames, |(_, frame)| frame.pinned);
    all.column(T::BYTEA_ARRAY, &frames, |(_, frame)| frame.body.as_slice());

    let blobs = numbered(&batches, |batch| &batch.blobs);
    all.column(T::INT4_ARRAY, &blobs, |(number, _)| *number);
    all.column(T::BYTEA_ARRAY, &blobs, |(_, blob)| blob.id.0.as_slice());
    all.column(T::BYTEA_ARRAY, &blobs, |(_, blob)| blob.bytes.as_slice());

    all.add(T::BOOL, text);
    all.add(T::INT8, now);
    all
}

/// Adds batches that [`only_adds`] says yes to, of which no two are of one session. Which of them were added, in their
/// order; what became of the others is for `append_2` to say.
pub(super) async fn grow(db: &Db, batches: &[(&WorkspaceId, &Batch)], text: bool) -> Result<Vec<bool>, Failed> {
    let rows: Vec<&SessionRow> = batches.iter().filter_map(|(_, batch)| batch.row.as_ref()).collect();
    let values = values(batches, &rows, text, db.now());
    let mut params: Vec<Param<'_>> = Vec::with_capacity(values.0.len());
    for (value, of) in &values.0 {
        params.push((&**value, of.clone()));
    }
    let places: Vec<String> = (1..=params.len()).map(|place| format!("${place}")).collect();
    let sql = format!("SELECT {{s}}.extend_2({})", places.join(", "));
    let answer = db.change("appending", &sql, &params).await?;
    let numbers: Vec<i64> = answer.first().map(|row| column(row, 0)).transpose()?.unwrap_or_default();
    let mut added = vec![false; batches.len()];
    for number in numbers {
        if let Some(slot) = added.get_mut(number as usize - 1) {
            *slot = true;
        }
    }
    Ok(added)
}
