//! `milepost-bench`: the groups of figures and the parts they are made of, each a subcommand. `scripts/bench` is the
//! way to run the groups.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use milepost_bench::bare::BareAppender;
use milepost_bench::groups::store::{self, Place, Plan};
use milepost_bench::groups::{backends, engine, runner};
use milepost_bench::milepost::{Hand, Milepost, url_in};
use milepost_bench::peers::{LanggraphSqlite, Shape};
use milepost_bench::plain_sqlite::PlainSqlite;
use milepost_bench::postgres::Server;
use milepost_bench::report::detail;
use milepost_bench::saver::{Load, save_at_once, save_in_turn};
use milepost_bench::stats::{Samples, summary};
use milepost_bench::workload::{SEED, STEPS_L, Workload, fingerprint};
use milepost_bench::{Error, Result};
use milepost_store::{SessionQuery, block_on};

/// Milepost is measured with this allocator; a program that embeds it has its own, and the peers in Python have theirs.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "usage: milepost-bench COMMAND [--OPTION VALUE]…
  store --python PATH [--dir DIR] [--quick]       the figures of the group `store`
  backends --python PATH [--dir DIR] [--quick]    the figures of the group `backends`, on the servers that
                                                  MILEPOST_TEST_POSTGRES and MILEPOST_TEST_S3 name
  engine --command PATH [--dir DIR] [--quick]     the figures of the group `engine`; PATH is the `milepost` command
  runner --python PATH [--dir DIR] [--quick]      the figures of the group `runner`
parts of groups, for a closer look or a profiler:
  workload --out FILE [--steps N] [--session N]   write workload L as JSON lines
  bare [--dir DIR] [--appends N]                  4 KiB append + fdatasync
  save [--dir DIR] [--url URL] [--steps N] [--hand delta] [--text no] [--keep]
                                                  workload L through Milepost; --keep leaves the store in DIR
  pictures --dir DIR [--count N]                  leave a store of messages with 64 KiB each in DIR
  verify --dir DIR [--times N]                    verify a store that was left in DIR
  load --dir DIR [--times N]                      load the sessions of a store that was left in DIR
  many [--dir DIR] [--url URL] [--sessions N] [--text no]
                                                  many sessions saving at once through Milepost
  plain-sqlite [--dir DIR] [--sessions N] [--text no]
                                                  SQLite with a connection per session
  peers --python PATH [--dir DIR] [--runs N]      LangGraph's SqliteSaver on workload L
DIR is where files are written (and removed again): the disk to measure, by default the current directory.
Ends with 0 if every figure meets its bar, 1 if any falls short, 2 if something could not run.";

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("milepost-bench: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<ExitCode> {
    let mut args = std::env::args().skip(1);
    let command = args.next().ok_or(USAGE)?;
    let options = Options::parse(args)?;
    match command.as_str() {
        "store" => return store_group(&options),
        "backends" => return backends_group(&options),
        "engine" => return engine_group(&options),
        "runner" => return runner_group(&options),
        "workload" => write_workload(&options)?,
        "bare" => bare(&options)?,
        "save" => save(&options)?,
        "pictures" => pictures(&options)?,
        "verify" => verify(&options)?,
        "load" => load(&options)?,
        "many" => many(&options)?,
        "plain-sqlite" => plain_sqlite(&options)?,
        "peers" => peers(&options)?,
        _ => return Err(format!("unknown command `{command}`\n{USAGE}").into()),
    }
    Ok(ExitCode::SUCCESS)
}

fn store_group(options: &Options) -> Result<ExitCode> {
    let python = options.path("python").ok_or("store needs --python PATH")?;
    let plan = if options.flag("quick") { Plan::quick() } else { Plan::full() };
    Ok(verdict("store", store::run(&plan, &Place::new(options.dir(), python))?))
}

fn backends_group(options: &Options) -> Result<ExitCode> {
    let python = options.path("python").ok_or("backends needs --python PATH")?;
    let named = |name: &str| {
        std::env::var(name).map_err(|_| format!("{name} names no server; run scripts/bench, which starts one"))
    };
    let (server, bucket) = (named("MILEPOST_TEST_POSTGRES")?, named("MILEPOST_TEST_S3")?);
    let plan = if options.flag("quick") { backends::Plan::quick() } else { backends::Plan::full() };
    let place = backends::Place { dir: options.dir(), python, server: Server::new(&server)?, bucket };
    Ok(verdict("backends", backends::run(&plan, &place)?))
}

