//! The `milepost` command. Everything it does is a few lines around one call of the engine.

mod app;
mod args;
mod commands;
mod errors;
mod holder;
mod out;
mod places;
mod progress;
mod scratch;
mod usage;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args = usage::parse();
    let json = args.global.json;
    let (is_endless, only_reads) = (args.command.is_endless(), args.command.only_reads());
    let mut app = app::App::new(args.global, args.command.needs_store());
    let on_interrupt = args.command.on_interrupt(&app.cancel);
    let outcome = app::runtime().and_then(|runtime| {
        let styles = app.styles();
        let last_words = move || {
            if !is_endless {
                errors::report(&errors::Interrupted.into(), json, only_reads, styles, &[]);
            }
        };
        let work = app::until_interrupted(commands::run(&mut app, args.command), on_interrupt, last_words);
        let outcome = {
            // This thread waits for nothing else: the store may work on it, instead of handing each write to another and back.
            let _inside = runtime.enter();
            milepost::store::block_on(work)
        };
        // Work on the side that waits for a server does not keep a person waiting.
        runtime.shutdown_background();
        outcome
    });
    // Also what failed or was interrupted did something before.
    let logged = app.write_log();
    match outcome.and_then(|code| logged.map(|()| code)) {
        Ok(code) => code,
        // Who reads no more has seen enough.
        Err(error) if error.is::<errors::NobodyReads>() => ExitCode::SUCCESS,
        // What goes on until it is interrupted was not cut short.
        Err(error) if is_endless && error.is::<errors::Interrupted>() => ExitCode::from(errors::INTERRUPTED),
        Err(error) => errors::report(&error, json, only_reads, app.styles(), &app.flags_of_place()),
    }
}
