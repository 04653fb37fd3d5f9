//! What is set, to what, and by whom: for `milepost config show`.

use milepost_document::Origin;
use milepost_model::{Policy, Trigger};
use milepost_store::Durability;
use serde_json::{Value, json};

use super::schema;
use super::settings::{KeySettings, Settings, Template};
use super::suggest;
use super::usable::TRIGGER_FLAGS;

/// One setting: its value, and where it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Explained {
    /// Its name.
    pub key: String,
    /// Its value. Passwords in it are hidden.
    pub value: Value,
    /// Where it came from.
    pub origin: Origin,
    /// What it is for; empty for an entry with a name of the user's own.
    pub about: &'static str,
}

impl Settings {
    /// Every setting with its value and where it came from. Secrets are hidden. Plans and supervised processes are
    /// listed where they differ from the rest.
    pub fn explain(&self) -> Vec<Explained> {
        let about = schema::settings();
        let rows = self.rows().into_iter().map(|(path, value)| {
            let origin = self.origins.get(&path).cloned().unwrap_or(Origin::Default);
            let field = about.iter().find(|(known, _)| known.iter().copied().eq(path.iter().map(String::as_str)));
            Explained { key: suggest::show(&path), value, origin, about: field.map_or("", |(_, field)| field.about) }
        });
        rows.collect()
    }

    fn rows(&self) -> Vec<(Vec<String>, Value)> {
        let mut rows = Rows::default();
        rows.put("store", json!(self.store.to_string()));
        rows.put("workspace", json!(self.workspace));
        rows.put("blobs", json!(self.blobs.as_ref().map(ToString::to_string)));
        rows.put("durability", json!(if self.durability == Durability::Turn { "turn" } else { "full" }));
        rows.key("encryption", &self.encryption);
        rows.key("signing", &self.signing);
        let general = policy_rows(&self.policy);
        for (key, value) in &general {
            rows.put(&format!("policy.{key}"), value.clone());
        }
        for (section, policy) in [("agent.checkpoints", &self.plans), ("supervised.checkpoints", &self.supervised)] {
            for row in policy_rows(policy) {
                let key = format!("{section}.{}", row.0);
                let is_set = self.origins.contains_key(&key.split('.').map(str::to_owned).collect::<Vec<_>>());
                if is_set || !general.contains(&row) {
                    rows.put(&key, row.1);
                }
            }
        }
        rows.put("agent.checkpoints.auto_checkpoint", json!(is_on(&self.plans, &Trigger::Step)));
        rows.put("compression.enabled", json!(self.compression.enabled));
        rows.put("compression.threshold_bytes", json!(self.compression.threshold_bytes));
        rows.put("redaction.enabled", json!(self.redaction.enabled));
        rows.put("redaction.vault", json!(self.redaction.vault));
        rows.put("redaction.patterns", json!(self.redaction.patterns));
        rows.put("redaction.allow", json!(self.redaction.allow));
        rows.put("budget.tokens", json!(self.budget.tokens));
        rows.put("budget.reserve_tokens", json!(self.budget.reserve_tokens));
        rows.put("budget.last_messages", json!(self.budget.last_messages));
        for (reader, of) in &self.summaries.readers {
            rows.named(&["summaries", "readers", reader], json!(of));
        }
        rows.put("model", json!(self.model));
        for (name, model) in &self.models {
            let mut put = |key: &str, value: Value| {
                if !value.is_null() {
                    rows.named(
                        &[&["models", name.as_str()], key.split('.').collect::<Vec<_>>().as_slice()].concat(),
                        value,
                    );
                }
            };
            put("provider", json!(model.provider));
            put("model", json!(model.model));
            put("base_url", json!(model.base_url.as_ref().map(ToString::to_string)));
            put("key_variable", json!(model.key_variable));
            put("key_command", json!(model.key_command));
            put("allow_http", json!(model.allow_http));
            model.timeouts.iter().for_each(|(key, ms)| put(&format!("timeouts.{key}"), json!(ms)));
            model.prices.iter().for_each(|(key, usd)| put(&format!("prices.{key}"), json!(usd)));
            for (key, value) in &model.headers {
                rows.named(&["models", name, "headers", key], json!(value));
            }
        }
        for (name, kind) in &self.agents {
            rows.named(&["agents", name, "role"], json!(kind.role));
            rows.named(&["agents", name, "instructions"], json!(kind.instructions));
            rows.named(&["agents", name, "allowed_tools"], json!(kind.allowed_tools));
            rows.named(&["agents", name, "tool_instructions"], json!(kind.tool_instructions));
            if !kind.policy.is_empty() {
                rows.named(&["agents", name, "policy"], json!(kind.policy));
            }
        }
        for (name, template) in &self.templates {
            match template {
                Template::Text(text) => rows.named(&["templates", name, "content"], json!(text)),
                Template::File { path, .. } => rows.named(&["templates", name, "file"], json!(path)),
            }
        }
        rows.0
    }
}

