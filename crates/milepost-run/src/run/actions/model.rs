//! One question to a model.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use milepost_model::{Message, Role};
use milepost_models::{Model, Outcome, Request, Stop};
use serde_json::{Value, json};

use super::text;
use crate::graph::actions::Repeat;
use crate::run::action::{Action, Failed, Step};

/// The models that a run may ask.
#[derive(Debug, Clone, Default)]
pub(crate) struct Models {
    /// The one that is asked when a node names none.
    pub usual: Option<Arc<dyn Model>>,
    /// Others, by the names that nodes give them.
    pub named: BTreeMap<String, Arc<dyn Model>>,
}

pub(super) struct Ask {
    pub models: Models,
}

impl Ask {
    fn choose(&self, parameters: &Value) -> Result<&Arc<dyn Model>, Failed> {
        match text(parameters, "model") {
            Some(name) => self.models.named.get(name).ok_or_else(|| {
                let known: Vec<&str> = self.models.named.keys().map(String::as_str).collect();
                Failed::Fatal(format!("the run has no model {name:?}; it has {}", known.join(", ")))
            }),
            None => self.models.usual.as_ref().ok_or_else(|| Failed::Fatal("the run was given no model".to_owned())),
        }
    }
}

#[async_trait]
impl Action for Ask {
    /// Asking again costs, but changes nothing.
    fn repeat(&self, _: &Value) -> Repeat {
        Repeat::Idempotent
    }

    async fn run(&self, step: Step) -> Result<Value, Failed> {
        let prompt = text(&step.parameters, "prompt").unwrap_or_default();
        let mut request = Request::new(vec![Message::new(Role::User, prompt)]);
        request.system = text(&step.parameters, "system").map(str::to_owned);
        request.idempotency_key = Some(step.key.clone());
        if let Some(tokens) = step.parameters.get("max_tokens").and_then(Value::as_u64) {
            request.max_tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        }
        let model = self.choose(&step.parameters)?;
        let outcome = model.ask(&request, &step.cancel, &mut |_| step.progress()).await;
        let answer = match outcome {
            Ok(Outcome::Whole(answer)) => answer,
            Ok(Outcome::Limited(limited)) => {
                return Err(Failed::Limited { until: limited.until, why: limited.why });
            }
            // A step gives a whole answer or none: what had arrived is worth nothing to the nodes after it.
            Ok(Outcome::Cut { why, .. }) | Err(why) => {
                return Err(if why.is_transient() {
                    Failed::Transient(why.to_string())
                } else {
                    Failed::Fatal(why.to_string())
                });
            }
        };
        let said = answer.message.text().into_owned();
        let is_json = step.parameters.get("json").and_then(Value::as_bool).unwrap_or(false);
        let parsed = match is_json {
            true => json_of(&said).ok_or_else(|| Failed::Transient("the answer is not JSON".to_owned()))?,
            false => Value::Null,
        };
        let stop = match answer.stop {
            Some(Stop::End) | None => "end",
            Some(Stop::Tools) => "tools",
            Some(Stop::MaxTokens) => "max_tokens",
            Some(Stop::StopText) => "stop_text",
            Some(Stop::Refusal) => return Err(Failed::Fatal(format!("{} refused to answer", model.name()))),
            Some(Stop::Other(_)) => "other",
        };
        let usage = json!({
            "input_tokens": answer.usage.sent(), "output_tokens": answer.usage.output_tokens,
            "cost_usd": answer.cost.map(|cost| cost.usd),
        });
        Ok(json!({"text": said, "stop": stop, "model": model.name(), "usage": usage, "json": parsed}))
    }
}

/// The JSON of an answer, also when it stands in a fence.
fn json_of(said: &str) -> Option<Value> {
    let plain = said.trim();
    let fenced =
        plain.strip_prefix("```json").or_else(|| plain.strip_prefix("```")).and_then(|rest| rest.strip_suffix("```"));
    serde_json::from_str(fenced.unwrap_or(plain).trim()).ok()
}
