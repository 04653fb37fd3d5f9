//! Which checkpoint is meant: by its id, by a label, by a moment, or the latest; ids may be shortened.

use std::str::FromStr;

use milepost_model::delta::{PathPart, StatePath};
use milepost_model::{CheckpointId, Resumable, SessionId, Timestamp};
use milepost_store::{Mark, MarkQuery, Skipped};
use serde_json::Value;

use crate::engine::Milepost;
use crate::error::{Error, Result};
use crate::time::parse_time;
use crate::transfer::{ORIGINAL_ID, derived};

/// A checkpoint of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Point {
    /// The newest that can be resumed from.
    #[default]
    Latest,
    /// The one with this id.
    Checkpoint(CheckpointId),
    /// The newest taken at or before this moment: the session as it was then. Where it has none as old, its first. Whoever
    /// wants the nearest, also a later one, asks the store (`Store::mark_near`).
    Time(Timestamp),
    /// The newest with this label; else the one that had this id where it was imported from (`checkpoint_{timestamp}_{short}`);
    /// else the one whose id begins or ends like this. What was left behind when the session was set back is found too,
    /// after what is not.
    Named(String),
}

impl FromStr for Point {
    type Err = Error;

    /// `latest`, an id, a time (`2026-11-16T10:00:00Z`, or milliseconds since 1970), a label, or a part of an id.
    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        if text.is_empty() {
            return Err(Error::malformed("finding a checkpoint", "nothing was given", "give an id, a label or a time"));
        }
        if text == "latest" {
            return Ok(Point::Latest);
        }
        if let Ok(id) = text.parse() {
            return Ok(Point::Checkpoint(id));
        }
        Ok(parse_time(text).map_or_else(|| Point::Named(text.to_owned()), Point::Time))
    }
}

/// A part of an id that is shorter than this is not looked for: it would fit too much.
const SHORTEST_ID: usize = 4;
/// An ambiguous name is answered with so many candidates.
const CANDIDATES: usize = 5;

/// Whether an id begins or ends like this, with or without its prefix.
fn fits(id: &str, part: &str) -> bool {
    let bare = id.split_once('_').map_or(id, |(_, bare)| bare);
    id.starts_with(part) || bare.starts_with(part) || bare.ends_with(part)
}

fn one<T: ToString + Copy>(given: &str, what: &'static str, found: Vec<T>) -> Result<T> {
    match found.as_slice() {
        [only] => Ok(*only),
        [] => Err(milepost_store::Error::NotFound { what, id: given.to_owned() }.into()),
        many => Err(Error::Ambiguous {
            given: given.to_owned(),
            candidates: many.iter().take(CANDIDATES).map(T::to_string).collect(),
        }),
    }
}

impl Milepost {
    /// The session with this id, or the only one whose id begins or ends like this.
    pub async fn find(&self, given: &str) -> Result<SessionId> {
        let given = given.trim();
        if let Ok(id) = given.parse::<SessionId>() {
            return Ok(id);
        }
        if given.len() < SHORTEST_ID {
            return Err(Error::malformed(
                format!("finding session {given:?}"),
                format!("a part of an id has at least {SHORTEST_ID} characters"),
                "list the sessions and give more of it",
            ));
        }
        let given = given.to_lowercase();
        let ids = self.store().backend().session_ids(self.store().workspace()).await?;
        let found = ids.into_iter().filter(|id| fits(&id.to_string(), &given)).collect();
        one(&given, "session", found)
    }

