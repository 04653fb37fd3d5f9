//! A batch as the server's `append_2` takes it: one JSON document for what is small, and the payloads beside it.

use std::collections::{BTreeMap, BTreeSet};

use milepost_model::{Epoch, Position, Seq, SessionId, TimelineId, WorkspaceId};
use serde_json::{Map, Value, json};

use super::db::escape;
use crate::backend::*;
use crate::error::{Conflict, Error, Result};

/// A batch, ready to be sent.
pub(super) struct Encoded {
    pub json: String,
    pub bytes: Vec<Vec<u8>>,
}

/// What the answer to a batch is told in.
pub(super) struct Asked {
    session: SessionId,
    timeline: TimelineId,
    expected: u64,
    epoch: Option<Epoch>,
    parent: Option<Position>,
}

impl Asked {
    pub fn of(batch: &Batch) -> Self {
        Self {
            session: batch.session,
            timeline: batch.timeline,
            expected: batch.expected,
            epoch: batch.epoch,
            parent: batch.open.as_ref().and_then(|open| open.parent),
        }
    }

    /// What the server's answer means.
    pub fn answer(&self, code: &str, number: Option<i64>, word: Option<String>) -> Result<Appended> {
        let count = number.unwrap_or_default() as u64;
        let line = || word.as_deref().and_then(|word| word.parse().ok()).unwrap_or(self.timeline);
        match code {
            "ok" => Ok(Appended { length: count, repeated: false }),
            "repeated" => Ok(Appended { length: count, repeated: true }),
            "fenced" => Err(Error::Fenced {
                session: self.session,
                epoch: self.epoch.unwrap_or(Epoch(0)),
                current: Epoch(count),
                holder: super::db::unescape(word.unwrap_or_default()),
            }),
            "length" => {
                let (timeline, expected) = (self.timeline, self.expected);
                Err(Conflict::Length { timeline, expected, actual: count }.into())
            }
            "not head" => Err(Conflict::NotHead { timeline: line() }.into()),
            "timeline exists" => Err(Conflict::Exists { what: "timeline", id: self.timeline.to_string() }.into()),
            "session exists" => Err(Conflict::Exists { what: "session", id: self.session.to_string() }.into()),
            "branches" => Err(Conflict::Branches { session: self.session, branches: count }.into()),
            "no session" => Err(Error::not_found("session", self.session)),
            "no timeline" => Err(Error::not_found("timeline", line())),
            "no entry" => match self.parent {
                Some(at) => Err(Error::not_found("entry", at)),
                None => Err(Error::not_found("timeline", self.timeline)),
            },
            other => Err(Error::corrupt("the store's functions", format!("they answer {other:?}"))),
        }
    }
}

/// Payloads, each with the number that the server finds it under.
#[derive(Default)]
struct Payloads(Vec<Vec<u8>>);

impl Payloads {
    fn add(&mut self, bytes: Vec<u8>) -> usize {
        self.0.push(bytes);
        self.0.len()
    }
}

