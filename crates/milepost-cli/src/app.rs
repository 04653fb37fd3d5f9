//! What every command needs: the settings, the engine, and where to write.

use std::fs::File;
use std::io::{BufRead, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use milepost::config::{Loader, Settings, Url, Work};
use milepost::store::{Error as StoreError, Store};
use milepost::{EngineOptions, Mark, Milepost, Notice, Point, SessionId, SessionQuery, Timestamp, relative};
use milepost_models::Cancel;
use milepost_run::models::Models;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::broadcast::{Receiver, error::TryRecvError};

use crate::args::Global;
use crate::errors::{Failed, INTERRUPTED, Interrupted, OnFile, Usage};
use crate::out::{Out, Styles, count, minutes, plain, short};
use crate::progress::{Progress, Waiting};
use crate::{holder, places, scratch};

/// There is nothing that `last` could mean.
const NO_LAST: &str =
    "no last session: there is none here yet; begin one with `milepost sessions new`, or check the workspace";
/// So long a command waits for whoever holds the session that it writes to.
const WAIT_SECONDS: u64 = 5;
/// Up to this size a file is looked through when damage was met, which takes a second.
const MAX_CHECKED_BYTES: u64 = 256 << 20;
/// The longest answer to a question that is read.
const MAX_ANSWER_BYTES: u64 = 1024;

/// A command's surroundings.
pub struct App {
    global: Global,
    pub out: Out,
    /// Cancelled when a person stops a command that ends by itself then.
    pub cancel: Cancel,
    sets: Vec<(&'static str, String)>,
    settings: Option<Settings>,
    engine: Option<Milepost>,
    /// Engines on the same store with another policy.
    others: Vec<Milepost>,
    /// Other stores that this command works with.
    other_stores: Mutex<Vec<(String, Store)>>,
    notices: Option<Receiver<Notice>>,
    log: Option<File>,
    /// Where there is no store yet, none is made.
    needs_store: bool,
}

/// What becomes of a command when a person stops it.
#[derive(Debug, Clone)]
pub enum OnInterrupt {
    /// It is left where it is: what was acknowledged is stored.
    Leave,
    /// It is told, and ends by itself.
    Tell(Cancel),
    /// It listens itself.
    Own,
}

/// Threads for what waits; a search also uses them to read.
pub fn runtime() -> Result<Runtime> {
    let built = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    Ok(built.map_err(|error| Failed::system("starting threads", error))?)
}

/// How long a run that is stopped twice may take to note how far it came.
const LAST_WORDS: std::time::Duration = std::time::Duration::from_secs(2);

/// How long work that is to be left may go on before it is left in the middle: what it does at this moment may let nobody in between.
const LET_GO: std::time::Duration = std::time::Duration::from_millis(500);

/// Runs something until it ends or the person stops it. What does not let go is left all the same, after `last_words`: what was
/// acknowledged is stored. Who stops it twice waits for no command: they are ended at once.
pub async fn until_interrupted<T>(
    work: impl Future<Output = Result<T>>,
    on: OnInterrupt,
    last_words: impl FnOnce() + Send + 'static,
) -> Result<T> {
    if matches!(on, OnInterrupt::Own) {
        return work.await;
    }
    let mut interrupts = interrupts()?;
    let (tell, told) = tokio::sync::oneshot::channel();
    let is_told = matches!(on, OnInterrupt::Tell(_));
    // Beside the work, which may not let go.
    tokio::spawn(async move {
        interrupts.recv().await;
        match on {
            OnInterrupt::Tell(cancel) => {
                cancel.cancel();
                if std::io::stderr().is_terminal() {
                    let _ = writeln!(std::io::stderr().lock(), "\nstopping; Ctrl-C again does not wait");
                }
            }
            _ => drop(tell.send(())),
        }
        match is_told {
            true => interrupts.recv().await,
            false if tokio::time::timeout(LET_GO, interrupts.recv()).await.is_err() => {
                crate::progress::clear();
                last_words();
            }
            false => {}
        }
        // What ignores a request to end would live on. Whoever ran it notes that, if it takes no longer than a moment.
        milepost_run::run::end_commands();
        if is_told {
            let _ = tokio::time::timeout(LAST_WORDS, interrupts.recv()).await;
        }
        scratch::clear();
        std::process::exit(INTERRUPTED.into());
    });
    tokio::select! {
        outcome = work => outcome,
        Ok(()) = told => Err(Interrupted.into()),
    }
}

/// What a person, or the system in their place, stops a command with.
#[cfg(unix)]
pub struct Interrupts {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

/// Which way a command is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// A person pressed Ctrl-C.
    Interrupt,
    /// The system wants it to end, or its terminal is gone.
    Terminate,
}

#[cfg(unix)]
impl Interrupts {
    pub async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.interrupt.recv() => Stop::Interrupt,
            _ = self.terminate.recv() => Stop::Terminate,
            _ = self.hangup.recv() => Stop::Terminate,
        }
    }

    async fn recv(&mut self) {
        self.next().await;
    }
}

