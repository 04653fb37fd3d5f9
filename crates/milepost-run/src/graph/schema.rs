//! The JSON schema of a graph's file, for editors.

use serde_json::{Map, Value, json};

use super::actions::{ACTIONS, Action, PLAIN_TOOLS, Shape};
use super::limits::{MAX_ATTEMPTS, MAX_EXPRESSION_BYTES, MAX_LOOP_ROUNDS, MAX_NAME_BYTES, MAX_PARALLEL};
use super::read::{ON_ERROR, ON_LIMIT};

/// The JSON schema (2020-12) of a graph's or a plan's file.
pub fn schema() -> Value {
    let name = format!("^[A-Za-z_][A-Za-z0-9_]{{0,{}}}$", MAX_NAME_BYTES - 1);
    let expression =
        json!({"type": "string", "minLength": 1, "maxLength": MAX_EXPRESSION_BYTES, "description": "a CEL expression"});
    let texts = json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]});
    let expressions = json!({"type": "object", "propertyNames": {"pattern": name}, "additionalProperties": {"$ref": "#/$defs/expression"}});
    let actions: Vec<Value> = ACTIONS.iter().map(action).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Milepost graph",
        "description": "A graph of nodes, or a plan of steps, that Milepost runs step by durable step.",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "name": {"type": "string", "description": "what the graph is called; the file's name by default"},
            "description": {"type": "string", "description": "what it is for"},
            "query": {"type": "string", "description": "the task, as a plan names it"},
            "parallel": {"type": "integer", "minimum": 1, "maximum": MAX_PARALLEL, "default": 4, "description": "how many nodes run at the same time"},
            "budget": {"type": "object", "additionalProperties": false, "properties": {
                "tokens": {"type": "integer", "minimum": 1, "description": "tokens, sent and received"},
                "cost_usd": {"type": "number", "exclusiveMinimum": 0, "description": "dollars"}
            }, "description": "what the session may cost; it pauses when that is reached"},
            "memory": {"type": "object", "propertyNames": {"pattern": name}, "description": "the shared memory when the run begins"},
            "start": {"$ref": "#/$defs/texts", "description": "the nodes with which the run begins; those that no edge leads to by default"},
            "nodes": {"type": "object", "minProperties": 1, "propertyNames": {"pattern": name}, "additionalProperties": {"$ref": "#/$defs/node"}, "description": "the nodes of a graph, by name"},
            "steps": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/node"}, "description": "the steps of a plan"},
            "plan": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/node"}, "description": "another name of steps"},
            "edges": {"type": "array", "items": {"$ref": "#/$defs/edge"}, "description": "the edges of a graph"},
            "outputs": {"$ref": "#/$defs/expressions", "description": "what the run gives at its end"}
        },
        "oneOf": [{"required": ["nodes"]}, {"required": ["steps"]}, {"required": ["plan"]}],
        "$defs": {
            "expression": expression,
            "expressions": expressions,
            "texts": texts,
            "duration": {"type": "string", "pattern": "^([0-9.]+(ms|s|m|h|d) *)+$", "description": "a length of time, such as 500ms, 20s or 1h30m"},
            "retry": {"anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MAX_ATTEMPTS},
                {"type": "object", "additionalProperties": false, "properties": {
                    "attempts": {"type": "integer", "minimum": 1, "maximum": MAX_ATTEMPTS, "default": 3, "description": "all attempts, the first included"},
                    "backoff": {"$ref": "#/$defs/duration", "description": "the wait after the first attempt; it doubles; 1s by default"},
                    "max_backoff": {"$ref": "#/$defs/duration", "description": "the longest wait; 1m by default"}
                }}
            ]},
            "tool": {
                "type": "object", "additionalProperties": false,
                "properties": {
                    "name": {"type": "string", "pattern": name, "description": "what the model calls it"},
                    "description": {"type": "string", "description": "what it does, for the model"},
                    "action": {"type": "string", "description": "the action that it is"},
                    "with": {"type": "object", "description": "the action's parameters; {{ input.NAME }} is what the model gave"},
                    "input": {"type": "object", "description": "what the model has to give: names and what they are for, or a JSON schema"},
                    "idempotent": {"type": "boolean", "description": "whether it may run again when nobody knows whether it ran"},
                    "timeout": {"$ref": "#/$defs/duration", "description": "how long a call may take; 10 minutes by default"},
                    "mcp": {"type": "object", "description": "an MCP server, as the action mcp names it: all its tools"},
                    "only": {"$ref": "#/$defs/texts", "description": "of an MCP server, only these tools"},
                    "prefix": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,31}$", "description": "of an MCP server, what the names of its tools begin with, to tell them from others"}
                }
            },
            "edge": {
                "type": "object", "required": ["from", "to"], "additionalProperties": false,
                "properties": {
                    "from": {"type": "string"},
                    "to": {"type": "string"},
                    "when": {"$ref": "#/$defs/expression", "description": "when it is taken; always by default"},
                    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LOOP_ROUNDS, "description": "how often it may be taken: for an edge that leads back"},
                    "on_limit": {"enum": ON_LIMIT, "default": "pause", "description": "what happens when it still would be taken then"}
                }
            },
            "node": {
                "type": "object",
                "required": ["action"],
                "additionalProperties": false,
                "properties": {
                    "id": {"type": "string", "pattern": name, "description": "a step's name"},
                    "description": {"type": "string", "description": "what it is for"},
                    "action": {"anyOf": [{"enum": ACTIONS.iter().map(|action| action.name).collect::<Vec<_>>()}, {"type": "string"}], "description": "what it does"},
                    "parameters": {"type": ["object", "null"], "description": "the action's parameters"},
                    "with": {"type": ["object", "null"], "description": "another name of parameters"},
                    "dependencies": {"$ref": "#/$defs/texts", "description": "the nodes that have to be done before"},
                    "needs": {"$ref": "#/$defs/texts", "description": "another name of dependencies"},
                    "output": {"type": "string", "pattern": name, "description": "the name under which others find what it gives; its own by default"},
                    "remember": {"$ref": "#/$defs/expressions", "description": "what it puts into the shared memory when it is done"},
                    "retry": {"$ref": "#/$defs/retry", "description": "how often it is tried"},
                    "timeout": {"$ref": "#/$defs/duration", "description": "how long an attempt may take"},
                    "no_progress": {"$ref": "#/$defs/duration", "description": "how long an attempt may go on without a sign of life"},
                    "idempotent": {"type": "boolean", "description": "whether it may run again when nobody knows whether it ran"},
                    "on_error": {"enum": ON_ERROR, "default": "pause", "description": "what becomes of the run when it fails for good"},
                    "safe_point": {"type": "boolean", "description": "whether a checkpoint that is safe to go back to follows it"},
                    "status": {"type": "string", "description": "a plan's note; it has no meaning here"}
                },
                "allOf": actions
            }
        }
    })
}