    /// A checkpoint of a session, and of no other.
    pub async fn mark(&self, session: SessionId, point: &Point) -> Result<Mark> {
        let store = self.store();
        match point {
            Point::Latest => {
                let query = MarkQuery { resumable: Some(true), limit: Some(1), ..MarkQuery::default() };
                let newest = store.marks(session, &query).await?.pop();
                newest.ok_or_else(|| {
                    milepost_store::Error::NotFound { what: "checkpoint of session", id: session.to_string() }.into()
                })
            }
            Point::Checkpoint(id) => self.own_mark(session, *id).await,
            Point::Time(time) => {
                let one = MarkQuery { limit: Some(1), ..MarkQuery::default() };
                // Up to it, and not beyond: the end of a range does not belong to it.
                let until = MarkQuery { time_to: Some(time.plus_ms(1)), ..one.clone() };
                let mut found = store.marks(session, &until).await?;
                if found.is_empty() {
                    found = store.marks(session, &MarkQuery { oldest_first: true, ..one }).await?;
                }
                found.pop().ok_or_else(|| {
                    milepost_store::Error::NotFound { what: "checkpoint of session", id: session.to_string() }.into()
                })
            }
            Point::Named(name) => {
                let query = MarkQuery { label: Some(name.clone()), limit: Some(1), ..MarkQuery::default() };
                if let Some(mark) = store.marks(session, &query).await?.pop() {
                    return Ok(mark);
                }
                // The label may have been left behind when the session was set back.
                if let Some(mark) = store.marks_left_behind(session, &query).await?.pop() {
                    return Ok(mark);
                }
                let (mut all, skipped) = store.marks_and_skipped(session, &MarkQuery::default()).await?;
                let (_, labelled) = store.marks_and_skipped(session, &query).await?;
                if let Some(lost) = labelled.first() {
                    return Err(unusable(lost, &all));
                }
                all.extend(store.marks_left_behind(session, &MarkQuery::default()).await?);
                let had = |mark: &&Mark| mark.checkpoint.extra.get(ORIGINAL_ID).and_then(Value::as_str) == Some(name);
                if let Some(mark) = all.iter().find(had) {
                    return Ok(mark.clone());
                }
                let part = name.to_lowercase();
                let not_found = || Error::NoCheckpoint { given: name.clone(), session };
                if part.len() < SHORTEST_ID {
                    return Err(not_found());
                }
                let found = all.iter().map(|mark| mark.checkpoint.id).filter(|id| fits(&id.to_string(), &part));
                let found: Vec<CheckpointId> = found.collect();
                if found.is_empty() {
                    let lost = skipped.iter().find(|lost| fits(&lost.id.to_string(), &part));
                    return Err(lost.map_or_else(not_found, |lost| unusable(lost, &all)));
                }
                let id = one(name, "checkpoint", found)?;
                Ok(store.mark(id).await?)
            }
        }
    }

    /// A checkpoint by its id, if it is this session's: on its head, on an older timeline, or shared with the session
    /// that it branched from.
    async fn own_mark(&self, session: SessionId, id: CheckpointId) -> Result<Mark> {
        let found = self.store().mark(id).await;
        if let Ok(mark) = &found
            && mark.session == session
        {
            return found.map_err(Error::from);
        }
        // A session that stands by itself since it was archived has a copy of what it shared.
        match self.store().mark(derived(session, id)).await {
            Ok(copy) if copy.session == session => return Ok(copy),
            _ => {}
        }
        let mark = found?;
        let mut at = self.store().session(session).await?.branch;
        while let Some(branch) = at {
            if branch.session == mark.session && branch.at.timeline == mark.at.timeline && mark.at.seq <= branch.at.seq
            {
                return Ok(mark);
            }
            at = self.store().session(branch.session).await?.branch;
        }
        Err(Error::OtherSession { checkpoint: id, owner: mark.session, session })
    }

    /// Why a session cannot go on from there, with the nearest checkpoint before it that can.
    pub(crate) async fn not_resumable(&self, mark: &Mark, why: &str) -> Error {
        let before = MarkQuery {
            resumable: Some(true),
            time_to: Some(mark.time.plus_ms(1)),
            limit: Some(1),
            ..MarkQuery::default()
        };
        let nearest = self.store().marks(mark.session, &before).await.ok().and_then(|mut marks| marks.pop());
        let instead = match nearest {
            Some(mark) => format!("the nearest before it that can be is {}", mark.checkpoint.id),
            None => "there is none before it that can be: begin a new session".to_owned(),
        };
        Error::NotResumable { session: mark.session, checkpoint: mark.checkpoint.id, why: why.to_owned(), instead }
    }
}

/// That a checkpoint is there and cannot be used, and which can.
fn unusable(lost: &Skipped, others: &[Mark]) -> Error {
    let instead = match others.first() {
        Some(mark) => {
            let label = mark.checkpoint.label.as_ref().map(|label| format!(" ({label})")).unwrap_or_default();
            format!("the newest that can be used is {}{label}", mark.checkpoint.id)
        }
        None => "no other of the session can be used either".to_owned(),
    };
    let (what, why) = (format!("checkpoint {}", lost.id), format!("{}; {instead}", lost.why));
    Error::Store(milepost_store::Error::Corrupt { what, why })
}

/// A label by which its checkpoint can be found: nothing that means another one.
pub(crate) fn check_label(text: &str) -> Result<String> {
    let why = match text.parse() {
        Ok(Point::Named(label)) => return Ok(label),
        Ok(Point::Latest) => "it always means the newest checkpoint",
        Ok(Point::Time(_)) => "it reads as a time",
        Ok(Point::Checkpoint(_)) => "it reads as the id of a checkpoint",
        Err(_) => "it is empty",
    };
    Err(Error::malformed(format!("the label {text:?}"), format!("nothing could be found by it: {why}"), "use another"))
}

