//! Every setting: its name, its other names, what may stand there, what it is for.
//!
//! To add a setting: a line here, a field in `settings.rs`, a line each in `usable.rs` and `explain.rs`, and one in
//! `examples/milepost.yaml`. A test compares them.

use super::models::PROVIDERS;

/// What may stand at a setting.
#[derive(Debug)]
pub(super) enum Shape {
    /// `true` or `false`.
    Flag,
    /// A whole number in a range.
    Number { min: u64, max: u64 },
    /// An amount of money in dollars, with cents and less.
    Amount,
    /// A text.
    Text,
    /// A URL, which may hold a password.
    Url,
    /// A path; a relative one begins at the file's directory.
    Path,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list of texts; one text is a list of one.
    Texts,
    /// A list of regular expressions.
    Patterns,
    /// Settings with names.
    Section(&'static [&'static [Field]]),
    /// Entries with names of the user's own.
    Named(&'static Shape),
}

/// A setting or a section.
#[derive(Debug)]
pub(super) struct Field {
    /// Its name, in snake case. Camel case is taken too.
    pub name: &'static str,
    /// Its other names.
    pub also: &'static [&'static str],
    /// What may stand there.
    pub shape: Shape,
    /// Where it really belongs, when this is only another place for it.
    pub to: Option<&'static str>,
    /// What it is for.
    pub about: &'static str,
}

