//! The second stage: settings as they are used. Every value is checked and every path is whole.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use milepost_document::{Diagnostic, Origin};
use milepost_model::{Policy, PolicyPatch, WorkspaceId};
use milepost_store::Durability;

use super::models::ModelSettings;

/// Everything that can be set, as it is used.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where sessions are kept.
    pub store: Url,
    /// Whose sessions.
    pub workspace: WorkspaceId,
    /// An object store for large payloads, beside PostgreSQL.
    pub blobs: Option<Url>,
    /// When an append is durable.
    pub durability: Durability,
    /// The key that encrypts.
    pub encryption: KeySettings,
    /// The key that signs marks.
    pub signing: KeySettings,
    /// The policy of chats and graphs.
    pub policy: Policy,
    /// The policy of plans.
    pub plans: Policy,
    /// The policy of supervised processes.
    pub supervised: Policy,
    /// Compression of checkpoint files beside the store: mirrors and exports. The store itself compresses what gets smaller.
    pub compression: Compression,
    /// What counts as a secret.
    pub redaction: Redaction,
    /// How large requests may be.
    pub budget: Budget,
    /// Who may read whose summaries.
    pub summaries: Summaries,
    /// The model that runs and chats ask: a name of `models`, or `PROVIDER/MODEL`.
    pub model: Option<String>,
    /// Models of the user's own.
    pub models: BTreeMap<String, ModelSettings>,
    /// Kinds of agents of the user's own.
    pub agents: BTreeMap<String, AgentKind>,
    /// Templates of artifacts.
    pub templates: BTreeMap<String, Template>,
    pub(super) origins: BTreeMap<Vec<String>, Origin>,
    pub(super) warnings: Vec<Diagnostic>,
}

/// The same settings, wherever they came from.
impl PartialEq for Settings {
    fn eq(&self, other: &Self) -> bool {
        let Self { store, workspace, blobs, durability, encryption, signing, policy, plans, .. } = self;
        let Self { supervised, compression, redaction, budget, summaries, agents, templates, .. } = self;
        *store == other.store
            && *workspace == other.workspace
            && *blobs == other.blobs
            && *durability == other.durability
            && *encryption == other.encryption
            && *signing == other.signing
            && (policy, plans, supervised) == (&other.policy, &other.plans, &other.supervised)
            && *compression == other.compression
            && *redaction == other.redaction
            && *budget == other.budget
            && *summaries == other.summaries
            && (&self.model, &self.models) == (&other.model, &other.models)
            && *agents == other.agents
            && *templates == other.templates
    }
}

/// What kind of work a session is; each has its own defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A chat, or a run of a graph.
    Chat,
    /// A plan in steps: 10 checkpoints are kept.
    Plan,
    /// A supervised process: 10 checkpoints are kept, one is taken every 10 minutes.
    Supervised,
}

impl Work {
    /// The policy of such work when nothing is set.
    pub fn policy(self) -> Policy {
        let mut policy = Policy::default();
        match self {
            Work::Chat => {}
            Work::Plan => policy.retention.max_checkpoints = 10,
            Work::Supervised => {
                policy.retention.max_checkpoints = 10;
                policy.every_seconds = 600;
            }
        }
        policy
    }
}

impl Settings {
    /// The policy in force: the configuration's for such work, then the agent's kind's, then the session's own, then
    /// this run's. Each later one changes only what it names; what one leaves out of checkpoints stays left out.
    pub fn policy_for(
        &self,
        work: Work,
        agent: Option<&str>,
        session: Option<&PolicyPatch>,
        run: Option<&PolicyPatch>,
    ) -> Policy {
        let base = match work {
            Work::Chat => &self.policy,
            Work::Plan => &self.plans,
            Work::Supervised => &self.supervised,
        };
        let kind = agent.and_then(|kind| self.agents.get(kind)).map(|kind| &kind.policy);
        [kind, session, run].into_iter().flatten().fold(base.clone(), |policy, patch| policy.with(patch))
    }

    /// The provider's name of the model that is asked, where one is set.
    pub fn model_name(&self) -> Option<&str> {
        let given = self.model.as_deref()?;
        Some(self.models.get(given).map_or(given, |model| &model.model))
    }

    /// What is probably not meant, though it can be used.
    pub fn warnings(&self) -> &[Diagnostic] {
        &self.warnings
    }
}

