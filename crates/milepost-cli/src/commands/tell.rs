//! What is told of a run while it goes on: a line for each thing that happens to a step.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use milepost::{Event, SessionId, Timestamp};
use milepost_run::graph::Graph;
use milepost_run::run::Watch;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::out::{Styles, count, escaped, plain, short};

/// How what happens is told.
pub struct Teller {
    json: bool,
    quiet: bool,
    styles: Styles,
    name: String,
    /// The attempts that each node has.
    attempts: BTreeMap<String, u32>,
    width: usize,
    is_begun: AtomicBool,
    /// Where several runs are told of, each line says whose it is.
    is_one_of_many: bool,
}

impl Teller {
    pub fn new(app: &App, graph: &Graph, is_one_of_many: bool) -> Self {
        Self {
            json: app.out.json,
            quiet: app.is_quiet(),
            styles: app.styles(),
            name: graph.name.clone(),
            attempts: graph.nodes.iter().map(|node| (node.id.clone(), node.retry.attempts)).collect(),
            width: graph.nodes.iter().map(|node| node.id.len()).max().unwrap_or(0).min(24),
            is_begun: AtomicBool::new(false),
            is_one_of_many,
        }
    }

    /// The hook for a runner.
    pub fn watch(self) -> Watch {
        std::sync::Arc::new(move |id, event| self.tell(id, event))
    }

    fn tell(&self, id: SessionId, event: &Event) {
        let is_first = !self.is_begun.swap(true, Ordering::Relaxed);
        if self.json {
            if is_first {
                line(&json!({ "event": "run", "sessionId": id, "graph": self.name, "nodes": self.attempts.len() }));
            }
            let mut value = Map::from_iter([
                ("event".to_owned(), Value::from(event.kind.as_str())),
                ("sessionId".to_owned(), id.to_string().into()),
            ]);
            value.extend(event.data.clone());
            return line(&Value::Object(value));
        }
        if self.quiet {
            return;
        }
        if is_first && !self.is_one_of_many {
            let nodes = count(self.attempts.len(), "node");
            note(&format!("{} {} {nodes}", self.styles.bold(&id.to_string()), plain(&self.name)));
        }
        if let Some(said) = self.say(event) {
            let whose = if self.is_one_of_many { format!("{}  ", short(id)) } else { "  ".to_owned() };
            note(&format!("{whose}{said}"));
        }
    }

    fn say(&self, event: &Event) -> Option<String> {
        let text = |key: &str| event.data.get(key).and_then(Value::as_str).unwrap_or_default();
        let number = |key: &str| event.data.get(key).and_then(Value::as_u64).unwrap_or(0);
        let flag = |key: &str| event.data.get(key).and_then(Value::as_bool).unwrap_or(false);
        let node = text("node");
        // Parts of steps are not among the nodes.
        let of = u64::from(self.attempts.get(node).copied().unwrap_or(1)).max(number("attempt"));
        let styles = self.styles;
        let again = match (number("iteration"), number("attempt")) {
            (0, 0 | 1) => String::new(),
            (0, attempt) => format!(", attempt {attempt} of {of}"),
            (round, 0 | 1) => format!(", round {}", round + 1),
            (round, attempt) => format!(", round {}, attempt {attempt} of {of}", round + 1),
        };
        let said = match event.kind.as_str() {
            "step_intent" => format!("{} {}{again}", styles.info("started"), styles.dim(text("action"))),
            "step_outcome" if flag("ok") => format!("{} in {}", styles.good("done"), seconds(number("ms"))),
            // Parts of steps are not tried again by themselves.
            "step_outcome" if flag("final") || !event.data.contains_key("retry_in_ms") => {
                format!("{} {}", styles.bad("failed:"), plain(text("error")))
            }
            "step_outcome" => format!(
                "{} {}; attempt {} of {of} in {}",
                styles.warn("failed:"),
                plain(text("error")),
                number("attempt") + 1,
                seconds(number("retry_in_ms"))
            ),
            "step_waits" => format!("{} {}", styles.warn("waits for"), plain(text("what"))),
            "step_limited" => {
                let until = event.data.get("until").cloned().and_then(|until| serde_json::from_value(until).ok());
                let until = until.map(|until: Timestamp| format!(" until {until}")).unwrap_or_default();
                format!("{}{until}: {}", styles.warn("limited"), plain(text("why")))
            }
            "step_skipped" => styles.dim("skipped"),
            "step_uncertain" if flag("runs_again") => {
                format!("{} it may have run; it runs again under its key", styles.warn("uncertain:"))
            }
            "step_uncertain" if flag("happened") => {
                let why = plain(text("why"));
                format!("{} it has had its effect, or may have, and failed after it: {why}", styles.warn("uncertain:"))
            }
            "step_uncertain" => {
                let why = text("why");
                let why = if why.is_empty() { String::new() } else { format!(" ({})", plain(why)) };
                format!("{} nobody knows whether it had its effect{why}", styles.warn("uncertain:"))
            }
            "step_settled" if flag("happened") => "settled: it happened".to_owned(),
            "step_settled" => "settled: it runs again".to_owned(),
            "loop_again" => {
                return Some(styles.dim(&format!("{} round {}", plain(text("edge")), number("round") + 1)));
            }
            _ => return None,
        };
        Some(format!("{:width$}  {said}", plain(node), width = self.width))
    }
}

/// A length of time as a person reads it.
pub fn seconds(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{:.1} s", ms as f64 / 1000.0),
        _ => format!("{} min {} s", ms / 60_000, ms / 1000 % 60),
    }
}

/// A line of the error output. When it is gone there is nobody to tell, and the run goes on.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// A line of JSON. A reader that went away does not stop a run.
pub fn line(value: &Value) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", escaped(&value.to_string())).and_then(|()| out.flush());
}