/// What holds for the nodes of an action.
fn action(action: &Action) -> Value {
    let mut then = match action.parameters {
        None => json!({"description": action.about}),
        Some(parameters) => {
            let properties: Map<String, Value> =
                parameters.iter().map(|one| (one.name.to_owned(), shape(one.shape, one.about))).collect();
            let required: Vec<&str> = parameters.iter().filter(|one| one.required).map(|one| one.name).collect();
            let mut section = json!({
                "description": action.about, "additionalProperties": false, "properties": properties, "required": required,
            });
            if !action.one_of.is_empty() {
                section["oneOf"] = action.one_of.iter().map(|name| json!({"required": [name]})).collect();
            }
            json!({"properties": {"parameters": section, "with": section}})
        }
    };
    let needs = action.parameters.is_none_or(|parameters| parameters.iter().any(|one| one.required));
    if needs || !action.one_of.is_empty() {
        then["anyOf"] = json!([{"required": ["parameters"]}, {"required": ["with"]}]);
    }
    json!({"if": {"required": ["action"], "properties": {"action": {"const": action.name}}}, "then": then})
}

fn shape(shape: Shape, about: &str) -> Value {
    let mut out = match shape {
        Shape::Template | Shape::Command | Shape::Text => json!({"type": ["string", "number", "boolean"]}),
        Shape::Templates | Shape::Texts => json!({"$ref": "#/$defs/texts"}),
        Shape::TemplateMap => {
            json!({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}})
        }
        Shape::Any => json!({}),
        Shape::AnyMap => json!({"type": "object"}),
        Shape::Duration => json!({"$ref": "#/$defs/duration"}),
        Shape::Number { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
        Shape::Numbers { min, max } => {
            let one = json!({"type": "integer", "minimum": min, "maximum": max});
            json!({"anyOf": [one, {"type": "array", "items": one}]})
        }
        Shape::Flag => json!({"type": "boolean"}),
        Shape::Choice(words) => json!({"enum": words}),
        Shape::Graph => json!({"$ref": "#"}),
        Shape::Tools => json!({"type": "array", "items": {"anyOf": [{"enum": PLAIN_TOOLS}, {"$ref": "#/$defs/tool"}]}}),
        Shape::Commands => {
            json!({"type": "object", "minProperties": 1, "additionalProperties": {"type": ["string", "object"]}})
        }
    };
    out["description"] = about.into();
    out
}
