//! The models that runs and chats ask, as settings name them.

use std::collections::BTreeMap;

use milepost_document::{Diagnostic, Origin};
use serde_json::Value;

use super::read::Typed;
use super::settings::Url;
use super::suggest;
use super::usable::Surroundings;

/// Who can be asked.
pub(super) const PROVIDERS: &[&str] = &["anthropic", "openai", "scripted"];

/// A model as settings name it. The key itself never stands in a configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSettings {
    /// Who is asked: `anthropic`, `openai` (and whoever speaks its API), `scripted`.
    pub provider: String,
    /// The provider's name of the model; for `scripted`, the script's path.
    pub model: String,
    /// Where the API is; the provider's own when none.
    pub base_url: Option<Url>,
    /// The variable that holds the key; the provider's usual one when none.
    pub key_variable: Option<String>,
    /// The command that writes the key.
    pub key_command: Option<String>,
    /// Whether a key may travel unencrypted to another machine.
    pub allow_http: bool,
    /// How long a call may take, by name, in milliseconds.
    pub timeouts: BTreeMap<String, u64>,
    /// Further headers of every request.
    pub headers: BTreeMap<String, String>,
    /// What it costs, in dollars for a million tokens: `input`, `output`, `cache_read`, `cache_write`.
    pub prices: BTreeMap<String, f64>,
}

/// The models of the file.
pub(super) fn models(
    typed: &Typed,
    around: &Surroundings<'_>,
    found: &mut Vec<Diagnostic>,
) -> BTreeMap<String, ModelSettings> {
    let Value::Object(named) = typed.tree(&["models"]) else { return BTreeMap::new() };
    named
        .into_iter()
        .filter_map(|(name, tree)| Some((name.clone(), model(&name, &tree, typed, around, found)?)))
        .collect()
}

fn model(
    name: &str,
    tree: &Value,
    typed: &Typed,
    around: &Surroundings<'_>,
    found: &mut Vec<Diagnostic>,
) -> Option<ModelSettings> {
    let path = |key: &str| vec!["models".to_owned(), name.to_owned(), key.to_owned()];
    let own = |key: &str| typed.0.get(&path(key)).map(|(_, origin)| origin.clone());
    let anywhere = || {
        let first = typed.0.iter().find(|(path, _)| path.len() > 2 && path[0] == "models" && path[1] == name);
        first.map_or(Origin::Default, |(_, (_, origin))| origin.clone())
    };
    let text = |key: &str| tree.get(key).and_then(Value::as_str).map(str::to_owned);
    let mut wrong = |key: &str, why: &str, instead: &str| {
        // What stands there and is wrong was told already.
        if found.iter().any(|one| one.key == suggest::show(&path(key))) && own(key).is_none() {
            return;
        }
        let origin = own(key).unwrap_or_else(anywhere);
        found.push(Diagnostic::error(&origin, suggest::show(&path(key)), why, instead));
    };
    let (provider, model) = (text("provider"), text("model"));
    if provider.is_none() {
        wrong("provider", "it is not said who is asked", "set it to anthropic, openai or scripted");
    }
    if model.is_none() {
        wrong("model", "it is not said which model is asked", "set it to the provider's name of the model");
    }
    if tree.get("key_variable").is_some() && tree.get("key_command").is_some() {
        wrong("key_command", "the key comes from a variable as well", "keep one of them");
    }
    let prices: BTreeMap<String, f64> = amounts(tree.get("prices"));
    let has_both = ["input", "output"].iter().all(|key| prices.contains_key(*key));
    if !prices.is_empty() && !has_both {
        wrong("prices", "input and output both cost something", "set prices.input and prices.output");
    }
    let (provider, mut model) = (provider?, model?);
    if provider == "scripted" {
        let origin = own("model").unwrap_or(Origin::Default);
        match around.whole(&model, &origin) {
            Some(path) => model = path.display().to_string(),
            None => wrong("model", "~ is not known: HOME is not set", "write the whole path"),
        }
    }
    Some(ModelSettings {
        provider,
        model,
        base_url: text("base_url").map(Url::new),
        key_variable: text("key_variable"),
        key_command: text("key_command"),
        allow_http: tree.get("allow_http").and_then(Value::as_bool).unwrap_or(false),
        timeouts: entries(tree.get("timeouts"), Value::as_u64),
        headers: entries(tree.get("headers"), |value| value.as_str().map(str::to_owned)),
        prices,
    })
}

fn amounts(tree: Option<&Value>) -> BTreeMap<String, f64> {
    entries(tree, Value::as_f64)
}

fn entries<T>(tree: Option<&Value>, read: impl Fn(&Value) -> Option<T>) -> BTreeMap<String, T> {
    let map = tree.and_then(Value::as_object);
    map.into_iter().flatten().filter_map(|(key, value)| Some((key.clone(), read(value)?))).collect()
}

/// The usual model: one of the file's, or `PROVIDER/MODEL`.
pub(super) fn usual(
    typed: &Typed,
    models: &BTreeMap<String, ModelSettings>,
    found: &mut Vec<Diagnostic>,
) -> Option<String> {
    let (value, origin) = typed.get("model")?;
    let name = value.as_str()?;
    let is_direct =
        name.split_once('/').is_some_and(|(provider, model)| PROVIDERS.contains(&provider) && !model.is_empty());
    if !models.contains_key(name) && !is_direct {
        let short: String = name.chars().take(80).collect();
        let named = typed.0.keys().filter(|path| path.len() > 1 && path[0] == "models").map(|path| path[1].as_str());
        let instead = match suggest::nearest(&short, named) {
            Some(near) => format!("did you mean {near}?"),
            None => "name one of `models`, or write anthropic/MODEL, openai/MODEL or scripted/FILE".to_owned(),
        };
        found.push(Diagnostic::error(origin, "model", format!("there is no model {short:?}"), instead));
    }
    Some(name.to_owned())
}

/// What a file that may have come with a directory must not decide: which commands are run, and where a key is sent.
pub(super) fn refuse_foreign(typed: &Typed, instead: &str, found: &mut Vec<Diagnostic>) {
    for (path, (value, origin)) in &typed.0 {
        let [first, _, key] = path.as_slice() else { continue };
        let why = match (first.as_str(), key.as_str()) {
            ("models", "key_command") => "it runs a command",
            ("models", "base_url") if !is_local(value.as_str().unwrap_or_default()) => "it says where keys are sent",
            _ => continue,
        };
        let why = format!("{why}, and the file may have come with the directory");
        found.push(Diagnostic::error(origin, suggest::show(path), why, instead));
    }
}

/// Whether a URL leads nowhere but to this machine.
fn is_local(url: &str) -> bool {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    !authority.contains('@')
        && (host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback()))
}
