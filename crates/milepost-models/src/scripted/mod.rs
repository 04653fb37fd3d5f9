//! A model that answers from a script: for demos, and for tests that need no network and cost nothing.
//!
//! Which reply comes next follows from the conversation alone, so that a session that is resumed by another process goes
//! on where it was: among the replies whose `when` the newest message of the user contains, the one that has as many
//! answers before it as the conversation has from the assistant. Limits and errors stand between answers and are given
//! `times` times by each process before the answer after them.

mod script;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use milepost_model::{Block, Content, Message, Role, Source, Timestamp};
use serde_json::{Map, json};

use crate::Model;
use crate::answer::{Answer, Heard, Limited, Outcome, Piece, Stop, Told, message, note_incomplete};
use crate::cancel::Cancel;
use crate::error::Error;
use crate::prices::Cost;
use crate::request::Request;
use crate::timer::Timer;
use script::{Failure, Reply, Script, Spoken};

/// A model that answers from a script. See `docs/scripted-models.md` for the format.
#[derive(Debug)]
pub struct Scripted {
    script: Script,
    timer: Timer,
    source: Option<Source>,
    /// How often each failure was given.
    given: Mutex<BTreeMap<usize, u32>>,
}

impl Scripted {
    /// Reads a script. `path` names it in errors; TOML when it ends so, else YAML or JSON.
    pub fn parse(path: &Path, text: &str, timer: Timer) -> Result<Self, Error> {
        Ok(Self { script: script::read(path, text)?, timer, source: None, given: Mutex::default() })
    }

    /// Reads a script's file.
    pub fn read(path: &Path, timer: Timer) -> Result<Self, Error> {
        let text = script::read_file(path)?;
        Self::parse(path, &text, timer)
    }

    /// Counts limits from this source's time. Without one they end in 1970, and so at once.
    #[must_use]
    pub fn with_source(mut self, source: Source) -> Self {
        self.source = Some(source);
        self
    }

    fn now(&self) -> Timestamp {
        self.source.as_ref().map_or(Timestamp(0), Source::now)
    }

