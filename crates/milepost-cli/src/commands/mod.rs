//! One file for each group of commands.

mod again;
mod answer;
mod chat;
mod config;
mod cost;
mod demo;
mod doctor;
mod end;
mod graph;
mod import;
mod keys;
mod list;
mod messages;
mod move_;
mod projects;
mod resume;
mod run;
mod salvage;
mod sessions;
mod shell;
mod show;
mod sql;
mod state;
mod stats;
mod steps;
mod store;
mod tell;
mod transfer;
mod work;

use std::process::ExitCode;

use anyhow::Result;

use crate::app::App;
use crate::args::{Command, Sessions};
pub use transfer::bring_back_if_archived;

/// Does what was asked.
pub async fn run(app: &mut App, command: Command) -> Result<ExitCode> {
    app.open_log()?;
    match Box::pin(dispatch(app, command)).await {
        Ok(code) => {
            app.close().await?;
            Ok(code)
        }
        Err(error) => {
            let error = transfer::or_archived(app, error).await;
            Err(app.or_rescued(error).await)
        }
    }
}

async fn dispatch(app: &mut App, command: Command) -> Result<ExitCode> {
    match command {
        Command::Sessions(command) => sessions(app, command).await.map(|()| ExitCode::SUCCESS),
        Command::Messages(command) => messages::run(app, command).await.map(|()| ExitCode::SUCCESS),
        Command::State(command) => state::run(app, command).await.map(|()| ExitCode::SUCCESS),
        Command::Checkpoint(args) => state::checkpoint(app, args).await.map(|()| ExitCode::SUCCESS),
        Command::Projects(command) => projects::run(app, command).await.map(|()| ExitCode::SUCCESS),
        Command::Artifacts(command) => projects::artifacts(app, command).await.map(|()| ExitCode::SUCCESS),
        Command::Demo(args) => demo::run(app, args).await,
        Command::Chat(args) => chat::run(app, args).await,
        Command::Run(args) => run::run(app, args).await,
        Command::Resume(args) => Box::pin(run::resume(app, args)).await,
        Command::Steps(args) => steps::run(app, args).await.map(|()| ExitCode::SUCCESS),
        Command::Answer(args) => answer::answer(app, args).await.map(|()| ExitCode::SUCCESS),
        Command::Approve(args) => answer::approve(app, args).await.map(|()| ExitCode::SUCCESS),
        Command::RunAgain(args) => Box::pin(again::run_again(app, args)).await,
        Command::MergeBack(args) => again::merge_back(app, args).await.map(|()| ExitCode::SUCCESS),
        Command::VerifyReplay(args) => again::verify_replay(app, args).await,
        Command::Work(args) => Box::pin(work::run(app, args)).await,
        Command::Graph(command) => graph::run(app, command).await,
        Command::Stats(args) => stats::run(app, args).await.map(|()| ExitCode::SUCCESS),
        Command::Prune(args) => store::prune(app, args).await.map(|()| ExitCode::SUCCESS),
        Command::Verify(args) => store::verify(app, args).await,
        Command::Reindex { session } => store::reindex(app, session).await,
        Command::Salvage(args) => salvage::run(app, args).await.map(|()| ExitCode::SUCCESS),
        Command::Doctor(args) => doctor::run(app, args).await,
        Command::Redact(args) => store::redact(app, args).await,
        Command::Migrate(args) => move_::migrate(app, args).await.map(|()| ExitCode::SUCCESS),
        Command::Import(command) => import::run(app, command).await.map(|()| ExitCode::SUCCESS),
        Command::Backup { file } => move_::backup(app, &file).await.map(|()| ExitCode::SUCCESS),
        Command::Push(args) => move_::push(app, args).await.map(|()| ExitCode::SUCCESS),
        Command::Pull(args) => move_::pull(app, args).await.map(|()| ExitCode::SUCCESS),
        Command::Sql(args) => sql::run(app, args).await.map(|()| ExitCode::SUCCESS),
        Command::Export(args) => transfer::export_all(app, args).await.map(|()| ExitCode::SUCCESS),
        Command::Config(command) => config::run(app, command),
        Command::Keys(command) => keys::run(app, command).await,
        Command::Completions { shell } => shell::completions(app, shell).map(|()| ExitCode::SUCCESS),
        Command::Man { directory } => shell::man(app, directory.as_deref()).map(|()| ExitCode::SUCCESS),
    }
}

async fn sessions(app: &mut App, command: Sessions) -> Result<()> {
    match command {
        Sessions::New(args) => sessions::new(app, args).await,
        Sessions::List(args) => list::list(app, args).await,
        Sessions::Show { session } => show::show(app, &session).await,
        Sessions::Checkpoints(args) => list::checkpoints(app, args).await,
        Sessions::Inspect { session, checkpoint, state } => show::inspect(app, &session, &checkpoint, state).await,
        Sessions::Resume(args) => resume::resume(app, args).await,
        Sessions::Pause { session, reason } => sessions::pause(app, &session, reason.as_deref()).await,
        Sessions::Complete { session } => sessions::complete(app, &session).await,
        Sessions::Branch(args) => sessions::branch(app, args).await,
        Sessions::Restore { session, checkpoint, dry_run } => {
            sessions::restore(app, &session, &checkpoint, dry_run).await
        }
        Sessions::Diff { a, b } => show::diff(app, &a, &b).await,
        Sessions::Search(args) => list::search(app, args).await,
        Sessions::Compact(args) => sessions::compact(app, args).await,
        Sessions::Summary { session, reader } => sessions::summary(app, &session, reader.as_deref()).await,
        Sessions::Uncompact { session } => sessions::uncompact(app, &session).await,
        Sessions::Archive(args) => transfer::archive(app, args).await,
        Sessions::Unarchive { session, forget } => transfer::unarchive(app, &session, forget).await,
        Sessions::Trash { sessions, checkpoint } => sessions::trash(app, &sessions, checkpoint.as_deref(), true).await,
        Sessions::Untrash { sessions, checkpoints: true, .. } => sessions::untrash_checkpoints(app, &sessions).await,
        Sessions::Untrash { sessions, checkpoint, .. } => {
            sessions::trash(app, &sessions, checkpoint.as_deref(), false).await
        }
        Sessions::Delete(args) => sessions::delete(app, args).await,
        Sessions::Export(args) => transfer::export(app, args).await,
        Sessions::Import(args) => transfer::import(app, args).await,
        Sessions::Rename { session, title } => sessions::rename(app, &session, &title).await,
        Sessions::Tag { session, tags } => sessions::tag(app, &session, &tags).await,
    }
}

/// Gives a session back, whatever became of the work on it: nobody waits for the lease of a command that failed.
async fn give_back<T>(held: milepost::Session, done: Result<T, milepost::Error>) -> Result<T> {
    let released = held.release().await;
    let done = done?;
    released?;
    Ok(done)
}

/// The same, after something was written: says what whoever wrote should know of the session.
async fn give_back_with_caution<T>(app: &App, held: milepost::Session, done: Result<T, milepost::Error>) -> Result<T> {
    let caution = held.caution().await;
    let done = give_back(held, done).await?;
    if let Some(caution) = caution {
        app.out.note(format!("{} {}", app.styles().warn("warning:"), crate::out::plain(&caution)));
    }
    Ok(done)
}
