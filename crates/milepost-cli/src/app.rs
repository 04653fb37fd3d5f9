//! What every command needs: the settings, the engine, and where to write.

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::{Context, Result};
use milepost::config::{Loader, Settings};
use milepost::store::Store;
use milepost::{EngineOptions, Milepost, Notice, SessionId, SessionQuery};
use tokio::runtime::{Builder, Runtime};

use crate::args::Global;
use crate::errors::{Interrupted, Usage};
use crate::out::{Out, Styles};
use crate::progress::{Progress, Waiting};

/// A command's surroundings.
pub struct App {
    global: Global,
    pub out: Out,
    engine: Option<Milepost>,
    notices: Option<tokio::sync::broadcast::Receiver<Notice>>,
}

/// Threads for what waits; a search also uses them to read.
pub fn runtime() -> Result<Runtime> {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().context("starting")
}

/// Runs something until it ends or the person stops it.
pub async fn until_interrupted<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        outcome = work => outcome,
        signal = tokio::signal::ctrl_c() => {
            signal.context("waiting for an interrupt")?;
            Err(Interrupted.into())
        }
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

impl App {
    pub fn new(global: Global) -> Self {
        let out = Out::new(global.json, global.exact, global.quiet, global.color);
        Self { global, out, engine: None, notices: None }
    }

    /// Colours for the error output.
    pub fn styles(&self) -> Styles {
        Styles::new(self.global.color, std::io::stderr().is_terminal())
    }

    /// How settings are read: the file, the environment, then the flags.
    pub fn loader(&self) -> Result<Loader<'static>> {
        let directory = std::env::current_dir().context("asking for the working directory")?;
        let mut loader = Loader::new(directory, variable);
        if let Some(path) = &self.global.config {
            loader = loader.file(path);
        }
        for (key, value) in [("store", &self.global.store), ("workspace", &self.global.workspace)] {
            if let Some(value) = value {
                loader = loader.set(key, value);
            }
        }
        Ok(loader)
    }

    /// The settings in force.
    pub fn settings(&self) -> Result<Settings> {
        let settings = self.loader()?.load()?;
        for warning in settings.warnings() {
            self.out.note(format!("{} {warning}", self.styles().warn("warning:")));
        }
        Ok(settings)
    }

    /// What the engine is opened with.
    pub fn engine_options(&self, settings: &Settings) -> Result<EngineOptions> {
        let mut options = EngineOptions::from_settings(settings, &variable)?;
        options.holder = format!("milepost on {} (process {})", host(), std::process::id());
        options.store.accept_damage = self.global.accept_damage;
        Ok(options)
    }

    /// The engine, opened on first use.
    pub async fn engine(&mut self) -> Result<Milepost> {
        if let Some(engine) = &self.engine {
            return Ok(engine.clone());
        }
        let settings = self.settings()?;
        let options = self.engine_options(&settings)?;
        prepare_place(settings.store.expose())?;
        let engine = Milepost::open_with(settings.store.expose(), options).await?;
        self.out.now = engine.source().now();
        self.notices = self.global.log.is_some().then(|| engine.notices());
        self.engine = Some(engine.clone());
        Ok(engine)
    }

    /// The session that is meant: an id, a part of one, or `last` for the one written last.
    pub async fn session(&mut self, given: &str) -> Result<SessionId> {
        let engine = self.engine().await?;
        if given != "last" {
            return Ok(engine.find(given).await?);
        }
        let newest = engine.sessions(&SessionQuery { limit: Some(1), ..SessionQuery::default() }).await?;
        match newest.sessions.first() {
            Some(session) => Ok(session.id),
            None => Err(Usage("there is no session yet: begin one with `milepost sessions new`".into()).into()),
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
    pub fn confirm(&self, question: &str, yes: bool) -> Result<()> {
        if yes {
            return Ok(());
        }
        if !std::io::stdin().is_terminal() {
            return Err(
                Usage(format!("{question} Nobody is there to ask: say --yes, or look first with --dry-run")).into()
            );
        }
        use std::io::Write;
        let mut err = std::io::stderr().lock();
        write!(err, "{question} [y/N] ")?;
        err.flush()?;
        drop(err);
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        match answer.trim().to_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => Err(Usage("nothing was done".into()).into()),
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

    fn shows_progress(&self) -> bool {
        !self.global.json && !self.global.quiet
    }

    /// Another store, opened with the same keys and workspace.
    pub async fn other_store(&self, url: &str) -> Result<Store> {
        let settings = self.settings()?;
        let options = self.engine_options(&settings)?.store;
        Ok(Store::open(url, options).await.map_err(milepost::Error::from)?)
    }

    /// Finishes.
    pub async fn close(&mut self) -> Result<()> {
        self.write_log()?;
        match self.engine.take() {
            Some(engine) => Ok(engine.close().await?),
            None => Ok(()),
        }
    }
}

impl App {
    /// Appends what checkpoints did to the log.
    fn write_log(&mut self) -> Result<()> {
        let (Some(path), Some(notices)) = (&self.global.log, &mut self.notices) else { return Ok(()) };
        let mut lines = String::new();
        while let Ok(notice) = notices.try_recv() {
            lines += &serde_json::to_string(&notice)?;
            lines.push('\n');
        }
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        let written = file.as_mut().map_err(|error| std::io::Error::other(error.to_string()));
        std::io::Write::write_all(written?, lines.as_bytes())
            .with_context(|| format!("writing the log {}", path.display()))
    }
}

/// The directory of the default store is made on first use; one that was named must be there.
fn prepare_place(url: &str) -> Result<()> {
    let Some(path) = url.strip_prefix("sqlite:") else { return Ok(()) };
    let path = PathBuf::from(path);
    let Some(parent) = path.parent().filter(|parent| parent.ends_with("milepost")) else { return Ok(()) };
    std::fs::create_dir_all(parent).with_context(|| format!("making the directory {}", parent.display()))
}

/// The machine's name, for whoever is told who holds a session.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| variable("HOSTNAME"));
    name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).unwrap_or_else(|| "this machine".to_owned())
}
