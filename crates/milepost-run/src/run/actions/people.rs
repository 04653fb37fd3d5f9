//! Waiting: for a time, for an answer, for a yes. Answers are records, so that whoever answers need not hold the
//! session; the first one wins, also when it comes before the question.

use std::cmp::Ordering;

use async_trait::async_trait;
use milepost::Milepost;
use milepost_document::parse_duration_ms;
use milepost_model::{SessionId, Timestamp, parse_time};
use serde_json::{Value, json};

use super::{text, texts};
use crate::graph::actions::Repeat;
use crate::run::action::{Action, Failed, Step};
use crate::run::error::{Error, Result as RunResult};
use crate::run::ledger::{Ledger, Status};

/// The kind of records that answers are.
const ANSWER: &str = "answer";
/// The longest answer (64 KiB).
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// How often an answer is put in place of others that come in between (8).
const MAX_TRIES: u32 = 8;

/// What became of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answered {
    /// It is the answer.
    First,
    /// Somebody was faster.
    Late {
        /// The answer that counts.
        answer: String,
        /// Whose it is.
        by: String,
    },
}

/// An answer counts on the timeline on which it was given: what is asked again after a restore is answered again. Names of
/// nodes are not told: keys of records are not encrypted.
fn record_key(session: SessionId, timeline: &str, node: &str, iteration: u32) -> String {
    format!("{session}.{}", crate::run::step_key(session, timeline, node, iteration))
}

/// The same, on the timeline on which the session is now.
async fn key_now(engine: &Milepost, session: SessionId, node: &str, iteration: u32) -> RunResult<String> {
    let head = engine.store().session(session).await.map_err(milepost::Error::from)?.head;
    Ok(record_key(session, &head.to_string(), node, iteration))
}

/// An answer that was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// What was answered.
    pub answer: String,
    /// Who did.
    pub by: String,
}

fn fits(given: &str) -> RunResult<()> {
    if given.len() <= MAX_ANSWER_BYTES {
        return Ok(());
    }
    let why = format!("it has {} bytes, the limit MAX_ANSWER_BYTES is {MAX_ANSWER_BYTES}", given.len());
    Err(Error::refused("answering", why, "put long texts into a file and answer with its name"))
}

/// Answers the question of a node. It may come before the question is asked. `iteration` is the round of the node's
/// loop, 0 outside of loops.
pub async fn answer(
    engine: &Milepost,
    session: SessionId,
    node: &str,
    iteration: u32,
    given: &str,
    by: &str,
) -> RunResult<Answered> {
    fits(given)?;
    let key = key_now(engine, session, node, iteration).await?;
    let value = json!({"answer": given, "by": by}).to_string();
    let stored = engine.store().put_record(ANSWER, &key, None, None, value.as_bytes()).await;
    match (stored, read(engine, &key).await?) {
        (Ok(_), _) => Ok(Answered::First),
        (Err(_), Some(Answer { answer, by })) => Ok(Answered::Late { answer, by }),
        (Err(error), None) => Err(milepost::Error::from(error).into()),
    }
}

/// Answers the question of a node anew, in place of the answer that it has; that one is given back, and stays beside the new
/// one. It counts when the step is next tried: what was denied can so be approved. An answer with which the run has gone on
/// is not changed.
pub async fn change_answer(
    engine: &Milepost,
    session: SessionId,
    node: &str,
    iteration: u32,
    given: &str,
    by: &str,
) -> RunResult<Option<Answer>> {
    fits(given)?;
    let state = engine.store().state(session).await.map_err(milepost::Error::from)?;
    let ledger = Ledger::read(&state)?;
    let is_over = ledger.line(node).is_some_and(|entry| match entry.iteration.cmp(&iteration) {
        Ordering::Less => false,
        Ordering::Equal if entry.status == Status::Failed => ledger.has_left(node),
        Ordering::Equal => matches!(entry.status, Status::Completed | Status::Skipped),
        Ordering::Greater => true,
    });
    if is_over {
        let what = format!("changing the answer to {node}");
        return Err(Error::refused(
            what,
            "the run has gone on with it",
            "run the step again on a branch, and answer there",
        ));
    }
    let key = key_now(engine, session, node, iteration).await?;
    let mut tries = 0;
    loop {
        let found = engine.store().record(ANSWER, &key).await.map_err(milepost::Error::from)?;
        let before = found.as_ref().map(|record| parse(&record.value));
        let mut value = json!({"answer": given, "by": by});
        if let Some(Answer { answer, by }) = &before {
            value["before"] = json!({"answer": answer, "by": by});
        }
        let version = found.map(|record| record.version);
        match engine.store().put_record(ANSWER, &key, version, None, value.to_string().as_bytes()).await {
            Ok(_) => return Ok(before),
            // Somebody else answered meanwhile.
            Err(milepost::store::Error::Conflict(_)) if tries < MAX_TRIES => tries += 1,
            Err(error) => return Err(milepost::Error::from(error).into()),
        }
    }
}

