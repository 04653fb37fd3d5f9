//! Checks, and an agent that mends what fails, until all pass. Every check and every mending is a step of its own.

use std::sync::Arc;

use async_trait::async_trait;
use milepost_document::{Data, parse_duration_ms};
use serde_json::{Map, Value, json};

use super::agent::Agent;
use super::model::usage;
use super::shell::Shell;
use super::text;
use crate::graph::actions::Repeat;
use crate::run::Spent;
use crate::run::action::{Action, Failed, Step};
use crate::run::fill::fill_action;
use crate::run::parts::{Begun, Ended, Open};
use crate::run::secrets;
use crate::run::turn::attempt;

/// How often checks run unless the node says otherwise.
const ROUNDS: u64 = 5;
/// How long a check may take unless the node says otherwise (10 minutes).
const TIMEOUT_MS: u64 = 600_000;
/// How much of the end of what a check said is kept (8 KiB).
const MAX_SAID_BYTES: usize = 8 << 10;

pub(super) struct Checks {
    pub agent: Agent,
}

/// The checks of a node: names, and parameters of `shell`.
fn commands(step: &Step) -> Result<Vec<(String, Value)>, Failed> {
    let mut all = Vec::new();
    for (name, check) in step.parameters.get("checks").and_then(Value::as_object).into_iter().flatten() {
        let written = match check {
            Value::Object(_) => check.clone(),
            Value::String(line) => json!({"command": line}),
            other => json!({"command": other.to_string()}),
        };
        let filled = fill_action("shell", &written, &step.names);
        let mut parameters = filled.map_err(|why| Failed::Fatal(format!("the check {name}: {why}")))?;
        if let Some((place, token)) = secrets::lost(&parameters) {
            let why = secrets::told(&format!("checks.{name}.{place}"), token);
            return Err(Failed::Pause(
                why + "; resume with --graph and its file, or with --set for what its templates use",
            ));
        }
        let wanted = parameters.get("ok").cloned();
        if let Value::Object(map) = &mut parameters {
            // Every end is a result; which are a success is looked at afterwards.
            map.insert("ok".to_owned(), (0..=255).collect::<Vec<u64>>().into());
            map.insert("passes".to_owned(), wanted.unwrap_or_else(|| json!([0])));
        }
        all.push((name.clone(), parameters));
    }
    // Whoever writes the quick ones first wants them first.
    let written = step.written.as_ref().and_then(|written| written.get("checks"));
    if let Some(Data::Map(order)) = written.map(|checks| &checks.data) {
        all.sort_by_key(|(name, _)| order.iter().position(|(known, ..)| known == name).unwrap_or(usize::MAX));
    }
    Ok(all)
}

