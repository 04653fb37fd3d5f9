//! Completions and man pages, made from the command line's own description.

use std::path::Path;

use anyhow::Result;
use clap::CommandFactory;
use serde_json::json;

use crate::app::App;
use crate::args::Args;
use crate::errors::OnFile;
use crate::out::count;

pub fn completions(app: &App, shell: clap_complete::Shell) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "milepost", &mut text);
    app.out.bytes(&text)
}

pub fn man(app: &App, directory: Option<&Path>) -> Result<()> {
    let Some(directory) = directory else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Args::command()).render(&mut page)?;
        return app.out.bytes(&page);
    };
    std::fs::create_dir_all(directory).on_file(format!("making the directory {}", directory.display()))?;
    clap_mangen::generate_to(Args::command(), directory)
        .on_file(format!("writing man pages into {}", directory.display()))?;
    let pages = pages(&Args::command());
    if app.out.json {
        return app.out.json(&json!({ "directory": directory, "pages": pages }));
    }
    app.out.line(format!("{} written to {}", count(pages, "page"), directory.display()))
}

/// A page for the command and for each below it.
fn pages(command: &clap::Command) -> usize {
    1 + command.get_subcommands().map(pages).sum::<usize>()
}
