//! The Chat Completions API of OpenAI, as OpenAI and the many that speak it answer.

use async_trait::async_trait;
use milepost_context::history::{Dialect, view};
use milepost_model::Block;
use serde_json::{Map, Value, json};

use crate::answer::{Answer, Heard, OpenCall, Outcome, Piece, Stop, Usage, message, note_incomplete};
use crate::cancel::Cancel;
use crate::error::Error;
use crate::http::{Broken, Reading, Transport};
use crate::limits::MAX_BLOCKS;
use crate::prices::Prices;
use crate::request::Request;
use crate::{Model, sse};

/// A model behind the Chat Completions API.
#[derive(Debug)]
pub struct OpenAi {
    pub(crate) transport: Transport,
    pub(crate) prices: Prices,
    /// How the limit of the answer is called: OpenAI's newer models know only `max_completion_tokens`, most other
    /// servers only `max_tokens`.
    pub(crate) limit_field: &'static str,
}

#[async_trait]
impl Model for OpenAi {
    fn name(&self) -> &str {
        &self.transport.model
    }

    async fn ask(&self, request: &Request, cancel: &Cancel, heard: Heard<'_>) -> Result<Outcome, Error> {
        let body = body(&self.transport.model, self.limit_field, request);
        let mut reader = Reader::new(&self.transport.model, &self.prices);
        self.transport.call(&body, request.idempotency_key.as_deref(), &mut reader, cancel, heard).await
    }
}

fn body(model: &str, limit_field: &str, request: &Request) -> Value {
    let wire = view(&request.messages, Dialect::OpenAi).to_wire();
    let mut body = Map::new();
    body.insert("model".to_owned(), model.into());
    body.insert(limit_field.to_owned(), request.max_tokens.into());
    body.insert("stream".to_owned(), true.into());
    body.insert("stream_options".to_owned(), json!({"include_usage": true}));
    let system = request.system.iter().map(|text| json!({"role": "system", "content": text}));
    body.insert("messages".to_owned(), system.chain(wire.messages).collect());
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            json!({"type": "function", "function": {
                "name": tool.name, "description": tool.description, "parameters": tool.input_schema
            }})
        });
        body.insert("tools".to_owned(), tools.collect());
    }
    if let Some(temperature) = request.temperature {
        body.insert("temperature".to_owned(), temperature.into());
    }
    if !request.stop.is_empty() {
        body.insert("stop".to_owned(), request.stop.clone().into());
    }
    request.add_extra(&mut body);
    Value::Object(body)
}

#[derive(Debug)]
struct Reader<'a> {
    model: &'a str,
    prices: &'a Prices,
    text: String,
    thinking: String,
    /// Calls with their numbers, in the order in which they began.
    calls: Vec<(u64, OpenCall)>,
    finish_reason: Option<String>,
    extra: Map<String, Value>,
    usage: Option<Value>,
    done: bool,
}

impl<'a> Reader<'a> {
    fn new(model: &'a str, prices: &'a Prices) -> Self {
        Self {
            model,
            prices,
            text: String::new(),
            thinking: String::new(),
            calls: Vec::new(),
            finish_reason: None,
            extra: Map::new(),
            usage: None,
            done: false,
        }
    }

    /// Fields of a chunk or a whole answer beside its choices.
    fn take_fields(&mut self, fields: &Map<String, Value>) {
        for (name, value) in fields {
            match name.as_str() {
                "choices" | "object" | "role" | "content" | "channel" => {}
                _ if value.is_null() => {}
                "usage" => self.usage = Some(value.clone()),
                _ => {
                    self.extra.insert(name.clone(), value.clone());
                }
            }
        }
    }

    /// Takes a message, or a part of one: they have the same fields.
    fn take_message(&mut self, part: &Map<String, Value>, heard: Heard<'_>) -> Result<(), Broken> {
        for (name, value) in part {
            match (name.as_str(), value) {
                (_, Value::Null) | ("role", _) => {}
                ("content" | "refusal", Value::String(text)) => {
                    self.text.push_str(text);
                    if !text.is_empty() {
                        heard(Piece::Text(text));
                    }
                }
                ("reasoning_content" | "reasoning", Value::String(text)) => {
                    self.thinking.push_str(text);
                    if !text.is_empty() {
                        heard(Piece::Thinking(text));
                    }
                }
                ("tool_calls", Value::Array(calls)) => {
                    for call in calls {
                        self.take_call(call, heard)?;
                    }
                }
                ("content" | "tool_calls", _) => {
                    return Err(Broken::Garbled(format!("{name} is of another form than the API says")));
                }
                _ => {
                    self.extra.insert(name.clone(), value.clone());
                }
            }
        }
        Ok(())
    }

    fn take_call(&mut self, call: &Value, heard: Heard<'_>) -> Result<(), Broken> {
        let id = call.get("id").and_then(Value::as_str).unwrap_or_default();
        let function = call.get("function").unwrap_or(&Value::Null);
        let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
        let input = match function.get("arguments") {
            Some(Value::String(text)) => text.clone(),
            // Some servers send the arguments as they are.
            Some(value @ Value::Object(_)) => value.to_string(),
            _ => String::new(),
        };
        // Some servers leave the number out: then a new id is a new call.
        let last = self.calls.last().map(|(number, call)| (*number, call.id.as_str()));
        let number = match (call.get("index").and_then(Value::as_u64), last) {
            (Some(number), _) => number,
            (None, Some((number, known))) if id.is_empty() || id == known => number,
            (None, Some((number, _))) => number.saturating_add(1),
            (None, None) => 0,
        };
        let at = match self.calls.iter().position(|(own, _)| *own == number) {
            Some(at) => at,
            None if self.calls.len() >= MAX_BLOCKS => return Err(Broken::TooLarge("MAX_BLOCKS", MAX_BLOCKS)),
            None => {
                let id = if id.is_empty() { format!("call_{}", self.calls.len() + 1) } else { id.to_owned() };
                heard(Piece::Call { id: &id, name });
                self.calls.push((number, OpenCall { id, ..OpenCall::default() }));
                self.calls.len() - 1
            }
        };
        if let Some((_, open)) = self.calls.get_mut(at) {
            open.name.push_str(name);
            open.input.push_str(&input);
            if !input.is_empty() {
                heard(Piece::Input(&input));
            }
            for (name, value) in call.as_object().into_iter().flatten() {
                if !matches!(name.as_str(), "index" | "id" | "function" | "type") {
                    open.extra.insert(name.clone(), value.clone());
                }
            }
        }
        Ok(())
    }

