//! Graphs and plans as files: checked, drawn, described for editors.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use milepost_run::graph::{self, Checked, limits::MAX_GRAPH_BYTES};
use serde_json::{Value, json};

use super::config::report;
use crate::app::{App, apart};
use crate::args::Graph;
use crate::errors::{Failed, Usage};
use crate::out::{count, plain};

pub async fn run(app: &mut App, command: Graph) -> Result<ExitCode> {
    match command {
        Graph::Check { file } => {
            let checked = check(&file).await?;
            let (clean, more) = match &checked.graph {
                Some(graph) => (
                    format!(
                        "no mistakes: {} has {} and {}",
                        plain(&graph.name),
                        count(graph.nodes.len(), "node"),
                        count(graph.edges.len(), "edge")
                    ),
                    json!({ "name": graph.name, "nodes": graph.nodes.len(), "edges": graph.edges.len() }),
                ),
                None => (String::new(), Value::Null),
            };
            report(app, &checked.found, &clean, more)
        }
        Graph::Draw { file } => {
            let graph = usable(app, &check(&file).await?, &file)?;
            let drawn = graph::draw(&graph);
            match app.out.json {
                true => app.out.json(&json!({ "name": graph.name, "mermaid": drawn }))?,
                false => app.out.text(drawn.trim_end())?,
            }
            Ok(ExitCode::SUCCESS)
        }
        Graph::Schema => app.out.json(&graph::schema()).map(|()| ExitCode::SUCCESS),
    }
}

/// Reads a file, or the input, and checks it.
pub async fn check(file: &Path) -> Result<Checked> {
    let path = file.to_owned();
    let text = apart(move || read(&path)).await?;
    let name = if file == Path::new("-") { Path::new("input.yaml") } else { file }.to_owned();
    apart(move || Ok(graph::check_files(&name, &text, &[]))).await
}

/// The graph, when there is nothing wrong with it; else all mistakes are told.
pub fn usable(app: &App, checked: &Checked, file: &Path) -> Result<graph::Graph> {
    let Some(graph) = &checked.graph else {
        let mistakes: Vec<String> = checked.errors().map(|one| format!("\n  {one}")).collect();
        let name = file.display();
        let what = count(mistakes.len(), "mistake");
        return Err(Usage(format!("{name} has {what}; mend them, then run this again:{}", mistakes.concat())).into());
    };
    for warning in &checked.found {
        app.out.note(format!("{} {}", app.styles().warn("warning:"), plain(&warning.to_string())));
    }
    Ok(graph.clone())
}

fn read(file: &PathBuf) -> Result<String> {
    let name = file.display();
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Failed::missing(format!("there is no file {name}: check its name")).into(),
        _ => anyhow::Error::from(milepost::Error::file(format!("reading {name}"), error)),
    };
    let mut bytes = Vec::new();
    // One more than may be: the check says that it is too large.
    let most = MAX_GRAPH_BYTES as u64 + 1;
    match file.as_os_str() == "-" {
        true => std::io::stdin().lock().take(most).read_to_end(&mut bytes),
        false => std::fs::File::open(file).map_err(failed)?.take(most).read_to_end(&mut bytes),
    }
    .map_err(failed)?;
    String::from_utf8(bytes).map_err(|_| Usage(format!("{name} is not UTF-8: save it as UTF-8")).into())
}
