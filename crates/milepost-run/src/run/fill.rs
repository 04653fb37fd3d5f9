//! Filling a node's parameters in: templates become texts, `{cel: …}` becomes what the expression gives.

use milepost_document::{Node as Tree, Origin};
use serde_json::{Map, Value};

use crate::graph::actions::{self, Shape};
use crate::graph::{Expression, Node, Quote, is_template, render};

/// The parameters of a node, filled in with what the run knows.
pub(super) fn fill(node: &Node, names: &Map<String, Value>) -> Result<Value, String> {
    fill_action(&node.action, &node.parameters, names)
}

/// The parameters of an action, filled in.
pub(super) fn fill_action(action: &str, parameters: &Value, names: &Map<String, Value>) -> Result<Value, String> {
    let known = actions::find(action).and_then(|action| action.parameters);
    let Value::Object(parameters) = parameters else { return Ok(parameters.clone()) };
    let mut out = Map::new();
    for (key, value) in parameters {
        let shape = known.and_then(|all| all.iter().find(|one| one.name == key)).map(|one| one.shape);
        let is_command = matches!(shape, Some(Shape::Command));
        let filled = match shape {
            // Plain texts are not templates.
            Some(Shape::Text | Shape::Texts | Shape::Choice(_) | Shape::Duration) => Ok(value.clone()),
            // These are filled in when they are run.
            Some(Shape::Graph | Shape::Tools | Shape::Commands) => Ok(value.clone()),
            _ => walk(value, names, if is_command { Quote::Shell } else { Quote::Plain }),
        };
        out.insert(key.clone(), filled.map_err(|why| format!("{key} cannot be filled in: {why}"))?);
    }
    Ok(Value::Object(out))
}

/// Whether there is nothing to fill in: then nobody needs to gather what templates see.
pub(super) fn is_plain(value: &Value) -> bool {
    match value {
        Value::String(text) => !is_template(text),
        Value::Array(items) => items.iter().all(is_plain),
        Value::Object(map) => !(map.len() == 1 && map.contains_key("cel")) && map.values().all(is_plain),
        _ => true,
    }
}

fn walk(value: &Value, names: &Map<String, Value>, quote: Quote) -> Result<Value, String> {
    Ok(match value {
        Value::String(text) => Value::String(render(text, names, quote)?),
        Value::Array(items) => {
            Value::Array(items.iter().map(|item| walk(item, names, quote)).collect::<Result<_, _>>()?)
        }
        Value::Object(map) => match (map.len(), map.get("cel")) {
            (1, Some(Value::String(text))) => {
                let written = Tree::plain(text, Origin::Default);
                Expression::compile(&written).map_err(|mistake| mistake.why)?.evaluate(names)?
            }
            _ => {
                let mut out = Map::new();
                for (key, item) in map {
                    out.insert(key.clone(), walk(item, names, quote)?);
                }
                Value::Object(out)
            }
        },
        other => other.clone(),
    })
}
