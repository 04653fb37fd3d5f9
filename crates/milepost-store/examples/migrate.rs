//! Moves every workspace of a store to another: `cargo run --example migrate -- sqlite:old.db sqlite:new.db`.
//!
//! Interrupt it whenever you like and start it again: what is there already is not copied twice.
#![allow(clippy::print_stdout, reason = "a program for people")]

use std::io::Write;
use std::process::ExitCode;

use milepost_store::{Options, Phase, Progress, block_on, migrate, open_backend, system_source};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("migrate: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(from), Some(to), None) = (args.next(), args.next(), args.next()) else {
        return Err("usage: migrate FROM TO, each a URL such as sqlite:milepost.db".into());
    };
    let (options, source) = (Options::default(), system_source()?);
    block_on(async {
        let from = open_backend(&from, &options, &source).await?;
        let to = open_backend(&to, &options, &source).await?;
        for workspace in from.workspaces().await? {
            let done = migrate(&*from, &*to, &workspace, &source, &mut |progress| show(progress)).await?;
            println!(
                "\r{workspace}: {} sessions, {} entries and {} records are the same in both; {} entries ({:.1} MB) were copied now",
                done.sessions,
                done.entries,
                done.records,
                done.copied,
                done.copied_bytes as f64 / 1e6
            );
        }
        from.close().await?;
        to.close().await?;
        Ok(())
    })
}

fn show(progress: &Progress) {
    let what = match progress.phase {
        Phase::Copying => "copying",
        Phase::Comparing => "comparing",
    };
    let left = progress.left_ms().map_or_else(String::new, |left| format!(", {} s left", (left + 999) / 1000));
    eprint!(
        "\r{what}: {} of {} entries, {:.1} MB/s{left}    ",
        progress.entries,
        progress.entries_total,
        progress.bytes_per_s() as f64 / 1e6
    );
    // Only a line on a terminal: if it cannot be written, nothing is lost.
    let _ = std::io::stderr().flush();
}
