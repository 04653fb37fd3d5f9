//! From settings as typed to settings as used: defaults, whole paths, and what one setting says about another.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use milepost_document::{Diagnostic, Origin};
use milepost_model::{Policy, PolicyPatch, Trigger, WorkspaceId};
use milepost_store::{Durability, MASTER_KEY_VARIABLE};
use serde_json::Value;

use super::models;
use super::read::Typed;
use super::settings::{
    AgentKind, Budget, Compression, KeySettings, KeySource, Redaction, Settings, Summaries, Template, Url, Work,
};
use super::suggest;

/// The environment variable that holds the key of marks.
pub const MARK_KEY_VARIABLE: &str = "MILEPOST_MARK_KEY";

const SCHEMES: &[&str] = &["sqlite", "memory", "postgres", "postgresql", "s3", "gs", "az", "file"];
const BUCKETS: &[&str] = &["s3", "gs", "az", "file"];

/// What the settings stand in: the directory, and what the environment says.
pub(super) struct Surroundings<'a> {
    pub directory: &'a Path,
    pub lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl Surroundings<'_> {
    /// A variable that is set and not empty.
    pub fn variable(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|value| !value.is_empty())
    }

    /// The absolute path in a variable; a relative one does not count.
    pub fn directory_in(&self, name: &str) -> Option<PathBuf> {
        self.variable(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    fn home(&self) -> Option<PathBuf> {
        self.directory_in("HOME").or_else(|| self.directory_in("USERPROFILE"))
    }

    /// A path as it is used: `~/` is the home directory, a relative one begins where it was written.
    pub fn whole(&self, text: &str, origin: &Origin) -> Option<PathBuf> {
        if let Some(below) = text.strip_prefix("~/") {
            return self.home().map(|home| home.join(below));
        }
        Some(self.base(origin).join(text))
    }

    fn base(&self, origin: &Origin) -> PathBuf {
        match origin {
            Origin::File { path, .. } => self.directory.join(path.parent().unwrap_or_else(|| Path::new(""))),
            _ => self.directory.to_owned(),
        }
    }
}

/// Makes settings of what was typed. What is wrong is added to `found`; the settings are only of use when nothing was.
pub(super) fn build(mut typed: Typed, around: &Surroundings<'_>, found: &mut Vec<Diagnostic>) -> Settings {
    let store = store(&mut typed, around, found);
    let blobs = blobs(&typed, &store, around, found);
    let (policy, plans, supervised) = policies(&typed);
    let encryption = key(&mut typed, "encryption", MASTER_KEY_VARIABLE, around, found);
    let signing = key(&mut typed, "signing", MARK_KEY_VARIABLE, around, found);
    let budget = budget(&typed, found);
    let models = models::models(&typed, around, found);
    let (compression, redaction) = (Compression::default(), Redaction::default());
    Settings {
        workspace: workspace(&typed, found),
        durability: durability(&typed, &store, found),
        compression: Compression {
            enabled: flag(&typed, "compression.enabled").unwrap_or(compression.enabled),
            threshold_bytes: number(&typed, "compression.threshold_bytes").unwrap_or(compression.threshold_bytes),
        },
        redaction: Redaction {
            enabled: flag(&typed, "redaction.enabled").unwrap_or(redaction.enabled),
            vault: flag(&typed, "redaction.vault").unwrap_or(redaction.vault),
            patterns: texts(&typed, "redaction.patterns").unwrap_or_default(),
            allow: texts(&typed, "redaction.allow").unwrap_or_default(),
        },
        summaries: summaries(&typed),
        model: models::usual(&typed, &models, found),
        models,
        agents: agents(&typed),
        templates: templates(&typed, around, found),
        origins: typed.0.into_iter().map(|(path, (_, origin))| (path, origin)).collect(),
        warnings: Vec::new(),
        store,
        blobs,
        encryption,
        signing,
        policy,
        plans,
        supervised,
        budget,
    }
}

/// When an append is durable. Only in a bucket, where every write costs, is there a choice.
fn durability(typed: &Typed, store: &Url, found: &mut Vec<Diagnostic>) -> Durability {
    if text(typed, "durability").as_deref() != Some("turn") {
        return Durability::Full;
    }
    let scheme = store.expose().split(':').next().unwrap_or_default();
    if !BUCKETS.contains(&scheme) {
        let why =
            format!("turn is for buckets: {scheme} makes every append durable at once, which costs nothing there");
        let instead = "remove it, or set it to full";
        found.push(Diagnostic::warning(&typed.origin("durability"), "durability", why, instead));
    }
    Durability::Turn
}

fn value<'a>(typed: &'a Typed, path: &str) -> Option<&'a Value> {
    typed.get(path).map(|(value, _)| value)
}