/// The end of a text.
fn last(text: &str) -> &str {
    let mut start = text.len().saturating_sub(MAX_SAID_BYTES);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

fn is_passed(result: &Value) -> bool {
    result.get("passed") == Some(&Value::Bool(true))
}

/// What failed, without what differs from run to run whatever is done: lengths of time, moments, addresses, long numbers. Other
/// numbers count: when they move, something was mended.
fn signature(results: &[Value]) -> Vec<(String, String)> {
    let failed = results.iter().filter(|result| !is_passed(result));
    let plain = |result: &Value| {
        let said = text(result, "said").unwrap_or_default();
        let mut out = String::new();
        let mut rest = said;
        while let Some(first) = rest.chars().next() {
            let is_part = |c: char| c.is_alphanumeric() || matches!(c, '.' | ':' | '-' | '+' | '_');
            let end = rest.find(|c| is_part(c) != is_part(first)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            out.push_str(if is_fleeting(word, after) { "#" } else { word });
            rest = after;
        }
        (text(result, "name").unwrap_or_default().to_owned(), out)
    };
    failed.map(plain).collect()
}

/// A number of so many digits is an address, a moment or an id (6).
const LONG_DIGITS: usize = 6;
/// Units of time.
const UNITS: [&str; 14] =
    ["ns", "us", "µs", "ms", "s", "m", "h", "sec", "secs", "second", "seconds", "min", "minutes", "milliseconds"];

/// Whether a word is a length of time, a moment or an address. `after` is what comes after it.
fn is_fleeting(word: &str, after: &str) -> bool {
    let number = word.trim_end_matches(['.', ':', '-']);
    if !number.starts_with(|c: char| c.is_ascii_digit()) {
        return false;
    }
    let is_hex = number.strip_prefix("0x").is_some_and(|hex| hex.chars().all(|c| c.is_ascii_hexdigit()));
    let digits = number.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let next: String = after.trim_start().chars().take_while(|c| c.is_alphabetic()).collect();
    let has_unit = UNITS.contains(&digits) || digits.is_empty() && UNITS[3..].contains(&next.as_str());
    let is_time = |part: &str| {
        part.len() <= 9 && part.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 'Z' | 'T' | '-' | '+'))
    };
    let is_moment = number.contains(':') && number.split(':').count() > 2 && number.split(':').skip(1).all(is_time);
    let is_long = number.chars().filter(char::is_ascii_digit).count() >= LONG_DIGITS
        && number.chars().all(|c| c.is_ascii_hexdigit() || matches!(c, '.' | '-' | ':' | 'T' | 'Z' | '+'));
    is_hex || has_unit || is_moment || is_long
}

fn names(results: &[Value], passed: bool) -> Vec<&str> {
    let all = results.iter().filter(|result| is_passed(result) == passed);
    all.filter_map(|result| text(result, "name")).collect()
}

/// What the agent is told.
fn prompt(step: &Step, results: &[Value]) -> String {
    let mut told = text(&step.parameters, "prompt").unwrap_or_default().to_owned();
    for result in results.iter().filter(|result| !is_passed(result)) {
        let name = text(result, "name").unwrap_or_default();
        let said = text(result, "said").unwrap_or_default();
        told.push_str(&format!("\n\nThe check {name} failed:\n{said}"));
    }
    told
}

impl Checks {
    async fn check(&self, step: &Step, open: &mut Open, part: &str, name: &str, with: &Value) -> Result<Value, Failed> {
        if let Some(result) = open.output(part).filter(|_| open.is_over(part)) {
            return Ok(result.clone());
        }
        let patience = text(&step.parameters, "timeout").and_then(parse_duration_ms).unwrap_or(TIMEOUT_MS);
        // A check that was cut off is run again: it looks, and changes nothing that matters.
        let begun = open.begin(step, part, "shell", Repeat::Idempotent, with.clone()).await?;
        let result = match begun {
            Begun::Happened(result) => result,
            Begun::Run(inner) => {
                let cancel = inner.cancel.clone();
                let work = attempt(Arc::new(Shell), *inner, Some(patience), None, step.parts.grace_ms);
                tokio::pin!(work);
                let ended = tokio::select! {
                    ended = &mut work => ended,
                    () = step.cancel.cancelled() => {
                        cancel.cancel();
                        drop(work.await);
                        return Err(Failed::Transient("it was told to end".to_owned()));
                    }
                };
                let (code, said) = match ended {
                    Ok(given) => {
                        let part = |key: &str| text(&given, key).unwrap_or_default().to_owned();
                        let said = format!("{}{}", part("stdout"), part("stderr"));
                        (given.get("code").cloned().unwrap_or_default(), said)
                    }
                    Err(Failed::Transient(why) | Failed::Fatal(why) | Failed::Uncertain(why)) => (Value::Null, why),
                    Err(Failed::Said { why, .. }) => (Value::Null, why),
                    Err(Failed::AfterEffect(after)) => (Value::Null, after.why),
                    Err(other) => return Err(other),
                };
                let passes = super::numbers(with, "passes").unwrap_or_else(|| vec![0]);
                let passed = code.as_u64().is_some_and(|code| passes.contains(&code));
                json!({"name": name, "passed": passed, "code": code, "said": last(said.trim_end())})
            }
        };
        open.end(part, Ended::completed(Some(result.clone()), Vec::new())).await?;
        step.progress();
        Ok(result)
    }