#[derive(Default)]
struct Rows(Vec<(Vec<String>, Value)>);

impl Rows {
    fn put(&mut self, key: &str, value: Value) {
        self.0.push((key.split('.').map(str::to_owned).collect(), value));
    }

    fn named(&mut self, path: &[&str], value: Value) {
        self.0.push((path.iter().map(|&part| part.to_owned()).collect(), value));
    }

    fn key(&mut self, section: &str, key: &KeySettings) {
        self.put(&format!("{section}.enabled"), json!(key.enabled));
        self.put(&format!("{section}.key_source"), json!(key.source.as_str()));
        self.put(&format!("{section}.key_variable"), json!(key.variable));
        self.put(&format!("{section}.key_file"), json!(key.file));
    }
}

/// Whether a trigger is on, leaving aside whether checkpoints are on at all.
fn is_on(policy: &Policy, trigger: &Trigger) -> bool {
    match trigger {
        // How many rounds is a setting of its own.
        Trigger::LoopIteration => policy.on.contains(trigger),
        _ => Policy { enabled: true, ..policy.clone() }.takes(trigger),
    }
}

fn policy_rows(policy: &Policy) -> Vec<(String, Value)> {
    let mut rows = vec![
        ("enabled", json!(policy.enabled)),
        ("every_messages", json!(policy.every_messages)),
        ("every_seconds", json!(policy.every_seconds)),
        ("checkpoint_every_n_iterations", json!(policy.every_iterations)),
    ];
    let flags = TRIGGER_FLAGS.iter().filter(|(_, trigger)| *trigger != Trigger::Step);
    rows.extend(flags.map(|(key, trigger)| (*key, json!(is_on(policy, trigger)))));
    rows.extend([
        ("smart.enabled", json!(is_on(policy, &Trigger::Smart))),
        ("smart.slow_node_ms", json!(policy.smart.slow_node_ms)),
        ("smart.risky_kinds", json!(policy.smart.risky_kinds)),
        ("smart.changed_keys", json!(policy.smart.changed_keys)),
        ("async_checkpoint", json!(policy.asynchronous)),
        ("include_conversation_snapshots", json!(policy.include.conversations)),
        ("include_full_memory", json!(policy.include.memory)),
        ("include_files", json!(policy.include.files)),
        ("exclude_memory_keys", json!(policy.exclude_keys)),
        ("max_checkpoints_per_session", json!(policy.retention.max_checkpoints)),
        ("prune_after_days", json!(policy.retention.max_age_days)),
        ("trash_days", json!(policy.retention.trash_days)),
        ("keep_clean_checkpoints_only", json!(policy.retention.clean_only)),
        ("prune_after_node_count", json!(policy.retention.prune_every_nodes)),
    ]);
    let mut rows: Vec<_> = rows.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let has_flag = |trigger: &Trigger| {
        *trigger == Trigger::Smart || TRIGGER_FLAGS.iter().any(|(_, of)| of == trigger && *of != Trigger::Step)
    };
    let others =
        policy.on.iter().map(|trigger| (trigger, true)).chain(policy.off.iter().map(|trigger| (trigger, false)));
    rows.extend(
        others
            .filter(|(trigger, takes)| !has_flag(trigger) || (**trigger == Trigger::LoopIteration && !takes))
            .map(|(trigger, takes)| (format!("triggers.{trigger}"), json!(takes))),
    );
    rows
}
