//! What a message cost, as far as whoever wrote it said so.

use std::iter::Sum;
use std::ops::Add;

use milepost_model::Message;
use serde::Serialize;
use serde_json::Value;

/// Tokens and money.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Tokens that were sent, those included that were read from a cache or written to it.
    pub input_tokens: u64,
    /// Tokens that came back.
    pub output_tokens: u64,
    /// Tokens that were sent and cost little, because the model had seen them.
    pub cached_tokens: u64,
    /// Tokens that were sent and written to the provider's cache.
    pub cache_write_tokens: u64,
    /// Dollars.
    pub cost_usd: f64,
    /// As much of them was counted by prices that nobody held against the provider's list (`cost_as_of` says so).
    #[serde(skip_serializing_if = "is_nothing")]
    pub unchecked_usd: f64,
}

fn is_nothing(dollars: &f64) -> bool {
    *dollars == 0.0
}

impl Usage {
    /// What a message says of itself: `usage` (as the APIs of Anthropic and OpenAI name its parts), `tokens`, `cost` or
    /// `costUsd`.
    pub fn of(message: &Message) -> Self {
        let number = |value: Option<&Value>| value.and_then(Value::as_u64).unwrap_or(0);
        let usage = message.extra.get("usage");
        let part = |names: &[&str]| {
            number(names.iter().find_map(|name| usage.and_then(|usage| usage.get(*name)).filter(|v| v.is_u64())))
        };
        let cost = ["costUsd", "cost_usd", "cost"];
        let money = |at: Option<&Value>| cost.iter().find_map(|name| at?.get(*name)?.as_f64());
        let own = serde_json::Map::clone(&message.extra);
        let output = part(&["output_tokens", "completion_tokens", "outputTokens", "completionTokens"]);
        let input = part(&["input_tokens", "prompt_tokens", "inputTokens", "promptTokens"]);
        let is_said = usage.is_some();
        // OpenAI says it one level deeper.
        let details = ["prompt_tokens_details", "input_tokens_details"].iter().find_map(|name| usage?.get(*name));
        let in_details = number(details.and_then(|details| details.get("cached_tokens")));
        let cost_usd =
            money(usage).or_else(|| money(Some(&Value::Object(own)))).filter(|cost| cost.is_finite()).unwrap_or(0.0);
        let as_of = message.extra.get("cost_as_of").and_then(Value::as_str);
        // Anthropic counts what is cached beside what else was sent, OpenAI within it.
        let beside_read = part(&["cache_read_input_tokens", "cacheReadInputTokens"]);
        let beside_written = part(&["cache_creation_input_tokens", "cacheCreationInputTokens"]);
        let written = number(details.and_then(|details| details.get("cache_write_tokens")));
        Self {
            input_tokens: input.saturating_add(beside_read).saturating_add(beside_written),
            output_tokens: if is_said { output } else { number(message.extra.get("tokens")) },
            cached_tokens: beside_read.max(part(&["cached_tokens"])).max(in_details),
            cache_write_tokens: beside_written.max(written),
            cost_usd,
            unchecked_usd: if as_of.is_some_and(|as_of| as_of.contains("unchecked")) { cost_usd } else { 0.0 },
        }
    }

    /// All tokens.
    pub fn tokens(&self) -> u64 {
        self.input_tokens + self.output_tokens
    }
}

impl Add for Usage {
    type Output = Usage;
    fn add(self, other: Usage) -> Usage {
        Usage {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            cached_tokens: self.cached_tokens.saturating_add(other.cached_tokens),
            cache_write_tokens: self.cache_write_tokens.saturating_add(other.cache_write_tokens),
            cost_usd: self.cost_usd + other.cost_usd,
            unchecked_usd: self.unchecked_usd + other.unchecked_usd,
        }
    }
}

impl Sum for Usage {
    fn sum<I: Iterator<Item = Usage>>(all: I) -> Usage {
        all.fold(Usage::default(), Add::add)
    }
}