    /// Lets the agent mend what failed.
    async fn mend(&self, step: &Step, open: &mut Open, part: &str, results: &[Value]) -> Result<(), Failed> {
        if open.is_over(part) {
            return Ok(());
        }
        let mut with: Map<String, Value> = Map::new();
        for key in ["model", "system", "max_tokens", "tools", "max_turns", "max_result_bytes"] {
            if let Some(value) = step.parameters.get(key) {
                with.insert(key.to_owned(), value.clone());
            }
        }
        with.insert("prompt".to_owned(), prompt(step, results).into());
        let begun = open.begin(step, part, "agent", Repeat::Idempotent, Value::Object(with)).await?;
        if let Begun::Run(mut inner) = begun {
            inner.cancel = step.cancel.clone();
            if let Err(failed) = self.agent.run(*inner).await {
                return Err(open.rest(part, failed).await);
            }
        }
        open.end(part, Ended::completed(None, Vec::new())).await
    }

    /// Stops here; a resume begins with a round of its own.
    async fn give_up(&self, open: &mut Open, round: u64, why: String) -> Failed {
        open.ledger.set_data("first_round", (round + 1).into());
        match open.store(Vec::new(), Vec::new(), None).await {
            Ok(()) => Failed::Fatal(why),
            Err(failed) => failed,
        }
    }
}

#[async_trait]
impl Action for Checks {
    /// Its parts say for themselves what a second time means.
    fn repeat(&self, _: &Value) -> Repeat {
        Repeat::Idempotent
    }

    /// Its key goes to nobody.
    fn is_keyed(&self) -> bool {
        false
    }

    async fn run(&self, step: Step) -> Result<Value, Failed> {
        let commands = commands(&step)?;
        let most = step.parameters.get("rounds").and_then(Value::as_u64).unwrap_or(ROUNDS);
        let mut open = step.parts.open().await?;
        let first = open.ledger.data("first_round").and_then(Value::as_u64).unwrap_or(1);
        let mut before: Option<Vec<(String, String)>> = None;
        let mut round = first;
        loop {
            let mut results = Vec::new();
            for (name, with) in &commands {
                let part = format!("round_{round}.{name}");
                results.push(self.check(&step, &mut open, &part, name, with).await?);
            }
            let (passed, failed) = (names(&results, true), names(&results, false));
            let last_error = results.iter().find(|result| !is_passed(result)).and_then(|result| text(result, "said"));
            let last_error = last_error.map(|said| last(said).lines().last().unwrap_or_default().to_owned());
            open.ledger.set_of_run(
                &["checks"],
                json!({"node": step.node, "iteration": round, "passed": passed, "failed": failed, "last_error": last_error}),
            );
            if failed.is_empty() {
                open.store(Vec::new(), Vec::new(), None).await?;
                let state = step.parts.engine.store().state(step.session).await;
                let spent = state.ok().and_then(|state| crate::run::budget::recorded(&state, Some(&step.parts.node)));
                let usage = usage(&spent.unwrap_or_else(Spent::default));
                return Ok(json!({"passed": true, "rounds": round, "checks": results, "usage": usage}));
            }
            let now = signature(&results);
            if before.as_ref() == Some(&now) {
                let why = format!(
                    "no progress: {} failed in the same way in rounds {} and {round}: {}",
                    failed.join(", "),
                    round - 1,
                    last_error.unwrap_or_default()
                );
                return Err(self.give_up(&mut open, round, why).await);
            }
            if round + 1 - first >= most {
                let why = format!("{} still failed after {most} rounds, the limit rounds", failed.join(", "));
                return Err(self.give_up(&mut open, round, why).await);
            }
            before = Some(now);
            self.mend(&step, &mut open, &format!("round_{round}.mend"), &results).await?;
            round += 1;
        }
    }
}
