//! A run with an action of one's own: `cargo run -p milepost-run --example own_action`.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;

use async_trait::async_trait;
use milepost::{Milepost, NewSession};
use milepost_run::graph::actions::Repeat;
use milepost_run::graph::check;
use milepost_run::run::{Action, Failed, Runner, Step};
use serde_json::{Value, json};

/// Counts the words of a text. It changes nothing, so that it may run again when nobody knows whether it ran.
struct CountWords;

#[async_trait]
impl Action for CountWords {
    fn repeat(&self, _: &Value) -> Repeat {
        Repeat::Harmless
    }

    async fn run(&self, step: Step) -> Result<Value, Failed> {
        match step.parameters.get("text").and_then(Value::as_str) {
            Some(text) => Ok(json!({"words": text.split_whitespace().count()})),
            None => Err(Failed::Fatal("text is missing".to_owned())),
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = "
memory: {sentence: a log is a fine thing}
nodes:
  count: {action: count_words, with: {text: '{{ memory.sentence }}'}, remember: {words: output.words}}
outputs: {words: memory.words}
";
    let runner = Runner::new(&Milepost::open("memory:").await?).action("count_words", Arc::new(CountWords));
    let checked = check("count.yaml".as_ref(), text, &runner.own_actions());
    checked.found.iter().for_each(|one| println!("{one}"));
    if let Some(graph) = checked.graph {
        let (session, end) = runner.start(&graph, NewSession::default()).await?;
        println!("session {session}: {end:?}");
    }
    Ok(())
}