/// A URL that may hold a password. Printing it leaves that out.
#[derive(Clone, PartialEq, Eq)]
pub struct Url(String);

impl Url {
    /// Takes a URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// The URL for a command that somebody is to type: as it is, unless it holds a password.
    pub fn to_type(&self) -> String {
        if crate::keep::has_password(&self.0) { self.to_string() } else { self.0.clone() }
    }

    /// The whole URL, with the password that may be in it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hidden(&self.0))
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", hidden(&self.0))
    }
}

/// A URL without its password and without the values of its query, in which passwords stand as well.
fn hidden(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) => (rest, Some(query)),
        None => (rest, None),
    };
    let place = match rest.rsplit_once('@') {
        Some((who, place)) => match who.split_once(':') {
            Some((user, _)) => format!("{user}:…@{place}"),
            None => rest.to_owned(),
        },
        None => rest.to_owned(),
    };
    let query = query.map(|query| {
        let names = query.split('&').map(|pair| match pair.split_once('=') {
            Some((name, _)) => format!("{name}=…"),
            None => "…".to_owned(),
        });
        format!("?{}", names.collect::<Vec<_>>().join("&"))
    });
    format!("{scheme}://{place}{}", query.unwrap_or_default())
}

/// Where a key is kept. The key itself never stands in a configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KeySource {
    /// The operating system's keychain.
    Keychain,
    /// An environment variable.
    #[default]
    Variable,
    /// A file of its own.
    File,
}

impl KeySource {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            KeySource::Keychain => "keychain",
            KeySource::Variable => "env_var",
            KeySource::File => "file",
        }
    }
}

/// Whether a key is used, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySettings {
    /// Whether it is used.
    pub enabled: bool,
    /// Where it is.
    pub source: KeySource,
    /// The variable that holds it.
    pub variable: String,
    /// The file that holds it.
    pub file: Option<PathBuf>,
}

/// Compression of checkpoint files beside the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compression {
    /// Whether they are compressed.
    pub enabled: bool,
    /// Those larger than this.
    pub threshold_bytes: u64,
}

impl Default for Compression {
    fn default() -> Self {
        Self { enabled: true, threshold_bytes: 100_000 }
    }
}

/// What counts as a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redaction {
    /// Whether secrets are replaced before anything is stored.
    pub enabled: bool,
    /// Whether they are kept, encrypted, so that an authorised resume gets them back. Needs encryption.
    pub vault: bool,
    /// Further texts that are secrets: regular expressions.
    pub patterns: Vec<String>,
    /// Texts that look like secrets and are none: regular expressions.
    pub allow: Vec<String>,
}

impl Default for Redaction {
    fn default() -> Self {
        Self { enabled: true, vault: false, patterns: Vec::new(), allow: Vec::new() }
    }
}

/// How large requests may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// The largest request, in tokens.
    pub tokens: u64,
    /// Kept free for the user's message.
    pub reserve_tokens: u64,
    /// The newest messages that a request holds.
    pub last_messages: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { tokens: 100_000, reserve_tokens: 1000, last_messages: 50 }
    }
}

/// Which kinds of agents may read the summaries of which others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summaries {
    /// A reader's kind, and the kinds that it may read; `*` for all.
    pub readers: BTreeMap<String, BTreeSet<String>>,
}

impl Default for Summaries {
    /// QA reads what development did, merging reads both, project management reads all.
    fn default() -> Self {
        let rules: [(&str, &[&str]); 3] = [("qa", &["dev"]), ("merge", &["dev", "qa"]), ("pm", &["*"])];
        let readers = rules.map(|(reader, of)| (reader.to_owned(), of.iter().map(|&kind| kind.to_owned()).collect()));
        Self { readers: readers.into() }
    }
}

/// A kind of agent of the user's own.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AgentKind {
    /// Who the agent is.
    pub role: String,
    /// What it is told.
    pub instructions: Vec<String>,
    /// The tools that it may use; all when none.
    pub allowed_tools: Option<Vec<String>>,
    /// How it is to use them.
    pub tool_instructions: Option<String>,
    /// How its policy differs.
    pub policy: PolicyPatch,
}

/// A template of artifacts, as it is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Template {
    /// The text itself.
    Text(String),
    /// A file below a directory; it must not lead out of it.
    File {
        /// The directory.
        below: PathBuf,
        /// The file, relative to it.
        path: PathBuf,
    },
}
