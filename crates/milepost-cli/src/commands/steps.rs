//! The ledger of a run: what each step is about, and every attempt.

use std::collections::BTreeMap;

use anyhow::Result;
use milepost::model::{Block, Body, Content, Message, Role, Seq};
use milepost::{Event, Milepost, SessionId, Timestamp};
use milepost_run::graph::Graph;
use milepost_run::run::{Entry, Ledger, Runner, Status};
use serde_json::{Value, json};

use super::run::{tell_damaged, told};
use super::tell::seconds;
use crate::app::App;
use crate::args::Steps;
use crate::errors::Failed;
use crate::out::{Table, plain, short};

/// The events of a session along its head, each with its time.
pub async fn events(engine: &Milepost, id: SessionId) -> Result<Vec<(Timestamp, Event)>> {
    Ok(told_by_log(engine, id).await?.0)
}

/// The events of a session along its head; and what was said in parts of steps, by their keys. What a part said stands right
/// before its outcome: both are stored together.
async fn told_by_log(engine: &Milepost, id: SessionId) -> Result<(Vec<(Timestamp, Event)>, BTreeMap<String, Value>)> {
    let all = match engine.store().entries(id, Seq(0), Seq(u64::MAX)).await {
        // What a damaged entry hides is left out; what happened is told all the same.
        Err(error) if error.is_damage() => {
            let events = Runner::new(engine).events(id).await.map_err(told)?;
            return Ok((events, BTreeMap::new()));
        }
        all => all.map_err(milepost::Error::from)?,
    };
    let (mut events, mut said, mut last) = (Vec::new(), BTreeMap::new(), None);
    for entry in all {
        match entry.body {
            Some(Body::Message(message)) => last = Some(message),
            Some(Body::Event(event)) => {
                let key = event.data.get("key").and_then(Value::as_str).filter(|_| event.kind == "step_outcome");
                if let Some((key, message)) = key.zip(last.take()) {
                    said.insert(key.to_owned(), in_short(&message));
                }
                events.push((entry.time, event));
            }
            _ => last = None,
        }
    }
    Ok((events, said))
}

/// What a turn of an agent, or a call of a tool, gave.
fn in_short(message: &Message) -> Value {
    let Content::Blocks(blocks) = &message.content else { return json!({ "text": message.text(), "calls": [] }) };
    if message.role == Role::Tool {
        let given = blocks.iter().find_map(|block| match block {
            // The model is given what an action gave as JSON.
            Block::ToolResult { content: Value::String(text), .. } => {
                Some(serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into()))
            }
            Block::ToolResult { content, .. } => Some(content.clone()),
            _ => None,
        });
        return given.unwrap_or_default();
    }
    let calls: Vec<Value> = blocks
        .iter()
        .filter_map(|block| match block {
            Block::ToolCall { name, input, .. } => Some(json!({ "name": name, "input": input })),
            _ => None,
        })
        .collect();
    json!({ "text": message.text(), "calls": calls })
}

/// What every step gave, as far as it is known.
struct Gave<'s> {
    ledger: &'s Ledger,
    graph: Option<&'s Graph>,
    parts: BTreeMap<String, &'s Value>,
    said: BTreeMap<String, Value>,
}

impl Gave<'_> {
    fn of(&self, node: &str, entry: &Entry) -> Option<&Value> {
        if node.contains('/') {
            return self.parts.get(node).copied().or_else(|| self.said.get(&entry.key));
        }
        let known = self.graph.and_then(|graph| Some(graph.nodes[graph.find(node)?].output.as_str()));
        self.ledger.outputs().get(known.unwrap_or(node))
    }
}

pub async fn run(app: &mut App, args: Steps) -> Result<()> {
    let id = app.session(&args.session).await?;
    let engine = app.engine().await?;
    let (state, damaged) = Runner::new(&engine).whole_state(id).await.map_err(told)?;
    tell_damaged(app, &damaged);
    if Ledger::graph_text(&state).is_none() {
        let short = short(id);
        let what =
            format!("session {short} has no run of a graph, and so no steps: name one that has, or look at this one");
        return Err(Failed::missing_with(what, vec![("show", format!("milepost sessions show {short}"))]).into());
    }
    let (events, said) = told_by_log(&engine, id).await?;
    if args.all {
        return attempts(app, id, &events);
    }
    let ledger = Ledger::read(&state).map_err(told)?;
    // A graph that this program cannot read any more does not hide what was done.
    let graph = Runner::new(&engine).recorded(id).await.ok();
    let rows = rows(&ledger, graph.as_ref());
    let gave = Gave { ledger: &ledger, graph: graph.as_ref(), parts: Ledger::part_outputs(&state), said };
    if app.out.json {
        let steps: Vec<Value> = rows.iter().map(|(node, entry)| step_json(node, entry, &gave, &events)).collect();
        return app.out.json(&json!({ "sessionId": id, "steps": steps }));
    }
    let head = &["STEP", "STATUS", "ROUND", "ATTEMPT", "BEGAN", "TOOK", "KEY", "OUTCOME"];
    let rows = rows
        .iter()
        .map(|(node, entry)| {
            let is_begun = entry.attempt > 0;
            let took = took(node, entry, &events);
            vec![
                plain(node),
                status(app, entry.status),
                if entry.iteration > 0 { (entry.iteration + 1).to_string() } else { String::new() },
                if is_begun { entry.attempt.to_string() } else { String::new() },
                if is_begun { app.out.time(entry.since) } else { String::new() },
                took.map(seconds).unwrap_or_default(),
                entry.key.get(..8).unwrap_or_default().to_owned(),
                outcome(entry, gave.of(node, entry), || waits_for(node, entry, &events)),
            ]
        })
        .collect();
    app.out.table(Table { head, rows, shrink: &[7, 0], drop: &[6, 4], last: &[3, 2, 5], ..Table::default() })
}

