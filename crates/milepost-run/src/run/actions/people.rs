//! Waiting: for a time, for an answer, for a yes. Answers are records, so that whoever answers need not hold the
//! session; the first one wins, also when it comes before the question.

use async_trait::async_trait;
use milepost::Milepost;
use milepost_document::parse_duration_ms;
use milepost_model::{SessionId, Timestamp, parse_time};
use serde_json::{Value, json};

use super::{text, texts};
use crate::graph::actions::Repeat;
use crate::run::action::{Action, Failed, Step};
use crate::run::error::{Error, Result as RunResult};

/// The kind of records that answers are.
const ANSWER: &str = "answer";
/// The longest answer (64 KiB).
const MAX_ANSWER_BYTES: usize = 64 << 10;

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

fn record_key(session: SessionId, node: &str, iteration: u32) -> String {
    format!("{session}.{node}.{iteration}")
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
    if given.len() > MAX_ANSWER_BYTES {
        let why = format!("it has {} bytes, the limit MAX_ANSWER_BYTES is {MAX_ANSWER_BYTES}", given.len());
        return Err(Error::refused("answering", why, "put long texts into a file and answer with its name"));
    }
    let key = record_key(session, node, iteration);
    let value = json!({"answer": given, "by": by}).to_string();
    let stored = engine.store().put_record(ANSWER, &key, None, None, value.as_bytes()).await;
    match (stored, read(engine, &key).await?) {
        (Ok(_), _) => Ok(Answered::First),
        (Err(_), Some((answer, by))) => Ok(Answered::Late { answer, by }),
        (Err(error), None) => Err(milepost::Error::from(error).into()),
    }
}

async fn read(engine: &Milepost, key: &str) -> RunResult<Option<(String, String)>> {
    let record = engine.store().record(ANSWER, key).await.map_err(milepost::Error::from)?;
    Ok(record.map(|record| {
        let value: Value = serde_json::from_slice(&record.value).unwrap_or_default();
        let part = |name: &str| text(&value, name).unwrap_or_default().to_owned();
        (part("answer"), part("by"))
    }))
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
        let key = record_key(step.session, &step.node, step.iteration);
        let given = read(&self.engine, &key).await.map_err(|error| Failed::Transient(error.to_string()))?;
        let choices = texts(&step.parameters, "choices");
        if let Some((answer, by)) = given {
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
