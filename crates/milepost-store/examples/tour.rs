//! A tour of the store: a process writes a session and is killed with SIGKILL in the middle; another
//! opens the same file, finds everything that was acknowledged, goes back in time, branches, searches,
//! and verifies the whole.
//!
//! ```text
//! cargo run --release --example tour [FILE]
//! ```
#![allow(clippy::print_stdout, reason = "a tour talks")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use milepost_model::{Message, Role, SessionId, SessionPatch, State, Trigger};
use milepost_store::backend::{Term, TextQuery};
use milepost_store::{Append, Claim, MarkQuery, MessageQuery, NewMark, NewSession, Options, Stats, Store};
use serde_json::json;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// The step at which the writing process is killed.
const KILLED_AT: u32 = 7;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let mut args = std::env::args().skip(1);
    match (args.next(), args.next()) {
        (Some(flag), Some(path)) if flag == "--write" => write(Path::new(&path)).await,
        (path, _) => tour(path.map(PathBuf::from)).await,
    }
}

async fn open(path: &Path) -> Outcome<Store> {
    Ok(Store::open(&format!("sqlite:{}", path.display()), Options::default()).await?)
}

fn state(step: u32) -> Outcome<State> {
    Ok(serde_json::from_value(json!({
        "memory": { "current_task": "find out why the build is slow", "step": step },
        "execution": { "plan": ["profile", "read the log", "try a cache", "measure"], "done": step },
    }))?)
}

/// The first life: appends step after step, says what is durable, and dies in the middle.
async fn write(path: &Path) -> Outcome {
    let store = open(path).await?;
    let patch = SessionPatch::new().title("Why is the build slow?").project("tour").agent("dev");
    let writer = store.create(NewSession { id: None, patch }, &Claim::new("the tour's first process")).await?;
    println!("session {}", writer.id());
    for step in 1.. {
        let append = Append::new()
            .message(Message::new(Role::User, format!("Step {step}: what did the profiler say?")))
            .message(Message::new(
                Role::Assistant,
                format!("In step {step} the linker took {} seconds.", 40 - 3 * step),
            ))
            .state(state(step)?)
            .mark(NewMark::new(Trigger::Step).description(format!("after step {step}")));
        writer.append(append).await?;
        println!("durable {step}");
        std::io::stdout().flush()?;
        if step == KILLED_AT {
            Command::new("kill").args(["-KILL", &std::process::id().to_string()]).status()?;
        }
    }
    Ok(())
}

async fn tour(path: Option<PathBuf>) -> Outcome {
    let scratch = tempfile::tempdir()?;
    let path = path.unwrap_or_else(|| scratch.path().join("tour.db"));
    println!("1. A process writes a session into {} …", path.display());
    let (session, acknowledged, status) = first_life(&path)?;
    println!("   … and is killed: {status}. It had been told that {acknowledged} steps are durable.\n");

    let store = open(&path).await?;
    let loaded = store.load_latest(session, &MarkQuery { resumable: Some(true), ..MarkQuery::default() }).await?;
    let found = store.session(session).await?;
    println!("2. Another process opens the file:");
    println!(
        "   session {} “{}”, {} messages",
        found.id,
        found.title.unwrap_or_default(),
        loaded.mark.checkpoint.messages()
    );
    println!(
        "   newest checkpoint {} ({})",
        loaded.mark.checkpoint.id,
        loaded.mark.checkpoint.description.clone().unwrap_or_default()
    );
    println!("   its state says step {}", loaded.state.pointer("/memory/step").cloned().unwrap_or_default());
    if loaded.state.pointer("/memory/step") != Some(&json!(acknowledged)) {
        return Err(format!("{acknowledged} steps were acknowledged, but {:?} came back", loaded.state).into());
    }

    let claim = Claim::new("the tour's second process").take_over();
    let writer = store.write(session, &claim).await?;
    writer.append(Append::new().message(Message::new(Role::User, "You were killed. Go on, please."))).await?;
    println!("\n3. It takes the session over and goes on: {} messages now.", writer.session().await.messages());

    let marks = store.marks(session, &MarkQuery { oldest_first: true, ..MarkQuery::default() }).await?;
    let middle = marks.get(marks.len() / 2).ok_or("no checkpoint")?;
    let patch = SessionPatch::new().title("What if we had used a cache?");
    let branch = store.branch(middle.at, NewSession { id: None, patch }, &claim).await?;
    branch.append(Append::new().message(Message::new(Role::User, "Try a cache instead."))).await?;
    let told = store.messages(branch.id(), &MessageQuery { last: Some(2), ..MessageQuery::default() }).await?;
    println!(
        "\n4. A branch from the middle ({}), nothing copied:",
        middle.checkpoint.description.clone().unwrap_or_default()
    );
    for message in told {
        println!("   {:>9}: {}", message.message.role, message.message.text());
    }
    println!("   its state says step {}", branch.state().await?.pointer("/memory/step").cloned().unwrap_or_default());

    writer.restore(middle.at).await?;
    println!(
        "\n5. The session itself set back to that checkpoint: {} messages; what came after stays on its old timeline.",
        writer.session().await.messages()
    );

    let query = TextQuery {
        terms: vec![Term { text: "cache".into(), prefix: false }],
        sessions: vec![],
        limit: 5,
        ..TextQuery::default()
    };
    let hits = store.backend().search(store.workspace(), query).await?.unwrap_or_default();
    println!(
        "\n6. Search for “cache”: {} message(s), in {}",
        hits.len(),
        hits.first().map(|h| h.session.to_string()).unwrap_or_default()
    );

    let verified = store.verify().await?;
    let stats: Stats = store.stats().await?;
    for p in &verified.problems {
        println!("{p:?}");
    }
    println!(
        "\n7. Verified {} entries of {} sessions: {} problems. {} bytes on disk.",
        verified.entries,
        verified.sessions,
        verified.problems.len(),
        stats.total_bytes
    );
    store.close().await?;
    Ok(())
}

/// Runs this program as the writing process and listens until it is killed.
fn first_life(path: &Path) -> Outcome<(SessionId, u32, String)> {
    let mut child = Command::new(std::env::current_exe()?).arg("--write").arg(path).stdout(Stdio::piped()).spawn()?;
    let mut session = None;
    let mut acknowledged = 0;
    for line in BufReader::new(child.stdout.take().ok_or("no output")?).lines() {
        let line = line?;
        match line.split_once(' ') {
            Some(("session", id)) => session = Some(id.parse()?),
            Some(("durable", step)) => acknowledged = step.parse()?,
            _ => {}
        }
    }
    Ok((session.ok_or("the writing process told no session")?, acknowledged, child.wait()?.to_string()))
}
