//! A run of ours as C's `AgentState`: its steps, what came of them, and where it is. All of it follows from the run's own section
//! of the state, which has the text of its graph.

use std::path::Path;

use milepost_document::{Data, Format, Limit, Limits, Node};
use milepost_model::Timestamp;
use serde_json::{Map, Value, json};

/// The text was read when the run began, by narrower limits than these.
const LIMITS: Limits = Limits {
    bytes: Limit { name: "MAX_GRAPH_BYTES", at: 16 << 20 },
    depth: Limit { name: "MAX_GRAPH_DEPTH", at: 128 },
    values: Limit { name: "MAX_GRAPH_VALUES", at: 1 << 20 },
};

/// A run's steps, in the order of its file.
pub(super) struct AgentState {
    plan: Vec<Value>,
    /// The name under which each step's output is found.
    outputs: Vec<String>,
    execution: Value,
}

impl AgentState {
    /// None when the section is not of a run of ours.
    pub fn of_run(execution: &Value) -> Option<Self> {
        let graph = execution.get("graph")?;
        let path = Path::new(graph.get("path").and_then(Value::as_str).unwrap_or_default());
        let text = graph.get("text")?.as_str()?;
        let tree = milepost_document::read(path, text, Format::of(path), &LIMITS, &mut Vec::new())?;
        let listed = ["steps", "plan", "nodes"].iter().find_map(|key| tree.get(key))?;
        let steps: Vec<(String, &Node)> = match &listed.data {
            Data::Map(items) => items.iter().map(|(id, _, step)| (id.clone(), step)).collect(),
            Data::List(items) => {
                let id = |(number, step): (usize, &Node)| match step.get("id").and_then(Node::text) {
                    Some(id) => id.to_owned(),
                    None => format!("step_{}", number + 1),
                };
                items.iter().enumerate().map(|(number, step)| (id((number, step)), step)).collect()
            }
            Data::Nothing | Data::Text { .. } => return None,
        };
        let edges = match tree.get("edges").map(|edges| &edges.data) {
            Some(Data::List(edges)) => edges.as_slice(),
            _ => &[],
        };
        let plan = steps.iter().map(|(id, step)| planned(id, step, edges, execution)).collect();
        let output = |(id, step): &(String, &Node)| {
            step.get("output").and_then(Node::text).map_or_else(|| id.clone(), str::to_owned)
        };
        Some(Self { plan, outputs: steps.iter().map(output).collect(), execution: execution.clone() })
    }

    /// The first step that is not over; the number of all steps when none is left.
    pub fn current_step(&self) -> usize {
        let is_over = |step: &Value| matches!(step["status"].as_str(), Some("completed" | "skipped"));
        self.plan.iter().position(|step| !is_over(step)).unwrap_or(self.plan.len())
    }

    /// How long the step took that was done last, in milliseconds, and what it used.
    pub fn last_result(&self) -> Option<Value> {
        self.results().pop()
    }

    fn results(&self) -> Vec<Value> {
        let path = self.execution.get("path").and_then(Value::as_array);
        let mut ids: Vec<&str> = Vec::new();
        for id in path.into_iter().flatten().filter_map(Value::as_str) {
            // A step of a loop is done more than once: the last time counts.
            ids.retain(|known| *known != id);
            ids.push(id);
        }
        ids.into_iter().filter_map(|id| self.result(id)).collect()
    }

    fn result(&self, id: &str) -> Option<Value> {
        let number = self.number(id)?;
        let line = &self.execution["nodes"][id];
        let took = line.get("took_ms").and_then(Value::as_i64);
        let since = line.get("since").and_then(Value::as_i64);
        Some(json!({
            "stepId": id,
            "output": self.execution["outputs"].get(&self.outputs[number]),
            "completedAt": since.map(|since| time(since + took.unwrap_or(0))),
            "durationMs": took,
            "tokenUsage": self.execution["usage"].get(id),
        }))
    }

    fn number(&self, id: &str) -> Option<usize> {
        self.plan.iter().position(|step| step["id"] == id)
    }

    /// The section with C's fields in it.
    pub fn into_section(self, memory: Value) -> Value {
        let last_error = self.execution.get("last_error").filter(|error| error.is_object()).map(|error| {
            let node = error.get("node").and_then(Value::as_str).unwrap_or_default();
            json!({
                "stepIndex": self.number(node),
                "message": error.get("message"),
                "timestamp": error.get("timestamp").and_then(Value::as_i64).map(time),
            })
        });
        let fields = [
            ("query", self.execution.get("query").cloned().unwrap_or_default()),
            ("currentStepIndex", self.current_step().into()),
            ("results", self.results().into()),
            ("context", if memory.is_object() { memory } else { json!({}) }),
            ("lastError", last_error.unwrap_or_default()),
            ("plan", self.plan.into()),
        ];
        let mut section = match self.execution {
            Value::Object(section) => section,
            _ => Map::new(),
        };
        section.extend(fields.into_iter().map(|(name, value)| (name.to_owned(), value)));
        Value::Object(section)
    }
}

fn time(ms: i64) -> Value {
    super::shapes::text(Timestamp(ms))
}

/// A step as C has it.
fn planned(id: &str, step: &Node, edges: &[Node], execution: &Value) -> Value {
    let named = |key: &str| step.get(key).map(Node::to_json);
    let status = match execution["nodes"][id]["status"].as_str() {
        None => "pending",
        Some(status @ ("pending" | "completed" | "failed" | "skipped")) => status,
        // It waits, is tried again, or nobody knows: it has begun.
        Some(_) => "running",
    };
    let mut needs = match named("dependencies").or_else(|| named("needs")) {
        Some(Value::Array(needs)) => needs,
        Some(Value::Null) | None => Vec::new(),
        Some(one) => vec![one],
    };
    for edge in edges.iter().filter(|edge| edge.get("limit").is_none()) {
        if edge.get("to").and_then(Node::text) == Some(id) {
            needs.extend(edge.get("from").map(Node::to_json));
        }
    }
    json!({
        "id": id,
        "description": named("description").unwrap_or_else(|| "".into()),
        "action": named("action"),
        "parameters": named("parameters").or_else(|| named("with")).unwrap_or_else(|| json!({})),
        "status": status,
        "dependencies": needs,
    })
}