/// Leaves out what is not there: the server takes a missing member for none.
fn object(members: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let present = members.into_iter().filter(|(_, value)| !value.is_null());
    Value::Object(present.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn optional(text: Option<&String>) -> Value {
    text.map_or(Value::Null, |text| escape(text).into())
}

fn position(at: &Position) -> Value {
    json!({ "timeline": at.timeline.to_string(), "seq": at.seq.0 })
}

fn list<T>(items: &[T], item: impl FnMut(&T) -> Value) -> Value {
    if items.is_empty() { Value::Null } else { Value::Array(items.iter().map(item).collect()) }
}

fn entry(seq: Seq, timeline: Option<TimelineId>, entry: StoredEntry, payloads: &mut Payloads) -> Value {
    object([
        ("timeline", timeline.map_or(Value::Null, |id| id.to_string().into())),
        ("seq", seq.0.into()),
        ("version", entry.version.into()),
        ("kind", (entry.kind as u8).into()),
        ("time", entry.time.0.into()),
        ("label", optional(entry.label.as_ref())),
        ("channel", optional(entry.channel.as_ref())),
        ("text", optional(entry.text.as_ref())),
        ("refs", list(&entry.refs, |id| hex(&id.0).into())),
        ("batch", entry.batch.map_or(Value::Null, |id| hex(&id.to_bytes()).into())),
        ("chain", entry.chain.map_or(Value::Null, |hash| hex(&hash.0).into())),
        ("mac", entry.mac.map_or(Value::Null, |mac| hex(&mac).into())),
        ("sum", (entry.sum as i64).into()),
        ("body", payloads.add(entry.body).into()),
    ])
}

/// A session's row. Its `detail` is sent beside it.
pub(super) fn row(row: &SessionRow) -> Map<String, Value> {
    let mut members = Map::new();
    let [project, agent, feature, task, stage] = &row.keys;
    let tags: Vec<Value> = row.tags.iter().map(|tag| escape(tag).into()).collect();
    for (name, value) in [
        ("id", row.id.to_string().into()),
        ("status", row.status.as_str().into()),
        ("created", row.created.0.into()),
        ("active", row.active.0.into()),
        ("messages", row.messages.into()),
        ("checkpoints", row.checkpoints.into()),
        ("trashed", row.trashed.map_or(Value::Null, |time| time.0.into())),
        ("hidden", row.hidden.into()),
        ("title", optional(row.title.as_ref())),
        ("preview", optional(row.preview.as_ref())),
        ("project", optional(project.as_ref())),
        ("agent", optional(agent.as_ref())),
        ("feature", optional(feature.as_ref())),
        ("task", optional(task.as_ref())),
        ("stage", optional(stage.as_ref())),
        ("tags", tags.into()),
    ] {
        members.insert(name.to_owned(), value);
    }
    members
}

/// A mark's row.
pub(super) fn mark(row: &MarkRow) -> Value {
    object([
        ("timeline", row.at.timeline.to_string().into()),
        ("seq", row.at.seq.0.into()),
        ("checkpoint", row.id.to_string().into()),
        ("time", row.time.0.into()),
        ("trigger", escape(&row.trigger).into()),
        ("label", optional(row.label.as_ref())),
        ("clean", row.clean.into()),
        ("resumable", row.resumable.into()),
        ("kept", row.kept.into()),
        ("messages", row.messages.into()),
        ("trashed", row.trashed.map_or(Value::Null, |time| time.0.into())),
    ])
}

/// The timelines that a batch touches besides its own.
fn touches(batch: &Batch) -> Vec<Value> {
    let rewrite = &batch.rewrite;
    let listed = [&rewrite.truncate, &rewrite.drop_marks, &rewrite.drop_keyframes, &rewrite.texts];
    let all = (batch.keyframes.iter().map(|frame| frame.at))
        .chain(rewrite.entries.iter().map(|(at, _)| *at))
        .chain(rewrite.marks.iter().map(|row| row.at))
        .chain(listed.into_iter().flatten().copied());
    let others: BTreeSet<TimelineId> = all.map(|at| at.timeline).filter(|id| *id != batch.timeline).collect();
    others.into_iter().map(|id| id.to_string().into()).collect()
}

fn opening(open: &Opening) -> Value {
    object([
        ("parent", open.parent.map_or(Value::Null, |at| at.timeline.to_string().into())),
        ("parent_seq", open.parent.map_or(Value::Null, |at| at.seq.0.into())),
        ("head", escape(&open.head).into()),
        ("replaces", open.replaces.map_or(Value::Null, |id| id.to_string().into())),
    ])
}

/// The last of several changes to one place is the one that counts.
fn last_of<T>(items: Vec<T>, place: impl Fn(&T) -> Position) -> Vec<T> {
    let by_place: BTreeMap<Position, T> = items.into_iter().map(|item| (place(&item), item)).collect();
    by_place.into_values().collect()
}

/// Refuses what the server's numbers have no room for.
pub(super) fn check(batch: &Batch) -> Result<()> {
    let last = batch.expected.saturating_add(batch.entries.len() as u64);
    // Where a new timeline begins is for the server to judge: an entry that far does not exist.
    if batch.open.is_none() && last > Seq::MAX.0 {
        let (what, limit) = ("a timeline".into(), "Seq::MAX (entries)");
        return Err(Error::TooLarge { what, size: last, max: Seq::MAX.0, limit });
    }
    Ok(())
}

pub(super) fn encode(workspace: &WorkspaceId, batch: Batch) -> Encoded {
    let mut payloads = Payloads::default();
    let some = |values: Vec<Value>| if values.is_empty() { Value::Null } else { Value::Array(values) };
    let touches = some(touches(&batch));
    let own_row = batch.row.as_ref().map_or(Value::Null, |own| {
        let mut members = row(own);
        members.insert("detail".to_owned(), payloads.add(own.detail.clone()).into());
        Value::Object(members)
    });
    let first = batch.entries.first().and_then(|entry| entry.batch);
    let expected = batch.expected;
    let numbered = batch.entries.into_iter().enumerate();
    let entries: Vec<Value> =
        numbered.map(|(n, new)| entry(Seq(expected + n as u64), None, new, &mut payloads)).collect();
    let rewrites: Vec<Value> = last_of(batch.rewrite.entries, |(at, _)| *at)
        .into_iter()
        .map(|(at, changed)| entry(at.seq, Some(at.timeline), changed, &mut payloads))
        .collect();
    let keyframes: Vec<Value> = last_of(batch.keyframes, |frame| frame.at)
        .into_iter()
        .map(|frame| {
            let (timeline, seq) = (frame.at.timeline.to_string(), frame.at.seq.0);
            json!({ "timeline": timeline, "seq": seq, "pinned": frame.pinned, "body": payloads.add(frame.body) })
        })
        .collect();
    let blobs: Vec<Value> = batch
        .blobs
        .into_iter()
        .map(|blob| json!({ "id": hex(&blob.id.0), "body": payloads.add(blob.bytes) }))
        .collect();
    let holder = batch.holder.as_ref();
    let document = object([
        ("workspace", escape(workspace.as_str()).into()),
        ("session", batch.session.to_string().into()),
        ("timeline", batch.timeline.to_string().into()),
        ("expected", expected.into()),
        ("epoch", batch.epoch.map_or(Value::Null, |epoch| (epoch.0 as i64).into())),
        ("renew", batch.renew_ms.into()),
        ("owner", holder.map_or(Value::Null, |(owner, _)| owner.to_string().into())),
        ("holder", holder.map_or(Value::Null, |(_, words)| escape(words).into())),
        ("batch", first.map_or(Value::Null, |id| hex(&id.to_bytes()).into())),
        ("open", batch.open.as_ref().map_or(Value::Null, opening)),
        ("row", own_row),
        ("entries", entries.into()),
        ("blobs", blobs.into()),
        ("keyframes", some(keyframes)),
        ("marks", list(&last_of(batch.marks, |row| row.at), mark)),
        ("touches", touches),
        ("rewrites", some(rewrites)),
        ("forget", list(&batch.rewrite.texts, position)),
        ("truncate", list(&batch.rewrite.truncate, position)),
        ("marks_again", list(&last_of(batch.rewrite.marks, |row| row.at), mark)),
        ("drop_marks", list(&batch.rewrite.drop_marks, position)),
        ("drop_keyframes", list(&batch.rewrite.drop_keyframes, position)),
    ]);
    Encoded { json: document.to_string(), bytes: payloads.0 }
}