fn flag(typed: &Typed, path: &str) -> Option<bool> {
    value(typed, path)?.as_bool()
}

fn number(typed: &Typed, path: &str) -> Option<u64> {
    value(typed, path)?.as_u64()
}

fn text(typed: &Typed, path: &str) -> Option<String> {
    value(typed, path)?.as_str().map(str::to_owned)
}

fn texts(typed: &Typed, path: &str) -> Option<Vec<String>> {
    value(typed, path).map(list)
}

fn list(value: &Value) -> Vec<String> {
    let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

fn workspace(typed: &Typed, found: &mut Vec<Diagnostic>) -> WorkspaceId {
    let Some(name) = text(typed, "workspace") else { return WorkspaceId::default() };
    WorkspaceId::new(name).unwrap_or_else(|error| {
        let origin = typed.origin("workspace");
        found.push(Diagnostic::error(&origin, "workspace", error.to_string(), "use another name"));
        WorkspaceId::default()
    })
}

/// The store's URL. A relative path of SQLite begins where it was written.
fn store(typed: &mut Typed, around: &Surroundings<'_>, found: &mut Vec<Diagnostic>) -> Url {
    let backend = typed.0.remove(&vec!["storage_backend".to_owned()]);
    let Some((given, origin)) = typed.get("store").cloned() else {
        if let Some((Value::String(word), origin)) = backend
            && !matches!(word.as_str(), "sqlite" | "local")
        {
            let why = format!("{word} needs the place where it is");
            found.push(Diagnostic::error(&origin, "storage_backend", why, "set store to its URL"));
        }
        return default_store(around, found);
    };
    let url = checked_url("store", given.as_str().unwrap_or_default(), &origin, SCHEMES, around, found);
    if let Some((Value::String(word), origin)) = backend {
        let schemes: &[&str] = match word.as_str() {
            "sqlite" | "local" => &["sqlite"],
            "postgres" => &["postgres", "postgresql"],
            "gcs" => &["gs"],
            "azure" => &["az"],
            "s3" => &["s3"],
            "file" => &["file"],
            _ => &["memory"],
        };
        let scheme = url.expose().split(':').next().unwrap_or_default();
        if !schemes.contains(&scheme) {
            let why = format!("it says {word}, but store is {url}");
            found.push(Diagnostic::error(&origin, "storage_backend", why, "remove it: the URL says enough"));
        }
    }
    url
}

/// `milepost/milepost.db` in the directory for programs' data.
fn default_store(around: &Surroundings<'_>, found: &mut Vec<Diagnostic>) -> Url {
    let data = around.directory_in("XDG_DATA_HOME");
    match data.or_else(|| around.home().map(|home| home.join(".local/share"))) {
        Some(data) => Url::new(format!("sqlite:{}", data.join("milepost/milepost.db").display())),
        None => {
            let why = "there is no place for the store: neither XDG_DATA_HOME nor HOME is an absolute path";
            found.push(Diagnostic::error(&Origin::Default, "store", why, "set store, or the variable MILEPOST_STORE"));
            Url::new("memory:")
        }
    }
}

fn checked_url(
    key: &str,
    given: &str,
    origin: &Origin,
    schemes: &[&str],
    around: &Surroundings<'_>,
    found: &mut Vec<Diagnostic>,
) -> Url {
    let scheme = given.split_once(':').map_or("", |(scheme, _)| scheme);
    if !schemes.contains(&scheme) {
        let instead = match suggest::nearest(scheme, schemes.iter().copied()) {
            Some(near) if !scheme.is_empty() => format!("did you mean {near}:?"),
            // A path alone is most often a file of SQLite.
            _ if scheme.is_empty() && !given.is_empty() && schemes.contains(&"sqlite") => {
                format!("did you mean sqlite:{given}?")
            }
            _ => format!("begin it with one of {}:", schemes.join(":, ")),
        };
        found.push(Diagnostic::error(origin, key, "it is not the URL of a store", instead));
        return Url::new(given);
    }
    let Some(path) = given.strip_prefix("sqlite:").filter(|path| !path.is_empty()) else {
        if given == "sqlite:" {
            found.push(Diagnostic::error(origin, key, "sqlite: names no file", "write sqlite:PATH"));
        }
        return Url::new(given);
    };
    match around.whole(path, origin) {
        Some(path) => Url::new(format!("sqlite:{}", path.display())),
        None => {
            found.push(Diagnostic::error(origin, key, "~ is not known: HOME is not set", "write the whole path"));
            Url::new(given)
        }
    }
}

/// What is wrong with the places that a layer names, whether or not a later one takes their place.
pub(super) fn check_places(typed: &Typed, around: &Surroundings<'_>, found: &mut Vec<Diagnostic>) {
    for (key, schemes) in [("store", SCHEMES), ("blobs", BUCKETS)] {
        if let Some((given, origin)) = typed.get(key) {
            checked_url(key, given.as_str().unwrap_or_default(), origin, schemes, around, found);
        }
    }
}

fn blobs(typed: &Typed, store: &Url, around: &Surroundings<'_>, found: &mut Vec<Diagnostic>) -> Option<Url> {
    let (given, origin) = typed.get("blobs")?;
    let url = checked_url("blobs", given.as_str().unwrap_or_default(), origin, BUCKETS, around, found);
    if !store.expose().starts_with("postgres") {
        let why = format!("it stands beside PostgreSQL, but store is {store}");
        found.push(Diagnostic::error(origin, "blobs", why, "remove it, or use a store of PostgreSQL"));
    }
    Some(url)
}

/// A key's settings. Naming a place for it, or setting the variable, turns it on.
fn key(
    typed: &mut Typed,
    section: &str,
    variable: &str,
    around: &Surroundings<'_>,
    found: &mut Vec<Diagnostic>,
) -> KeySettings {
    let at = |name: &str| format!("{section}.{name}");
    let file = typed.get(&at("key_file")).cloned();
    let file = file.and_then(|(value, origin)| {
        let path = around.whole(value.as_str().unwrap_or_default(), &origin);
        if path.is_none() {
            found.push(Diagnostic::error(
                &origin,
                at("key_file"),
                "~ is not known: HOME is not set",
                "write the whole path",
            ));
        }
        path
    });
    let source = match text(typed, &at("key_source")).as_deref() {
        Some("keychain") => KeySource::Keychain,
        Some("file") => KeySource::File,
        Some(_) => KeySource::Variable,
        None if file.is_some() => KeySource::File,
        None => KeySource::Variable,
    };
    let name = text(typed, &at("key_variable")).unwrap_or_else(|| variable.to_owned());
    let named = ["key_source", "key_file"].into_iter().find(|name| typed.get(&at(name)).is_some());
    let is_set = source == KeySource::Variable && around.variable(&name).is_some();
    let enabled = flag(typed, &at("enabled"));
    if enabled.is_none() && (named.is_some() || is_set) {
        let origin = match named {
            Some(named) => Origin::From(at(named)),
            None => Origin::Variable(name.clone()),
        };
        typed.0.insert(vec![section.to_owned(), "enabled".to_owned()], (Value::Bool(true), origin));
    }
    if source == KeySource::File && file.is_none() {
        let origin = typed.origin(&at("key_source"));
        found.push(Diagnostic::error(&origin, at("key_source"), "no file is named", format!("set {}", at("key_file"))));
    }
    if source != KeySource::File && file.is_some() {
        let origin = typed.origin(&at("key_file"));
        let why = format!("a file is named, but the key comes from {}", source.as_str());
        found.push(Diagnostic::error(
            &origin,
            at("key_file"),
            why,
            format!("remove it, or set {} to file", at("key_source")),
        ));
    }
    let ignored = enabled == Some(false) && is_set && section == "encryption";
    if ignored {
        let why = format!(
            "the variable {name} holds a key, but encryption is off: what is stored can be read by anyone who has the files"
        );
        found.push(Diagnostic::warning(
            &typed.origin(&at("enabled")),
            at("enabled"),
            why,
            "remove the setting to encrypt",
        ));
    }
    KeySettings { enabled: enabled.unwrap_or(named.is_some() || is_set), source, variable: name, file }
}

/// The three policies. What is set for all work counts more than what is only a default of one kind.
fn policies(typed: &Typed) -> (Policy, Policy, Policy) {
    let tree = typed.tree(&["policy"]);
    let mut all = patch(&tree);
    // Written down, the default means nothing: a number of rounds beside it still counts.
    if tree.get("checkpoint_on_loop_iteration") == Some(&Value::Bool(false))
        && tree.pointer("/triggers/loop_iteration").is_none()
    {
        all.triggers.remove(&Trigger::LoopIteration);
    }
    let policy = |work: Work, own: &PolicyPatch| {
        let mut base = work.policy();
        if tree.get("exclude_memory_keys").is_some() {
            base.exclude_keys = BTreeSet::new();
        }
        base.with(&all).with(own)
    };
    (
        policy(Work::Chat, &PolicyPatch::default()),
        policy(Work::Plan, &patch(&typed.tree(&["agent", "checkpoints"]))),
        policy(Work::Supervised, &patch(&typed.tree(&["supervised", "checkpoints"]))),
    )
}

/// The change that a section of policy settings makes.
pub(super) fn patch(tree: &Value) -> PolicyPatch {
    let flag = |key: &str| tree.get(key).and_then(Value::as_bool);
    let number = |key: &str| tree.get(key).and_then(Value::as_u64);
    let small = |key: &str| number(key).map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    let smart = tree.get("smart").cloned().unwrap_or_default();
    let mut patch = PolicyPatch {
        enabled: flag("enabled"),
        every_messages: small("every_messages"),
        every_seconds: small("every_seconds"),
        every_iterations: small("checkpoint_every_n_iterations"),
        asynchronous: flag("async_checkpoint"),
        include_conversations: flag("include_conversation_snapshots"),
        include_memory: flag("include_full_memory"),
        include_files: flag("include_files"),
        slow_node_ms: smart.get("slow_node_ms").and_then(Value::as_u64),
        risky_kinds: smart.get("risky_kinds").map(|kinds| list(kinds).into_iter().collect()),
        changed_keys: smart.get("changed_keys").and_then(Value::as_u64).and_then(|keys| u32::try_from(keys).ok()),
        max_checkpoints: small("max_checkpoints_per_session"),
        max_age_days: small("prune_after_days"),
        trash_days: small("trash_days"),
        clean_only: flag("keep_clean_checkpoints_only"),
        prune_every_nodes: small("prune_after_node_count"),
        ..PolicyPatch::default()
    };
    patch.exclude_keys.extend(tree.get("exclude_memory_keys").map(list).unwrap_or_default());
    for (key, trigger) in TRIGGER_FLAGS {
        patch.triggers.extend(flag(key).map(|takes| (trigger.clone(), takes)));
    }
    patch.triggers.extend(smart.get("enabled").and_then(Value::as_bool).map(|takes| (Trigger::Smart, takes)));
    if let Some(Value::Object(named)) = tree.get("triggers") {
        let named = named.iter().filter_map(|(name, takes)| Some((Trigger::from(name.clone()), takes.as_bool()?)));
        patch.triggers.extend(named);
    }
    patch
}

/// Settings that turn one trigger on or off.
pub(super) const TRIGGER_FLAGS: &[(&str, Trigger)] = &[
    ("checkpoint_on_node_start", Trigger::NodeStart),
    ("checkpoint_on_node_complete", Trigger::NodeComplete),
    ("checkpoint_on_edge", Trigger::EdgeTransition),
    ("checkpoint_on_loop_iteration", Trigger::LoopIteration),
    ("auto_checkpoint", Trigger::Step),
];

fn budget(typed: &Typed, found: &mut Vec<Diagnostic>) -> Budget {
    let default = Budget::default();
    let budget = Budget {
        tokens: number(typed, "budget.tokens").unwrap_or(default.tokens),
        reserve_tokens: number(typed, "budget.reserve_tokens").unwrap_or(default.reserve_tokens),
        last_messages: number(typed, "budget.last_messages").unwrap_or(default.last_messages),
    };
    if budget.reserve_tokens >= budget.tokens {
        let why = format!("{} tokens are kept free of {}: nothing is left", budget.reserve_tokens, budget.tokens);
        let (key, other) = match typed.get("budget.reserve_tokens") {
            Some(_) => ("budget.reserve_tokens", "make it smaller"),
            None => ("budget.tokens", "make it larger"),
        };
        found.push(Diagnostic::error(&typed.origin(key), key, why, other));
    }
    budget
}

fn summaries(typed: &Typed) -> Summaries {
    let mut summaries = Summaries::default();
    if let Some(Value::Object(readers)) = typed.tree(&["summaries"]).get("readers") {
        for (reader, of) in readers {
            summaries.readers.insert(reader.clone(), list(of).into_iter().collect());
        }
    }
    summaries
}

fn agents(typed: &Typed) -> std::collections::BTreeMap<String, AgentKind> {
    let Value::Object(kinds) = typed.tree(&["agents"]) else { return Default::default() };
    let text = |tree: &Value, key: &str| tree.get(key).and_then(Value::as_str).map(str::to_owned);
    let kinds = kinds.into_iter().map(|(name, tree)| {
        let kind = AgentKind {
            role: text(&tree, "role").unwrap_or_default(),
            instructions: tree.get("instructions").map(list).unwrap_or_default(),
            allowed_tools: tree.get("allowed_tools").map(list),
            tool_instructions: text(&tree, "tool_instructions"),
            policy: tree.get("policy").map(patch).unwrap_or_default(),
        };
        (name, kind)
    });
    kinds.collect()
}

fn templates(
    typed: &Typed,
    around: &Surroundings<'_>,
    found: &mut Vec<Diagnostic>,
) -> std::collections::BTreeMap<String, Template> {
    let Value::Object(named) = typed.tree(&["templates"]) else { return Default::default() };
    let mut out = std::collections::BTreeMap::new();
    for (name, tree) in named {
        let path = |key: &str| vec!["templates".to_owned(), name.clone(), key.to_owned()];
        let origin = |key: &str| typed.0.get(&path(key)).map_or(Origin::Default, |(_, origin)| origin.clone());
        let shown = suggest::show(&path("file"));
        match (tree.get("content").and_then(Value::as_str), tree.get("file").and_then(Value::as_str)) {
            (Some(content), None) => drop(out.insert(name, Template::Text(content.to_owned()))),
            (None, Some(file)) => {
                let inside =
                    Path::new(file).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
                if !inside {
                    let why = "a template lies below the directory of the configuration";
                    found.push(Diagnostic::error(
                        &origin("file"),
                        shown,
                        why,
                        "copy it there, and write a relative path without ..",
                    ));
                    continue;
                }
                let below = around.base(&origin("file"));
                out.insert(name, Template::File { below, path: file.into() });
            }
            (Some(_), Some(_)) => {
                found.push(Diagnostic::error(
                    &origin("file"),
                    shown,
                    "the template has a content as well",
                    "keep one of them",
                ));
            }
            (None, None) => {}
        }
    }
    out
}