#[cfg(unix)]
pub fn interrupts() -> Result<Interrupts> {
    use tokio::signal::unix::{SignalKind, signal};
    let listen = |kind| signal(kind).map_err(|error| Failed::system("listening for interrupts", error));
    Ok(Interrupts {
        interrupt: listen(SignalKind::interrupt())?,
        terminate: listen(SignalKind::terminate())?,
        hangup: listen(SignalKind::hangup())?,
    })
}

#[cfg(windows)]
pub struct Interrupts(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Interrupts {
    pub async fn next(&mut self) -> Stop {
        self.0.recv().await;
        Stop::Interrupt
    }

    async fn recv(&mut self) {
        self.next().await;
    }
}

#[cfg(windows)]
pub fn interrupts() -> Result<Interrupts> {
    let listening = tokio::signal::windows::ctrl_c();
    Ok(Interrupts(listening.map_err(|error| Failed::system("listening for interrupts", error))?))
}

/// Does what waits for a person or a program at the other end of the input, so that it can be interrupted.
pub async fn apart<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Failed::system("working on the side", error))?
}

/// Where the command works.
pub fn working_directory() -> Result<PathBuf> {
    Ok(std::env::current_dir().on_file("asking for the working directory")?)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// A store whose file is damaged is read by no command: what helps is a rescue.
fn damaged_store(error: &StoreError, url: &str, way: &'static str) -> anyhow::Error {
    match places::rescue_of(url) {
        Some(command) => Failed::damaged_with(
            format!(
                "the store {}: {}; rescue what is whole into a new store, or restore a backup",
                plain(url),
                error.finding()
            ),
            vec![(way, command)],
        )
        .into(),
        None => milepost::Error::from(error.clone()).into(),
    }
}

/// Why a store could not be opened.
pub fn of_store(error: StoreError, url: &str) -> anyhow::Error {
    match error {
        error @ StoreError::Corrupt { .. } => damaged_store(&error, url, "rescue"),
        error => milepost::Error::from(error).into(),
    }
}

/// How far from the moment that was asked for a checkpoint was taken: below zero before it. None when no moment was.
pub fn off_by_ms(point: &Point, mark: &Mark) -> Option<i64> {
    match point {
        Point::Time(asked) => Some(mark.time.0.saturating_sub(asked.0)),
        _ => None,
    }
}

impl App {
    pub fn new(global: Global, needs_store: bool) -> Self {
        let out = Out::new(global.json, global.exact, global.quiet, global.color);
        let (cancel, sets) = (Cancel::new(), Vec::new());
        Self {
            global,
            out,
            cancel,
            sets,
            settings: None,
            engine: None,
            others: Vec::new(),
            other_stores: Mutex::default(),
            notices: None,
            log: None,
            needs_store,
        }
    }

    /// How long a resume waits for whoever holds the session: only when told to.
    pub fn resume_wait_ms(&self) -> u64 {
        self.global.wait.unwrap_or(0) * 1000
    }

    /// What is said where there is no store yet; none when there is one, or it cannot be known before it is opened.
    pub fn no_store(&self) -> Result<Option<String>> {
        let url = self.loader()?.load()?.store;
        places::missing_directory(url.expose())?;
        Ok((!places::exists(url.expose())).then(|| {
            format!(
                "no store is at {} yet: `milepost sessions new` makes one; or check the path",
                plain(&url.to_string())
            )
        }))
    }

    /// Colours for the error output.
    pub fn styles(&self) -> Styles {
        Styles::new(self.global.color, std::io::stderr().is_terminal())
    }

    /// How settings are read: the file, the environment, then the flags.
    pub fn loader(&self) -> Result<Loader<'static>> {
        let mut loader = Loader::new(working_directory()?, variable);
        if let Some(path) = &self.global.config {
            loader = loader.file(path);
        }
        for (key, value) in [("store", &self.global.store), ("workspace", &self.global.workspace)] {
            if let Some(value) = value {
                loader = loader.set(key, value);
            }
        }
        Ok(self.sets.iter().fold(loader, |loader, (key, value)| loader.set(*key, value)))
    }

    /// Sets a setting by a command's own flag.
    pub fn set(&mut self, key: &'static str, value: Option<String>) {
        self.sets.extend(value.map(|value| (key, value)));
        self.settings = None;
    }

    /// The settings in force, read once.
    fn settings_once(&mut self) -> Result<Settings> {
        if self.settings.is_none() {
            self.settings = Some(self.settings()?);
        }
        self.settings.clone().map_or_else(|| self.settings(), Ok)
    }

    /// The models that can be asked.
    pub async fn models(&mut self) -> Result<Models> {
        let source = self.engine().await?.source().clone();
        Ok(Models::new(self.settings_once()?, std::sync::Arc::new(variable), source))
    }

    /// The engine with the policy of such work.
    pub async fn engine_for(&mut self, work: Work) -> Result<Milepost> {
        let engine = self.engine().await?;
        let settings = self.settings_once()?;
        let mut options = self.engine_options(&settings)?;
        options.policy = settings.policy_for(work, None, None, None);
        let other = Milepost::on(engine.store().clone(), options).await?;
        self.others.push(other.clone());
        Ok(other)
    }

    /// The settings in force.
    pub fn settings(&self) -> Result<Settings> {
        let settings = self.loader()?.load()?;
        let names: Vec<String> = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
        settings.refuse_variables(names.iter().map(String::as_str))?;
        for warning in settings.warnings() {
            self.out.note(format!("{} {warning}", self.styles().warn("warning:")));
        }
        Ok(settings)
    }

    /// What the engine is opened with.
    pub fn engine_options(&self, settings: &Settings) -> Result<EngineOptions> {
        let mut options = EngineOptions::from_settings(settings, &variable)?;
        options.holder = holder::this_process();
        options.wait_ms = self.global.wait.unwrap_or(WAIT_SECONDS) * 1000;
        options.store.accept_damage = self.global.accept_damage;
        Ok(options)
    }

    /// The engine, opened on first use.
    pub async fn engine(&mut self) -> Result<Milepost> {
        if let Some(engine) = &self.engine {
            return Ok(engine.clone());
        }
        let settings = self.settings_once()?;
        if self.needs_store
            && let Some(why) = self.no_store()?
        {
            return Err(Failed::missing(why).into());
        }
        let mut options = self.engine_options(&settings)?;
        options.store.may_begin = !self.needs_store;
        places::prepare(settings.store.expose())?;
        let engine = match Milepost::open_with(settings.store.expose(), options).await {
            Err(milepost::Error::Store(StoreError::NotFound { what: "workspace", id })) => {
                return Err(Failed::missing(format!(
                    "workspace {} has nothing in {} yet: `milepost sessions new` begins it; or check its name",
                    plain(&id),
                    plain(&settings.store.to_string())
                ))
                .into());
            }
            Err(milepost::Error::Store(error @ StoreError::Corrupt { .. })) => {
                return Err(damaged_store(&error, settings.store.expose(), "rescue"));
            }
            opened => opened?,
        };
        self.out.now = engine.source().now();
        self.notices = self.global.log.is_some().then(|| engine.notices());
        self.engine = Some(engine.clone());
        Ok(engine)
    }

    /// The engine, or none where there is no store or no workspace yet, which is told.
    pub async fn engine_if_any(&mut self) -> Result<Option<Milepost>> {
        match self.engine().await {
            Ok(engine) => Ok(Some(engine)),
            Err(error) => match error.downcast_ref::<Failed>() {
                Some(failed) if failed.is_missing() => {
                    self.out.note(failed.to_string());
                    Ok(None)
                }
                _ => Err(error),
            },
        }
    }

    /// The session that is meant: an id, a part of one, or `last` for the one written last.
    pub async fn session(&mut self, given: &str) -> Result<SessionId> {
        self.session_of(given, SessionQuery::default()).await
    }

    /// The same, where `last` is the last one that a query finds.
    pub async fn session_of(&mut self, given: &str, query: SessionQuery) -> Result<SessionId> {
        let engine = self.engine().await?;
        if given != "last" {
            return Ok(engine.find(given).await?);
        }
        let newest = engine.sessions(&SessionQuery { limit: Some(1), ..query }).await?;
        match newest.sessions.first() {
            Some(session) => Ok(session.id),
            None => Err(Failed::missing(NO_LAST).into()),
        }
    }

    /// The checkpoint that is meant; which one a moment chose is told, and that it is in the trash.
    pub async fn mark(&self, engine: &Milepost, session: SessionId, point: &Point) -> Result<Mark> {
        let mark = engine.mark(session, point).await?;
        self.tell_chosen(point, &mark);
        Ok(mark)
    }

    /// Says which checkpoint a moment chose, and how far from it that one was taken; and of any that it is in the trash.
    pub fn tell_chosen(&self, point: &Point, mark: &Mark) {
        if let Some(since) = mark.trashed {
            let (session, id) = (short(mark.session), mark.checkpoint.id);
            self.out.note(format!(
                "{} checkpoint {id} is in the trash, since {}, and is erased in time: keep it with `milepost sessions untrash {session} --checkpoint {id}`",
                self.styles().warn("warning:"),
                self.out.time(since)
            ));
        }
        let (Point::Time(asked), Some(off)) = (point, off_by_ms(point, mark)) else { return };
        let (id, taken) = (short(mark.checkpoint.id), mark.time);
        let far = match off.unsigned_abs() {
            ms @ 0..5000 => format!("{ms} ms"),
            ms => relative(Timestamp(0), Timestamp(ms as i64)).trim_end_matches(" ago").to_owned(),
        };
        self.out.note(match off {
            0 => format!("checkpoint {id} was taken at that very moment, {taken}"),
            ..0 => format!("checkpoint {id} is the newest at or before {asked}: taken {taken}, {far} before it"),
            _ => format!("nothing was taken by {asked}: checkpoint {id} is the first, taken {taken}, {far} after it"),
        });
    }

    /// The session that is meant, to be written to. If whoever held it was killed on this machine, it is free.
    pub async fn session_to_write(&mut self, given: &str) -> Result<SessionId> {
        let id = self.session(given).await?;
        self.free_from_the_dead(id).await?;
        Ok(id)
    }

    /// Ends the lease of a process that is gone.
    pub async fn free_from_the_dead(&mut self, id: SessionId) -> Result<()> {
        let engine = self.engine().await?;
        let store = engine.store();
        let Some(lease) = store.lease(id).await.map_err(milepost::Error::from)? else { return Ok(()) };
        if lease.owner.is_some() && lease.until > engine.source().now() && holder::is_gone(&lease.holder) {
            let writer = store.write(id, &engine.claim().take_over()).await.map_err(milepost::Error::from)?;
            writer.release().await.map_err(milepost::Error::from)?;
            self.out.note(format!("{} is gone without giving the session back: it is free", plain(&lease.holder)));
        }
        Ok(())
    }

    /// Does something that writes sessions whose ids are known only in the middle of it: where a process that is gone
    /// still has the lease of one, it is freed, and all of it is done again.
    pub async fn despite_the_dead<T>(&mut self, mut work: impl AsyncFnMut(&Self) -> Result<T>) -> Result<T> {
        loop {
            let error = match work(self).await {
                Err(error) => error,
                done => return done,
            };
            match error.downcast_ref::<milepost::Error>() {
                Some(milepost::Error::Store(StoreError::Held { session, holder, .. })) if holder::is_gone(holder) => {
                    let session = *session;
                    self.free_from_the_dead(session).await?;
                }
                _ => return Err(error),
            }
        }
    }

    /// The session that is meant, brought back when it was archived.
    pub async fn session_or_archived(&mut self, given: &str) -> Result<SessionId> {
        let engine = self.engine().await?;
        let found = self.session(given).await;
        let is_here = match &found {
            Ok(id) => engine.store().session(*id).await.is_ok(),
            Err(_) => false,
        };
        if is_here {
            return found;
        }
        match crate::commands::bring_back_if_archived(self, given).await? {
            Some(id) => Ok(id),
            None => found,
        }
    }

    /// Asks a person before something that cannot be undone; `--yes` answers for them.
    pub async fn confirm(&self, question: &str, yes: bool) -> Result<()> {
        if yes {
            return Ok(());
        }
        if !std::io::stdin().is_terminal() {
            return Err(Usage(format!("{question} Nothing was done, as nobody is there to answer: say --yes")).into());
        }
        {
            let mut err = std::io::stderr().lock();
            write!(err, "{question} [y/N] ").and_then(|()| err.flush()).on_file("asking on the error output")?;
        }
        let answer = apart(|| {
            let mut answer = String::new();
            let mut input = std::io::stdin().lock().take(MAX_ANSWER_BYTES);
            input.read_line(&mut answer).on_file("reading the answer")?;
            Ok(answer)
        });
        match answer.await?.trim().to_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => Err(Usage("nothing was done: the answer was not yes; run it again, and answer y".into()).into()),
        }
    }

    /// Says how long what was removed stays, where a store keeps it for a while.
    pub fn tell_lingering(&self, engine: &Milepost) {
        let lingers_ms = engine.store().backend().features().lingers_ms;
        if lingers_ms > 0 {
            self.out.note(format!(
                "what was removed stays in the store for {}, for whoever is just reading it; `milepost prune --purge` deletes it after that",
                minutes(lingers_ms)
            ));
        }
    }

    /// Shows how far something is.
    pub fn progress(&self, what: &'static str, total: u64) -> Progress {
        let source = self.engine.as_ref().map(|engine| engine.source().clone());
        Progress::new(what, total, source.filter(|_| self.shows_progress()))
    }

    /// Shows that something goes on.
    pub fn waiting(&self, what: &'static str) -> Waiting {
        Waiting::new(what, self.shows_progress())
    }

    /// The flags that say where this command works, as they were typed, without a password.
    pub fn flags_of_place(&self) -> Vec<(&'static str, String)> {
        let config = self.global.config.as_ref().map(|path| path.display().to_string());
        let store = self.global.store.as_ref().map(|url| Url::new(url).to_type());
        let flags = [("--store", &store), ("--workspace", &self.global.workspace), ("--config", &config)];
        flags.into_iter().filter_map(|(flag, value)| Some((flag, value.clone()?))).collect()
    }

    /// The same error; where the file of a store that this command works with is damaged, with the command that brings what is
    /// whole out of it. What is wrong with an entry alone is nothing that a rescue mends.
    pub async fn or_rescued(&self, error: anyhow::Error) -> anyhow::Error {
        let Some(milepost::Error::Store(found @ StoreError::Corrupt { .. })) = error.downcast_ref() else {
            return error;
        };
        let own = self.engine.as_ref().zip(self.settings.as_ref());
        let own = own.map(|(engine, settings)| (settings.store.expose().to_owned(), engine.store().clone()));
        let others = self.other_stores().clone().into_iter().map(|other| ("rescue other", other));
        for (way, (url, store)) in own.map(|own| ("rescue", own)).into_iter().chain(others) {
            // Only files are rescued, and only those that can be looked through at once are.
            let Some(command) = places::rescue_of(&url) else { continue };
            let file = places::sqlite_file(&url).and_then(|file| file.metadata().ok());
            if file.is_some_and(|file| file.len() > MAX_CHECKED_BYTES) {
                let text = format!("the store {}: {error:#}; if the file is damaged, rescue it", plain(&url));
                return Failed::damaged_with(text, vec![(way, command)]).into();
            }
            if milepost::needs_rescue(&store).await {
                return damaged_store(found, &url, way);
            }
        }
        error
    }

    /// The store that was named on the command line.
    pub fn store_flag(&self) -> Option<&str> {
        self.global.store.as_deref()
    }

    /// Whether nothing but results and errors is written.
    pub fn is_quiet(&self) -> bool {
        self.global.quiet
    }

    pub fn shows_progress(&self) -> bool {
        !self.global.json && !self.global.quiet
    }

    /// Another store, opened with the same keys and workspace.
    pub async fn other_store(&self, url: &str) -> Result<Store> {
        places::prepare(url)?;
        let settings = self.settings()?;
        let options = self.engine_options(&settings)?.store;
        let opened = Store::open(url, options).await.map_err(|error| match error {
            error @ StoreError::Corrupt { .. } => damaged_store(&error, url, "rescue other"),
            error => milepost::Error::from(error).into(),
        })?;
        self.other_stores().push((url.to_owned(), opened.clone()));
        Ok(opened)
    }

    fn other_stores(&self) -> MutexGuard<'_, Vec<(String, Store)>> {
        self.other_stores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finishes.
    pub async fn close(&mut self) -> Result<()> {
        self.tell_pruned();
        match self.engine.take() {
            Some(engine) => Ok(engine.close().await?),
            None => Ok(()),
        }
    }
}