    /// The next reply, and a note that a failure was given.
    fn choose(&self, request: &Request) -> Result<&Reply, Error> {
        let asked = newest_of_user(&request.messages);
        let answered = request.messages.iter().filter(|message| message.role == Role::Assistant).count();
        let fits = self.script.replies.iter().enumerate().filter(|(_, reply)| reply.fits(&asked));
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut passed, mut last) = (0, None);
        for (at, reply) in fits {
            match reply {
                Reply::Fails { times, .. } if passed == answered => {
                    let count = given.entry(at).or_insert(0);
                    if *count < *times {
                        *count += 1;
                        return Ok(reply);
                    }
                }
                Reply::Fails { .. } => {}
                Reply::Says { .. } if passed == answered => return Ok(reply),
                Reply::Says { .. } => {
                    passed += 1;
                    last = Some(reply);
                }
            }
        }
        match last {
            Some(reply) if self.script.repeats_last => Ok(reply),
            _ => {
                let why = format!("the script has no reply number {} to {asked:?}", answered + 1);
                let instead = match self.script.repeats_last {
                    true => "add one: limits and errors are given as often as their times says, and not repeated",
                    false => "add one, or set after_last: repeat",
                };
                Err(Error::config(&self.script.place, why, instead))
            }
        }
    }

    async fn say(&self, spoken: &Spoken, turn: usize, cancel: &Cancel, heard: Heard<'_>) -> Outcome {
        let mut said = Said::default();
        for piece in &spoken.thinking {
            if self.wait(spoken.delay_ms, cancel).await {
                return self.cut(said, self.cancelled());
            }
            heard(Piece::Thinking(piece));
            said.thinking.push_str(piece);
        }
        for piece in &spoken.pieces {
            if self.wait(spoken.delay_ms, cancel).await {
                return self.cut(said, self.cancelled());
            }
            heard(Piece::Text(piece));
            said.text.push_str(piece);
        }
        if let Some(why) = &spoken.cut {
            let why = Error::Interrupted { model: self.script.name.clone(), why: why.clone() };
            return self.cut(said, why);
        }
        for (at, call) in spoken.calls.iter().enumerate() {
            if self.wait(spoken.delay_ms, cancel).await {
                return self.cut(said, self.cancelled());
            }
            let id = call.id.clone().unwrap_or_else(|| format!("call_{}_{}", turn + 1, at + 1));
            heard(Piece::Call { id: &id, name: &call.name });
            heard(Piece::Input(&call.input.to_string()));
            said.calls.push(Block::tool_call(id, &call.name, call.input.clone()));
        }
        let stop = spoken.stop.clone().unwrap_or(if spoken.calls.is_empty() { Stop::End } else { Stop::Tools });
        let mut extra = Map::new();
        if let Some(usage) = spoken.usage {
            extra.insert(
                "usage".to_owned(),
                json!({"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}),
            );
        }
        let cost = spoken.cost_usd.map(|usd| Cost { usd, as_of: "script".to_owned() });
        if let Some(cost) = &cost {
            extra.insert("cost_usd".to_owned(), cost.usd.into());
        }
        let usage = spoken.usage.unwrap_or_default();
        Outcome::Whole(Answer { message: self.message(said, extra), stop: Some(stop), usage, cost, ready_at: None })
    }

    /// Waits before a piece; true when the call was cancelled.
    async fn wait(&self, ms: u64, cancel: &Cancel) -> bool {
        tokio::select! {
            biased;
            () = cancel.cancelled() => true,
            () = self.timer.wait_ms(ms) => cancel.is_cancelled(),
        }
    }

    fn cancelled(&self) -> Error {
        Error::Cancelled { model: self.script.name.clone() }
    }

    fn message(&self, said: Said, mut extra: Map<String, serde_json::Value>) -> Message {
        extra.insert("model".to_owned(), self.script.name.clone().into());
        let thinking = (!said.thinking.is_empty()).then(|| Block::Thinking { text: said.thinking, extra: Map::new() });
        let text = (!said.text.is_empty()).then(|| Block::text(said.text));
        message(thinking.into_iter().chain(text).chain(said.calls).collect(), extra)
    }

    fn cut(&self, said: Said, why: Error) -> Outcome {
        let mut extra = Map::new();
        note_incomplete(&mut extra, &why, Vec::new());
        let message = self.message(said, extra);
        Outcome::Cut {
            answer: Answer { message, stop: None, usage: Default::default(), cost: None, ready_at: None },
            why,
        }
    }
}

#[derive(Default)]
struct Said {
    thinking: String,
    text: String,
    calls: Vec<Block>,
}

/// The newest thing that a user said, tool results aside.
fn newest_of_user(messages: &[Message]) -> String {
    let text = |message: &Message| match &message.content {
        Content::Text(text) => Some(text.clone()),
        Content::Blocks(blocks) => {
            let texts: Vec<&str> = blocks
                .iter()
                .filter_map(|block| match block {
                    Block::Text { text, .. } => Some(text.as_str()),
                    _ => None,
                })
                .collect();
            (!texts.is_empty()).then(|| texts.join("\n"))
        }
    };
    messages.iter().rev().filter(|message| message.role == Role::User).find_map(text).unwrap_or_default()
}

#[async_trait]
impl Model for Scripted {
    fn name(&self) -> &str {
        &self.script.name
    }

    async fn ask(&self, request: &Request, cancel: &Cancel, heard: Heard<'_>) -> Result<Outcome, Error> {
        let turn = request.messages.iter().filter(|message| message.role == Role::Assistant).count();
        let name = || self.script.name.clone();
        let outcome = match self.choose(request)? {
            Reply::Says { spoken, .. } => self.say(spoken, turn, cancel, heard).await,
            Reply::Fails { failure, .. } => match failure {
                Failure::Limited { after_ms, why } => Outcome::Limited(Limited {
                    until: self.now().plus_ms(*after_ms),
                    why: why.clone(),
                    told: Told::Provider("script"),
                    partial: None,
                }),
                Failure::Unavailable(why) => {
                    return Err(Error::Unavailable { model: name(), why: why.clone(), retry_at: None });
                }
                Failure::Unreachable(why) => return Err(Error::Unreachable { model: name(), why: why.clone() }),
                Failure::Refused(why) => return Err(Error::Refused { model: name(), why: why.clone() }),
                Failure::TooLong(why) => return Err(Error::TooLong { model: name(), why: why.clone() }),
            },
        };
        match outcome {
            Outcome::Cut { answer, why } if answer.message.text().is_empty() => Err(why),
            other => Ok(other),
        }
    }
}