/// Why a checkpoint cannot be resumed from, if so.
pub(crate) fn refusal(mark: &Mark) -> Option<&str> {
    match &mark.checkpoint.resumable {
        Resumable::Yes => None,
        Resumable::No(why) => Some(why),
    }
}

/// `key=value`: a path into the state and what to put there. The path is a JSON pointer (`/memory/step`) or has dots
/// (`memory.step`); the value is JSON, or a text when it is not.
pub fn parse_set(text: &str) -> Result<(StatePath, Value)> {
    let wrong = |why: &str| {
        Error::malformed(
            format!("setting {text:?}"),
            why,
            "write KEY=VALUE, for example memory.step=3 or memory.name=\"Ada\"",
        )
    };
    let (key, value) = text.split_once('=').ok_or_else(|| wrong("it has no ="))?;
    let key = key.trim();
    if key.is_empty() {
        return Err(wrong("it has no key before the ="));
    }
    let path = match key.starts_with('/') {
        true => key.parse().map_err(|error| wrong(&format!("the path is not valid: {error}")))?,
        false => {
            let parts: Vec<&str> = key.split('.').collect();
            if parts.iter().any(|part| part.is_empty()) {
                return Err(wrong("a part of the path is empty"));
            }
            parts.into_iter().fold(StatePath::root(), |path, part| match part.parse::<usize>() {
                Ok(index) if part == "0" || !part.starts_with('0') => path.index(index),
                _ => path.key(part),
            })
        }
    };
    let value = match serde_json::from_str(value) {
        Ok(parsed) => match too_large(value) {
            Some(number) => {
                return Err(Error::malformed(
                    format!("setting {key}"),
                    format!("the whole number {number} is beyond {} to {}, and would be rounded", i64::MIN, u64::MAX),
                    format!("write it as a text: {key}='\"{number}\"'"),
                ));
            }
            None => parsed,
        },
        // What is begun like JSON was meant to be it.
        Err(error) if value.trim_start().starts_with(['{', '[', '"']) => {
            return Err(Error::malformed(
                format!("setting {key}"),
                format!("what follows the = begins like JSON and is none: {error}"),
                "mend it; or write it as a text, in double quotes",
            ));
        }
        Err(_) => Value::String(value.to_owned()),
    };
    Ok((path, value))
}

/// The first whole number of a JSON text that cannot be kept exactly: as a number it would be rounded.
pub fn too_large(json: &str) -> Option<&str> {
    let mut rest = json;
    loop {
        let start = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit())?;
        rest = &rest[start..];
        if let Some(text) = rest.strip_prefix('"') {
            // Past the string, whatever it holds.
            let mut escaped = false;
            let end = text.find(|c| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            })?;
            rest = &text[end + 1..];
            continue;
        }
        let end = rest.find(|c: char| !(c.is_ascii_digit() || "+-.eE".contains(c))).unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        let is_whole = !number.contains(['.', 'e', 'E']);
        if is_whole && number.parse::<i64>().is_err() && number.parse::<u64>().is_err() {
            return Some(number);
        }
        rest = after;
    }
}

/// Puts a value at a path; objects on the way are made, a list grows by one at its end at most.
pub(crate) fn set(state: &mut Value, path: &StatePath, value: Value) -> Result<()> {
    let refuse = |why: String| Error::refused(format!("setting {path}"), why, "look at the state with `state get`");
    let mut place = state;
    for part in path.parts() {
        place = match (part, place) {
            (PathPart::Key(key), Value::Object(map)) => map.entry(key.clone()).or_insert(Value::Null),
            (PathPart::Index(index), Value::Object(map)) => map.entry(index.to_string()).or_insert(Value::Null),
            (PathPart::Key(key), place @ Value::Null) => {
                *place = Value::Object(serde_json::Map::new());
                &mut place[key.as_str()]
            }
            (PathPart::Index(index), Value::Array(items)) => {
                let length = items.len();
                if *index == length {
                    items.push(Value::Null);
                }
                items.get_mut(*index).ok_or_else(|| refuse(format!("the list has {length} items")))?
            }
            (PathPart::Index(index), Value::Null) => {
                return Err(refuse(format!("there is no list to hold item {index}")));
            }
            (_, other) => {
                let kind = match other {
                    Value::Array(_) => "a list, which has numbers and no keys",
                    Value::String(_) => "a text",
                    Value::Number(_) => "a number",
                    _ => "a truth value",
                };
                return Err(refuse(format!("on the way there is {kind}")));
            }
        };
    }
    *place = value;
    Ok(())
}