const fn field(name: &'static str, also: &'static [&'static str], shape: Shape, about: &'static str) -> Field {
    Field { name, also, shape, to: None, about }
}

const fn moved(name: &'static str, also: &'static [&'static str], shape: Shape, to: &'static str) -> Field {
    Field { name, also, shape, to: Some(to), about: "" }
}

const ANY: Shape = Shape::Number { min: 0, max: u32::MAX as u64 };
const DAYS: Shape = Shape::Number { min: 0, max: 36_500 };
const KEEP: Shape = Shape::Number { min: 1, max: 1_000_000 };

/// Where the key comes from.
pub(super) const KEY_SOURCES: &[&str] = &["keychain", "env_var", "file"];
/// When an append is durable.
pub(super) const DURABILITIES: &[&str] = &["full", "turn"];
/// What the older name `storage_backend` may say.
pub(super) const BACKENDS: &[&str] = &["sqlite", "local", "postgres", "s3", "gcs", "azure", "file", "memory"];

const SMART: &[Field] = &[
    field("enabled", &[], Shape::Flag, "checkpoints after slow nodes, before risky ones, after large changes"),
    field(
        "slow_node_ms",
        &[],
        Shape::Number { min: 0, max: 86_400_000 },
        "a run takes one after a node that took longer; 0 for never",
    ),
    field("risky_kinds", &[], Shape::Texts, "a run takes one before nodes of these kinds"),
    field("changed_keys", &[], ANY, "more changed memory keys than this are many; 0 for never"),
];

/// When checkpoints are taken and what is kept. Stands at several places.
const POLICY: &[Field] = &[
    field("enabled", &["checkpoints_enabled"], Shape::Flag, "checkpoints are taken without being asked for"),
    field("every_messages", &["checkpoint_every_n_messages"], ANY, "a checkpoint after so many messages; 0 for never"),
    field("every_seconds", &["interval_seconds"], ANY, "a checkpoint after so many seconds of activity; 0 for never"),
    field(
        "checkpoint_every_n_iterations",
        &["every_iterations"],
        ANY,
        "a checkpoint after so many rounds of a loop; 0 for never",
    ),
    field("checkpoint_on_node_start", &[], Shape::Flag, "a checkpoint before each node"),
    field("checkpoint_on_node_complete", &[], Shape::Flag, "a checkpoint after each node"),
    field("checkpoint_on_edge", &["checkpoint_on_edge_transition"], Shape::Flag, "a checkpoint on each edge"),
    field("checkpoint_on_loop_iteration", &[], Shape::Flag, "a checkpoint in each round of a loop"),
    field("triggers", &[], Shape::Named(&Shape::Flag), "any trigger by its name, on or off"),
    field("smart", &["smart_triggers"], Shape::Section(&[SMART]), "what the trigger smart looks for"),
    field("async_checkpoint", &["asynchronous"], Shape::Flag, "saving does not make the agent wait"),
    field(
        "include_conversation_snapshots",
        &["include_conversations"],
        Shape::Flag,
        "checkpoint files beside the store hold the conversations of nodes and subagents; the store has them in any case",
    ),
    field(
        "include_full_memory",
        &["include_memory"],
        Shape::Flag,
        "checkpoint files beside the store hold the shared memory; the store has it in any case",
    ),
    field(
        "include_files",
        &[],
        Shape::Flag,
        "checkpoints hold the working directory's files, where a run takes snapshots",
    ),
    field("exclude_memory_keys", &["exclude_keys"], Shape::Texts, "state keys that are never stored"),
    field("max_checkpoints_per_session", &["max_checkpoints"], KEEP, "at most so many checkpoints a session"),
    field("prune_after_days", &["max_age_days"], DAYS, "checkpoints older than this go; 0 for never"),
    field("trash_days", &[], DAYS, "how long what was pruned stays in the trash"),
    field("keep_clean_checkpoints_only", &["clean_only"], Shape::Flag, "checkpoints that are not clean go first"),
    field(
        "prune_after_node_count",
        &["prune_every_nodes"],
        ANY,
        "old checkpoints are looked for after so many new ones, and at once when there are too many; 0 for only when a session pauses or ends",
    ),
];

/// Settings that other designs count among the policy's.
const POLICY_MOVED: &[Field] = &[
    moved("storage_url", &[], Shape::Url, "store"),
    moved("storage_backend", &[], Shape::Choice(BACKENDS), "storage_backend"),
    moved("compress", &[], Shape::Flag, "compression.enabled"),
    moved("compression_threshold_bytes", &[], ANY, "compression.threshold_bytes"),
    moved("encrypt_checkpoints", &[], Shape::Flag, "encryption.enabled"),
    moved("encryption_key_source", &[], Shape::Choice(KEY_SOURCES), "encryption.key_source"),
];

/// Another place for what is kept.
const RETENTION: &[Field] = &[
    moved("max_checkpoints", &["max_checkpoints_per_session"], KEEP, "policy.max_checkpoints_per_session"),
    moved("max_age_days", &["prune_after_days"], DAYS, "policy.prune_after_days"),
    moved("trash_days", &[], DAYS, "policy.trash_days"),
    moved("clean_only", &["keep_clean_checkpoints_only"], Shape::Flag, "policy.keep_clean_checkpoints_only"),
    moved("prune_every_nodes", &["prune_after_node_count"], ANY, "policy.prune_after_node_count"),
];

const PLANS: &[Field] = &[
    field("auto_checkpoint", &[], Shape::Flag, "a checkpoint after each step"),
    moved("compress_state", &[], Shape::Flag, "compression.enabled"),
];

const AGENT: &[Field] = &[field("checkpoints", &[], Shape::Section(&[PLANS, POLICY]), "the policy of plans")];
const SUPERVISED: &[Field] =
    &[field("checkpoints", &[], Shape::Section(&[POLICY]), "the policy of supervised processes")];

const ENCRYPTION: &[Field] = &[
    field("enabled", &[], Shape::Flag, "what users wrote is encrypted"),
    field("key_source", &[], Shape::Choice(KEY_SOURCES), "where the master key is"),
    field("key_variable", &[], Shape::Text, "the variable that holds the master key"),
    field("key_file", &[], Shape::Path, "the file that holds the master key"),
];

const SIGNING: &[Field] = &[
    field("enabled", &[], Shape::Flag, "marks are signed, and checked when they are loaded"),
    field("key_source", &[], Shape::Choice(KEY_SOURCES), "where the marks' key is"),
    field("key_variable", &[], Shape::Text, "the variable that holds the marks' key"),
    field("key_file", &[], Shape::Path, "the file that holds the marks' key"),
];

const COMPRESSION: &[Field] = &[
    field("enabled", &[], Shape::Flag, "checkpoint files beside the store are compressed"),
    field("threshold_bytes", &["compression_threshold_bytes"], ANY, "those that are larger than this"),
];

const REDACTION: &[Field] = &[
    field("enabled", &[], Shape::Flag, "secrets are replaced before anything is stored"),
    field("vault", &[], Shape::Flag, "secrets are kept, encrypted, for an authorised resume"),
    field("patterns", &["extra_patterns"], Shape::Patterns, "further texts that are secrets"),
    field("allow", &[], Shape::Patterns, "texts that look like secrets and are none"),
];

const BUDGET: &[Field] = &[
    field(
        "tokens",
        &["budget_tokens"],
        Shape::Number { min: 1000, max: 100_000_000 },
        "the largest request, in tokens",
    ),
    field("reserve_tokens", &[], Shape::Number { min: 0, max: 10_000_000 }, "kept free for the user's message"),
    field(
        "last_messages",
        &["last_n"],
        Shape::Number { min: 1, max: 100_000 },
        "the newest messages that a request holds",
    ),
];

const SUMMARIES: &[Field] =
    &[field("readers", &[], Shape::Named(&Shape::Texts), "which kinds of agents may read whose summaries; * for all")];

const KIND: &[Field] = &[
    field("role", &[], Shape::Text, "who the agent is"),
    field("instructions", &[], Shape::Texts, "what it is told"),
    field("allowed_tools", &[], Shape::Texts, "the tools that it may use; all when there is no list"),
    field("tool_instructions", &[], Shape::Text, "how it is to use them"),
    field("policy", &[], Shape::Section(&[POLICY]), "its own policy"),
];

const TEMPLATE: &[Field] = &[
    field("content", &[], Shape::Text, "the text, with {{name}} where something is filled in"),
    field("file", &[], Shape::Path, "the file with the text, below the configuration's directory"),
];

const PRICES: &[Field] = &[
    field("input", &[], Shape::Amount, "dollars for a million tokens that are sent"),
    field("output", &[], Shape::Amount, "dollars for a million tokens that come back"),
    field("cache_read", &[], Shape::Amount, "dollars for a million tokens that are read from the cache"),
    field("cache_write", &[], Shape::Amount, "dollars for a million tokens that are written to the cache"),
];

const TIMES: Shape = Shape::Number { min: 1, max: 86_400_000 };
const TIMEOUTS: &[Field] = &[
    field("connect_ms", &[], TIMES, "until there is a connection"),
    field("first_byte_ms", &[], TIMES, "until the first byte of the answer"),
    field("progress_ms", &[], TIMES, "between two pieces of the answer"),
    field("whole_ms", &[], TIMES, "for everything"),
];

const MODEL: &[Field] = &[
    field("provider", &[], Shape::Choice(PROVIDERS), "who is asked"),
    field("model", &[], Shape::Text, "the provider's name of the model; for scripted, the script's file"),
    field("base_url", &[], Shape::Url, "where the API is"),
    field("key_variable", &["api_key_variable", "api_key_env"], Shape::Text, "the variable that holds the key"),
    field("key_command", &["api_key_command"], Shape::Text, "the command that writes the key"),
    field("allow_http", &[], Shape::Flag, "a key may travel unencrypted to another machine"),
    field("timeouts", &[], Shape::Section(&[TIMEOUTS]), "how long a call may take"),
    field("headers", &[], Shape::Named(&Shape::Text), "further headers of every request; not for keys"),
    field("prices", &[], Shape::Section(&[PRICES]), "what it costs"),
];

/// The whole configuration.
pub(super) const ROOT: Shape = Shape::Section(&[&[
    field("store", &["storage_url"], Shape::Url, "where sessions are kept"),
    moved("storage_backend", &[], Shape::Choice(BACKENDS), "storage_backend"),
    field("workspace", &[], Shape::Text, "whose sessions"),
    field("blobs", &[], Shape::Url, "an object store for large payloads, beside PostgreSQL"),
    field("durability", &[], Shape::Choice(DURABILITIES), "when an append is durable"),
    field("encryption", &[], Shape::Section(&[ENCRYPTION]), "encryption of what users wrote"),
    field("signing", &[], Shape::Section(&[SIGNING]), "signatures of marks"),
    field(
        "policy",
        &["checkpoints"],
        Shape::Section(&[POLICY, POLICY_MOVED]),
        "when checkpoints are taken, what is kept",
    ),
    field("retention", &[], Shape::Section(&[RETENTION]), "another place for what is kept"),
    field("agent", &[], Shape::Section(&[AGENT]), "plans"),
    field("supervised", &[], Shape::Section(&[SUPERVISED]), "supervised processes"),
    field("compression", &[], Shape::Section(&[COMPRESSION]), "checkpoint files beside the store"),
    field("redaction", &[], Shape::Section(&[REDACTION]), "secrets"),
    field("budget", &[], Shape::Section(&[BUDGET]), "the size of requests"),
    field("summaries", &[], Shape::Section(&[SUMMARIES]), "summaries read by other agents"),
    field("model", &[], Shape::Text, "the model that runs and chats ask: PROVIDER/MODEL, or a name of models"),
    field("models", &[], Shape::Named(&Shape::Section(&[MODEL])), "models of your own"),
    field("agents", &[], Shape::Named(&Shape::Section(&[KIND])), "kinds of agents of your own"),
    field("templates", &[], Shape::Named(&Shape::Section(&[TEMPLATE])), "templates of artifacts"),
]]);

/// How a change to a policy is stored: without a section for `smart`.
const POLICY_STORED: &[Field] = &[
    moved("slow_node_ms", &[], Shape::Number { min: 0, max: 86_400_000 }, "smart.slow_node_ms"),
    moved("risky_kinds", &[], Shape::Texts, "smart.risky_kinds"),
    moved("changed_keys", &[], ANY, "smart.changed_keys"),
];

/// A policy alone.
pub(super) const POLICY_ONLY: Shape = Shape::Section(&[POLICY, POLICY_STORED]);

/// The field of a section with this name, in snake case.
pub(super) fn lookup(section: &'static [&'static [Field]], name: &str) -> Option<&'static Field> {
    let mut fields = section.iter().copied().flatten();
    fields.find(|field| field.name == name || field.also.contains(&name))
}

/// Every setting that has a fixed name, with its path; those that are only another place for one, too.
pub(super) fn settings() -> Vec<(Vec<&'static str>, &'static Field)> {
    let mut found = Vec::new();
    let mut open = vec![(Vec::new(), &ROOT)];
    while let Some((path, shape)) = open.pop() {
        let Shape::Section(groups) = shape else { continue };
        for field in groups.iter().copied().flatten() {
            let mut path: Vec<&'static str> = path.clone();
            path.push(field.name);
            match &field.shape {
                section @ Shape::Section(_) => open.push((path, section)),
                _ => found.push((path, field)),
            }
        }
    }
    found
}

/// `maxCheckpoints` as `max_checkpoints`.
pub(super) fn snake(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 4);
    for (at, c) in name.char_indices() {
        match c.is_ascii_uppercase() && at > 0 {
            true => out.extend(['_', c.to_ascii_lowercase()]),
            false => out.push(c),
        }
    }
    out
}

/// The variable of a setting.
pub(super) fn variable(path: &[&str]) -> String {
    format!("MILEPOST_{}", path.join("_").to_ascii_uppercase())
}
