//! The `engine` group: how long a person waits for a search, for a list, and for the command itself.
//!
//! `bench/README.md` says what each figure means.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use milepost::{Milepost, SearchQuery};
use milepost_model::{Message, Role, SessionPatch};
use milepost_store::backend::{Term, TextQuery};
use milepost_store::{Append, NewSession, Options, Store, block_on};

use crate::Result;
use crate::milepost::{claim, url_in};
use crate::report::{Report, detail};
use crate::stats::{Samples, summary};
use crate::workload::{Prose, SEED};

/// How much is run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Sessions that are searched,
    pub searched_sessions: usize,
    /// with so many messages each.
    pub messages: usize,
    /// Searches of each kind.
    pub searches: usize,
    /// Sessions that are listed.
    pub listed_sessions: usize,
    /// Times that the command is started.
    pub starts: usize,
    /// Whether values are held against their bars.
    pub judged: bool,
}

impl Plan {
    /// What the bars are about.
    pub fn full() -> Self {
        Self {
            searched_sessions: 1000,
            messages: 1000,
            searches: 20,
            listed_sessions: 10_000,
            starts: 40,
            judged: true,
        }
    }

    /// Enough to see that everything runs; the values mean nothing.
    pub fn quick() -> Self {
        Self { searched_sessions: 20, messages: 100, searches: 3, listed_sessions: 100, starts: 3, judged: false }
    }
}

/// Where things are run.
#[derive(Debug, Clone)]
pub struct Place {
    /// The disk to measure.
    pub dir: PathBuf,
    /// The `milepost` command.
    pub command: PathBuf,
}

/// Every message has one of so many rare words: each is in a thousandth of the messages.
const RARE_WORDS: usize = 1000;

/// Runs the group; returns how many figures fell short.
pub fn run(plan: &Plan, place: &Place) -> Result<usize> {
    let mut report = if plan.judged { Report::new("engine") } else { Report::unjudged("engine") };
    searches(plan, place, &mut report)?;
    commands(plan, place, &mut report)?;
    Ok(report.short())
}

fn rare(number: usize) -> String {
    // A word that no text has by chance.
    format!("zq{number:04}x")
}

async fn fill(dir: &Path, plan: &Plan) -> Result<Milepost> {
    let store = Store::open(&url_in(dir), Options::default()).await?;
    let mut prose = Prose::new(SEED);
    for session in 0..plan.searched_sessions {
        let patch = SessionPatch::new().project(format!("project {}", session % 10));
        let writer = store.create(NewSession { id: None, patch }, &claim()).await?;
        for part in (0..plan.messages).collect::<Vec<_>>().chunks(250) {
            let mut append = Append::new();
            for number in part {
                let at = session * plan.messages + number;
                let role = if number % 2 == 0 { Role::User } else { Role::Assistant };
                let text = format!("{} {}", prose.text(300), rare(at % RARE_WORDS));
                append = append.message(Message::new(role, text));
            }
            writer.append(append).await?;
        }
        writer.release().await?;
    }
    // Catches up with the text index.
    let query = TextQuery {
        terms: vec![Term { text: "zqzq".into(), prefix: false }],
        sessions: Vec::new(),
        limit: 1,
        ..TextQuery::default()
    };
    store.backend().search(store.workspace(), query).await?;
    Ok(Milepost::on(store, milepost::EngineOptions::default()).await?)
}

/// `search_p50_ms`: a word in a thousandth of the messages. `search_common_ms`: one that is in most of them.
fn searches(plan: &Plan, place: &Place, report: &mut Report) -> Result<()> {
    let dir = tempfile::tempdir_in(&place.dir)?;
    let start = Instant::now();
    let milepost = block_on(fill(dir.path(), plan))?;
    let count = plan.searched_sessions * plan.messages;
    detail(format_args!("{count} messages were stored and indexed in {:.1} s", start.elapsed().as_secs_f64()));
    let time = |texts: Vec<String>| -> Result<Samples> {
        let mut samples = Samples::default();
        for text in texts {
            let query = SearchQuery::new(text);
            let start = Instant::now();
            let found = block_on(milepost.search(&query))?;
            samples.push(start.elapsed());
            if found.hits.is_empty() {
                return Err(format!("nothing was found for {:?}", query.text).into());
            }
        }
        Ok(samples)
    };
    let rare_ones = time((0..plan.searches).map(|number| rare(number * 37 % RARE_WORDS.min(count))).collect())?;
    detail(format_args!("a word in {} messages: {}", count.div_ceil(RARE_WORDS), summary(&rare_ones)));
    report.at_most("search_p50_ms", rare_ones.p50_ms(), 30.0);
    let common = time(vec!["the".to_owned(); plan.searches.min(10)])?;
    detail(format_args!("the word \"the\": {}", summary(&common)));
    report.at_most("search_common_ms", common.p50_ms(), 500.0);
    block_on(milepost.close())?;
    Ok(())
}

/// `version_ms` and `list_10k_ms`: the command from its start to its end.
fn commands(plan: &Plan, place: &Place, report: &mut Report) -> Result<()> {
    let dir = tempfile::tempdir_in(&place.dir)?;
    block_on(async {
        let store = Store::open(&url_in(dir.path()), Options::default()).await?;
        for number in 0..plan.listed_sessions {
            let patch = SessionPatch::new().title(format!("Session {number}")).project("shop").agent("dev");
            let writer = store.create(NewSession { id: None, patch }, &claim()).await?;
            writer.append(Append::new().message(Message::new(Role::User, format!("Hello {number}")))).await?;
            writer.release().await?;
        }
        Ok::<_, crate::Error>(store.close().await?)
    })?;
    let time = |arguments: &[&str]| -> Result<Samples> {
        let mut samples = Samples::default();
        for _ in 0..plan.starts {
            let mut command = Command::new(&place.command);
            command.args(arguments).env("HOME", dir.path()).env("MILEPOST_STORE", url_in(dir.path()));
            let start = Instant::now();
            let status = command.current_dir(dir.path()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
            samples.push(start.elapsed());
            if !status.success() {
                return Err(format!("milepost {} ended with {status}", arguments.join(" ")).into());
            }
        }
        Ok(samples)
    };
    let version = time(&["--version"])?;
    detail(format_args!("milepost --version: {}", summary(&version)));
    report.at_most("version_ms", version.p50_ms(), 10.0);
    let list = time(&["sessions", "list"])?;
    detail(format_args!("milepost sessions list, of {} sessions: {}", plan.listed_sessions, summary(&list)));
    report.at_most("list_10k_ms", list.p50_ms(), 50.0);
    Ok(())
}
