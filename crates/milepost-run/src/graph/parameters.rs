//! The parameters of actions, against the table of actions.

use milepost_document::{Data, Node as Tree, Origin, Reader};

use super::actions::{Action, Shape};
use super::limits::MAX_DURATION_MS;
use super::read::{is_misspelt, name};
use super::tools;

pub(super) fn check_parameters(
    action: &Action,
    tree: Option<&Tree>,
    at: &Origin,
    id: &str,
    own: &[&str],
    reader: &mut Reader,
) {
    let Some(parameters) = action.parameters else {
        match tree.and_then(|tree| reader.entries(tree, id)) {
            Some(items) => items.iter().for_each(|(key, origin, _)| {
                name(key, origin, id, reader);
            }),
            None if tree.is_none() => {
                let instead = "write parameters: and keys below it";
                reader.wrong(at, id, format!("{} has nothing to put anywhere", action.name), instead);
            }
            None => {}
        }
        return;
    };
    let names: Vec<&str> = parameters.iter().map(|parameter| parameter.name).collect();
    if let Some(tree) = tree.filter(|tree| !matches!(tree.data, Data::Nothing))
        && reader.section(tree, action.name, &names).is_none()
    {
        return;
    }
    let is_there_misspelt = |name: &str| tree.is_some_and(|tree| is_misspelt(tree, name, &names));
    let given = |name: &str| tree.and_then(|tree| tree.get(name)).filter(|node| !matches!(node.data, Data::Nothing));
    for parameter in parameters {
        match given(parameter.name) {
            Some(node) => check_shape(node, parameter.name, parameter.shape, own, reader),
            None if parameter.required && !is_there_misspelt(parameter.name) => {
                let why = format!("{} needs {}", action.name, parameter.name);
                reader.wrong(at, id, why, format!("write {}: {}", parameter.name, parameter.about));
            }
            None => {}
        }
    }
    if !action.one_of.is_empty() {
        let count = action.one_of.iter().filter(|name| given(name).is_some()).count();
        if count > 1 || count == 0 && !action.one_of.iter().any(|name| is_there_misspelt(name)) {
            let why = format!("{} needs one of {}", action.name, action.one_of.join(", "));
            let instead = if count == 0 { "write one of them" } else { "keep one of them" };
            reader.wrong(at, id, why, instead);
        }
    }
}

fn check_shape(node: &Tree, key: &str, shape: Shape, own: &[&str], reader: &mut Reader) {
    match shape {
        Shape::Template | Shape::Command | Shape::Text => {
            reader.text(node, key);
        }
        Shape::Templates | Shape::Texts => {
            reader.texts(node, key);
        }
        Shape::TemplateMap => {
            let items = reader.entries(node, key).unwrap_or_default();
            items.iter().for_each(|(_, _, item)| {
                reader.text(item, key);
            });
        }
        Shape::Any => {}
        Shape::AnyMap => {
            reader.entries(node, key);
        }
        Shape::Duration => {
            reader.duration_ms(node, key, MAX_DURATION_MS);
        }
        Shape::Number { min, max } => {
            reader.number(node, key, min, max);
        }
        Shape::Numbers { min, max } => {
            let one = std::slice::from_ref(node);
            let items = if let Data::List(items) = &node.data { items.as_slice() } else { one };
            items.iter().for_each(|item| {
                reader.number(item, key, min, max);
            });
        }
        Shape::Flag => {
            reader.flag(node, key);
        }
        Shape::Choice(words) => {
            reader.choice(node, key, words);
        }
        Shape::Tools => tools::check_tools(node, own, reader),
        Shape::Commands => tools::check_commands(node, own, reader),
        // It is read as a graph of its own.
        Shape::Graph => {
            reader.entries(node, key);
        }
    }
}