/// The lines of the ledger in the order of the file, those that are not begun too.
fn rows(ledger: &Ledger, graph: Option<&Graph>) -> Vec<(String, Entry)> {
    let Some(graph) = graph else {
        return ledger.nodes().map(|(node, entry)| (node.to_owned(), entry.clone())).collect();
    };
    let mut rows: Vec<(String, Entry)> = Vec::new();
    for node in &graph.nodes {
        rows.push((node.id.clone(), ledger.node(&node.id).cloned().unwrap_or_default()));
        // Its parts, by their whole names.
        rows.extend(all_of(ledger, |name| beginning(name) == Some(node.id.as_str())));
    }
    rows.extend(all_of(ledger, |name| graph.find(beginning(name).unwrap_or(name)).is_none()));
    rows
}

/// In the order in which they were begun.
fn all_of(ledger: &Ledger, which: impl Fn(&str) -> bool) -> Vec<(String, Entry)> {
    let found = ledger.nodes().filter(|(name, _)| which(name));
    let mut all: Vec<(String, Entry)> = found.map(|(name, entry)| (name.to_owned(), entry.clone())).collect();
    all.sort_by_key(|(_, entry)| entry.since);
    all
}

/// The node whose part goes by this name; none of a node itself.
fn beginning(name: &str) -> Option<&str> {
    let (first, _) = name.split_once('/')?;
    Some(first.split_once('#').map_or(first, |(node, _)| node))
}

fn status(app: &App, status: Status) -> String {
    let (word, styles) = (word(status), app.out.styles);
    match status {
        Status::Completed => styles.good(&word),
        Status::Failed => styles.bad(&word),
        Status::Uncertain | Status::Waiting | Status::Retrying => styles.warn(&word),
        Status::Running => styles.info(&word),
        Status::Pending | Status::Skipped => styles.dim(&word),
    }
}

