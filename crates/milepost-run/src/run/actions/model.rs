//! One question to a model, and what asking models has in common.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use milepost_model::{Channel, Message, Role, Timestamp};
use milepost_models::{Answer, Model, Outcome, Request, Stop};
use serde_json::{Value, json};

use super::text;
use crate::graph::actions::Repeat;
use crate::run::action::{Action, Failed, Step};
use crate::run::{OnPiece, Spent};

/// The models that a run may ask.
#[derive(Clone, Default)]
pub(crate) struct Models {
    /// The one that is asked when a node names none.
    pub usual: Option<Arc<dyn Model>>,
    /// Others, by the names that nodes give them.
    pub named: BTreeMap<String, Arc<dyn Model>>,
    /// Who hears what they say.
    pub heard: Option<OnPiece>,
    /// Models whose last answers said that the next call makes no sense before a moment.
    pub ready_at: Arc<Mutex<BTreeMap<String, Timestamp>>>,
}

impl Models {
    pub fn choose(&self, parameters: &Value) -> Result<&Arc<dyn Model>, Failed> {
        match text(parameters, "model") {
            Some(name) => self.named.get(name).ok_or_else(|| {
                let known: Vec<&str> = self.named.keys().map(String::as_str).collect();
                Failed::Fatal(format!("the run has no model {name:?}; it has {}", known.join(", ")))
            }),
            None => self.usual.as_ref().ok_or_else(|| {
                let why = "the run was given no model; name one (--model, MILEPOST_MODEL, or model in the settings), then resume";
                Failed::Fatal(why.to_owned())
            }),
        }
    }

    /// Asks, within the budget. The whole answer or none: what had arrived of one is worth nothing to the steps after it.
    pub async fn ask(&self, model: &dyn Model, request: &Request, step: &Step) -> Result<Answer, Failed> {
        if let Some(why) = step.purse.empty() {
            return Err(Failed::Pause(why));
        }
        let ready_at = self.ready_at.lock().unwrap_or_else(PoisonError::into_inner).get(model.name()).copied();
        if let Some(until) = ready_at.filter(|until| *until > step.parts.engine.source().now()) {
            let why = format!("the last answer of {} said that its limit is used up", model.name());
            return Err(Failed::Limited { until, why });
        }
        let mut listen = |piece: milepost_models::Piece<'_>| {
            step.progress();
            if let Some(heard) = &self.heard {
                heard(&step.node, piece);
            }
        };
        match model.ask(request, &step.cancel, &mut listen).await {
            Ok(Outcome::Whole(answer)) if answer.stop == Some(Stop::Refusal) => {
                Err(Failed::Fatal(format!("{} refused to answer", model.name())))
            }
            Ok(Outcome::Whole(answer)) => {
                if let Some(until) = answer.ready_at {
                    let mut ready_at = self.ready_at.lock().unwrap_or_else(PoisonError::into_inner);
                    ready_at.insert(model.name().to_owned(), until);
                }
                Ok(answer)
            }
            Ok(Outcome::Limited(limited)) => {
                limited.partial.into_iter().for_each(|answer| count_cut(*answer, step));
                Err(Failed::Limited { until: limited.until, why: limited.why })
            }
            Ok(Outcome::Cut { answer, why }) => {
                count_cut(answer, step);
                Err(failed(&why))
            }
            Err(why) => Err(failed(&why)),
        }
    }
}

fn failed(why: &milepost_models::Error) -> Failed {
    match why.retry_at() {
        // It is busy, and says until when.
        Some(until) => Failed::Limited { until, why: why.to_string() },
        None if why.is_transient() => Failed::Transient(why.to_string()),
        None => Failed::Fatal(why.to_string()),
    }
}

/// Keeps what arrived of an answer that was cut, as far as it cost something: beside the conversation that the steps after it
/// go on from, so that it counts.
fn count_cut(answer: Answer, step: &Step) {
    let channel = Channel::new(format!("{}/cut", channel(step).as_str())).unwrap_or_default();
    let message = answer.message.in_channel(channel);
    if Spent::of([&message]).tokens() > 0 {
        step.say([message]);
    }
}