fn parse(value: &[u8]) -> Answer {
    let value: Value = serde_json::from_slice(value).unwrap_or_default();
    let part = |name: &str| text(&value, name).unwrap_or_default().to_owned();
    Answer { answer: part("answer"), by: part("by") }
}

async fn read(engine: &Milepost, key: &str) -> RunResult<Option<Answer>> {
    let record = engine.store().record(ANSWER, key).await.map_err(milepost::Error::from)?;
    Ok(record.map(|record| parse(&record.value)))
}

/// When a wait of this step ends: its own time counts from its first attempt.
fn deadline(step: &Step) -> Option<Timestamp> {
    let ms = parse_duration_ms(text(&step.parameters, "timeout")?)?;
    Some(step.since.plus_ms(i64::try_from(ms).ok()?))
}

pub(super) struct Wait;

#[async_trait]
impl Action for Wait {
    fn repeat(&self, _: &Value) -> Repeat {
        Repeat::Harmless
    }

    async fn run(&self, step: Step) -> Result<Value, Failed> {
        let until = match (text(&step.parameters, "for"), text(&step.parameters, "until")) {
            (Some(length), _) => {
                let ms = parse_duration_ms(length).and_then(|ms| i64::try_from(ms).ok());
                ms.map(|ms| step.since.plus_ms(ms))
            }
            (None, Some(time)) => parse_time(time),
            (None, None) => None,
        };
        let Some(until) = until else {
            return Err(Failed::Fatal("until is not a date and a time, such as 2026-11-16T12:00:00Z".to_owned()));
        };
        if step.now >= until {
            return Ok(json!({"until": until.to_string()}));
        }
        Err(Failed::Waits { until: Some(until), what: format!("the time {until}") })
    }
}

pub(super) struct Ask {
    pub engine: Milepost,
}

#[async_trait]
impl Action for Ask {
    fn repeat(&self, _: &Value) -> Repeat {
        Repeat::Harmless
    }

    async fn run(&self, step: Step) -> Result<Value, Failed> {
        let key = record_key(step.session, &step.parts.head, &step.node, step.iteration);
        let given = read(&self.engine, &key).await.map_err(|error| Failed::Transient(error.to_string()))?;
        let choices = texts(&step.parameters, "choices");
        if let Some(Answer { answer, by }) = given {
            if choices.is_empty() || choices.contains(&answer) {
                return Ok(json!({"answer": answer, "by": by}));
            }
            // An answer that is none makes room for another.
            self.forget(&key).await;
        }
        let until = deadline(&step);
        if until.is_some_and(|until| step.now >= until) {
            return match text(&step.parameters, "default") {
                Some(answer) => Ok(json!({"answer": answer, "by": "nobody answered in time"})),
                None => Err(Failed::Fatal("nobody answered in time".to_owned())),
            };
        }
        let question = text(&step.parameters, "question").unwrap_or_default();
        let among = if choices.is_empty() { String::new() } else { format!(" ({})", choices.join(", ")) };
        Err(Failed::Waits { until, what: format!("an answer: {question}{among}") })
    }
}

impl Ask {
    async fn forget(&self, key: &str) {
        if let Ok(Some(record)) = self.engine.store().record(ANSWER, key).await {
            // Whoever was faster has made room as well.
            let _ = self.engine.store().delete_record(ANSWER, key, record.version).await;
        }
    }
}

pub(super) struct Approve {
    pub engine: Milepost,
}

#[async_trait]
impl Action for Approve {
    fn repeat(&self, _: &Value) -> Repeat {
        Repeat::Harmless
    }

    async fn run(&self, mut step: Step) -> Result<Value, Failed> {
        if let Value::Object(parameters) = &mut step.parameters {
            parameters.insert("choices".to_owned(), json!(["yes", "no"]));
        }
        let given = Ask { engine: self.engine.clone() }.run(step).await?;
        let by = given.get("by").cloned().unwrap_or_default();
        match text(&given, "answer") {
            Some("yes") => Ok(json!({"approved": true, "by": by})),
            _ => Err(Failed::Fatal(format!("it was not approved ({})", by.as_str().unwrap_or_default()))),
        }
    }
}