fn engine_group(options: &Options) -> Result<ExitCode> {
    // `scripts/bench` builds the command beside this program.
    let beside = std::env::current_exe()?.with_file_name("milepost");
    let plan = if options.flag("quick") { engine::Plan::quick() } else { engine::Plan::full() };
    let place = engine::Place { dir: options.dir(), command: options.path("command").unwrap_or(beside) };
    Ok(verdict("engine", engine::run(&plan, &place)?))
}

fn runner_group(options: &Options) -> Result<ExitCode> {
    let python = options.path("python").ok_or("runner needs --python PATH")?;
    let plan = if options.flag("quick") { runner::Plan::quick() } else { runner::Plan::full() };
    Ok(verdict("runner", runner::run(&plan, &runner::Place { dir: options.dir(), python })?))
}

fn verdict(group: &str, short: usize) -> ExitCode {
    if short > 0 {
        eprintln!("milepost-bench: {short} figure(s) of `{group}` fell short");
    }
    ExitCode::from(u8::from(short > 0))
}

fn write_workload(options: &Options) -> Result<()> {
    let out = options.path("out").ok_or("workload needs --out FILE")?;
    let steps = options.number("steps", STEPS_L)?;
    let workload = Workload::new(SEED, options.number("session", 0)? as u64);
    workload.clone().write_jsonl(steps, &mut BufWriter::new(File::create(&out)?))?;
    let bytes: usize = workload.clone().take(steps).map(|step| step.json_bytes()).sum();
    let fingerprint = fingerprint(workload, steps);
    detail(format_args!("{steps} steps, {bytes} bytes of new JSON, fingerprint {fingerprint}"));
    Ok(())
}

fn bare(options: &Options) -> Result<()> {
    let dir = options.scratch()?;
    let mut appender = BareAppender::create(dir.path())?;
    let mut samples = Samples::default();
    for _ in 0..options.number("appends", 2_000)? {
        samples.push(appender.append()?);
    }
    describe("bare 4 KiB append + fdatasync", &samples);
    Ok(())
}

fn save(options: &Options) -> Result<()> {
    let scratch = options.scratch()?;
    let dir = if options.flag("keep") { options.dir() } else { scratch.path().to_owned() };
    let hand = if options.get("hand") == Some("delta") { Hand::Delta } else { Hand::Whole };
    let workload = Workload::new(SEED, 0);
    let url = options.get("url").map_or_else(|| url_in(&dir), str::to_owned);
    let mut milepost = Milepost::create_at(&url, &workload, options.get("text") != Some("no"), hand)?;
    let run = save_in_turn(&mut milepost, workload, options.number("steps", STEPS_L)?, None)?;
    let index = milepost.index_texts()?;
    detail(format_args!("the text index was caught up in {:.3} s", index.as_secs_f64()));
    let close = milepost.close()?;
    describe(&format!("saves by {}", hand.name()), &run.saves);
    detail(format_args!("total {:.3} s, then close {:.3} s", run.saves.total().as_secs_f64(), close.as_secs_f64()));
    Ok(())
}

fn pictures(options: &Options) -> Result<()> {
    let count = options.number("count", 2_000)?;
    block_on(store::save_pictures(count, &options.dir()))
}

fn verify(options: &Options) -> Result<()> {
    block_on(async {
        let store = milepost_bench::milepost::open(&options.dir(), true).await?;
        for _ in 0..options.number("times", 1)? {
            let verified = store.verify().await?;
            detail(format_args!("{} entries, {} problems", verified.entries, verified.problems.len()));
        }
        Ok(store.close().await?)
    })
}

fn load(options: &Options) -> Result<()> {
    block_on(async {
        let store = milepost_bench::milepost::open(&options.dir(), true).await?;
        let sessions = store.sessions(&SessionQuery::default()).await?.sessions;
        let mut samples = Samples::default();
        for _ in 0..options.number("times", 100)? {
            for session in &sessions {
                samples.push(store::load_once(&store, session.id).await?);
            }
        }
        describe("loads", &samples);
        Ok(store.close().await?)
    })
}

