//! A model and tools in a loop. Every answer and every call is a step of its own, stored with its message: whoever
//! resumes the run goes on in the middle of the loop, and no call that had an effect is silently repeated.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use milepost::{MessageQuery, NewMark, Trigger};
use milepost_model::{Block, Channel, Content, Message, Role, Seq};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::model::{Models, channel, json_of, request, usage};
use super::tools::{Tools, shorten};
use super::window::fit;
use super::{ends, text};
use crate::graph::actions::Repeat;
use crate::run::Spent;
use crate::run::action::{Action, Failed, OpenBecause, Step, taken};
use crate::run::ledger::Status;
use crate::run::parts::{Begun, Ended, Open};
use crate::run::turn::attempt;

/// How often the model is asked unless the node says otherwise.
const MAX_TURNS: u64 = 25;
/// How much of what a tool gives the model sees unless the node says otherwise (64 KiB).
const MAX_RESULT_BYTES: u64 = 64 << 10;
/// The most calls of one answer that are run (64).
const MAX_CALLS: usize = 64;

#[derive(Clone)]
pub(super) struct Agent {
    pub models: Models,
    pub actions: BTreeMap<String, Arc<dyn Action>>,
}

/// A call that the model made.
struct Call {
    id: String,
    name: String,
    input: Value,
}

/// What is to be done next.
enum Next {
    Ask,
    Run(Vec<Call>),
    Done(Message),
}

/// The conversation of an agent.
struct Talk {
    channel: Channel,
    messages: Vec<Message>,
}

impl Talk {
    fn next(&self) -> Next {
        let Some(last) = self.messages.iter().rposition(|message| message.role == Role::Assistant) else {
            return Next::Ask;
        };
        if self.messages[last + 1..].iter().any(|message| message.role == Role::User) {
            return Next::Ask;
        }
        let calls = calls(&self.messages[last]);
        if calls.is_empty() { Next::Done(self.messages[last].clone()) } else { Next::Run(calls) }
    }

    /// How often the model answered.
    fn turns(&self) -> u64 {
        self.messages.iter().filter(|message| message.role == Role::Assistant).count() as u64
    }

    fn say(&mut self, message: Message) -> Message {
        let message = message.in_channel(self.channel.clone());
        self.messages.push(message.clone());
        message
    }
}

fn calls(message: &Message) -> Vec<Call> {
    let Content::Blocks(blocks) = &message.content else { return Vec::new() };
    let calls = blocks.iter().filter_map(|block| match block {
        Block::ToolCall { id, name, input, .. } => {
            Some(Call { id: id.clone(), name: name.clone(), input: input.clone() })
        }
        _ => None,
    });
    calls.collect()
}

/// What a call gave, as the model is told.
fn result(call: &Call, content: String, is_error: bool) -> Message {
    let block = match Block::tool_result(call.id.as_str(), content.into()) {
        Block::ToolResult { call_id, content, extra, .. } => Block::ToolResult { call_id, content, is_error, extra },
        other => other,
    };
    Message::blocks(Role::Tool, vec![block])
}

/// The name of a call's step: the turn, the number of the call, the tool.
fn part(turn: u64, number: usize, tool: &str) -> String {
    let tool: String = tool.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(40).collect();
    format!("turn_{turn}.{}.{tool}", number + 1)
}

fn number(step: &Step, key: &str, usual: u64) -> u64 {
    step.parameters.get(key).and_then(Value::as_u64).unwrap_or(usual)
}

impl Agent {
    /// The conversation as it is recorded; begun, when it is not.
    async fn talk(&self, step: &Step, open: &mut Open) -> Result<Talk, Failed> {
        let mut talk = Talk { channel: channel(step), messages: Vec::new() };
        let store = step.parts.engine.store();
        let failed = |error: milepost::store::Error| Failed::Transient(error.to_string());
        match open.ledger.data("from").and_then(Value::as_u64) {
            Some(from) => {
                let channel = Some(talk.channel.clone());
                let query = MessageQuery { channel, from: Some(Seq(from)), ..MessageQuery::default() };
                let stored = store.messages(step.session, &query).await.map_err(failed)?;
                talk.messages = stored.into_iter().map(|stored| stored.message).collect();
            }
            None => {
                // What another round, or another run of this step said before is not part of this one.
                let newest = MessageQuery { last: Some(1), ..MessageQuery::default() };
                let newest = store.messages(step.session, &newest).await.map_err(failed)?.pop();
                let from = newest.map_or(0, |newest| newest.at.seq.next().0);
                open.ledger.set_data("from", from.into());
                let prompt = Message::new(Role::User, text(&step.parameters, "prompt").unwrap_or_default());
                let prompt = talk.say(prompt);
                open.store(Vec::new(), vec![prompt], None).await?;
            }
        }
        Ok(talk)
    }

