//! The Messages API of Anthropic.

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

/// The version of the API that this client speaks.
pub(crate) const VERSION: &str = "2023-06-01";

/// A model behind the Messages API.
#[derive(Debug)]
pub struct Anthropic {
    pub(crate) transport: Transport,
    pub(crate) prices: Prices,
}

#[async_trait]
impl Model for Anthropic {
    fn name(&self) -> &str {
        &self.transport.model
    }

    async fn ask(&self, request: &Request, cancel: &Cancel, heard: Heard<'_>) -> Result<Outcome, Error> {
        let body = body(&self.transport.model, request);
        let mut reader = Reader::new(&self.transport.model, &self.prices);
        self.transport.call(&body, request.idempotency_key.as_deref(), &mut reader, cancel, heard).await
    }
}

fn body(model: &str, request: &Request) -> Value {
    let wire = view(&request.messages, Dialect::Anthropic).to_wire();
    let mut body = Map::new();
    body.insert("model".to_owned(), model.into());
    body.insert("max_tokens".to_owned(), request.max_tokens.into());
    body.insert("stream".to_owned(), true.into());
    let system: Vec<String> = request.system.iter().cloned().chain(wire.system).collect();
    if !system.is_empty() {
        body.insert("system".to_owned(), system.join("\n\n").into());
    }
    body.insert("messages".to_owned(), wire.messages.into());
    if !request.tools.is_empty() {
        let tools = request
            .tools
            .iter()
            .map(|tool| json!({"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}));
        body.insert("tools".to_owned(), tools.collect());
    }
    if let Some(temperature) = request.temperature {
        body.insert("temperature".to_owned(), temperature.into());
    }
    if !request.stop.is_empty() {
        body.insert("stop_sequences".to_owned(), request.stop.clone().into());
    }
    request.add_extra(&mut body);
    Value::Object(body)
}

/// A block that is arriving.
#[derive(Debug)]
struct Open {
    index: u64,
    /// As the provider began it, with what was added since; a call's arguments are beside it.
    block: Map<String, Value>,
    input: String,
    is_whole: bool,
}

#[derive(Debug)]
struct Reader<'a> {
    model: &'a str,
    prices: &'a Prices,
    blocks: Vec<Open>,
    extra: Map<String, Value>,
    usage: Map<String, Value>,
    done: bool,
}

impl<'a> Reader<'a> {
    fn new(model: &'a str, prices: &'a Prices) -> Self {
        Self { model, prices, blocks: Vec::new(), extra: Map::new(), usage: Map::new(), done: false }
    }

    /// Fields of the message itself: what is known is used, the rest is kept.
    fn take_fields(&mut self, fields: &Map<String, Value>) {
        for (name, value) in fields {
            match name.as_str() {
                "role" | "content" | "type" | "channel" => {}
                "usage" => self.take_usage(Some(value)),
                _ if value.is_null() => {}
                _ => {
                    self.extra.insert(name.clone(), value.clone());
                }
            }
        }
    }

    /// Counts are totals so far: the last one stands.
    fn take_usage(&mut self, usage: Option<&Value>) {
        for (name, value) in usage.and_then(Value::as_object).into_iter().flatten() {
            if !value.is_null() {
                self.usage.insert(name.clone(), value.clone());
            }
        }
    }

    fn begin(&mut self, index: u64, block: &Value, heard: Heard<'_>) -> Result<(), Broken> {
        let Value::Object(fields) = block else { return Err(Broken::Garbled("a content block is no object".into())) };
        if self.blocks.len() >= MAX_BLOCKS {
            return Err(Broken::TooLarge("MAX_BLOCKS", MAX_BLOCKS));
        }
        if self.blocks.iter().any(|open| open.index == index) {
            return Err(Broken::Garbled(format!("content block {index} begins twice")));
        }
        let text = |key: &str| fields.get(key).and_then(Value::as_str).unwrap_or_default();
        match text("type") {
            "text" if !text("text").is_empty() => heard(Piece::Text(text("text"))),
            "thinking" if !text("thinking").is_empty() => heard(Piece::Thinking(text("thinking"))),
            "tool_use" => heard(Piece::Call { id: text("id"), name: text("name") }),
            _ => {}
        }
        self.blocks.push(Open { index, block: fields.clone(), input: String::new(), is_whole: false });
        Ok(())
    }

    fn open(&mut self, index: u64) -> Result<&mut Open, Broken> {
        let found = self.blocks.iter_mut().rfind(|open| open.index == index && !open.is_whole);
        found.ok_or_else(|| Broken::Garbled(format!("content block {index} goes on without having begun")))
    }

    fn delta(&mut self, index: u64, delta: &Value, heard: Heard<'_>) -> Result<(), Broken> {
        let open = self.open(index)?;
        let text = |key: &str| delta.get(key).and_then(Value::as_str).unwrap_or_default();
        match text("type") {
            "text_delta" => {
                append(&mut open.block, "text", text("text"));
                heard(Piece::Text(text("text")));
            }
            "thinking_delta" => {
                append(&mut open.block, "thinking", text("thinking"));
                heard(Piece::Thinking(text("thinking")));
            }
            "signature_delta" => append(&mut open.block, "signature", text("signature")),
            "input_json_delta" => {
                open.input.push_str(text("partial_json"));
                if !text("partial_json").is_empty() {
                    heard(Piece::Input(text("partial_json")));
                }
            }
            "citations_delta" => {
                let all = open.block.entry("citations").or_insert_with(|| json!([]));
                if !all.is_array() {
                    *all = json!([]);
                }
                if let (Value::Array(all), Some(citation)) = (all, delta.get("citation")) {
                    all.push(citation.clone());
                }
            }
            // Kinds of deltas that came later than this client say nothing to it.
            _ => {}
        }
        Ok(())
    }

    fn usage_now(&self) -> Usage {
        let count = |name: &str| self.usage.get(name).and_then(Value::as_u64).unwrap_or(0);
        Usage {
            input_tokens: count("input_tokens"),
            output_tokens: count("output_tokens"),
            cache_read_tokens: count("cache_read_input_tokens"),
            cache_write_tokens: count("cache_creation_input_tokens"),
        }
    }
}

fn append(block: &mut Map<String, Value>, key: &str, text: &str) {
    match block.get_mut(key) {
        Some(Value::String(all)) => all.push_str(text),
        _ => {
            block.insert(key.to_owned(), text.into());
        }
    }
}

/// A block of the wire as one of ours. What is not known stays as it came.
fn block(mut fields: Map<String, Value>, input: &str) -> Block {
    let mut take = |key: &str| match fields.get(key) {
        Some(Value::String(_)) => match fields.remove(key) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        },
        _ => None,
    };
    match take("type").unwrap_or_default().as_str() {
        "text" => Block::Text { text: take("text").unwrap_or_default(), extra: fields },
        "thinking" => Block::Thinking { text: take("thinking").unwrap_or_default(), extra: fields },
        "tool_use" => {
            let (id, name) = (take("id").unwrap_or_default(), take("name").unwrap_or_default());
            let begun = fields.remove("input");
            match input.is_empty() {
                true => {
                    let input = begun.filter(|input| !input.is_null()).unwrap_or_else(|| json!({}));
                    Block::ToolCall { id, name, input, extra: fields }
                }
                false => OpenCall { id, name, input: input.to_owned(), extra: fields }.into_block(),
            }
        }
        kind => {
            fields.insert("type".to_owned(), kind.into());
            if !input.is_empty() {
                let input = serde_json::from_str(input).unwrap_or_else(|_| input.into());
                fields.insert("input".to_owned(), input);
            }
            Block::Unknown(Value::Object(fields))
        }
    }
}

/// Whether a block that was cut may stand: text and thoughts may, calls may not.
fn may_stand(open: &Open) -> bool {
    let kind = open.block.get("type").and_then(Value::as_str).unwrap_or_default();
    open.is_whole || kind == "text"
}

fn is_empty(block: &Block) -> bool {
    match block {
        Block::Text { text, .. } => text.trim().is_empty(),
        Block::Thinking { text, extra } => text.is_empty() && extra.get("signature").is_none(),
        _ => false,
    }
}

impl Reading for Reader<'_> {
    fn event(&mut self, event: &sse::Event, heard: Heard<'_>) -> Result<(), Broken> {
        let value: Value = serde_json::from_str(&event.data)
            .map_err(|error| Broken::Garbled(format!("an event is not JSON ({error})")))?;
        let kind = value.get("type").and_then(Value::as_str).unwrap_or(&event.kind);
        let index = || {
            let index = value.get("index").and_then(Value::as_u64);
            index.ok_or_else(|| Broken::Garbled(format!("{kind} has no index")))
        };
        match kind {
            "message_start" => match value.get("message").and_then(Value::as_object) {
                Some(fields) => self.take_fields(fields),
                None => return Err(Broken::Garbled("message_start has no message".into())),
            },
            "content_block_start" => self.begin(index()?, &value["content_block"], heard)?,
            "content_block_delta" => self.delta(index()?, &value["delta"], heard)?,
            "content_block_stop" => self.open(index()?)?.is_whole = true,
            "message_delta" => {
                if let Some(fields) = value.get("delta").and_then(Value::as_object) {
                    self.take_fields(fields);
                }
                self.take_usage(value.get("usage"));
            }
            "message_stop" => self.done = true,
            "error" => return Err(Broken::Refused(value)),
            // `ping`, and kinds that came later than this client.
            _ => {}
        }
        Ok(())
    }

    fn whole(&mut self, body: &Value, heard: Heard<'_>) -> Result<(), Broken> {
        if body.get("error").is_some() {
            return Err(Broken::Refused(body.clone()));
        }
        let (Some(fields), Some(content)) = (body.as_object(), body.get("content").and_then(Value::as_array)) else {
            return Err(Broken::Garbled("the body is not a message".into()));
        };
        self.take_fields(fields);
        for (index, block) in (0u64..).zip(content) {
            self.begin(index, block, heard)?;
            self.open(index)?.is_whole = true;
        }
        self.done = true;
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn may_end(&self) -> bool {
        false
    }

    fn has_something(&self) -> bool {
        self.blocks.iter().any(|open| {
            let stands = may_stand(open) && !is_empty(&block(open.block.clone(), &open.input));
            stands || !open.input.is_empty()
        })
    }

    fn has_usage(&self) -> bool {
        !self.usage.is_empty()
    }

    fn finish(&mut self, cut: Option<&Error>) -> Answer {
        let (mut blocks, mut calls) = (Vec::new(), Vec::new());
        for open in std::mem::take(&mut self.blocks) {
            let is_call = open.block.get("type").and_then(Value::as_str) == Some("tool_use");
            if cut.is_none() || may_stand(&open) {
                blocks.push(block(open.block, &open.input));
            } else if is_call {
                let text = |key: &str| open.block.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
                calls.push(OpenCall { id: text("id"), name: text("name"), input: open.input, extra: Map::new() });
            }
        }
        blocks.retain(|block| !is_empty(block));
        let mut extra = std::mem::take(&mut self.extra);
        let usage = self.usage_now();
        let cost = self.prices.cost(self.model, &usage).filter(|_| !self.usage.is_empty());
        let stop = extra.get("stop_reason").and_then(Value::as_str).map(|reason| match reason {
            "end_turn" => Stop::End,
            "tool_use" => Stop::Tools,
            "max_tokens" | "model_context_window_exceeded" => Stop::MaxTokens,
            "stop_sequence" => Stop::StopText,
            "refusal" => Stop::Refusal,
            other => Stop::Other(other.to_owned()),
        });
        if !self.usage.is_empty() {
            extra.insert("usage".to_owned(), Value::Object(std::mem::take(&mut self.usage)));
        }
        if let Some(cost) = &cost {
            cost.note(&mut extra);
        }
        if let Some(why) = cut {
            note_incomplete(&mut extra, why, calls);
        }
        Answer { message: message(blocks, extra), stop: stop.filter(|_| cut.is_none()), usage, cost, ready_at: None }
    }
}
