//! The models that settings name, for runs and chats. Each is opened when it is first asked, so that a run needs the keys
//! of those models only that it asks.

use std::fmt;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use milepost::config::{ModelSettings, Settings};
use milepost_model::Source;
use milepost_models::{Cancel, Error, Heard, Model, ModelConfig, Outcome, Provider, Request, Timeouts, Timer};
use serde_json::{Map, Value, json};
use tokio::io::AsyncReadExt;
use tokio::sync::OnceCell;

use crate::graph::Graph;
use crate::run::Runner;

/// The most bytes that a command may write as a key (64 KiB).
pub const MAX_KEY_BYTES: u64 = 64 << 10;
/// How long a command may take to write a key (30 seconds: somebody may have to unlock something).
pub const KEY_COMMAND_MS: u64 = 30_000;

/// How the environment is read.
pub type Variable = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The models of some settings.
#[derive(Clone)]
pub struct Models {
    settings: Arc<Settings>,
    variable: Variable,
    source: Source,
}

impl Models {
    /// The models that these settings name. `variable` looks environment variables up: keys are read from there.
    pub fn new(settings: Settings, variable: Variable, source: Source) -> Self {
        Self { settings: Arc::new(settings), variable, source }
    }

    /// The name of the usual model.
    pub fn usual(&self) -> Option<&str> {
        self.settings.model.as_deref()
    }

    /// The same with another usual model, if one is named.
    #[must_use]
    pub fn with_usual(&self, name: Option<&str>) -> Self {
        let Some(name) = name else { return self.clone() };
        let mut settings = (*self.settings).clone();
        settings.model = Some(name.to_owned());
        Self { settings: Arc::new(settings), ..self.clone() }
    }

    /// How a model is asked: by its name among the settings' own, or by `PROVIDER/MODEL`.
    pub fn config(&self, name: &str) -> Result<ModelConfig, Error> {
        match self.settings.models.get(name) {
            Some(own) => configured(name, own),
            None => ModelConfig::parse(name),
        }
    }

    /// Opens a model: what is wrong with its settings, its key or its script is told now.
    pub async fn open(&self, name: &str) -> Result<Arc<dyn Model>, Error> {
        let config = self.config(name)?;
        let command = self.settings.models.get(name).and_then(|own| own.key_command.as_deref());
        let Some(command) = command else {
            return config.open(&*self.variable, &self.source, Timer::real());
        };
        let place = format!("models.{name}.key_command");
        let key = key_of(&place, command).await?;
        let config = ModelConfig { key_variable: Some(place.clone()), ..config };
        let variable = |asked: &str| if asked == place { Some(key.to_string()) } else { (self.variable)(asked) };
        config.open(&variable, &self.source, Timer::real())
    }

    /// A model that is opened when it is first asked.
    pub fn later(&self, name: &str) -> Arc<dyn Model> {
        Arc::new(Later { name: name.to_owned(), models: self.clone(), opened: OnceCell::new() })
    }

    /// The models that the nodes of a graph ask, and of the graphs inside, by the names that they give them; none for the
    /// usual one.
    pub fn asked_by(graph: &Graph) -> Vec<Option<String>> {
        let asks = |action: &str| matches!(action, "model" | "agent" | "checks");
        let mut names = Vec::new();
        graph.each_node(&[], &mut |node| {
            if let Some(node) = node.filter(|node| asks(&node.action)) {
                names.push(node.parameters.get("model").and_then(Value::as_str).map(str::to_owned));
            }
        });
        names.sort();
        names.dedup();
        names
    }
}