impl App {
    /// Opens the log before anything is done, so that nothing is stored that could not be logged.
    pub fn open_log(&mut self) -> Result<()> {
        let Some(path) = &self.global.log else { return Ok(()) };
        self.must_not_be_store(path)?;
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        self.log = Some(file.map_err(|error| log_failed(path, error))?);
        Ok(())
    }

    /// Says what the retention did beside the command: nothing goes in silence.
    fn tell_pruned(&self) {
        let pruned: u64 = self.engine.iter().chain(&self.others).map(|engine| engine.counts().pruned()).sum();
        if pruned > 0 {
            let what = count(pruned, "checkpoint");
            self.out
                .note(format!("the policy put {what} into the trash: `sessions checkpoints ID --trashed` lists them"));
        }
    }

    /// Appends what checkpoints did to the log.
    pub fn write_log(&mut self) -> Result<()> {
        let (Some(path), Some(log), Some(notices)) = (&self.global.log, &mut self.log, &mut self.notices) else {
            return Ok(());
        };
        let mut lines = String::new();
        loop {
            match notices.try_recv() {
                Ok(notice) => {
                    lines += &serde_json::to_string(&notice)?;
                    lines.push('\n');
                }
                // More happened than is kept; the rest is there.
                Err(TryRecvError::Lagged(_)) => {}
                Err(_) => break,
            }
        }
        Ok(log.write_all(lines.as_bytes()).map_err(|error| log_failed(path, error))?)
    }

    /// Refuses a file to be written that is the store itself.
    pub fn must_not_be_store(&self, file: &Path) -> Result<()> {
        // Settings that cannot be read are told by whoever needs them.
        let Ok(settings) = self.loader()?.load() else { return Ok(()) };
        match places::is_store(settings.store.expose(), file) {
            true => Err(Usage(format!(
                "{} is the store in use, or a part of it: writing there would destroy it; name another file",
                file.display()
            ))
            .into()),
            false => Ok(()),
        }
    }
}

fn log_failed(path: &Path, error: std::io::Error) -> milepost::Error {
    milepost::Error::file(format!("writing the log {}", path.display()), error)
}