fn word(status: Status) -> String {
    serde_json::to_value(status).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

fn is_of(event: &Event, node: &str, entry: &Entry) -> bool {
    event.data.get("node").and_then(Value::as_str) == Some(node)
        && event.data.get("iteration").and_then(Value::as_u64).unwrap_or(0) == u64::from(entry.iteration)
}

/// How long a step took that is over.
fn took(node: &str, entry: &Entry, events: &[(Timestamp, Event)]) -> Option<u64> {
    let ended = ended(node, entry, events)?;
    // Logs of older versions say it only of some.
    let since = || u64::try_from(ended.since_ms(entry.since)).unwrap_or(0);
    Some(entry.took_ms.unwrap_or_else(since)).filter(|_| entry.attempt > 0)
}

/// When a step ended.
fn ended(node: &str, entry: &Entry, events: &[(Timestamp, Event)]) -> Option<Timestamp> {
    let is_end = |event: &Event| event.kind == "step_outcome" && is_of(event, node, entry);
    let is_over = matches!(entry.status, Status::Completed | Status::Failed);
    events.iter().rev().find(|(_, event)| is_over && is_end(event)).map(|(time, _)| *time)
}

/// What a step waits for.
fn waits_for(node: &str, entry: &Entry, events: &[(Timestamp, Event)]) -> Option<String> {
    let is_it = |event: &Event| event.kind == "step_waits" && is_of(event, node, entry);
    let (_, event) = events.iter().rev().find(|(_, event)| is_it(event))?;
    Some(format!("waits for {}", event.data.get("what")?.as_str()?))
}

/// Where a step says in words what it gave.
const SAID: [&str; 5] = ["text", "answer", "stdout", "body", "until"];
/// The longest outcome that is shown in a line.
const SHOWN: usize = 120;

fn outcome(entry: &Entry, gave: Option<&Value>, waits_for: impl FnOnce() -> Option<String>) -> String {
    let text = match (entry.status, &entry.error, entry.until) {
        (Status::Waiting, _, Some(until)) => format!("until {until}"),
        (Status::Waiting, None, None) => waits_for().unwrap_or_default(),
        (_, Some(error), _) => error.clone(),
        (Status::Completed, ..) => gave.map(in_words).unwrap_or_default(),
        _ => String::new(),
    };
    plain(text.get(..text.floor_char_boundary(SHOWN)).unwrap_or_default())
}

/// What a step gave, in a line.
fn in_words(gave: &Value) -> String {
    let text = |name: &str| gave.get(name).and_then(Value::as_str);
    let calls = gave.get("calls").and_then(Value::as_array).filter(|calls| !calls.is_empty());
    match (gave, gave.get("passed").and_then(Value::as_bool)) {
        (Value::Null, _) => String::new(),
        (Value::String(text), _) => text.clone(),
        (_, Some(true)) => match gave.get("rounds") {
            Some(round) => format!("passed in round {round}"),
            None => "passed".to_owned(),
        },
        (_, Some(false)) => {
            let code = gave.get("code").filter(|code| !code.is_null()).map(|code| format!(" with {code}"));
            let said = text("said").and_then(|said| said.lines().last()).map(|said| format!(": {said}"));
            format!("failed{}{}", code.unwrap_or_default(), said.unwrap_or_default())
        }
        _ if gave.get("approved").and_then(Value::as_bool) == Some(true) => {
            text("by").map_or_else(|| "approved".to_owned(), |by| format!("approved by {by}"))
        }
        _ if calls.is_some() => {
            let names = calls.into_iter().flatten().filter_map(|call| call.get("name")?.as_str());
            format!("calls {}", names.collect::<Vec<_>>().join(", "))
        }
        _ => SAID.iter().find_map(|name| text(name)).map_or_else(|| gave.to_string(), |text| text.trim().to_owned()),
    }
}

fn step_json(node: &str, entry: &Entry, gave: &Gave<'_>, events: &[(Timestamp, Event)]) -> Value {
    let time = |time: Timestamp| time.to_string();
    json!({
        "node": node, "status": entry.status, "iteration": entry.iteration, "attempt": entry.attempt,
        "key": Some(&entry.key).filter(|key| !key.is_empty()),
        "startedAt": (entry.attempt > 0).then(|| time(entry.since)), "endedAt": ended(node, entry, events).map(time),
        "durationMs": took(node, entry, events), "until": entry.until.map(time), "error": entry.error,
        "waitsFor": Some(entry).filter(|entry| entry.status == Status::Waiting).and_then(|entry| waits_for(node, entry, events)),
        "output": gave.of(node, entry),
    })
}

/// Every attempt, as the log tells it.
fn attempts(app: &App, id: SessionId, events: &[(Timestamp, Event)]) -> Result<()> {
    let is_step =
        |event: &Event| event.kind.starts_with("step_") || event.kind == "loop_again" || event.kind == "resumed";
    let of_steps: Vec<&(Timestamp, Event)> = events.iter().filter(|(_, event)| is_step(event)).collect();
    if app.out.json {
        let list: Vec<Value> = of_steps
            .iter()
            .map(|(time, event)| {
                let mut value = json!({ "event": event.kind, "time": time.to_string() });
                if let Value::Object(map) = &mut value {
                    map.extend(event.data.clone());
                }
                value
            })
            .collect();
        return app.out.json(&json!({ "sessionId": id, "events": list }));
    }
    let text = |event: &Event, key: &str| event.data.get(key).and_then(Value::as_str).map(plain).unwrap_or_default();
    let number = |event: &Event, key: &str| event.data.get(key).and_then(Value::as_u64);
    let rows = of_steps
        .iter()
        .map(|(time, event)| {
            let what = match event.kind.as_str() {
                "step_intent" => "started".to_owned(),
                "step_outcome" if event.data.get("ok") == Some(&Value::Bool(true)) => "done".to_owned(),
                "step_outcome" => "failed".to_owned(),
                "loop_again" => "round".to_owned(),
                kind => kind.trim_start_matches("step_").to_owned(),
            };
            let more = [text(event, "error"), text(event, "what"), text(event, "why"), text(event, "edge")];
            vec![
                app.out.time(*time),
                text(event, "node"),
                what,
                number(event, "iteration")
                    .filter(|round| *round > 0)
                    .map(|round| (round + 1).to_string())
                    .unwrap_or_default(),
                number(event, "attempt").map(|attempt| attempt.to_string()).unwrap_or_default(),
                text(event, "key").get(..8).unwrap_or_default().to_owned(),
                more.into_iter().find(|text| !text.is_empty()).unwrap_or_default(),
            ]
        })
        .collect();
    let head = &["WHEN", "STEP", "WHAT", "ROUND", "ATTEMPT", "KEY", "WHY"];
    app.out.table(Table { head, rows, shrink: &[6, 1], drop: &[5], last: &[4, 3], ..Table::default() })
}
