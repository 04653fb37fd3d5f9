//! What tokens cost. The table is data with a date (`prices.json`); settings put their own prices over it. The built-in figures
//! were collected from public pages and not checked against the providers' own lists, which every cost says.

use std::collections::BTreeMap;
use std::fmt;

use milepost_model::Message;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::answer::Usage;
use crate::error::Error;

/// The table that comes with Milepost.
const BUILT_IN: &str = include_str!("../prices.json");
/// The most models of a table.
const MAX_MODELS: usize = 10_000;

/// What something cost, and by the prices of which day.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cost {
    /// Dollars.
    pub usd: f64,
    /// The day of the price that was used, or `settings`.
    pub as_of: String,
}

/// What the date of prices says that nobody held against their provider's list.
const UNCHECKED: &str = "unchecked";
/// Where a message says by which prices it was counted.
const AS_OF: &str = "cost_as_of";

impl Cost {
    /// Whether nobody held the price against its provider's list: those that are built in are so.
    pub fn is_unchecked(&self) -> bool {
        self.as_of.contains(UNCHECKED)
    }

    /// Writes it into what goes along with a message.
    pub(crate) fn note(&self, extra: &mut Map<String, Value>) {
        extra.insert("cost_usd".to_owned(), self.usd.into());
        extra.insert(AS_OF.to_owned(), self.as_of.as_str().into());
    }

    /// Whether a message was counted by prices that nobody checked.
    pub fn was_unchecked(message: &Message) -> bool {
        message.extra.get(AS_OF).and_then(Value::as_str).is_some_and(|as_of| as_of.contains(UNCHECKED))
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${:.4} (prices of {})", self.usd, self.as_of)
    }
}

/// Dollars for a million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
struct Rates {
    input: f64,
    output: f64,
    /// As much as `input` when it is not said.
    cache_read: Option<f64>,
    /// As much as `input` when it is not said.
    cache_write: Option<f64>,
}

impl Rates {
    fn usd(&self, usage: &Usage) -> f64 {
        let of = |tokens: u64, rate: f64| tokens as f64 * rate / 1_000_000.0;
        of(usage.input_tokens, self.input)
            + of(usage.output_tokens, self.output)
            + of(usage.cache_read_tokens, self.cache_read.unwrap_or(self.input))
            + of(usage.cache_write_tokens, self.cache_write.unwrap_or(self.input))
    }

    fn is_sane(&self) -> bool {
        let all = [Some(self.input), Some(self.output), self.cache_read, self.cache_write];
        all.into_iter().flatten().all(|rate| rate.is_finite() && (0.0..=1_000_000.0).contains(&rate))
    }
}

/// The rates of a whole request that sends more tokens than this.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
struct Above {
    tokens: u64,
    #[serde(flatten)]
    rates: Rates,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
struct Entry {
    #[serde(flatten)]
    rates: Rates,
    above: Option<Above>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    as_of: Option<String>,
    #[serde(default, rename = "unit")]
    _unit: Option<String>,
    models: BTreeMap<String, Entry>,
}

/// What models cost. A model is found by its whole name, else by the longest name in the table that it begins with, so
/// that `claude-sonnet-5-20260630` is `claude-sonnet-5`; a name with a longer number is another model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Prices(BTreeMap<String, (Entry, String)>);

impl Prices {
    /// The table that comes with Milepost.
    pub fn built_in() -> Result<Self, Error> {
        Self::parse("prices.json", BUILT_IN)
    }

    /// Reads a table: `{"as_of": "2026-11-05", "models": {"NAME": {"input": 2, "output": 10}}}`, in dollars for a
    /// million tokens; `cache_read`, `cache_write` and `above` (`{"tokens": 272000, "input": …}`) may be added.
    pub fn parse(place: &str, json: &str) -> Result<Self, Error> {
        let table: Table =
            serde_json::from_str(json).map_err(|error| Error::config(place, error.to_string(), SHAPE))?;
        Self::take(place, table)
    }

    /// The same from a value, as settings hold it.
    pub fn from_value(place: &str, value: &Value) -> Result<Self, Error> {
        let table = Table::deserialize(value).map_err(|error| Error::config(place, error.to_string(), SHAPE))?;
        Self::take(place, table)
    }

    fn take(place: &str, table: Table) -> Result<Self, Error> {
        if table.models.len() > MAX_MODELS {
            let why = format!("it has {} models, the limit MAX_MODELS is {MAX_MODELS}", table.models.len());
            return Err(Error::config(place, why, "name fewer models"));
        }
        let as_of = table.as_of.unwrap_or_else(|| "settings".to_owned());
        let mut all = BTreeMap::new();
        for (name, entry) in table.models {
            if !entry.rates.is_sane() || entry.above.is_some_and(|above| !above.rates.is_sane()) {
                return Err(Error::config(place, format!("a price of {name:?} is out of range"), SHAPE));
            }
            all.insert(name, (entry, as_of.clone()));
        }
        Ok(Self(all))
    }

    /// These prices, and `own` where they say something of their own.
    #[must_use]
    pub fn overlay(mut self, own: Self) -> Self {
        self.0.extend(own.0);
        self
    }

    /// What a call cost; none when the model's price is not known.
    pub fn cost(&self, model: &str, usage: &Usage) -> Option<Cost> {
        let (entry, as_of) = self.find(model)?;
        let rates = entry.above.filter(|above| usage.sent() > above.tokens).map_or(entry.rates, |above| above.rates);
        Some(Cost { usd: rates.usd(usage), as_of: as_of.clone() })
    }

    fn find(&self, model: &str) -> Option<&(Entry, String)> {
        // A gateway's `provider/model` is the model.
        let name = model.rsplit('/').next().unwrap_or(model);
        let exact = self.0.get(model).or_else(|| self.0.get(name));
        exact.or_else(|| {
            let known = self.0.iter().filter(|(known, _)| is_version(name, known));
            known.max_by_key(|(known, _)| known.len()).map(|(_, found)| found)
        })
    }
}

const SHAPE: &str = "write {\"models\": {\"NAME\": {\"input\": 2, \"output\": 10}}}, in dollars for a million tokens";

/// Whether a name is a dated or named version of one that is known: `-20260630`, `-2026-06-30`, `-latest`, `@…`.
fn is_version(name: &str, known: &str) -> bool {
    let Some(rest) = name.strip_prefix(known) else { return false };
    let Some(version) = rest.strip_prefix(['-', '@', ':']) else { return false };
    let digits = version.chars().take_while(char::is_ascii_digit).count();
    version == "latest" || rest.starts_with(['@', ':']) || digits >= 4
}