fn many(options: &Options) -> Result<()> {
    let dir = options.scratch()?;
    let load = Load { sessions: options.number("sessions", 64)?, ..Load::default() };
    let text_index = options.get("text") != Some("no");
    let url = options.get("url").map_or_else(|| url_in(dir.path()), str::to_owned);
    let run = milepost_bench::milepost::save_at_once(load, SEED, &url, text_index, Hand::Whole)?;
    detail(format_args!("{} sessions at once: {:.0} durable saves/s", load.sessions, run.saves_per_s));
    describe("waits", &run.waits);
    Ok(())
}

fn plain_sqlite(options: &Options) -> Result<()> {
    detail(format_args!("SQLite {}", rusqlite::version()));
    let dir = options.scratch()?;
    let mut appender = BareAppender::create(dir.path())?;
    let text_index = options.get("text") != Some("no");
    let mut session = PlainSqlite::create(dir.path(), SEED, 1, text_index)?.session(0)?;
    let alone = save_in_turn(&mut session, Workload::new(SEED, 0), STEPS_L, Some(&mut appender))?;
    drop(session);
    describe("workload L, one session", &alone.saves);
    describe("bare appends between", &alone.bare);
    detail(format_args!("workload L total {:.3} s", alone.saves.total().as_secs_f64()));

    let load = Load { sessions: options.number("sessions", 64)?, ..Load::default() };
    let dir = options.scratch()?;
    let database = PlainSqlite::create(dir.path(), SEED, load.sessions, text_index)?;
    let many = save_at_once(load, SEED, |number| database.session(number))?;
    detail(format_args!("{} sessions at once: {:.0} durable saves/s", load.sessions, many.saves_per_s));
    describe("waits", &many.waits);
    Ok(())
}

fn peers(options: &Options) -> Result<()> {
    let python = options.path("python").ok_or("peers needs --python PATH")?;
    let dir = options.scratch()?;
    let file = dir.path().join("workload.jsonl");
    Workload::new(SEED, 0).write_jsonl(STEPS_L, &mut BufWriter::new(File::create(&file)?))?;
    let peer = LanggraphSqlite::new(&python, &file);
    for _ in 0..options.number("runs", 1)? {
        for shape in [Shape::Delta, Shape::Full] {
            let run = peer.run(shape, dir.path())?;
            detail(format_args!("langgraph sqlite {}: {}", shape.name(), run.all));
        }
    }
    Ok(())
}

fn describe(what: &str, samples: &Samples) {
    detail(format_args!("{what}: {} times, {}", samples.len(), summary(samples)));
}

/// Options that take no value.
const FLAGS: [&str; 2] = ["quick", "keep"];

/// The options of the command line: `--name value`, or a flag.
struct Options(Vec<(String, String)>);

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut pairs = Vec::new();
        while let Some(name) = args.next() {
            let bare = name.strip_prefix("--").ok_or_else(|| format!("unexpected `{name}`\n{USAGE}"))?;
            let value = match FLAGS.contains(&bare) {
                true => String::new(),
                false => args.next().ok_or_else(|| format!("{name} needs a value"))?,
            };
            pairs.push((bare.to_owned(), value));
        }
        Ok(Self(pairs))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    fn flag(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.get(name).map(PathBuf::from)
    }

    fn number(&self, name: &str, default: usize) -> Result<usize> {
        self.get(name)
            .map_or(Ok(default), |value| value.parse().map_err(|e| Error::from(format!("--{name} {value}: {e}"))))
    }

    fn dir(&self) -> PathBuf {
        self.path("dir").unwrap_or_else(|| Path::new(".").to_owned())
    }

    /// A new directory on the disk to measure, removed when dropped.
    fn scratch(&self) -> Result<tempfile::TempDir> {
        let dir = self.dir();
        std::fs::create_dir_all(&dir)?;
        Ok(tempfile::Builder::new().prefix("milepost-bench-").tempdir_in(dir)?)
    }
}