fn configured(name: &str, own: &ModelSettings) -> Result<ModelConfig, Error> {
    let provider = match own.provider.as_str() {
        "anthropic" => Provider::Anthropic,
        "openai" => Provider::OpenAi,
        _ => Provider::Scripted,
    };
    let mut config = ModelConfig::new(provider, &own.model);
    config.base_url = own.base_url.as_ref().map(|url| url.expose().to_owned());
    config.key_variable.clone_from(&own.key_variable);
    config.allow_http = own.allow_http;
    config.headers = own.headers.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
    let usual = Timeouts::default();
    let time = |key: &str, usual: u64| own.timeouts.get(key).copied().unwrap_or(usual);
    config.timeouts = Timeouts {
        connect_ms: time("connect_ms", usual.connect_ms),
        first_byte_ms: time("first_byte_ms", usual.first_byte_ms),
        progress_ms: time("progress_ms", usual.progress_ms),
        whole_ms: time("whole_ms", usual.whole_ms),
    };
    if !own.prices.is_empty() {
        let rates: Map<String, Value> = own.prices.iter().map(|(key, usd)| (key.clone(), json!(usd))).collect();
        let table = Map::from_iter([(own.model.clone(), Value::Object(rates))]);
        config.prices = Some(json!({ "models": table }));
    }
    match config.model.trim().is_empty() {
        true => Err(Error::config(format!("models.{name}.model"), "it names no model", "name one")),
        false => Ok(config),
    }
}

/// The first line that a command writes. Neither the key nor what else it wrote is told.
async fn key_of(place: &str, command: &str) -> Result<zeroize::Zeroizing<String>, Error> {
    let wrong = |why: String| Error::config(place, why, "run the command by hand, and mend it");
    let (shell, flag) = if cfg!(windows) { ("cmd", "/C") } else { ("sh", "-c") };
    let mut child = tokio::process::Command::new(shell)
        .args([flag, command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| wrong(format!("it cannot be run: {error}")))?;
    let mut written = zeroize::Zeroizing::new(Vec::new());
    let out = child.stdout.take();
    let work = async {
        if let Some(out) = out {
            out.take(MAX_KEY_BYTES).read_to_end(&mut written).await?;
        }
        child.wait().await
    };
    let status = tokio::time::timeout(Duration::from_millis(KEY_COMMAND_MS), work).await;
    let status = status.map_err(|_| wrong(format!("it took longer than KEY_COMMAND_MS, {KEY_COMMAND_MS} ms")))?;
    let status = status.map_err(|error| wrong(format!("it broke off: {error}")))?;
    if !status.success() {
        return Err(wrong(format!("it failed ({status})")));
    }
    let text = std::str::from_utf8(&written).map_err(|_| wrong("what it wrote is not UTF-8".to_owned()))?;
    match text.lines().next().map(str::trim).filter(|line| !line.is_empty()) {
        Some(key) => Ok(zeroize::Zeroizing::new(key.to_owned())),
        None => Err(wrong("it wrote nothing".to_owned())),
    }
}

/// A model that is opened when it is first asked.
struct Later {
    name: String,
    models: Models,
    opened: OnceCell<Arc<dyn Model>>,
}

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Later").field("name", &self.name).finish_non_exhaustive()
    }
}

#[async_trait]
impl Model for Later {
    fn name(&self) -> &str {
        self.opened.get().map_or(&self.name, |model| model.name())
    }

    async fn ask(&self, request: &Request, cancel: &Cancel, heard: Heard<'_>) -> Result<Outcome, Error> {
        let model = self.opened.get_or_try_init(|| self.models.open(&self.name)).await?;
        model.ask(request, cancel, heard).await
    }
}

impl Runner {
    /// With the models that settings name, and those that the graph's nodes name as `PROVIDER/MODEL`.
    #[must_use]
    pub fn with_models(self, models: &Models, graph: &Graph) -> Self {
        let named = Models::asked_by(graph).into_iter().flatten();
        let own = models.settings.models.keys().cloned();
        let mut runner = named.filter(|name| name.contains('/')).chain(own).fold(self, |runner, name| {
            let model = models.later(&name);
            runner.named_model(name, model)
        });
        if let Some(usual) = models.usual() {
            runner = runner.model(models.later(usual));
        }
        runner
    }
}
