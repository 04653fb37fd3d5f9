//! What can be told of parameters before a run, beyond their shapes. A graph that was recorded is read without these: it was
//! begun before they were known, and what they forbid fails where it is reached.

use milepost_document::{Data, Node as Tree, Reader};
use milepost_model::parse_time;

use super::template::{self, is_template};
use super::{Graph, Node};

pub(super) fn check(graph: &Graph, reader: &mut Reader) {
    graph.nodes.iter().for_each(|node| of_node(node, reader));
}

fn of_node(node: &Node, reader: &mut Reader) {
    let Some(written) = &node.written else { return };
    of_action(&node.action, written, reader);
    if let Some(Data::List(tools)) = written.get("tools").map(|tools| &tools.data) {
        for tool in tools {
            if let (Some(action), Some(with)) = (tool.get("action").and_then(Tree::text), tool.get("with")) {
                of_action(action, with, reader);
            }
        }
    }
    if let Some(Data::Map(checks)) =
        written.get("checks").map(|checks| &checks.data).filter(|_| node.action == "checks")
    {
        for (name, _, check) in checks {
            match &check.data {
                Data::Map(_) => of_action("shell", check, reader),
                _ => line(check, name, reader),
            }
        }
    }
}

fn of_action(action: &str, with: &Tree, reader: &mut Reader) {
    match action {
        "shell" => with.get("command").into_iter().for_each(|command| line(command, "command", reader)),
        "ask" | "approve" => question(with, reader),
        "wait" => {
            let until = with.get("until").and_then(|until| Some((until, until.text()?)));
            if let Some((until, text)) = until.filter(|(_, text)| !is_template(text) && parse_time(text).is_none()) {
                let why = format!("{:?} is not a date and a time", text.chars().take(80).collect::<String>());
                reader.wrong(&until.origin, "until", why, "write one, such as 2026-11-16T12:00:00Z");
            }
        }
        _ => {}
    }
}

/// A line for the shell: what is filled in has to stay one word.
fn line(command: &Tree, key: &str, reader: &mut Reader) {
    for mistake in template::check_line(command.text().unwrap_or_default()) {
        reader.wrong(&command.place(mistake.line, mistake.column), key, mistake.why, mistake.instead);
    }
}

fn question(with: &Tree, reader: &mut Reader) {
    let Some(default) = with.get("default").filter(|default| !matches!(default.data, Data::Nothing)) else { return };
    if with.get("timeout").is_none() {
        let why = "the question waits for ever, and this answer is never given";
        reader.wrong(&default.origin, "default", why, "write timeout: and how long to wait, or remove it");
    }
    let choices = with.get("choices").map(|choices| match &choices.data {
        Data::List(items) => items.iter().filter_map(Tree::text).collect(),
        _ => choices.text().into_iter().collect::<Vec<&str>>(),
    });
    let (Some(choices), Some(answer)) = (choices, default.text()) else { return };
    let is_filled_in = is_template(answer) || choices.iter().any(|choice| is_template(choice));
    if !is_filled_in && !choices.is_empty() && !choices.contains(&answer) {
        let why = format!("{:?} is not among the choices", answer.chars().take(80).collect::<String>());
        reader.wrong(&default.origin, "default", why, format!("write one of {}", choices.join(", ")));
    }
}