/// A request as a node's parameters want it.
pub(super) fn request(step: &Step, messages: Vec<Message>) -> Request {
    let mut request = Request::new(messages);
    request.system = text(&step.parameters, "system").map(str::to_owned);
    request.idempotency_key = Some(step.key.clone());
    if let Some(tokens) = step.parameters.get("max_tokens").and_then(Value::as_u64) {
        request.max_tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
    }
    request
}

/// The conversation of a step: one for all rounds of a node, so that there are not more of them with every round.
pub(super) fn channel(step: &Step) -> Channel {
    let plain = |part: &str| {
        let part = part.split('#').next().unwrap_or_default();
        let rest = part.strip_prefix("round_").map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
        rest.and_then(|rest| rest.strip_prefix('.')).unwrap_or(part).to_owned()
    };
    let name = step.node.split('/').map(plain).collect::<Vec<_>>().join("/");
    Channel::new(name.as_str()).unwrap_or_else(|_| {
        // Longer than a name of a channel may be: still one of its own.
        let hash = milepost_model::Hash(milepost_model::hash_value(&name.into())).to_string();
        Channel::new(hash).unwrap_or_default()
    })
}

/// Why an answer ended, in a word.
pub(super) fn stop(answer: Option<&Stop>) -> &'static str {
    match answer {
        Some(Stop::End) | None => "end",
        Some(Stop::Tools) => "tools",
        Some(Stop::MaxTokens) => "max_tokens",
        Some(Stop::StopText) => "stop_text",
        Some(Stop::Refusal) => "refusal",
        Some(Stop::Other(_)) => "other",
    }
}

/// What answers cost, as a node gives it.
pub(super) fn usage(spent: &Spent) -> Value {
    let cost = (spent.unpriced == 0).then_some(spent.cost_usd);
    json!({"input_tokens": spent.input_tokens, "output_tokens": spent.output_tokens, "cost_usd": cost})
}

pub(super) struct Ask {
    pub models: Models,
}

#[async_trait]
impl Action for Ask {
    /// Asking again costs, but changes nothing.
    fn repeat(&self, _: &Value) -> Repeat {
        Repeat::Idempotent
    }

    /// Its key goes to nobody.
    fn is_keyed(&self) -> bool {
        false
    }

    async fn run(&self, step: Step) -> Result<Value, Failed> {
        let channel = channel(&step);
        let prompt = Message::new(Role::User, text(&step.parameters, "prompt").unwrap_or_default());
        let prompt = prompt.in_channel(channel.clone());
        let model = self.models.choose(&step.parameters)?;
        let answer = self.models.ask(&**model, &request(&step, vec![prompt.clone()]), &step).await?;
        let said = answer.message.text().into_owned();
        step.say([prompt, answer.message.in_channel(channel)]);
        let is_json = step.parameters.get("json").and_then(Value::as_bool).unwrap_or(false);
        let parsed = match is_json {
            true => json_of(&said).ok_or_else(|| Failed::Transient("the answer is not JSON".to_owned()))?,
            false => Value::Null,
        };
        let usage = json!({
            "input_tokens": answer.usage.sent(), "output_tokens": answer.usage.output_tokens,
            "cost_usd": answer.cost.map(|cost| cost.usd),
        });
        let stop = stop(answer.stop.as_ref());
        Ok(json!({"text": said, "stop": stop, "model": model.name(), "usage": usage, "json": parsed}))
    }
}

/// The JSON of an answer, also when it stands in a fence.
pub(super) fn json_of(said: &str) -> Option<Value> {
    let plain = said.trim();
    let fenced =
        plain.strip_prefix("```json").or_else(|| plain.strip_prefix("```")).and_then(|rest| rest.strip_suffix("```"));
    serde_json::from_str(fenced.unwrap_or(plain).trim()).ok()
}