    async fn turn(&self, step: &Step, open: &mut Open, talk: &mut Talk, tools: &Tools) -> Result<(), Failed> {
        let model = self.models.choose(&step.parameters)?;
        let name = format!("turn_{}", talk.turns() + 1);
        let asked = json!({"messages": talk.messages.len()});
        let Begun::Run(mut inner) = open.begin(step, &name, "model", Repeat::Idempotent, asked).await? else {
            return Err(Failed::Fatal(format!("{name} asks a model, which cannot be settled; leave it to run again")));
        };
        inner.parameters.clone_from(&step.parameters);
        inner.cancel = step.cancel.clone();
        let mut request = request(&inner, talk.messages.clone());
        request.tools = tools.offered();
        fit(&mut request, model.name(), step.parts.engine.budget_tokens());
        match self.models.ask(&**model, &request, &inner).await {
            Ok(answer) => {
                let message = talk.say(answer.message);
                let ended = Ended::completed(None, vec![message]);
                open.end(&name, ended).await
            }
            Err(Failed::Transient(why)) => {
                let ended =
                    Ended { status: Status::Retrying, error: Some(why.clone()), ..Ended::completed(None, Vec::new()) };
                open.end(&name, ended).await?;
                Err(Failed::Transient(why))
            }
            Err(other) => Err(open.rest(&name, other).await),
        }
    }

    /// Runs a call, unless it has run.
    async fn call(
        &self,
        step: &Step,
        open: &mut Open,
        name: &str,
        call: &Call,
        tools: &Tools,
        mark: Option<NewMark>,
    ) -> Result<Message, Failed> {
        let limit = usize::try_from(number(step, "max_result_bytes", MAX_RESULT_BYTES)).unwrap_or(usize::MAX);
        let ready = match tools.ready(call.name.as_str(), &call.input, &step.names, &self.actions) {
            Ok(ready) => ready,
            Err(why) => {
                let message = result(call, why.clone(), true).in_channel(channel(step));
                open.end(name, Ended { mark, ..Ended::failed(why, vec![message.clone()]) }).await?;
                return Ok(message);
            }
        };
        let (repeat, is_command) = (ready.repeat, ready.kind == "shell");
        let begun = open.begin(step, name, &ready.kind, repeat, ready.parameters).await?;
        let inner = match begun {
            Begun::Happened(value) => {
                let message = result(call, shorten(&value, limit), false).in_channel(channel(step));
                open.end(name, Ended { mark, ..Ended::completed(None, vec![message.clone()]) }).await?;
                return Ok(message);
            }
            Begun::Run(inner) => inner,
        };
        let (cancel, grace_ms) = (inner.cancel.clone(), step.parts.grace_ms);
        let said = Arc::clone(&inner.said);
        let work = attempt(ready.action, *inner, Some(ready.timeout_ms), None, grace_ms);
        tokio::pin!(work);
        let outcome = tokio::select! {
            outcome = &mut work => outcome,
            () = step.cancel.cancelled() => {
                cancel.cancel();
                // Whether it had its effect is known only if it says so.
                match timeout(Duration::from_millis(grace_ms), work).await {
                    Ok(Ok(value)) => Ok(value),
                    Ok(Err(Failed::Transient(_) | Failed::Said { .. } | Failed::Fatal(_))) => {
                        return Err(open.rest(name, Failed::Transient("it was told to end".to_owned())).await);
                    }
                    _ if repeat == Repeat::Effect => return Err(open.uncertain(name, "it was told to end").await),
                    _ => return Err(Failed::Transient("it was told to end".to_owned())),
                }
            }
        };
        let mut messages = taken(&said);
        let mut happened = false;
        let (status, content, error) = match outcome {
            Ok(value) => (Status::Completed, shorten(&value, limit), None),
            Err(Failed::Transient(why) | Failed::Fatal(why)) => (Status::Failed, why.clone(), Some(why)),
            Err(Failed::Said { why, gave }) => (Status::Failed, shorten(&ends(gave, limit / 4), limit), Some(why)),
            // A command that had to be ended is nothing to ask a person about: the model can look how far it came.
            Err(Failed::Uncertain(why)) if repeat == Repeat::Effect && is_command => {
                (Status::Failed, format!("{why}; what it did until then is done"), Some(why))
            }
            Err(Failed::Uncertain(why)) if repeat == Repeat::Effect => return Err(open.uncertain(name, &why).await),
            Err(Failed::Uncertain(why)) => (Status::Failed, why.clone(), Some(why)),
            Err(Failed::AfterEffect(after)) => match after.until.filter(|_| repeat != Repeat::Effect) {
                Some(until) => return Err(open.rest(name, Failed::Limited { until, why: after.why }).await),
                // The model is told, and nothing is repeated by itself.
                None => {
                    happened = repeat == Repeat::Effect;
                    (Status::Failed, after.why.clone(), Some(after.why))
                }
            },
            Err(Failed::Waits { until, what }) => {
                return Err(open.wait(name, OpenBecause::Waits { until, what }).await);
            }
            Err(other) => return Err(open.rest(name, other).await),
        };
        let message = result(call, content, error.is_some()).in_channel(channel(step));
        messages.push(message.clone());
        open.end(name, Ended { status, output: None, error, messages, mark, happened }).await?;
        Ok(message)
    }
}

