//! Completions and man pages, made from the command line's own description.

use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::app::App;
use crate::args::Args;

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
    std::fs::create_dir_all(directory).with_context(|| format!("making the directory {}", directory.display()))?;
    clap_mangen::generate_to(Args::command(), directory)
        .with_context(|| format!("writing man pages into {}", directory.display()))?;
    let count = std::fs::read_dir(directory)?.count();
    app.out.line(format!("{count} pages are in {}", directory.display()))
}