    fn take_choice(&mut self, choice: &Value, part: &str, heard: Heard<'_>) -> Result<(), Broken> {
        if choice.get("index").and_then(Value::as_u64).unwrap_or(0) != 0 {
            return Ok(());
        }
        if let Some(fields) = choice.get(part).and_then(Value::as_object) {
            self.take_message(fields, heard)?;
        }
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            self.finish_reason = Some(reason.to_owned());
        }
        Ok(())
    }

    fn take(&mut self, value: &Value, part: &str, heard: Heard<'_>) -> Result<(), Broken> {
        if value.get("error").is_some_and(|error| !error.is_null()) {
            return Err(Broken::Refused(value.clone()));
        }
        let Value::Object(fields) = value else { return Err(Broken::Garbled("an event is no object".into())) };
        self.take_fields(fields);
        match fields.get("choices") {
            Some(Value::Array(choices)) => choices.iter().try_for_each(|choice| self.take_choice(choice, part, heard)),
            None | Some(Value::Null) if self.usage.is_some() => Ok(()),
            _ => Err(Broken::Garbled("it has no choices".into())),
        }
    }

    fn usage_now(&self) -> Usage {
        let usage = self.usage.as_ref();
        let count = |value: Option<&Value>| value.and_then(Value::as_u64).unwrap_or(0);
        let details = |name: &str| count(usage.and_then(|usage| usage.get("prompt_tokens_details")?.get(name)));
        let sent = count(usage.and_then(|usage| usage.get("prompt_tokens")));
        let (read, written) = (details("cached_tokens"), details("cache_write_tokens"));
        Usage {
            input_tokens: sent.saturating_sub(read).saturating_sub(written),
            output_tokens: count(usage.and_then(|usage| usage.get("completion_tokens"))),
            cache_read_tokens: read,
            cache_write_tokens: written,
        }
    }
}

impl Reading for Reader<'_> {
    fn event(&mut self, event: &sse::Event, heard: Heard<'_>) -> Result<(), Broken> {
        if event.data.trim() == "[DONE]" {
            self.done = true;
            return Ok(());
        }
        let value: Value = serde_json::from_str(&event.data)
            .map_err(|error| Broken::Garbled(format!("an event is not JSON ({error})")))?;
        self.take(&value, "delta", heard)
    }

    fn whole(&mut self, body: &Value, heard: Heard<'_>) -> Result<(), Broken> {
        self.take(body, "message", heard)?;
        self.done = true;
        Ok(())
    }

    /// `[DONE]` before any reason to be done is the end of a stream, not of an answer.
    fn is_done(&self) -> bool {
        self.done && self.finish_reason.is_some()
    }

    /// Many servers leave the last event out.
    fn may_end(&self) -> bool {
        self.finish_reason.is_some()
    }

    fn has_something(&self) -> bool {
        !self.text.trim().is_empty() || !self.thinking.is_empty() || !self.calls.is_empty()
    }

    fn has_usage(&self) -> bool {
        self.usage.is_some()
    }

    fn finish(&mut self, cut: Option<&Error>) -> Answer {
        let mut blocks = Vec::new();
        let (text, thinking) = (std::mem::take(&mut self.text), std::mem::take(&mut self.thinking));
        if !thinking.is_empty() {
            blocks.push(Block::Thinking { text: thinking, extra: Map::new() });
        }
        if !text.trim().is_empty() {
            blocks.push(Block::text(text));
        }
        let calls: Vec<OpenCall> = std::mem::take(&mut self.calls).into_iter().map(|(_, call)| call).collect();
        let mut extra = std::mem::take(&mut self.extra);
        let stop = match self.finish_reason.take() {
            Some(reason) => {
                let stop = match reason.as_str() {
                    "stop" if !calls.is_empty() => Stop::Tools,
                    "stop" => Stop::End,
                    "tool_calls" | "function_call" => Stop::Tools,
                    "length" => Stop::MaxTokens,
                    "content_filter" => Stop::Refusal,
                    other => Stop::Other(other.to_owned()),
                };
                extra.insert("stop_reason".to_owned(), reason.into());
                Some(stop)
            }
            None => None,
        };
        let usage = self.usage_now();
        let cost = self.prices.cost(self.model, &usage).filter(|_| self.usage.is_some());
        if let Some(usage) = self.usage.take() {
            extra.insert("usage".to_owned(), usage);
        }
        if let Some(cost) = &cost {
            cost.note(&mut extra);
        }
        match cut {
            // Nothing says whether a call was complete when the stream broke.
            Some(why) => note_incomplete(&mut extra, why, calls),
            None => blocks.extend(calls.into_iter().map(OpenCall::into_block)),
        }
        Answer { message: message(blocks, extra), stop: stop.filter(|_| cut.is_none()), usage, cost, ready_at: None }
    }
}