#[async_trait]
impl Action for Agent {
    /// Its parts say for themselves what a second time means.
    fn repeat(&self, _: &Value) -> Repeat {
        Repeat::Idempotent
    }

    /// Its key goes to nobody.
    fn is_keyed(&self) -> bool {
        false
    }

    async fn run(&self, step: Step) -> Result<Value, Failed> {
        let mut open = step.parts.open().await?;
        let mut talk = self.talk(&step, &mut open).await?;
        let tools = Tools::open(&step).await?;
        let (most, every) = (number(&step, "max_turns", MAX_TURNS), number(&step, "checkpoint_every", 1).max(1));
        let is_json = step.parameters.get("json").and_then(Value::as_bool).unwrap_or(false);
        loop {
            if step.cancel.is_cancelled() {
                return Err(Failed::Transient("it was told to end".to_owned()));
            }
            let turns = talk.turns();
            match talk.next() {
                Next::Run(calls) => {
                    let count = calls.len();
                    for (number, call) in calls.iter().enumerate() {
                        let name = part(turns, number, &call.name);
                        if open.is_over(&name) {
                            continue;
                        }
                        let is_last = number + 1 == count && turns.is_multiple_of(every);
                        let mark = is_last.then(|| {
                            let mut mark =
                                NewMark::new(Trigger::Step).description(format!("{}: turn {turns}", step.node));
                            mark.clean = false;
                            mark
                        });
                        let message = if number < MAX_CALLS {
                            self.call(&step, &mut open, &name, call, &tools, mark).await?
                        } else {
                            let why = format!("not run: one answer may make MAX_CALLS, {MAX_CALLS}, calls");
                            let message = result(call, why.clone(), true).in_channel(talk.channel.clone());
                            open.end(&name, Ended { mark, ..Ended::failed(why, vec![message.clone()]) }).await?;
                            message
                        };
                        talk.messages.push(message);
                        step.progress();
                    }
                    // What the calls gave is there: the model is asked next.
                }
                Next::Done(last) => {
                    let said = last.text().into_owned();
                    let parsed = if is_json { json_of(&said) } else { Some(Value::Null) };
                    if let Some(json) = parsed {
                        let model = self.models.choose(&step.parameters)?.name().to_owned();
                        let usage = usage(&Spent::of(&talk.messages));
                        let stop = last.extra.get("stop_reason").and_then(Value::as_str).unwrap_or("end");
                        return Ok(json!({
                            "text": said, "turns": turns, "stop": stop, "model": model, "usage": usage, "json": json,
                        }));
                    }
                    let told = talk.say(Message::new(Role::User, "Answer with JSON only."));
                    open.store(Vec::new(), vec![told], None).await?;
                }
                Next::Ask => {}
            }
            let first = open.ledger.data("first_turn").and_then(Value::as_u64).unwrap_or(0);
            if turns.saturating_sub(first) >= most {
                // A resume gives it as many again.
                open.ledger.set_data("first_turn", turns.into());
                open.store(Vec::new(), Vec::new(), None).await?;
                return Err(Failed::Fatal(format!(
                    "the agent took {most} turns, its limit max_turns, and is not done"
                )));
            }
            self.turn(&step, &mut open, &mut talk, &tools).await?;
        }
    }
}
